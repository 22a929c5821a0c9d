//! What the daemon's processes may do once they have started: the least that their work needs.
//!
//! Each kind of process is a [`Role`] with a row here: the capabilities that it keeps, and the system calls that it may
//! make ([`calls`]). The daemon begins as root, takes the lock on the driver and opens NVML, whose first start may load
//! a kernel module. Then it gives up everything else, as every child process does before it reads its first byte. No
//! set-user-id program adds anything later (`no_new_privs`), and a child's filter is added to its parent's, so each
//! child can only do less than the daemon.
//!
//! This does not depend on systemd: a daemon that `gpuslice run` started or that runs in a container has the same
//! limits. The unit's own (`systemd/gpusliced.service`) are in force earlier and cover files and devices as well.
//!
//! A system call that is not in the table fails with EPERM in a release build, because a driver's library may try any
//! call and go on without it. In a debug build it ends the process with SIGSYS, so that every test that runs a daemon
//! notices a call that is missing here.
//!
//! With NVML, and with the controls that stop work, the table has been shown on a card (driver 580.159.04). A simulated
//! driver stands for the calls that move memory. With a driver that needs a call which is not in the table,
//! [`ALL_CALLS`] leaves the filter out.

mod calls;

use caps::{CapSet, Capability, CapsHashSet};
use nix::sys::prctl;
use seccompiler::SeccompAction;

/// An environment variable of the daemon's. If it is set, the daemon and its children may make all system calls.
pub const ALL_CALLS: &str = "GPUSLICED_ALL_SYSTEM_CALLS";

/// A kind of process of the daemon's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The daemon itself.
    Daemon,
    /// The child that samples memory and sets the driver's limits.
    AskNvml,
    /// The child that waits for events of the GPUs.
    WatchNvml,
    /// A container's worker, which stops and resumes work on GPUs.
    StopWork,
    /// The worker that moves a suspended container's memory, through the driver.
    MoveMemory,
    /// The helper that closes sockets.
    CloseSockets,
}

/// What a role keeps of root's capabilities.
struct Kept {
    /// In force.
    effective: &'static [Capability],
    /// For children of the role only: they have it in force after their exec.
    for_children: &'static [Capability],
}

impl Role {
    fn kept(self) -> Kept {
        use Capability::{CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_SYS_ADMIN, CAP_SYS_PTRACE};
        let (effective, for_children): (&[_], &[_]) = match self {
            // SYS_PTRACE: to see control groups and mount namespaces of peers.
            // CHOWN: to give node.sock to its group.
            Role::Daemon => (&[CAP_SYS_PTRACE, CAP_CHOWN], &[CAP_SYS_ADMIN, CAP_DAC_OVERRIDE]),
            // SYS_ADMIN: the driver requires it to set limits of control groups and to show all processes.
            Role::AskNvml => (&[CAP_SYS_ADMIN], &[]),
            // SYS_PTRACE: to duplicate a tenant's own descriptor (pidfd_getfd).
            Role::StopWork => (&[CAP_SYS_PTRACE], &[]),
            // SYS_PTRACE: to act on another user's process. DAC_OVERRIDE: the driver reaches that process through
            // files of its /proc directory (its maker, NVIDIA/cuda-checkpoint#41), and a pipe there is its user's.
            Role::MoveMemory => (&[CAP_SYS_PTRACE, CAP_DAC_OVERRIDE], &[]),
            Role::WatchNvml | Role::CloseSockets => (&[], &[]),
        };
        Kept { effective, for_children }
    }
}

/// Gives up what this role does not need, for the calling thread and all that it starts; call it while there is no
/// other thread. A step that the kernel refuses is logged, and the process goes on with more privileges than it needs.
pub fn lower(role: Role) {
    let refused = match cfg!(debug_assertions) {
        true => SeccompAction::KillProcess,
        false => SeccompAction::Errno(libc::EPERM as u32),
    };
    let all_calls = std::env::var_os(ALL_CALLS).is_some();
    let steps = steps(role, refused, all_calls);
    for (what, done) in steps {
        if let Err(why) = done {
            tracing::warn!(?role, why, "{what}; this process has more privileges than it needs");
        }
    }
}

/// The steps in their order, each with what its failure means.
fn steps(
    role: Role,
    refused: SeccompAction,
    all_calls: bool,
) -> [(&'static str, Result<(), String>); 3] {
    let filtered = || if all_calls { Ok(()) } else { calls::restrict(role, refused) };
    [
        ("no_new_privs cannot be set", prctl::set_no_new_privs().map_err(|why| why.to_string())),
        ("capabilities cannot be given up", keep(&role.kept()).map_err(|why| why.to_string())),
        ("no filter of system calls", filtered()),
    ]
}

/// Keeps these capabilities, of those that the process has, and gives up all others.
fn keep(kept: &Kept) -> Result<(), caps::errors::CapsError> {
    let has = caps::read(None, CapSet::Permitted)?;
    let of = |names: &[Capability]| {
        names.iter().copied().filter(|it| has.contains(it)).collect::<Vec<_>>()
    };
    let effective: CapsHashSet = of(kept.effective).into_iter().collect();
    let permitted: CapsHashSet = effective.iter().copied().chain(of(kept.for_children)).collect();
    // An ordinary user's bounding set is without meaning after no_new_privs, and systemd has lowered its services'.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for it in caps::read(None, CapSet::Bounding)?.difference(&permitted) {
            caps::drop(None, CapSet::Bounding, *it)?;
        }
    }
    if caps::runtime::ambient_set_supported().is_ok() {
        caps::clear(None, CapSet::Ambient)?;
    }
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &effective)?;
    caps::set(None, CapSet::Permitted, &permitted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use nix::sys::resource::{Resource, setrlimit};
    use std::fs::File;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    const ALL: [Role; 6] = [
        Role::Daemon,
        Role::AskNvml,
        Role::WatchNvml,
        Role::StopWork,
        Role::MoveMemory,
        Role::CloseSockets,
    ];

    /// Runs `work` in a thread with the role's privileges: they are the thread's alone, and end with it.
    fn within<T: Send + 'static>(role: Role, work: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = std::thread::spawn(move || {
            for (what, done) in steps(role, SeccompAction::Errno(libc::EPERM as u32), false) {
                done.expect(what);
            }
            work()
        });
        thread.join().expect("the thread ends")
    }

    /// The number of filters of the calling thread, as the kernel says it.
    fn filters() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("readable");
        let line = status.lines().find(|line| line.starts_with("Seccomp_filters"));
        line.expect("a kernel with filters").to_owned()
    }

    #[test]
    fn a_node_can_do_without_the_filter() {
        let before = filters();
        assert_ne!(within(Role::AskNvml, filters), before);
        let without = std::thread::spawn(|| {
            for (what, done) in steps(Role::AskNvml, SeccompAction::KillProcess, true) {
                done.expect(what);
            }
            filters()
        });
        assert_eq!(without.join().expect("the thread ends"), before);
    }

    #[allow(unsafe_code)]
    fn call(number: libc::c_long, arguments: [libc::c_long; 4]) -> Result<libc::c_long, Errno> {
        let [a, b, c, d] = arguments;
        // SAFETY: each call of these tests fails, or only makes a descriptor.
        Errno::result(unsafe { libc::syscall(number, a, b, c, d) })
    }

    /// The tests that run a daemon find a call that is missing in the table; in a release build it only fails.
    #[test]
    fn a_call_outside_of_the_table_ends_a_debug_build() {
        const CHILD: &str = "GPUSLICE_TEST_CALLS";
        let attach = [libc::PTRACE_ATTACH.into(), -1, 0, 0];
        if std::env::var_os(CHILD).is_some() {
            setrlimit(Resource::RLIMIT_CORE, 0, 0).expect("no core of it");
            lower(Role::Daemon);
            return assert_eq!(call(libc::SYS_ptrace, attach), Err(Errno::EPERM));
        }
        let name = "privileges::tests::a_call_outside_of_the_table_ends_a_debug_build";
        let mut child = Command::new(std::env::current_exe().expect("this test"));
        let output = child.args(["--exact", name]).env(CHILD, "1").output().expect("it runs");
        let ends = cfg!(debug_assertions).then_some(libc::SIGSYS);
        assert_eq!((output.status.signal(), output.status.success()), (ends, ends.is_none()));
    }

    #[test]
    fn every_role_is_refused_what_no_role_needs() {
        for role in ALL {
            let refused = [
                ("ptrace", libc::SYS_ptrace, [libc::PTRACE_ATTACH.into(), -1, 0, 0]),
                ("a network socket", libc::SYS_socket, [libc::AF_INET.into(), 1, 0, 0]),
                ("netlink", libc::SYS_socket, [libc::AF_NETLINK.into(), 3, 0, 0]),
                ("mount", libc::SYS_mount, [0; 4]),
                ("bpf", libc::SYS_bpf, [-1, 0, 0, 0]),
                ("io_uring", libc::SYS_io_uring_setup, [0; 4]),
                ("userfaultfd", libc::SYS_userfaultfd, [-1, 0, 0, 0]),
                ("another's memory", libc::SYS_process_vm_writev, [-1, 0, 0, 0]),
                ("namespaces", libc::SYS_unshare, [-1, 0, 0, 0]),
                ("a module", libc::SYS_finit_module, [-1, 0, 0, 0]),
                ("another user", libc::SYS_setuid, [0; 4]),
                ("the clock", libc::SYS_clock_settime, [-1, 0, 0, 0]),
                ("memory to write and execute", libc::SYS_mmap, [0, 4096, 7, 0x22]),
                ("memory made executable", libc::SYS_mprotect, [0, 0, 4, 0]),
            ];
            within(role, move || {
                for (what, number, arguments) in refused {
                    assert_eq!(call(number, arguments), Err(Errno::EPERM), "{role:?}: {what}");
                }
            });
        }
    }

    #[test]
    fn a_child_may_do_less_than_the_daemon() {
        let only_daemon = [
            ("to execute", libc::SYS_execve),
            ("to listen", libc::SYS_listen),
            ("to have a name", libc::SYS_bind),
            ("to accept", libc::SYS_accept4),
            ("to duplicate descriptors", libc::SYS_pidfd_getfd),
            ("to change owners", libc::SYS_fchownat),
        ];
        for (what, number) in only_daemon {
            for role in ALL {
                // Descriptor -1 and address 0: no call succeeds.
                let done = within(role, move || call(number, [-1, 0, 0, 0]));
                let may = role == Role::Daemon
                    || (role == Role::StopWork && number == libc::SYS_pidfd_getfd)
                    || (role == Role::MoveMemory
                        && [libc::SYS_listen, libc::SYS_bind].contains(&number));
                assert_eq!(done != Err(Errno::EPERM), may, "{role:?} {what}: {done:?}");
            }
        }
        let opens = |role| within(role, || File::open("/proc/self/status").is_ok());
        assert!(opens(Role::AskNvml) && opens(Role::StopWork) && !opens(Role::CloseSockets));
    }

    #[test]
    fn capabilities_are_those_of_the_table() {
        let before = caps::read(None, CapSet::Permitted).expect("readable");
        for role in ALL {
            let of = |names: &[Capability]| -> CapsHashSet {
                names.iter().copied().filter(|it| before.contains(it)).collect()
            };
            let Kept { effective, for_children } = role.kept();
            let (in_force, all) = within(role, || {
                let read = |set| caps::read(None, set).expect("readable");
                (read(CapSet::Effective), read(CapSet::Permitted))
            });
            assert_eq!(in_force, of(effective), "{role:?}");
            assert_eq!(all, of(&[effective, for_children].concat()), "{role:?}");
        }
    }
}
