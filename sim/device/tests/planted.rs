//! Under the name that a device directory is going to have, another user has put something first:
//! a link to a file that is not theirs, or a directory with such links in it.

mod actors;

use actors::{Device, skip};
use gpuslice_sim_device::{Config, Error, Machine, Role, create, destroy};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Everything that the device makes in its directory, in the order of making.
const NAMES: [&str; 6] = ["vram0", "locks", "exports", "control", "state.new", "state"];
/// Another user.
const STRANGER: u32 = 4711;

/// A file that only its owner may read or write.
struct Secret(PathBuf);

impl Secret {
    fn new(name: &str) -> Secret {
        let dir = std::env::temp_dir().join(format!("gpuslice-{}-{name}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let secret = Secret(dir);
        fs::write(secret.file(), "secret").unwrap();
        fs::set_permissions(secret.file(), Permissions::from_mode(0o600)).unwrap();
        secret
    }

    fn file(&self) -> PathBuf {
        self.0.join("file")
    }

    fn is_untouched(&self) {
        let mode = fs::metadata(self.file()).unwrap().permissions().mode() & 0o7777;
        assert_eq!(fs::read_to_string(self.file()).unwrap(), "secret");
        assert_eq!(mode, 0o600);
        assert_eq!(fs::read_dir(&self.0).unwrap().count(), 1, "nothing is made");
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file planted at a device's path, removed at the end.
struct Planted(Device);

impl Planted {
    fn new(name: &str) -> Planted {
        Planted(Device::absent(name))
    }

    fn path(&self) -> &Path {
        &self.0.0
    }

    /// Each way to the device is refused with the sentence, which names the path and what to do.
    fn is_refused(&self, path: &Path, why: &str) {
        let opened = Machine::open(path, Role::Driver).err();
        let made = create(path, &Config::parse("").unwrap()).err();
        for error in [opened, made] {
            let error = error.expect("refused").to_string();
            assert!(error.contains(why), "{error}");
            assert!(error.contains(self.path().to_str().unwrap()), "{error}");
            assert!(error.contains("remove it or name another directory with GPUSLICE_SIM_DEVICE"));
        }
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path());
        let _ = fs::remove_dir_all(self.path());
    }
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    status.lines().any(|line| line.starts_with("Uid:\t0\t0"))
}

#[test]
fn a_link_leads_nowhere() {
    let secret = Secret::new("link");
    for target in [&secret.file(), &secret.0, &secret.0.join("absent")] {
        let planted = Planted::new("link");
        symlink(target, planted.path()).unwrap();
        planted.is_refused(planted.path(), "is a link or a file, not a directory");
        let slash = PathBuf::from(format!("{}/", planted.path().display()));
        planted.is_refused(&slash, "is a link or a file, not a directory");
        assert!(destroy(planted.path()).is_err());
        secret.is_untouched();
        assert_eq!(fs::read_link(planted.path()).unwrap(), *target, "it stays");
    }
}

#[test]
fn a_directory_of_another_user_is_refused_with_its_links() {
    if !is_root() {
        return skip("only root can make another user's directory");
    }
    let secret = Secret::new("links");
    for inner in ["", "node"] {
        let planted = Planted::new("links");
        let dir = planted.path().join(inner);
        fs::create_dir_all(&dir).unwrap();
        for name in NAMES {
            // Without a state the device is made; with one it would be opened.
            if name != "state" {
                symlink(secret.file(), dir.join(name)).unwrap();
            }
        }
        for dir in [planted.path(), &dir] {
            chown(dir, Some(STRANGER), Some(STRANGER)).unwrap();
        }
        let _ = Machine::open(planted.path(), Role::Driver);
        secret.is_untouched();
        let why = format!("belongs to user {STRANGER}, not to user 0");
        planted.is_refused(planted.path(), &why);
        symlink(secret.file(), dir.join("state")).unwrap();
        planted.is_refused(planted.path(), &why);
        assert!(destroy(planted.path()).is_err());
        secret.is_untouched();
    }
}

#[test]
fn a_directory_that_others_may_enter_is_no_place_for_a_device() {
    for (mode, why) in [
        (0o755, "is open to other users (mode 755, expected 700)"),
        (0o1777, "may be written by other users (mode 1777)"),
        (0o720, "may be written by other users (mode 720)"),
    ] {
        let planted = Planted::new("open");
        fs::create_dir(planted.path()).unwrap();
        fs::set_permissions(planted.path(), Permissions::from_mode(mode)).unwrap();
        planted.is_refused(planted.path(), why);
        assert_eq!(fs::read_dir(planted.path()).unwrap().count(), 0);
    }
}

/// One that is there and complete, too: a stranger may have written its state.
#[test]
fn a_device_that_others_may_write_is_refused() {
    let device = Device::new("written", "mem=64MiB");
    for dir in [device.0.clone(), device.0.join("node")] {
        let before = fs::metadata(&dir).unwrap().permissions();
        fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        let error = Machine::open(&device.0, Role::Driver).err().unwrap();
        assert!(matches!(error, Error::Layout { .. }), "{error}");
        fs::set_permissions(&dir, before).unwrap();
    }
    Machine::open(&device.0, Role::Driver).unwrap();
}

#[test]
fn on_the_host_it_is_its_owners_alone() {
    let device = Device::new("private", "mem=64MiB");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&device.0), 0o700);
    let node = device.0.join("node");
    let (dir, file) = if is_root() { (0o711, 0o666) } else { (0o700, 0o600) };
    assert_eq!(mode(&node), dir);
    for name in NAMES.iter().filter(|name| **name != "state.new") {
        assert_eq!(mode(&node.join(name)), file, "{name}");
    }
    if !is_root() {
        return skip("only root can become another user");
    }
    let stranger = |path: &Path| {
        let mut cat = Command::new("setpriv");
        cat.args(["--reuid", "4711", "--regid", "4711", "--clear-groups"]);
        let done = cat.arg("test").arg("-r").arg(path).status();
        done.expect("setpriv is there").success()
    };
    assert!(stranger(Path::new("/dev/shm")), "it is another user");
    assert!(!stranger(&node.join("state")));
    assert!(!stranger(&node.join("vram0")));
}
