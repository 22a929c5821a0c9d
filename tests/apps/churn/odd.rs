//! What programs do with descriptors that are not theirs: they close them, and hand them to children.

/// Closes every socket of this process, whichever library opened it; returns how many those were.
pub fn hang_up() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let numbers: Vec<i32> = open
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let sockets = numbers.into_iter().filter(|&fd| is_socket(fd));
    // SAFETY: the whole point: a program that takes no heed of what others have open.
    sockets
        .filter(|&fd| unsafe { libc::close(fd) } == 0)
        .count()
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
