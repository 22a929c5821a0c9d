//! Ownership of GPUs: one daemon manages a driver's GPUs, and beside the node's daemon there is no other.

use super::misuse::install;
use super::stub_driver;
use super::together::Running;
use crate::harness::cli::said;
use crate::harness::eventually;
use crate::harness::names;
use crate::harness::node::Node;
use crate::harness::process::{KillOnDrop, become_user, private_mounts};
use crate::harness::{copy_program, is_root, skip};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::Signal;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const ROOT: u32 = 0;
const ONE: u32 = 65534;
const TWO: u32 = 65533;

/// Programs that every user can run, and a driver without a simulated GPU behind it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir_in("/dev/shm").expect("a directory"));
        fs::set_permissions(place.0.path(), Permissions::from_mode(0o755)).expect("a mode");
        install(&place.path("bin"));
        fs::create_dir(place.path("driver")).expect("made");
        for open in ["one", "two"] {
            fs::create_dir(place.path(open)).expect("made");
            fs::set_permissions(place.path(open), Permissions::from_mode(0o1777)).expect("a mode");
        }
        stub_driver(&place.path("driver/libcuda.so.1"));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `gpuslice run` of a user, with this driver and its temporary files in `tmp`.
    fn run(
        &self,
        elsewhere: Option<&Elsewhere>,
        user: u32,
        driver: &str,
        tmp: &str,
        command: &[&str],
    ) -> Command {
        let mut run = Command::new(self.path("bin/gpuslice"));
        run.args(["run", "--memory", "1GiB", "--driver-dir"]).arg(self.path(driver));
        run.arg("--").args(command).stdin(Stdio::null()).stderr(Stdio::piped());
        run.env("TMPDIR", self.path(tmp)).env("GPUSLICE_SIM", "mem=4GiB");
        run.env_remove("XDG_RUNTIME_DIR").env_remove("GPUSLICE_SIM_DEVICE");
        if let Some(elsewhere) = elsewhere {
            elsewhere.holds(&mut run);
        }
        // SAFETY: system calls on constants.
        unsafe { run.pre_exec(move || become_user(user)) };
        run
    }

    fn output(&self, user: u32, driver: &str, tmp: &str) -> Output {
        let mut run = self.run(None, user, driver, tmp, &["true"]);
        run.output().expect("it starts")
    }

    /// A user's command on the stub driver that runs until it is ended.
    fn started(&self, user: u32, tmp: &str) -> Running {
        let proof = self.path(tmp).join(format!("started-{user}"));
        let script = format!("touch {}; exec sleep 600", proof.display());
        let mut run = self.run(None, user, "driver", tmp, &["sh", "-c", &script]);
        let child = run.spawn().expect("it starts");
        eventually("the command runs", || proof.exists());
        fs::remove_file(proof).expect("a file");
        Running(KillOnDrop(child))
    }

    fn assert_served(&self, user: u32, driver: &str, tmp: &str) {
        let output = self.output(user, driver, tmp);
        assert!(output.status.success(), "{}", said(&output));
    }

    fn assert_refused(&self, user: u32, tmp: &str, why: &str) {
        let refused = self.output(user, "driver", tmp);
        let said = said(&refused);
        assert!(!refused.status.success() && said.contains(why), "{why}: {said}");
        assert!(names(&self.path(tmp)).is_empty() || tmp == "one", "nothing is left");
    }
}

#[test]
fn a_drivers_gpus_are_given_out_by_one_daemon() {
    if !is_root() {
        return skip("claims", "needs root, to be several users");
    }
    let place = Place::new();
    let first = place.started(ONE, "one");
    let holder = format!("of user {ONE}, --runtime-dir");
    place.assert_refused(TWO, "two", &holder);
    place.assert_refused(ROOT, "two", &holder);
    // Another directory for temporary files does not allow another daemon.
    place.assert_refused(ONE, "two", &holder);
    place.assert_served(ONE, "driver", "one");
    place.assert_served(TWO, "bin/sim", "two");
    // Only the node's daemon is independent of other users; it logs the conflict and takes over next.
    let mut node = Node::new();
    let mut command = Command::new(place.path("bin/gpusliced"));
    command.arg("--runtime-dir").arg(node.runtime_dir());
    command.arg("--driver-dir").arg(place.path("driver"));
    node.start_command(command);
    assert!(node.log().contains(&format!("of user {ONE}")), "{}", node.log());
    first.end(Signal::SIGTERM);
    eventually("it is the only one", || node.log().contains("no other gpusliced serves"));
    place.assert_refused(ONE, "two", "of user 0, --runtime-dir");
    assert!(node.end_daemon(Signal::SIGTERM).success());
    place.assert_served(ONE, "driver", "two");
}

/// A program in a container locks the driver's library, which it sees, and has the daemon's name. Its root is the
/// host's.
#[test]
fn a_containers_lock_never_excludes_the_nodes_daemon() {
    if !is_root() {
        return skip("locks of containers", "needs root, as containers have it");
    }
    let place = Place::new();
    let program = place.path("gpusliced");
    copy_program(Path::new("/usr/bin/flock"), &program);
    let held = place.path("held");
    let lock = |in_container: bool| {
        let mut command = Command::new("unshare");
        command.args(if in_container {
            &["--pid", "--fork", "--kill-child"][..]
        } else {
            &["--uts"]
        });
        command.arg(&program).arg("--close").arg(place.path("driver/libcuda.so.1"));
        // Until the test's end of the pipe is closed.
        command.args(["sh", "-c", "touch $0; read line"]).arg(&held);
        let lock = Running(KillOnDrop(command.stdin(Stdio::piped()).spawn().expect("it starts")));
        eventually("the lock", || held.exists());
        fs::remove_file(&held).expect("a file");
        lock
    };
    let start = || {
        let node = Node::new();
        let mut command = Command::new(place.path("bin/gpusliced"));
        command.arg("--runtime-dir").arg(node.runtime_dir());
        command.arg("--driver-dir").arg(place.path("driver"));
        (node, command)
    };
    // On the node itself, root's program of that name is believed to be one.
    let other = lock(false);
    let output = start().1.output().expect("it starts");
    assert!(!output.status.success() && said(&output).contains("another gpusliced"), "{output:?}");
    other.end(Signal::SIGKILL);
    let container = lock(true);
    let (mut node, command) = start();
    node.start_command(command);
    assert!(node.log().contains("serves these GPUs too"), "{}", node.log());
    container.end(Signal::SIGKILL);
}

/// A user's process locks the driver, then executes a set-user-id program of root's: by its user alone it
/// could be a daemon of root's.
#[test]
fn a_users_lock_never_excludes_the_nodes_daemon() {
    if !is_root() {
        return skip("disguised locks", "needs root, to be several users");
    }
    let place = Place::new();
    let programs = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let program = programs.path().join("sleep");
    copy_program(Path::new("/bin/sleep"), &program);
    let open = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
    open(programs.path(), 0o755).expect("a mode");
    open(&program, 0o4755).expect("a mode");
    let driver = std::ffi::CString::new(place.path("driver/libcuda.so.1").as_os_str().as_bytes());
    let driver = driver.expect("a path");
    let mut disguised = Command::new(&program);
    disguised.arg("600").stdin(Stdio::null());
    // SAFETY: system calls on what was made before.
    let lock = move || unsafe {
        become_user(ONE)?;
        let file = libc::open(driver.as_ptr(), libc::O_RDONLY);
        match file >= 0 && libc::flock(file, libc::LOCK_EX) == 0 {
            true => Ok(()),
            false => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: as above.
    let disguised = unsafe { disguised.pre_exec(lock) }.spawn();
    let disguised = Running(KillOnDrop(disguised.expect("it starts")));
    let status = fs::metadata(format!("/proc/{}", disguised.0.id())).expect("it runs");
    if status.uid() != ROOT {
        return skip("disguised locks", "/var/tmp takes no set-user-id programs");
    }
    place.assert_refused(TWO, "two", "are served by another");
    let mut node = Node::new();
    let mut command = Command::new(place.path("bin/gpusliced"));
    command.arg("--runtime-dir").arg(node.runtime_dir());
    command.arg("--driver-dir").arg(place.path("driver"));
    node.start_command(command);
    disguised.end(Signal::SIGKILL);
    eventually("it is the only one", || node.log().contains("no other gpusliced serves"));
    let mut second = Command::new(place.path("bin/gpusliced"));
    second.arg("--runtime-dir").arg(place.path("second"));
    second.arg("--driver-dir").arg(place.path("driver"));
    let second = second.output().expect("it starts");
    let told = said(&second);
    assert!(!second.status.success() && told.contains("of user 0"), "{told}");
    assert!(node.end_daemon(Signal::SIGTERM).success());
}

/// Another user has created the directory of a command's daemon first.
#[test]
fn a_daemons_directory_of_another_user_is_not_used() {
    if !is_root() {
        return skip("planted directories", "needs root, to be several users");
    }
    let place = Place::new();
    let first = place.started(ONE, "one");
    let [name] = &names(&place.path("one"))[..] else {
        panic!("one daemon, not {:?}", names(&place.path("one")))
    };
    first.end(Signal::SIGTERM);
    let planted = place.path("one").join(name);
    fs::create_dir(&planted).expect("made");
    std::os::unix::fs::chown(&planted, Some(TWO), None).expect("given away");
    place.assert_refused(ONE, "one", "belongs to user 65533");
    place.assert_refused(ONE, "one", "set TMPDIR");
    place.assert_served(ONE, "driver", "two");
    fs::remove_dir(&planted).expect("nothing was put there");
    place.assert_served(ONE, "driver", "one");
}

/// A mount namespace with an empty /run, so that the node's own directory can be used.
struct Elsewhere(KillOnDrop);

impl Elsewhere {
    fn new() -> Elsewhere {
        let alone = || {
            private_mounts()?;
            let (tmpfs, none) = (Some("tmpfs"), None::<&str>);
            Ok(mount(tmpfs, "/run", tmpfs, MsFlags::empty(), none)?)
        };
        let mut sleep = Command::new("sleep");
        sleep.arg("600").stdin(Stdio::null());
        // SAFETY: system calls on constants.
        Elsewhere(KillOnDrop(unsafe { sleep.pre_exec(alone) }.spawn().expect("it starts")))
    }

    /// Runs the command there.
    fn holds(&self, command: &mut Command) {
        let namespace = File::open(format!("/proc/{}/ns/mnt", self.0.id())).expect("it lives");
        // SAFETY: one system call.
        unsafe { command.pre_exec(move || Ok(setns(&namespace, CloneFlags::CLONE_NEWNS)?)) };
    }

    fn node_path(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.0.id().to_string()).join("root/run/gpuslice").join(name)
    }
}

#[test]
fn beside_the_nodes_daemon_a_user_is_told_the_gpus_owner() {
    if !is_root() {
        return skip("beside the node's daemon", "needs root, to be the node's daemon");
    }
    let (place, there) = (Place::new(), Elsewhere::new());
    let user = |driver: &str| {
        let mut run = place.run(Some(&there), ONE, driver, "one", &["true"]);
        run.output().expect("it starts")
    };
    let mut node = Node::new();
    let mut daemon = Command::new(place.path("bin/gpusliced"));
    daemon.arg("--driver-dir").arg(place.path("driver"));
    there.holds(&mut daemon);
    node.start_command(daemon);
    let told = |while_it: &str| {
        let refused = user("driver");
        let said = said(&refused);
        assert!(!refused.status.success(), "{while_it}: {said}");
        assert!(said.contains("served by root's gpusliced at /run/gpuslice"), "{while_it}: {said}");
        assert!(said.contains("sudo gpuslice run"), "{while_it}: {said}");
    };
    told("runs");
    // A private simulated GPU does not belong to the node.
    let own = user("bin/sim");
    assert!(own.status.success(), "{}", said(&own));
    node.end_daemon(Signal::SIGKILL);
    told("is being restarted");
    let mut daemon = Command::new(place.path("bin/gpusliced"));
    daemon.arg("--driver-dir").arg(place.path("driver"));
    there.holds(&mut daemon);
    node.start_command(daemon);
    assert!(node.end_daemon(Signal::SIGTERM).success());
    assert!(!there.node_path("gpus").exists());
    assert!(user("driver").status.success(), "it was ended for good");
}
