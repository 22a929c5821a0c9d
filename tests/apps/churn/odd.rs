//! Misuse of the shim's descriptors: programs close them, and pass them to children.

use std::ptr::null_mut;

/// Closes every socket of this process, whichever library opened it; returns how many of those were connections.
pub fn hang_up() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let numbers: Vec<i32> =
        open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    let sockets = numbers.into_iter().filter(|&fd| is_socket(fd));
    let connections = sockets.filter(|&fd| {
        let is_connected = is_connected(fd);
        // SAFETY: the whole point: a program that takes no heed of what others have open.
        let is_closed = unsafe { libc::close(fd) } == 0;
        is_connected && is_closed
    });
    connections.count()
}

fn is_connected(fd: i32) -> bool {
    // SAFETY: the structure is valid as zeros, and the kernel writes no more than its size.
    unsafe {
        let mut peer: libc::sockaddr_un = std::mem::zeroed();
        let mut size = size_of_val(&peer) as libc::socklen_t;
        libc::getpeername(fd, (&raw mut peer).cast(), &raw mut size) == 0
    }
}

/// Asks NVML, for the first time perhaps, what the first GPU has; whether it answers.
pub fn look() -> bool {
    type Call = unsafe extern "C" fn(*mut u64, *mut u64) -> i32;
    // SAFETY: names that end in NUL; no library is closed.
    let call = |name: &std::ffi::CStr| unsafe {
        let nvml = libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_NOW);
        let at = libc::dlsym(nvml, name.as_ptr());
        (!at.is_null()).then(|| std::mem::transmute::<*mut libc::c_void, Call>(at))
    };
    let (mut device, mut memory) = (0u64, [0u64; 3]);
    let done = |code: i32| (code == 0).then_some(());
    let mut asked = || {
        // SAFETY: each function takes these or fewer arguments: none; a number and where a handle goes; the
        // handle and where three numbers go.
        unsafe {
            done(call(c"nvmlInit_v2")?(null_mut(), null_mut()))?;
            done(call(c"nvmlDeviceGetHandleByIndex_v2")?(null_mut(), &raw mut device))?;
            let device = device as *mut u64;
            done(call(c"nvmlDeviceGetMemoryInfo")?(device, memory.as_mut_ptr()))
        }
    };
    asked().is_some()
}

fn is_socket(fd: i32) -> bool {
    // SAFETY: all-zero bytes are a stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable; any number may be asked for.
    let known = unsafe { libc::fstat(fd, &raw mut stat) } == 0;
    known && stat.st_mode & libc::S_IFMT == libc::S_IFSOCK
}

/// A child that does nothing but keep what it inherited, for a minute at most; its number.
pub fn fork() -> i32 {
    // SAFETY: the child makes system calls only.
    match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: plain system calls; the alarm ends this process.
            unsafe {
                libc::alarm(60);
                libc::pause();
            }
        },
        child => child,
    }
}
