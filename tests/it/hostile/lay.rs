//! How an image of the table is made.

use crate::harness::bundle::Bundle;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Where a link leads.
#[derive(Clone, Copy, Debug)]
pub enum To {
    /// To the canary, from `/` on.
    Canary(&'static str),
    /// To the canary by more `..` than there are directories.
    Up(&'static str),
    /// To the canary through a link of the kernel's: `/proc/1/root`.
    Magic(&'static str, &'static str),
    /// Where the text says.
    Text(&'static str),
}

/// What is at a path of the image.
#[derive(Clone, Copy, Debug)]
pub enum Thing {
    Link(To),
    /// Another name of a file of the canary's.
    Hard(&'static str),
    Dir,
    File(&'static str),
    /// A file of this many blank lines of 64 bytes, which loaders take without a word.
    Long(usize),
    Pipe,
    Socket,
    /// `/dev/null` by its numbers.
    Device,
    Nothing,
    Mode(u32),
    /// It cannot be changed, not even by root.
    Immutable,
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub enum Lay {
    /// A thing at a path; what was there goes.
    At(&'static str, Thing),
    /// The canary's path over the container's.
    Over(&'static str, &'static str),
    /// A file system of a kind over the container's path.
    Fresh(&'static str, &'static str, &'static [&'static str]),
    /// A change of the configuration.
    Config(fn(&mut Value)),
    /// Anything else.
    With(fn(&Path, &Path)),
}

/// What the canary has: all that the hook looks for, where an image's links may lead.
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

impl To {
    fn path(self, canary: &Path) -> PathBuf {
        let below = |to: &str| {
            let path = canary.join(to);
            path.strip_prefix("/").expect("absolute").to_owned()
        };
        match self {
            To::Canary(to) => canary.join(to),
            To::Up(to) => Path::new(&"../".repeat(24)).join(below(to)),
            To::Magic(by, to) => Path::new(by).join(below(to)),
            To::Text(text) => text.into(),
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

fn put(thing: Thing, at: &Path, canary: &Path) {
    if !matches!(thing, Thing::Mode(_) | Thing::Immutable) {
        clear(at);
    }
    match thing {
        Thing::Link(to) => symlink(to.path(canary), at).expect("a link"),
        Thing::Hard(of) => fs::hard_link(canary.join(of), at).expect("a second name"),
        Thing::Dir => fs::create_dir(at).expect("a directory"),
        Thing::File(text) => fs::write(at, text).expect("a file"),
        Thing::Long(lines) => {
            let mut file = fs::File::create(at).expect("a file");
            for _ in 0..lines {
                writeln!(file, "{:63}", "").expect("written");
            }
        }
        Thing::Pipe => mkfifo(at, Mode::S_IRWXU).expect("a pipe"),
        Thing::Socket => drop(UnixListener::bind(at).expect("a socket")),
        Thing::Device => {
            mknod(at, SFlag::S_IFCHR, Mode::S_IRUSR, makedev(1, 3)).expect("a device");
        }
        Thing::Nothing => {}
        Thing::Mode(mode) => {
            fs::set_permissions(at, fs::Permissions::from_mode(mode)).expect("ours");
        }
        Thing::Immutable => drop(chattr("+i", at)),
    }
}

/// Sets or clears an attribute of the file system's; whether it could.
pub fn chattr(change: &str, at: &Path) -> bool {
    let mut command = std::process::Command::new("chattr");
    command
        .arg(change)
        .arg(at)
        .stderr(std::process::Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Lay {
    /// Makes it part of a container to be.
    pub fn onto(self, bundle: Bundle, canary: &Path) -> Bundle {
        match self {
            Lay::At(path, thing) => put(thing, &bundle.rootfs().join(path), canary),
            Lay::With(act) => act(&bundle.rootfs(), canary),
            Lay::Over(to, from) => {
                return bundle.mount(to, "bind", &canary.join(from), &["rbind"]);
            }
            Lay::Fresh(to, kind, options) => {
                return bundle.mount(to, kind, Path::new(kind), options);
            }
            Lay::Config(edit) => return bundle.edit(edit),
        }
        bundle
    }
}

/// Users of the container are 100000 and up on the host.
pub fn user_namespace(config: &mut Value) {
    let mapped = json!([{ "containerID": 0, "hostID": 100_000, "size": 65_536 }]);
    let linux = &mut config["linux"];
    let namespaces = linux["namespaces"].as_array_mut().expect("a list");
    namespaces.push(json!({ "type": "user" }));
    (linux["uidMappings"], linux["gidMappings"]) = (mapped.clone(), mapped);
}

/// As a container of a pod that sees the host's processes.
pub fn hosts_processes(config: &mut Value) {
    let namespaces = config["linux"]["namespaces"].as_array_mut();
    namespaces
        .expect("a list")
        .retain(|entry| entry["type"] != "pid");
}

/// Everything in `/usr`, as today's distributions have it.
pub fn merge_usr(rootfs: &Path, _: &Path) {
    fs::create_dir_all(rootfs.join("usr")).expect("a directory");
    for name in ["lib", "lib64", "bin"] {
        fs::rename(rootfs.join(name), rootfs.join("usr").join(name)).expect("moved");
        symlink(Path::new("usr").join(name), rootfs.join(name)).expect("a link");
    }
}
