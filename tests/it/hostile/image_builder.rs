//! Builds the images of the table.

use crate::harness::bundle::Bundle;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// The target of a link.
#[derive(Clone, Copy, Debug)]
pub enum LinkTarget {
    /// The canary, by an absolute path.
    Canary(&'static str),
    /// The canary, by more `..` than there are directories.
    Up(&'static str),
    /// The canary, through a magic link of the kernel such as `/proc/1/root`.
    Magic(&'static str, &'static str),
    /// This text.
    Text(&'static str),
}

/// The content of a path of the image.
#[derive(Clone, Copy, Debug)]
pub enum Content {
    Link(LinkTarget),
    /// A hard link to a file of the canary.
    Hard(&'static str),
    Dir,
    File(&'static str),
    /// A file of this many blank lines of 64 bytes, which loaders accept silently.
    Long(usize),
    Pipe,
    Socket,
    /// `/dev/null` by its numbers.
    Device,
    Nothing,
    Mode(u32),
    /// Sets the immutable attribute: not even root can change the file.
    Immutable,
}

/// One step of a build.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Replaces a path by this content.
    At(&'static str, Content),
    /// Mounts the canary's path over the container's.
    Over(&'static str, &'static str),
    /// Mounts a new file system of a type over the container's path.
    Fresh(&'static str, &'static str, &'static [&'static str]),
    /// Changes the configuration.
    Config(fn(&mut Value)),
    /// Runs a function on the root file system and the canary.
    With(fn(&Path, &Path)),
}

/// Makes the canary: everything the hook looks for, at places where an image's links may lead.
pub fn canary(root: &Path) -> PathBuf {
    let dir = root.join("canary");
    for sub in ["etc", "run", "dev", "lib", "listed", "driver", "empty"] {
        fs::create_dir_all(dir.join(sub)).expect("a directory");
    }
    for file in ["listed/ld.so.preload", "driver/libcuda.so.1", "file"] {
        fs::write(dir.join(file), "/opt/untouched.so\n").expect("a file");
    }
    dir
}

impl LinkTarget {
    fn path(self, canary: &Path) -> PathBuf {
        let below = |to: &str| {
            let path = canary.join(to);
            path.strip_prefix("/").expect("absolute").to_owned()
        };
        match self {
            LinkTarget::Canary(to) => canary.join(to),
            LinkTarget::Up(to) => Path::new(&"../".repeat(24)).join(below(to)),
            LinkTarget::Magic(by, to) => Path::new(by).join(below(to)),
            LinkTarget::Text(text) => text.into(),
        }
    }
}

fn clear(path: &Path) {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path).expect("ours"),
        Ok(_) => fs::remove_file(path).expect("ours"),
        Err(_) => {}
    }
    fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
}

fn put(content: Content, at: &Path, canary: &Path) {
    if !matches!(content, Content::Mode(_) | Content::Immutable) {
        clear(at);
    }
    match content {
        Content::Link(to) => symlink(to.path(canary), at).expect("a link"),
        Content::Hard(of) => fs::hard_link(canary.join(of), at).expect("a second name"),
        Content::Dir => fs::create_dir(at).expect("a directory"),
        Content::File(text) => fs::write(at, text).expect("a file"),
        Content::Long(lines) => {
            let mut file = fs::File::create(at).expect("a file");
            for _ in 0..lines {
                writeln!(file, "{:63}", "").expect("written");
            }
        }
        Content::Pipe => mkfifo(at, Mode::S_IRWXU).expect("a pipe"),
        Content::Socket => drop(UnixListener::bind(at).expect("a socket")),
        Content::Device => {
            mknod(at, SFlag::S_IFCHR, Mode::S_IRUSR, makedev(1, 3)).expect("a device");
        }
        Content::Nothing => {}
        Content::Mode(mode) => {
            fs::set_permissions(at, fs::Permissions::from_mode(mode)).expect("ours");
        }
        Content::Immutable => drop(chattr("+i", at)),
    }
}

/// Sets or clears a file attribute; whether that succeeded.
pub fn chattr(change: &str, at: &Path) -> bool {
    let mut command = std::process::Command::new("chattr");
    command.arg(change).arg(at).stderr(std::process::Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Step {
    /// Applies the step to a container's bundle.
    pub fn onto(self, bundle: Bundle, canary: &Path) -> Bundle {
        match self {
            Step::At(path, content) => put(content, &bundle.rootfs().join(path), canary),
            Step::With(act) => act(&bundle.rootfs(), canary),
            Step::Over(to, from) => {
                return bundle.mount(to, "bind", &canary.join(from), &["rbind"]);
            }
            Step::Fresh(to, kind, options) => {
                return bundle.mount(to, kind, Path::new(kind), options);
            }
            Step::Config(edit) => return bundle.edit(edit),
        }
        bundle
    }
}

/// Maps the container's users to 100000 and up on the host.
pub fn user_namespace(config: &mut Value) {
    let mapped = json!([{ "containerID": 0, "hostID": 100_000, "size": 65_536 }]);
    let linux = &mut config["linux"];
    let namespaces = linux["namespaces"].as_array_mut().expect("a list");
    namespaces.push(json!({ "type": "user" }));
    (linux["uidMappings"], linux["gidMappings"]) = (mapped.clone(), mapped);
}

/// Shares the host's pid namespace, as in a pod with `hostPID`.
pub fn hosts_processes(config: &mut Value) {
    let namespaces = config["linux"]["namespaces"].as_array_mut();
    namespaces.expect("a list").retain(|entry| entry["type"] != "pid");
}

/// Moves everything to `/usr`, as in today's distributions.
pub fn merge_usr(rootfs: &Path, _: &Path) {
    fs::create_dir_all(rootfs.join("usr")).expect("a directory");
    for name in ["lib", "lib64", "bin"] {
        fs::rename(rootfs.join(name), rootfs.join("usr").join(name)).expect("moved");
        symlink(Path::new("usr").join(name), rootfs.join(name)).expect("a link");
    }
}
