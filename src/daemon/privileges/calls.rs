//! The system calls that each role may make, as a filter in the kernel (seccomp).
//!
//! The table has more calls than one run makes: the C library chooses between old and new forms of a call by its own
//! version (`open` or `openat`, `fstat` or `newfstatat`, `clone` or `clone3`), and all forms of a permitted call are
//! permitted. Three calls are looked at more closely: `socket` makes Unix sockets only, and no memory is both writable
//! and executable, or becomes executable after it was mapped.
//!
//! A filter applies to the children too, which add their own. So the daemon's has all that the others have.

use super::Role;
use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::BTreeMap;

/// Memory, threads, time, signals to itself, its own state, reading and writing open files, its end.
const COMMON: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // abort() after a panic.
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_prctl,
    libc::SYS_prlimit64,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_ppoll,
    // Each process talks with the daemon, or with its service manager, over a socket that it has.
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    // A child gives up the rest of its parent's capabilities and calls.
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_seccomp,
];

/// Files by name, to read; libraries; the driver's device files.
const FILES: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_flock,
    libc::SYS_fadvise64,
    libc::SYS_ioctl,
];

/// What a driver's library does beside: threads, waiting, its own programs' sockets, memory on a NUMA node.
const DRIVER: &[c_long] = &[
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_wait4,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_mlock,
    libc::SYS_mincore,
    libc::SYS_get_mempolicy,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setaffinity,
    libc::SYS_connect,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    // Whether a process of the simulated device's lives.
    libc::SYS_kill,
    libc::SYS_pidfd_open,
];

/// A worker duplicates tenants' descriptors, and replaces its journal.
const WORKER: &[c_long] = &[
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
];

/// What CUDA does when it is initialised, beyond NVML: it offers its descriptor of unified memory on an abstract
/// socket. Where it may not, it answers CUDA_ERROR_OPERATING_SYSTEM, which driver 580.159.04 did without these calls.
/// Nothing connects to the socket, so accepting remains refused.
const CUDA: &[c_long] = &[libc::SYS_bind, libc::SYS_listen];

/// The daemon: its children, its sockets, its files.
const DAEMON: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_waitid,
    libc::SYS_pidfd_send_signal,
    libc::SYS_setpgid,
    libc::SYS_chdir,
    libc::SYS_dup3,
    libc::SYS_socketpair,
    libc::SYS_accept4,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_signalfd4,
    libc::SYS_getgroups,
    libc::SYS_umask,
    libc::SYS_mkdirat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
];

/// Older forms of permitted calls, which x86-64 alone has.
#[cfg(target_arch = "x86_64")]
mod older {
    use libc::c_long;
    pub const COMMON: &[c_long] =
        &[libc::SYS_arch_prctl, libc::SYS_time, libc::SYS_poll, libc::SYS_getrlimit];
    pub const FILES: &[c_long] = &[
        libc::SYS_open,
        libc::SYS_stat,
        libc::SYS_lstat,
        libc::SYS_access,
        libc::SYS_readlink,
        libc::SYS_getdents,
    ];
    pub const DRIVER: &[c_long] =
        &[libc::SYS_pipe, libc::SYS_select, libc::SYS_epoll_create, libc::SYS_epoll_wait];
    pub const WORKER: &[c_long] = &[libc::SYS_rename, libc::SYS_unlink, libc::SYS_chmod];
    pub const DAEMON: &[c_long] = &[
        libc::SYS_fork,
        libc::SYS_vfork,
        libc::SYS_dup2,
        libc::SYS_mkdir,
        libc::SYS_rmdir,
        libc::SYS_link,
        libc::SYS_symlink,
        libc::SYS_chown,
        libc::SYS_lchown,
    ];
}
#[cfg(not(target_arch = "x86_64"))]
mod older {
    use libc::c_long;
    pub const COMMON: &[c_long] = &[];
    pub const FILES: &[c_long] = &[];
    pub const DRIVER: &[c_long] = &[];
    pub const WORKER: &[c_long] = &[];
    pub const DAEMON: &[c_long] = &[];
}

/// The groups of calls of a role.
fn groups(role: Role) -> Vec<&'static [c_long]> {
    let common = [COMMON, older::COMMON];
    let files = [FILES, older::FILES];
    let driver = [DRIVER, older::DRIVER];
    let worker = [WORKER, older::WORKER];
    let own = [DAEMON, older::DAEMON];
    let all: &[[&'static [c_long]; 2]] = match role {
        Role::CloseSockets => &[common],
        Role::AskNvml | Role::WatchNvml => &[common, files, driver],
        Role::MoveMemory => &[common, files, driver, [CUDA, &[]]],
        Role::StopWork => &[common, files, driver, worker],
        Role::Daemon => &[common, files, driver, [CUDA, &[]], worker, own],
    };
    all.concat()
}

/// Whether a role makes sockets.
fn makes_sockets(role: Role) -> bool {
    role != Role::CloseSockets
}

/// Installs the role's filter for the calling thread and what it starts.
///
/// # Errors
/// The kernel has no such filters or refuses one, or this processor is unknown.
pub fn restrict(role: Role, refused: SeccompAction) -> Result<(), String> {
    let program = program(role, refused).map_err(|why| why.to_string())?;
    seccompiler::apply_filter(&program).map_err(|why| why.to_string())
}

fn program(role: Role, refused: SeccompAction) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> = BTreeMap::new();
    for number in groups(role).into_iter().flatten() {
        rules.insert(*number, Vec::new());
    }
    rules.insert(libc::SYS_mmap, vec![without(2, libc::PROT_WRITE)?, without(2, libc::PROT_EXEC)?]);
    rules.insert(libc::SYS_mprotect, vec![without(2, libc::PROT_EXEC)?]);
    if makes_sockets(role) {
        let unix = SeccompCondition::new(
            0,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::Eq,
            libc::AF_UNIX as u64,
        )?;
        rules.insert(libc::SYS_socket, vec![SeccompRule::new(vec![unix])?]);
    }
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, refused, SeccompAction::Allow, arch)?.try_into()
}

/// The argument does not have this bit.
fn without(argument: u8, bit: libc::c_int) -> Result<SeccompRule, seccompiler::BackendError> {
    let mask = SeccompCmpOp::MaskedEq(bit as u64);
    SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, mask, 0)?])
}
