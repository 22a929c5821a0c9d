//! `gpuslice run` as an ordinary user: a private daemon, a user namespace, a mount point.
//!
//! The mount point `/run/gpuslice` is the machine's, and commands of other tests may hold it at
//! the same time. The test holds the same lock, makes the directory world-readable, and the last
//! holder removes it.

use super::programs::Home;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

const POINT: &str = "/run/gpuslice";
/// The user `nobody`.
const NOBODY: u32 = 65534;

/// The mount point, world-readable while this lives.
struct Point {
    dir: Option<Flock<File>>,
    mode: u32,
}

impl Point {
    fn hold() -> Point {
        loop {
            let made = fs::create_dir(POINT).is_ok();
            let Ok(dir) = File::open(POINT) else { continue };
            let dir = Flock::lock(dir, FlockArg::LockShared).expect("a lock");
            let (Ok(ours), Ok(there)) = (dir.metadata(), fs::metadata(POINT)) else {
                continue;
            };
            if (ours.dev(), ours.ino()) != (there.dev(), there.ino()) {
                continue;
            }
            let mode = if made { 0o711 } else { ours.mode() & 0o7777 };
            fs::set_permissions(POINT, Permissions::from_mode(0o755)).expect("root may");
            let dir = Some(dir);
            return Point { dir, mode };
        }
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        let _ = fs::set_permissions(POINT, Permissions::from_mode(self.mode));
        let Some(dir) = self.dir.take() else { return };
        // As the command that created it would.
        if self.mode == 0o711 && dir.relock(FlockArg::LockExclusiveNonblock).is_ok() {
            let _ = fs::remove_dir(POINT);
        }
    }
}

fn as_nobody(program: &Path, root: &Path) -> Command {
    let mut command = Command::new(program);
    command.uid(NOBODY).gid(NOBODY).env_clear();
    command.env("PATH", "/usr/bin:/bin");
    command.env("TMPDIR", root.join("scratch"));
    command.env("GPUSLICE_SIM", "mem=16GiB").current_dir("/");
    command
}

/// Runs `script` in a slice of 1 GiB as an unprivileged user; `None` where the kernel gives such a
/// user no user namespace.
pub fn as_ordinary_user(root: &Path, home: &Home, script: &str) -> Option<Output> {
    let unshare =
        as_nobody(Path::new("/usr/bin/unshare"), root).args(["--user", "--mount", "true"]).output();
    if !unshare.is_ok_and(|output| output.status.success()) {
        return None;
    }
    let _point = Point::hold();
    let mut run = as_nobody(&root.join("bin/gpuslice"), root);
    run.args(["run", "--quiet", "--memory", "1GiB", "--inject", "mount"]).args([
        "--driver-dir",
        &home.driver,
        "--",
        "sh",
        "-c",
        script,
    ]);
    Some(run.output().expect("gpuslice starts"))
}
