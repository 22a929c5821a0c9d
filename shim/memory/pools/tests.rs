//! The pool reservation against a driver that over-allocates pools and shrinks them at any time.

use super::reservation::{PoolBackend, PoolReservation, Step};
use gpuslice_nvabi::types::CUresult;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

const MIB: u64 = 1 << 20;

#[derive(Debug, Default)]
struct State {
    /// The account: bytes left under the cap, and bytes taken.
    left: u64,
    taken: u64,
    unseen: i64,
    reserved: u64,
    used: u64,
}

/// An account with a cap, and a driver whose pool grows in multiples of `growth`.
#[derive(Debug)]
struct Fake {
    state: Mutex<State>,
    growth: u64,
    refused: AtomicU64,
    /// Bytes of the account that were left at the last refusal.
    left_then: AtomicU64,
    /// Whether the driver supports the attribute.
    tells: bool,
    step: Step,
    /// The largest excess of reserved bytes over bytes taken.
    above: AtomicU64,
}

impl Fake {
    fn new(cap: u64, growth: u64) -> Fake {
        Fake {
            state: Mutex::new(State { left: cap, ..State::default() }),
            growth,
            refused: AtomicU64::new(0),
            left_then: AtomicU64::new(0),
            tells: true,
            step: Step::default(),
            above: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under it")
    }

    fn alloc(&self, bytes: u64) {
        let mut state = self.state();
        state.used += bytes;
        if state.used > state.reserved {
            let more = (state.used - state.reserved).next_multiple_of(self.growth);
            state.reserved += more;
            let above = state.reserved.saturating_sub(state.taken);
            self.above.fetch_max(above, SeqCst);
        }
    }

    fn above(&self) -> u64 {
        self.above.load(SeqCst)
    }

    fn free(&self, bytes: u64) {
        self.state().used -= bytes;
    }

    fn trim(&self) {
        let mut state = self.state();
        state.reserved = state.used.next_multiple_of(self.growth);
    }
}

impl PoolBackend for Fake {
    /// Half of the bytes left in the account are credit.
    fn take(&self, bytes: u64) -> Option<u64> {
        let is_credit = bytes <= self.state().left / 2;
        if is_credit { self.reserve(bytes).ok() } else { None }
    }

    fn reserve(&self, bytes: u64) -> Result<u64, CUresult> {
        let mut state = self.state();
        let Some(left) = state.left.checked_sub(bytes) else {
            self.refused.fetch_add(1, SeqCst);
            self.left_then.store(state.left, SeqCst);
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        };
        state.left = left;
        state.taken += bytes;
        Ok(bytes)
    }

    fn release(&self, bytes: u64) {
        let mut state = self.state();
        state.left += bytes;
        state.taken = state.taken.checked_sub(bytes).expect("no more than taken");
    }

    fn changed(&self, bytes: i64) {
        self.state().unseen += bytes;
    }

    fn reserved(&self) -> Option<u64> {
        self.tells.then(|| self.state().reserved)
    }

    fn step(&self) -> &Step {
        &self.step
    }
}

/// One allocation as the hook makes it; `false` when it is refused.
fn allocate(pool: &PoolReservation, fake: &Fake, bytes: u64) -> bool {
    let Ok(call) = pool.begin(fake, bytes) else {
        return false;
    };
    fake.alloc(call.bytes);
    if pool.end(fake, &call).is_ok() {
        return true;
    }
    fake.free(call.bytes);
    pool.freed(call.bytes);
    fake.trim();
    pool.settle(fake);
    false
}

fn free(pool: &PoolReservation, fake: &Fake, bytes: u64) {
    fake.free(bytes);
    pool.freed(bytes);
    pool.settle(fake);
}

#[test]
fn growth_beyond_the_request_is_charged() {
    let (pool, fake) = (PoolReservation::default(), Fake::new(100 * MIB, 32 * MIB));
    assert!(allocate(&pool, &fake, MIB));
    assert_eq!((pool.charged(), fake.state().taken), (32 * MIB, 32 * MIB));
    // Memory that the pool has is not reserved again, and slack stays charged.
    assert!(allocate(&pool, &fake, 30 * MIB));
    free(&pool, &fake, 30 * MIB);
    free(&pool, &fake, MIB);
    assert_eq!(fake.state().taken, 32 * MIB);
    fake.trim();
    pool.settle(&fake);
    assert_eq!((pool.charged(), fake.state().taken), (0, 0));
    assert_eq!(fake.state().unseen, 0);
}

/// A fake whose account changes only after a word: a thread that the scheduler stops at that moment.
struct Late<'a> {
    fake: &'a Fake,
    begins: Sender<()>,
    goes_on: Mutex<Receiver<()>>,
}

impl PoolBackend for Late<'_> {
    fn take(&self, bytes: u64) -> Option<u64> {
        self.fake.take(bytes)
    }
    fn reserve(&self, bytes: u64) -> Result<u64, CUresult> {
        self.fake.reserve(bytes)
    }
    fn release(&self, bytes: u64) {
        self.fake.release(bytes);
    }
    fn changed(&self, bytes: i64) {
        let _ = self.begins.send(());
        let _ = self.goes_on.lock().expect("no panic under it").recv();
        self.fake.changed(bytes);
    }
    fn reserved(&self) -> Option<u64> {
        self.fake.reserved()
    }
    fn step(&self) -> &Step {
        self.fake.step()
    }
}

/// A program asks what is free while the gate's thread brings the charges up to date.
#[test]
fn what_another_thread_has_settled_is_in_the_account() {
    let (pool, fake) = (PoolReservation::default(), Fake::new(100 * MIB, 32 * MIB));
    assert!(allocate(&pool, &fake, MIB));
    fake.free(MIB);
    pool.freed(MIB);
    fake.trim();
    std::thread::scope(|scope| {
        let (begins, begun) = channel();
        let (word, goes_on) = channel();
        let late = Late { fake: &fake, begins, goes_on: Mutex::new(goes_on) };
        let (pool, fake) = (&pool, &fake);
        scope.spawn(move || pool.settle(&late));
        begun.recv().expect("it settles");
        let (tells, told) = channel();
        let (comes, there) = channel();
        scope.spawn(move || {
            let _ = comes.send(());
            pool.settle(fake);
            let _ = tells.send(fake.state().taken);
        });
        there.recv().expect("it begins");
        let early = told.recv_timeout(Duration::from_millis(50));
        assert!(early.is_err(), "{early:?} bytes are taken, before the account has changed");
        word.send(()).expect("it waits");
        assert_eq!(told.recv(), Ok(0));
    });
}

#[test]
fn growth_that_does_not_fit_is_rolled_back() {
    let (pool, fake) = (PoolReservation::default(), Fake::new(40 * MIB, 32 * MIB));
    assert!(allocate(&pool, &fake, 20 * MIB));
    assert!(!allocate(&pool, &fake, 20 * MIB), "it would be 64 MiB");
    assert_eq!((pool.charged(), fake.state().taken), (32 * MIB, 32 * MIB));
    assert!(allocate(&pool, &fake, 12 * MIB), "there is room in the pool");
    assert_eq!(fake.above(), 0, "nothing was tried that was not paid for");
    assert!(!allocate(&pool, &fake, u64::MAX));
    assert_eq!(fake.state().taken, 32 * MIB);
}

/// Other threads and processes may need the spare bytes while the daemon is asked.
#[test]
fn a_call_that_is_refused_keeps_no_spare_bytes_meanwhile() {
    let (pool, fake) = (PoolReservation::default(), Fake::new(96 * MIB, 32 * MIB));
    assert!(allocate(&pool, &fake, MIB));
    fake.free(MIB);
    pool.freed(MIB);
    assert!(allocate(&pool, &fake, MIB), "its stream may not have freed the first one yet");
    assert_eq!((pool.charged(), fake.state().taken), (32 * MIB, 64 * MIB), "a step is spare");
    assert!(pool.begin(&fake, 80 * MIB).is_err(), "it would be 128 MiB");
    assert_eq!(fake.left_then.load(SeqCst), 64 * MIB, "all but the pool's memory");
    assert_eq!(fake.state().taken, 32 * MIB);
}

#[test]
fn steps_are_learned() {
    // Until a step is observed, the guess must fit.
    let (pool, fake) = (PoolReservation::default(), Fake::new(40 * MIB, 2 * MIB));
    assert!(allocate(&pool, &fake, 3 * MIB));
    assert_eq!((fake.step.bytes(), fake.above()), (4 * MIB, 0));
    assert!(allocate(&pool, &fake, 34 * MIB));
    assert_eq!((pool.charged(), fake.above()), (38 * MIB, 0));
    let fake = Fake::new(31 * MIB, 2 * MIB);
    assert!(!allocate(&PoolReservation::default(), &fake, 3 * MIB));
    assert_eq!(fake.above(), 0);
    // The driver's step exceeds the guess: the growth is rolled back and the step is learned.
    let (pool, fake) = (PoolReservation::default(), Fake::new(40 * MIB, 64 * MIB));
    assert!(!allocate(&pool, &fake, MIB));
    assert_eq!((fake.step.bytes(), fake.above()), (64 * MIB, 32 * MIB));
    assert!(!allocate(&pool, &fake, MIB));
    assert_eq!((fake.state().taken, fake.refused.load(SeqCst) > 1), (0, true));
}

/// A pool of two blocks with a gap in each. With no step left, a size that fits in neither gap is refused,
/// and a size that surely fits needs no step.
#[test]
fn fragmented_room_does_not_count() {
    let (pool, fake) = (PoolReservation::default(), Fake::new(64 * MIB, 32 * MIB));
    for _ in 0..8 {
        assert!(allocate(&pool, &fake, 8 * MIB));
    }
    free(&pool, &fake, 8 * MIB);
    free(&pool, &fake, 8 * MIB);
    assert!(pool.begin(&fake, 512).is_err(), "no stream need have freed anything yet");
    pool.executed(1);
    assert!(pool.begin(&fake, 512).is_err(), "nor the second one");
    pool.executed(pool.frees());
    pool.executed(1);
    assert!(pool.begin(&fake, 16 * MIB).is_err());
    // At most four gaps in 16 MiB.
    assert!(pool.begin(&fake, 4 * MIB + 1).is_err());
    let call = pool.begin(&fake, 4 * MIB).expect("there is a gap");
    assert!(pool.begin(&fake, 512).is_err(), "one at a time");
    fake.alloc(4 * MIB);
    pool.end(&fake, &call).expect("it took nothing");
    let call = pool.begin(&fake, 512).expect("that one is over");
    pool.cancel(&fake, &call);
}

#[test]
fn growth_that_cannot_be_paid_is_owed() {
    let (pool, fake) = (PoolReservation::default(), Fake::new(40 * MIB, 32 * MIB));
    assert!(allocate(&pool, &fake, 20 * MIB));
    let call = pool.begin(&fake, MIB).expect("there is room");
    fake.alloc(30 * MIB); // The pool grew despite the gap.
    assert!(pool.end(&fake, &call).is_err());
    assert_eq!(pool.settle(&fake), 32 * MIB);
    assert!(pool.begin_growth(&fake, 512, u64::MAX).is_err(), "pay first");
    fake.free(30 * MIB);
    fake.trim();
    let call = pool.begin_growth(&fake, 0, u64::MAX).expect("nothing is owed");
    pool.cancel(&fake, &call);
    assert_eq!((pool.charged(), fake.state().taken), (32 * MIB, 32 * MIB));
}

/// A pool that has returned some of its memory needs no more than that to be as large as before.
#[test]
fn growth_is_limited_to_the_bytes_released() {
    let (pool, fake) = (PoolReservation::default(), Fake::new(70 * MIB, 2 * MIB));
    let call = pool.begin_growth(&fake, 60 * MIB, u64::MAX).expect("two steps fit");
    fake.alloc(60 * MIB);
    assert!(pool.end(&fake, &call).is_ok());
    let before = pool.released();
    fake.free(6 * MIB);
    fake.trim();
    pool.settle(&fake);
    assert_eq!(pool.released() - before, 6 * MIB);
    assert!(pool.begin_growth(&fake, 60 * MIB, u64::MAX).is_err(), "all of it again does not fit");
    let call = pool.begin_growth(&fake, 60 * MIB, 6 * MIB).expect("the difference fits");
    fake.alloc(6 * MIB);
    assert!(pool.end(&fake, &call).is_ok());
    assert_eq!((pool.charged(), fake.state().taken, fake.above()), (60 * MIB, 60 * MIB, 0));
}

#[test]
fn a_destroyed_pool_is_charged_until_its_last_allocation_is_freed() {
    let (pool, fake) = (PoolReservation::default(), Fake::new(100 * MIB, 32 * MIB));
    assert!(allocate(&pool, &fake, MIB) && allocate(&pool, &fake, MIB));
    assert!(!pool.release_destroyed(&fake), "it is not destroyed");
    pool.close();
    pool.destroyed();
    fake.state().reserved = 0; // Must not be read any more.
    pool.settle(&fake);
    pool.freed(MIB);
    assert!(!pool.release_destroyed(&fake));
    assert_eq!(fake.state().taken, 32 * MIB);
    pool.freed(MIB);
    assert!(pool.release_destroyed(&fake));
    assert_eq!(fake.state().taken, 0);
    assert_eq!(fake.state().unseen, 0);
}

/// One thread frees the last allocation while another destroys the pool, and both then look for the pool's end. Its
/// number may be another pool's when the second one does.
#[test]
fn a_destroyed_pool_is_released_once() {
    let (pool, fake) = (PoolReservation::default(), Fake::new(100 * MIB, 32 * MIB));
    assert!(allocate(&pool, &fake, MIB));
    pool.close();
    pool.destroyed();
    assert!(pool.freed(MIB), "it is destroyed");
    assert!(pool.release_destroyed(&fake));
    assert!(!pool.release_destroyed(&fake), "it was released before");
    assert_eq!(fake.state().taken, 0);
}

/// The driver may refuse to destroy a pool. Until it has answered, a free does not end the pool.
#[test]
fn a_pool_that_is_not_destroyed_in_the_end_keeps_its_charge() {
    let (pool, fake) = (PoolReservation::default(), Fake::new(100 * MIB, 32 * MIB));
    assert!(allocate(&pool, &fake, MIB));
    pool.close();
    assert!(!pool.freed(MIB), "the driver has not destroyed it yet");
    assert!(!pool.release_destroyed(&fake));
    pool.reopen();
    assert_eq!((pool.charged(), fake.state().taken), (32 * MIB, 32 * MIB));
}

#[test]
fn without_the_attribute_a_pool_is_charged_by_its_allocations() {
    let mut fake = Fake::new(100 * MIB, 32 * MIB);
    fake.tells = false;
    let pool = PoolReservation::default();
    assert!(allocate(&pool, &fake, MIB) && allocate(&pool, &fake, 3));
    pool.settle(&fake);
    assert_eq!(fake.state().taken, MIB + 512);
    free(&pool, &fake, MIB);
    assert_eq!(fake.state().taken, 512);
}

/// As after the reset of a context: what the pool keeps stays charged, once.
#[test]
fn a_driver_that_no_longer_reports_reserved_bytes_changes_no_charge() {
    let (pool, mut fake) = (PoolReservation::default(), Fake::new(200 * MIB, 32 * MIB));
    assert!(allocate(&pool, &fake, 40 * MIB));
    pool.settle(&fake);
    fake.tells = false;
    free(&pool, &fake, 40 * MIB);
    assert_eq!((pool.charged(), fake.state().taken), (64 * MIB, 64 * MIB));
    fake.tells = true;
    assert!(allocate(&pool, &fake, 60 * MIB));
    pool.settle(&fake);
    assert_eq!((pool.charged(), fake.state().taken), (64 * MIB, 64 * MIB));
    free(&pool, &fake, 60 * MIB);
    fake.trim();
    pool.settle(&fake);
    assert_eq!((pool.charged(), fake.state().taken), (0, 0));
}

/// Eight threads allocate, free, trim and settle at random. In the end the charge is what the pool has
/// reserved, nothing is charged twice, and the pool never exceeded the bytes taken for it.
#[test]
fn threads_settle_for_each_other() {
    for (cap, growth) in [(4096 * MIB, 32 * MIB), (200 * MIB, 32 * MIB), (150 * MIB, 2 * MIB)] {
        let (pool, fake) = (PoolReservation::default(), Fake::new(cap, growth));
        std::thread::scope(|scope| {
            for seed in 1..=8u64 {
                let (pool, fake) = (&pool, &fake);
                scope.spawn(move || {
                    let (mut random, mut mine) = (seed, Vec::new());
                    for _ in 0..2000 {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let bytes = ((random >> 40) % (20 * MIB)).next_multiple_of(512).max(512);
                        if random >> 63 == 0 && allocate(pool, fake, bytes) {
                            mine.push(bytes);
                        } else if let Some(bytes) = mine.pop() {
                            free(pool, fake, bytes);
                        }
                        if random >> 60 == 7 {
                            fake.trim();
                            pool.settle(fake);
                        }
                    }
                    mine.into_iter().for_each(|bytes| free(pool, fake, bytes));
                });
            }
        });
        pool.settle(&fake);
        let reserved = fake.state().reserved;
        assert_eq!(pool.charged(), reserved, "cap {cap}, growth {growth}");
        assert_eq!(fake.state().taken, reserved, "no unspent bytes are left");
        assert_eq!(fake.above(), 0, "cap {cap}, growth {growth}");
        assert_eq!(fake.state().used, 0);
        assert_eq!(fake.state().unseen, reserved as i64);
        fake.trim();
        pool.settle(&fake);
        assert_eq!(fake.state().taken, 0);
        assert_eq!(fake.state().left, cap);
    }
}
