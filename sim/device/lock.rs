//! The lock on the shared state.
//!
//! A robust pthread mutex would do but for one thing: it names its owner by thread id, and ids of
//! different pid namespaces (containers!) collide, upon which the kernel declares the wrong owner
//! dead. So the word names the owner by its slot, and a process that has waited too long asks the
//! kernel (see [`crate::alive`]) whether that slot's process still lives. If not, the waiter takes
//! the lock over and repairs the state.
//!
//! The word: bits 0-9 the owner's slot + 1 (0: free), bit 10 "has waiters", bits 11-31 a count of
//! acquisitions. The count makes the takeover safe: if a new process gets the dead owner's slot and
//! acquires the lock in the same instant, the word has changed.

#![allow(unsafe_code)]

use crate::layout::State;
use crate::mapping::Mapping;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

const OWNER: u32 = (1 << 10) - 1;
const WAITERS: u32 = 1 << 10;
const COUNT: u32 = 1 << 11;

/// Spins on a held lock before sleeping: critical sections are about that short.
const SPINS: u32 = 60;
/// Sleep before the waiter checks whether the owner lives.
const PATIENCE_NS: i64 = 5_000_000;

/// Exclusive access to the state until dropped.
pub(crate) struct Guard<'a> {
    mapping: &'a Mapping,
}

impl Deref for Guard<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        // SAFETY: the guard's existence means that no other thread of any process uses the state.
        unsafe { &*self.mapping.state() }
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: as above.
        unsafe { &mut *self.mapping.state() }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let word = &self.mapping.header().lock;
        let before = word.fetch_and(!(OWNER | WAITERS), Ordering::Release);
        if before & WAITERS != 0 {
            wake(word, 1);
        }
    }
}

/// Acquires the lock for `slot`; the flag says that its owner died holding it and the state must be
/// repaired. `new` means that this process has just got the slot: a word that names it is a
/// dead predecessor's.
pub(crate) fn acquire<'a>(
    mapping: &'a Mapping,
    slot: usize,
    new: bool,
    is_dead: impl Fn(usize) -> bool,
) -> (Guard<'a>, bool) {
    let word = &mapping.header().lock;
    let me = slot as u32 + 1;
    let mut waiters = 0;
    let mut spins = 0;
    let mut timed_out = false;
    loop {
        let seen = word.load(Ordering::Relaxed);
        let owner = seen & OWNER;
        let dead =
            owner != 0 && ((new && owner == me) || (timed_out && is_dead(owner as usize - 1)));
        if owner == 0 || dead {
            let count = (seen & !(COUNT - 1)).wrapping_add(COUNT);
            let ours = count | me | waiters | (seen & WAITERS);
            if word.compare_exchange(seen, ours, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return (Guard { mapping }, dead);
            }
            continue;
        }
        if spins < SPINS {
            spins += 1;
            std::hint::spin_loop();
            continue;
        }
        let marked = seen | WAITERS;
        let same = word.compare_exchange(seen, marked, Ordering::Relaxed, Ordering::Relaxed);
        if same.is_ok() {
            waiters = WAITERS;
            timed_out = !wait(word, marked, PATIENCE_NS);
        }
    }
}

/// The slot that holds the lock at this moment.
pub(crate) fn owner(mapping: &Mapping) -> Option<usize> {
    let owner = mapping.header().lock.load(Ordering::Relaxed) & OWNER;
    (owner != 0).then(|| owner as usize - 1)
}

/// Sleeps while `word` is `value`, at most `nanoseconds`; false if that time ran out.
pub(crate) fn wait(word: &AtomicU32, value: u32, nanoseconds: i64) -> bool {
    let time = libc::timespec {
        tv_sec: nanoseconds / 1_000_000_000,
        tv_nsec: nanoseconds % 1_000_000_000,
    };
    // SAFETY: the word is a valid, aligned place in a shared mapping; the timeout is valid.
    let answer = unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const time)
    };
    answer == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}

/// Wakes up to `count` sleepers of [`wait`], of any process.
pub(crate) fn wake(word: &AtomicU32, count: i32) {
    // SAFETY: as in `wait`.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::FILE_BYTES;
    use std::fs::OpenOptions;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    fn mapping(name: &str) -> Mapping {
        let path = format!("/dev/shm/gpuslice-sim-lock-{}-{name}", std::process::id());
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(FILE_BYTES as u64).unwrap();
        Mapping::new(&file).unwrap()
    }

    #[test]
    fn one_at_a_time() {
        let mapping = mapping("exclusion");
        std::thread::scope(|scope| {
            for slot in 0..4 {
                let mapping = &mapping;
                scope.spawn(move || {
                    for _ in 0..5000 {
                        let (mut state, died) = acquire(mapping, slot, false, |_| false);
                        assert!(!died);
                        let seen = state.event_count;
                        std::hint::spin_loop();
                        state.event_count = seen + 1;
                    }
                });
            }
        });
        assert_eq!(acquire(&mapping, 0, false, |_| false).0.event_count, 20_000);
    }

    #[test]
    fn a_dead_owner_is_succeeded_and_a_living_one_waited_for() {
        let mapping = mapping("dead");
        assert_eq!(owner(&mapping), None);
        std::mem::forget(acquire(&mapping, 7, false, |_| false));
        assert_eq!(owner(&mapping), Some(7));
        let (guard, died) = acquire(&mapping, 3, false, |slot| slot == 7);
        assert!(died);
        let released = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (_guard, died) = acquire(&mapping, 4, false, |slot| slot == 7);
                assert!(!died && released.load(Ordering::SeqCst));
            });
            std::thread::sleep(Duration::from_millis(30));
            released.store(true, Ordering::SeqCst);
            drop(guard);
        });
    }

    #[test]
    fn a_new_process_in_a_dead_owners_place_knows_it() {
        let mapping = mapping("new");
        std::mem::forget(acquire(&mapping, 7, false, |_| false));
        let began = Instant::now();
        let (_guard, died) = acquire(&mapping, 7, true, |_| false);
        assert!(died && began.elapsed() < Duration::from_secs(20));
    }
}
