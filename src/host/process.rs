//! Other processes: their pidfds, start times and namespaces.
//!
//! The kernel can reuse a pid while it is being examined, but not a pidfd. So open the pidfd first, read
//! by pid, then check that the pidfd's process still runs: what was read then belongs to that process.
//! Start times also tell two processes of the same pid apart, in notes that outlive a pidfd.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use procfs::ProcError;
use procfs::process::Process;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use std::fmt::Display;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

/// A pidfd by pid.
///
/// # Errors
/// `ESRCH`: there is no such process. Other errors: the kernel lacks the call (before 5.3), or no
/// descriptor is left.
pub fn pidfd_open(pid: u32) -> nix::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let opened = rustix::process::pidfd_open(pid.ok_or(Errno::ESRCH)?, PidfdFlags::empty());
    opened.map_err(|why| Errno::from_raw(why.raw_os_error()))
}

/// A pidfd of the process that has this pid and start time; `None` if it has exited.
///
/// # Errors
/// As [`pidfd_open`], but not `ESRCH`. A process that runs and whose start time cannot be read, which takes two more
/// descriptors, is an error too, and never one that has exited.
pub fn pidfd_of(pid: u32, born: u64) -> nix::Result<Option<OwnedFd>> {
    let pidfd = match pidfd_open(pid) {
        Err(Errno::ESRCH) => return Ok(None),
        pidfd => pidfd?,
    };
    let start = read_start_time(pid);
    if has_exited(pidfd.as_fd()) {
        return Ok(None);
    }
    Ok((start? == born).then_some(pidfd))
}

/// Whether the process that had this pid and start time has ended for certain: what cannot be read proves nothing.
pub fn is_gone(pid: u32, born: u64) -> bool {
    match start_time(pid) {
        Some(start) => start != born,
        None => matches!(Path::new("/proc").join(pid.to_string()).try_exists(), Ok(false)),
    }
}

/// A duplicate of a process's descriptor.
///
/// # Errors
/// It has no such descriptor, has exited, or access is denied.
pub fn duplicate(pidfd: BorrowedFd<'_>, number: u32) -> io::Result<OwnedFd> {
    // The kernel's numbers end at `i32::MAX`; rustix panics on a negative one in a debug build.
    let number = i32::try_from(number).map_err(|_| Errno::EBADF)?;
    let flags = PidfdGetfdFlags::empty();
    Ok(rustix::process::pidfd_getfd(pidfd, number, flags)?)
}

/// Whether the process of a pidfd has exited.
pub fn has_exited(pidfd: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::new(pidfd, PollFlags::POLLIN)];
    // An error counts as exited, so that no caller waits without end.
    poll(&mut watched, PollTimeout::ZERO).map_or(true, |ready| ready > 0)
}

/// The pid of a running process, by its pidfd.
pub fn pid_of(pidfd: BorrowedFd<'_>) -> Option<u32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    pid.trim().parse().ok() // -1 once it has ended
}

/// Whether a process has this pid.
pub fn exists(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// A process's name, as the kernel has it: at most 15 bytes, which the process chooses. `None` if there is no such
/// process.
pub fn name_of(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned())
}

/// A process's start time in the kernel's clock ticks since boot; `None` if there is no such process.
pub fn start_time(pid: u32) -> Option<u64> {
    read_start_time(pid).ok()
}

fn read_start_time(pid: u32) -> nix::Result<u64> {
    let pid = i32::try_from(pid).map_err(|_| Errno::ESRCH)?;
    let stat = Process::new(pid).and_then(|process| process.stat());
    stat.map(|stat| stat.starttime).map_err(|why| match why {
        ProcError::Io(why, _) => why.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
        ProcError::NotFound(_) => Errno::ESRCH,
        ProcError::PermissionDenied(_) => Errno::EACCES,
        _ => Errno::EIO,
    })
}

/// The user that logged in where a process was started; `sudo` and `su` do not change it. `None` if there was no login,
/// or the kernel keeps no account of logins.
pub fn login_uid(pid: i32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/loginuid")).ok()?;
    text.trim().parse().ok().filter(|uid| *uid != u32::MAX)
}

/// A namespace of a process, given by its pid or `self`, as the kernel names it: `mnt:[4026531841]`.
pub fn namespace(of: impl Display, kind: &str) -> Option<String> {
    let link = fs::read_link(format!("/proc/{of}/ns/{kind}")).ok()?;
    link.to_str().map(str::to_owned)
}

/// This process's pid namespace.
pub fn own_pid_namespace() -> Option<&'static str> {
    static OWN: OnceLock<Option<String>> = OnceLock::new();
    OWN.get_or_init(|| namespace("self", "pid")).as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::process::Command;

    #[test]
    fn a_killed_process_has_exited() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("a process");
        let pidfd = pidfd_open(child.id()).expect("a pidfd");
        assert_eq!(pid_of(pidfd.as_fd()), Some(child.id()));
        assert!(!has_exited(pidfd.as_fd()) && exists(child.id()));
        child.kill().expect("it lives");
        child.wait().expect("it dies");
        assert!(has_exited(pidfd.as_fd()) && !exists(child.id()));
        assert_eq!(pid_of(pidfd.as_fd()), None);
        assert_eq!(start_time(child.id()), None);
        assert_eq!(pidfd_open(child.id()).err(), Some(Errno::ESRCH));
        for pid in [0, u32::MAX] {
            assert_eq!(pidfd_open(pid).err(), Some(Errno::ESRCH));
        }
    }

    #[test]
    fn a_number_of_no_descriptor_is_an_error() {
        let own = pidfd_open(std::process::id()).expect("a pidfd");
        let number = own.as_raw_fd() as u32;
        assert!(duplicate(own.as_fd(), number).is_ok());
        for number in [i32::MAX as u32, i32::MAX as u32 + 1, u32::MAX] {
            let refused = duplicate(own.as_fd(), number).expect_err("no such descriptor");
            assert_eq!(refused.raw_os_error(), Some(Errno::EBADF as i32));
        }
    }

    /// What the kernel answers for want of descriptors was taken for the end of the process.
    #[test]
    fn without_descriptors_no_process_seems_to_have_ended() {
        const CHILD: &str = "GPUSLICE_TEST_DESCRIPTORS";
        if std::env::var_os(CHILD).is_none() {
            // The limit is of a whole process, and other tests run in this one.
            let exe = std::env::current_exe().expect("this test");
            let name = "process::tests::without_descriptors_no_process_seems_to_have_ended";
            let mut child = Command::new(exe);
            let status = child.args(["--exact", name]).env(CHILD, "1").status();
            return assert!(status.expect("it runs").success());
        }
        let own = std::process::id();
        let born = start_time(own).expect("we live");
        let limit = Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).expect("a lower limit");
        let mut held: Vec<fs::File> = std::iter::from_fn(|| fs::File::open("/").ok()).collect();
        for free in 0..4 {
            let found = pidfd_of(own, born);
            assert!(!matches!(found, Ok(None)), "{free} are free: {found:?}");
            assert!(found.is_ok() || free < 3, "{free} are free: {found:?}");
            assert!(!is_gone(own, born), "{free} are free");
            drop(found);
            assert_eq!(pidfd_of(i32::MAX as u32, born).ok().map(|it| it.is_some()), Some(false));
            assert!(is_gone(i32::MAX as u32, born));
            held.pop();
        }
        assert!(is_gone(own, born + 1));
    }

    #[test]
    fn a_process_is_told_from_another_of_its_pid() {
        let own = std::process::id();
        let born = start_time(own).expect("we live");
        assert!(pidfd_of(own, born).expect("a pidfd").is_some());
        assert!(pidfd_of(own, born + 1).expect("no error").is_none());
        assert!(pidfd_of(i32::MAX as u32, born).expect("no error").is_none());
        let within = own_pid_namespace().expect("ours");
        assert!(within.starts_with("pid:["));
        assert_eq!(namespace(own, "pid").as_deref(), Some(within));
    }
}
