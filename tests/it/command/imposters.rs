//! Another user's daemon at the path of a command's own daemon: nothing it answers is used.

use super::misuse::install;
use crate::harness::cli::said;
use crate::harness::process::become_user;
use crate::harness::wire::{Connection, listen};
use crate::harness::{eventually, is_root, skip};
use gpuslice_wire::admin::{Answer, Command as AdminCommand, Mounts};
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::text::HostPath;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::accept;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Gid, Pid, Uid, chown, fork};
use std::fs::{self, Permissions};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The victim's and the attacker's user.
const VICTIM: u32 = 65534;
const IMPOSTER: u32 = 65533;
/// What the attack does in the victim's process.
const EVIL: &str = r#"
#include <fcntl.h>
__attribute__((constructor)) static void evil(void) { open(PROOF, O_CREAT | O_WRONLY, 0666); }
"#;

/// All commands that ask a daemon, but `run`, `doctor` and `metrics`.
const ASKING: [&[&str]; 18] = [
    &["ps"],
    &["ps", "--json"],
    &["gpus"],
    &["inspect"],
    &["explain"],
    &["explain", "web"],
    &["events"],
    &["events", "--follow"],
    &["plot"],
    &["record", "--for", "10ms"],
    &["top", "--count", "1"],
    &["web", "--listen", "127.0.0.1:0"],
    &["set", "web", "--weight", "2"],
    &["suspend", "web"],
    &["resume", "web"],
    &["rm", "web"],
    &["policy"],
    &["policy", "0", "fair"],
];

/// A process of the attacker, which answers each request with its own library. Killed when dropped.
struct Imposter(Pid);

impl Imposter {
    /// Starts it, listening in `dir`, which it must be able to write.
    fn listens(dir: &Path, place: &Path) -> Imposter {
        let socket = dir.join("admin.sock");
        // SAFETY: the child makes system calls, and uses the C library's allocator, which glibc keeps
        // usable after a fork.
        match unsafe { fork() }.expect("a process") {
            ForkResult::Parent { child } => {
                eventually("it listens", || socket.exists());
                Imposter(child)
            }
            ForkResult::Child => {
                // Descriptors of other tests, whose ends would wait for this process.
                // SAFETY: plain numbers; what is closed here is of this process alone.
                unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
                become_user(IMPOSTER).expect("allowed");
                let listener = listen(&socket);
                fs::set_permissions(&socket, Permissions::from_mode(0o666)).expect("its own");
                while let Ok(fd) = accept(listener.as_raw_fd()) {
                    // SAFETY: the kernel has just made it for this process.
                    serve(&Connection::of(unsafe { OwnedFd::from_raw_fd(fd) }), place);
                }
                // SAFETY: ends this process alone.
                unsafe { libc::_exit(0) }
            }
        }
    }
}

impl Drop for Imposter {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL).and_then(|()| waitpid(self.0, None).map(drop));
    }
}

fn serve(connection: &Connection, place: &Path) {
    let path =
        |name: &str| HostPath::new(place.join(name).to_str().expect("plain")).expect("short");
    while let Some((id, command, _)) = connection.message::<AdminCommand>() {
        let answered = match command {
            AdminCommand::List {} => connection.send(id, &Snapshot::End { now_ns: 1 }),
            AdminCommand::Dismiss { .. } => connection.send(id, &Answer::Dismissed {}),
            _ => {
                let mounts = Mounts {
                    dir: path("slice"),
                    cuda: path("evil.so"),
                    nvml: HostPath::EMPTY,
                    preload: path("evil.so"),
                    mount: path("evil.so"),
                    nvml_shim: path("evil.so"),
                    device: HostPath::EMPTY,
                };
                connection.send(id, &Answer::Admitted { mounts })
            }
        };
        if answered.is_err() {
            return;
        }
    }
}

/// Programs that the victim can run, a directory for its default runtime directory, and the attack.
struct Place {
    root: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let root = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let place = Place { root };
        open_to_all(place.root.path(), 0o755);
        install(&place.path("bin"));
        for open in ["xdg", "slice", "tmp"] {
            fs::create_dir(place.path(open)).expect("made");
            open_to_all(&place.path(open), 0o777);
        }
        let source = place.path("evil.c");
        fs::write(&source, EVIL).expect("written");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(place.path("evil.so"));
        cc.arg(format!("-DPROOF={:?}", place.proof())).arg(&source);
        assert!(cc.status().expect("cc").success());
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The victim's default runtime directory.
    fn runtime_dir(&self) -> PathBuf {
        self.path("xdg/gpuslice")
    }

    /// Written by the attack in the victim's process.
    fn proof(&self) -> PathBuf {
        self.path("slice/proof")
    }

    /// A command of the victim's.
    fn gpuslice(&self, words: &[&str]) -> Output {
        // Where the attacker is believed, some serve until they are ended.
        let mut command = Command::new("timeout");
        command.arg("60").arg(self.path("bin/gpuslice")).args(words).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.path("xdg"));
        command.env("TMPDIR", self.path("tmp"));
        command.env("GPUSLICE_SIM", "mem=4GiB");
        // SAFETY: system calls on constants.
        unsafe { command.pre_exec(|| become_user(VICTIM)) };
        command.output().expect("it starts")
    }

    /// Every command reports `why`, and none follows the attacker's answer.
    fn assert_refused(&self, why: &str) {
        let sim = self.path("bin/sim");
        let sim = sim.to_str().expect("plain");
        let preload = ["run", "--memory", "1GiB", "--inject", "preload"];
        let plain = self.gpuslice(&[&preload[..], &["--", "true"]].concat());
        assert!(said(&plain).contains(why), "{}", said(&plain));
        let private = self.gpuslice(&[&preload[..], &["--driver-dir", sim, "--", "true"]].concat());
        assert!(private.status.success() && said(&private).contains(why), "{private:?}");
        for words in ASKING {
            let output = self.gpuslice(words);
            assert!(!output.status.success(), "{words:?}: {output:?}");
            assert!(said(&output).contains(why), "{words:?}: {output:?}");
        }
        let shows =
            |words: &[&str]| String::from_utf8_lossy(&self.gpuslice(words).stdout).into_owned();
        let doctor = shows(&["doctor"]);
        assert!(doctor.contains("missing daemon") && doctor.contains(why), "{doctor}");
        let metrics = shows(&["metrics"]);
        assert!(
            metrics.contains("gpuslice_up 0") && !metrics.contains("gpuslice_slice"),
            "{metrics}"
        );
        assert!(!self.proof().exists(), "its library was loaded");
    }
}

fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
}

fn give(path: &Path, user: u32) {
    chown(path, Some(Uid::from_raw(user)), Some(Gid::from_raw(user))).expect("given");
}

#[test]
fn another_users_daemon_is_not_trusted() {
    if !is_root() {
        return skip("imposters", "needs root, to be two other users");
    }
    let place = Place::new();
    let dir = place.runtime_dir();
    fs::create_dir(&dir).expect("made");

    give(&dir, IMPOSTER);
    let imposter = Imposter::listens(&dir, place.root.path());
    symlink("admin.sock", dir.join("node.sock")).expect("a link");
    place.assert_refused("belongs to user 65533");

    give(&dir, VICTIM);
    place.assert_refused("runs as user 65533");

    open_to_all(&dir, 0o777);
    place.assert_refused("can be written by other users");

    let elsewhere = place.path("xdg/elsewhere");
    fs::rename(&dir, &elsewhere).expect("moved");
    symlink(&elsewhere, &dir).expect("a link");
    place.assert_refused("is a link");
    drop(imposter);
}
