//! The few system services that the gate uses: a clock, a futex, a background thread.

use gpuslice_wire::units::MIB;
use std::sync::atomic::AtomicU32;

/// The clock of the daemon's time stamps, ns.
#[must_use]
pub fn now() -> u64 {
    #[cfg(test)]
    if let Some(now) = super::fake::clock::now() {
        return now;
    }
    crate::daemon::clock::now().0
}

/// Longest sleep: a waiting thread must check whether the daemon is alive.
const LONGEST_NS: u64 = 1_000_000_000;

/// Sleeps while `word` is `expected`, for at most `ns` and at most a second; a signal ends the sleep. `word`
/// may lie in a read-only shared mapping.
pub fn wait(word: &AtomicU32, expected: u32, ns: u64) {
    #[cfg(test)]
    if super::fake::clock::wait(word, expected, ns) {
        return;
    }
    let ns = ns.min(LONGEST_NS);
    let time = libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: FUTEX_WAIT reads the aligned word and the timespec, both alive during the call.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const time)
    };
}

/// Wakes all threads that wait on `word`, in all processes.
pub fn wake(word: &AtomicU32) {
    #[cfg(test)]
    super::fake::clock::wake(word);
    // SAFETY: FUTEX_WAKE only takes the address of the live word as a key.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Name of the gate thread.
pub const THREAD: &str = "gpuslice-gate";

/// Starts a thread that receives none of the process's signals and wakes on time. Returns whether it runs.
pub fn spawn(work: impl FnOnce() + Send + 'static) -> bool {
    let mut old = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are live; sigfillset initialises `all`, pthread_sigmask `old`. The mask is
    // inherited by the new thread and put back for this one below.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        if libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr()) != 0 {
            return false;
        }
    }
    let worker = move || {
        // SAFETY: sets the timer slack of this thread alone.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64) };
        work();
    };
    let thread = std::thread::Builder::new().name(THREAD.into()).stack_size(MIB as usize);
    let started = thread.spawn(worker).is_ok();
    // SAFETY: `old` was filled in above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut()) };
    started
}

/// Runs `work` at an orderly exit of the process, before all handlers registered so far.
pub fn at_exit(work: extern "C" fn()) {
    // SAFETY: `work` stays mapped: the shim libraries are linked with `-z nodelete`.
    unsafe { libc::atexit(work) };
}

/// A number that differs between living threads.
#[must_use]
pub fn thread_id() -> u64 {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.try_with(|fence| std::ptr::from_ref(fence) as u64).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use crate::daemon::fake::in_child;
    use std::path::Path;

    /// Files below `directory` that contain `word`, without the tests' own daemon.
    fn with(directory: &Path, word: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).expect("this crate's source") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                if !path.ends_with("suite") {
                    with(&path, word, found);
                }
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let text = std::fs::read_to_string(&path).expect("text");
                let name = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).expect("below");
                found.extend(text.contains(word).then(|| name.display().to_string()));
            }
        }
    }

    /// [`super::wait`] is bounded, and nothing else sleeps on a shared word.
    #[test]
    fn nothing_else_sleeps_on_a_futex() {
        for word in [concat!("FUTEX_", "WAIT"), concat!("SYS_", "futex")] {
            let mut found = Vec::new();
            with(Path::new(env!("CARGO_MANIFEST_DIR")), word, &mut found);
            assert_eq!(found, ["launch/os.rs"], "{word}");
        }
        // Waits on conditions have a time limit.
        let endless =
            [concat!("thread::", "park"), concat!("done", ".wait("), concat!(".wait_", "while(")];
        for (word, files) in [(concat!("Cond", "var"), &["memory/pools/reservation.rs"][..])]
            .into_iter()
            .chain(endless.map(|word| (word, &[][..])))
        {
            let mut found = Vec::new();
            with(Path::new(env!("CARGO_MANIFEST_DIR")), word, &mut found);
            assert_eq!(found, files, "{word}");
        }
    }

    #[test]
    fn a_sleep_without_end_ends() {
        let word = std::sync::atomic::AtomicU32::new(7);
        for (ns, least) in [(u64::MAX, super::LONGEST_NS), (3_000_000, 3_000_000)] {
            let before = super::now();
            super::wait(&word, 7, ns);
            assert!(super::now() - before >= least, "{ns}");
        }
        super::wait(&word, 8, u64::MAX);
    }

    /// A wait that ends before its limit was woken; where the machine is busy, not each of them is.
    #[test]
    fn a_wait_is_woken() {
        let word = std::sync::atomic::AtomicU32::new(7);
        let is_woken = || {
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| {
                    let before = super::now();
                    super::wait(&word, 7, u64::MAX);
                    super::now() - before < super::LONGEST_NS
                });
                while !waits.is_finished() {
                    super::wake(&word);
                    std::thread::yield_now();
                }
                waits.join().expect("no panic")
            })
        };
        assert!((0..20).any(|_| is_woken()));
    }

    extern "C" fn ends_well() {
        // SAFETY: ends this process, a child of the test's.
        unsafe { libc::_exit(true.into()) };
    }

    #[test]
    fn an_orderly_exit_runs_the_handler() {
        assert!(in_child(|| {
            super::at_exit(ends_well);
            // SAFETY: ends this process.
            unsafe { libc::exit(false.into()) }
        }));
    }

    #[test]
    fn living_threads_have_different_numbers() {
        let [one, other] = [super::thread_id(); 2];
        let third = std::thread::spawn(super::thread_id).join().expect("no panic");
        assert!(one == other && one != third, "{one} {other} {third}");
        assert!(one != 0 && third != 0, "{one} {third}");
    }
}
