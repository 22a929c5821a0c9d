//! A daemon on a kernel before Linux 6.16, whose sockets cannot refuse descriptors, by a system call filter.

use nix::errno::Errno;
use nix::libc;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// `SO_PASSRIGHTS` of Linux 6.16.
const SO_PASSRIGHTS: u32 = 83;

/// Makes a command believe that its kernel does not know the option.
pub fn as_on_an_old_kernel(command: &mut Command) {
    const fn statement(code: u32, k: u32) -> libc::sock_filter {
        jump(code, k, 0, 0)
    }
    const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
        let code = code as u16;
        libc::sock_filter { code, jt, jf, k }
    }
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const ANSWER: u32 = libc::BPF_RET | libc::BPF_K;
    // The number of the call, then its second and third argument.
    static FILTER: [libc::sock_filter; 9] = [
        statement(LOAD, 0),
        jump(EQUAL, libc::SYS_setsockopt as u32, 1, 0),
        jump(EQUAL, libc::SYS_getsockopt as u32, 0, 4),
        statement(LOAD, 24),
        jump(EQUAL, libc::SOL_SOCKET as u32, 0, 2),
        statement(LOAD, 32),
        jump(EQUAL, SO_PASSRIGHTS, 1, 0),
        statement(ANSWER, libc::SECCOMP_RET_ALLOW),
        statement(ANSWER, libc::SECCOMP_RET_ERRNO | Errno::ENOPROTOOPT as u32),
    ];
    let filter = || {
        let program =
            libc::sock_fprog { len: FILTER.len() as u16, filter: FILTER.as_ptr().cast_mut() };
        // SAFETY: plain numbers.
        Errno::result(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
        let mode = libc::SECCOMP_MODE_FILTER;
        // SAFETY: `program` lives through the call; the kernel copies it and what it points to.
        Errno::result(unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) })?;
        Ok(())
    };
    // SAFETY: two system calls on constants.
    unsafe { command.pre_exec(filter) };
}
