//! The pot against a driver that grows pools by too much, and shrinks them when it likes.

use super::pot::{Charge, PoolBackend, Step};
use gpuslice_nvabi::types::CUresult;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};

const MIB: u64 = 1 << 20;

#[derive(Debug, Default)]
struct State {
    /// The account: what is left, what was taken, and the cap's rest of other charges.
    left: u64,
    taken: u64,
    unseen: i64,
    reserved: u64,
    used: u64,
}

/// An account with a cap, and a driver whose pool grows by `piece`.
#[derive(Debug)]
struct Fake {
    state: Mutex<State>,
    piece: u64,
    refused: AtomicU64,
    /// Whether the driver knows the attribute.
    tells: bool,
    step: Step,
    /// The most that the pool had more than was taken for it.
    above: AtomicU64,
}

impl Fake {
    fn new(cap: u64, piece: u64) -> Fake {
        Fake {
            state: Mutex::new(State {
                left: cap,
                ..State::default()
            }),
            piece,
            refused: AtomicU64::new(0),
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
            let more = (state.used - state.reserved).next_multiple_of(self.piece);
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
        state.reserved = state.used.next_multiple_of(self.piece);
    }
}

impl PoolBackend for Fake {
    fn reserve(&self, bytes: u64) -> Result<u64, CUresult> {
        let mut state = self.state();
        let Some(left) = state.left.checked_sub(bytes) else {
            self.refused.fetch_add(1, SeqCst);
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
fn allocate(charge: &Charge, fake: &Fake, bytes: u64) -> bool {
    let Ok(call) = charge.begin(fake, bytes) else {
        return false;
    };
    fake.alloc(call.bytes);
    if charge.end(fake, &call).is_ok() {
        return true;
    }
    fake.free(call.bytes);
    charge.parted(call.bytes);
    fake.trim();
    charge.settle(fake);
    false
}

fn free(charge: &Charge, fake: &Fake, bytes: u64) {
    fake.free(bytes);
    charge.parted(bytes);
    charge.settle(fake);
}

#[test]
fn growth_beyond_what_was_asked_is_charged() {
    let (charge, fake) = (Charge::default(), Fake::new(100 * MIB, 32 * MIB));
    assert!(allocate(&charge, &fake, MIB));
    assert_eq!((charge.charged(), fake.state().taken), (32 * MIB, 32 * MIB));
    // What the pool has is not asked for again, and slack stays charged.
    assert!(allocate(&charge, &fake, 30 * MIB));
    free(&charge, &fake, 30 * MIB);
    free(&charge, &fake, MIB);
    assert_eq!(fake.state().taken, 32 * MIB);
    fake.trim();
    charge.settle(&fake);
    assert_eq!((charge.charged(), fake.state().taken), (0, 0));
    assert_eq!(fake.state().unseen, 0);
}

#[test]
fn growth_that_does_not_fit_is_undone() {
    let (charge, fake) = (Charge::default(), Fake::new(40 * MIB, 32 * MIB));
    assert!(allocate(&charge, &fake, 20 * MIB));
    assert!(!allocate(&charge, &fake, 20 * MIB), "it would be 64 MiB");
    assert_eq!((charge.charged(), fake.state().taken), (32 * MIB, 32 * MIB));
    assert!(
        allocate(&charge, &fake, 12 * MIB),
        "there is room in the pool"
    );
    assert_eq!(fake.above(), 0, "nothing was tried that was not paid for");
    assert!(!allocate(&charge, &fake, u64::MAX));
    assert_eq!(fake.state().taken, 32 * MIB);
}

#[test]
fn steps_are_learned() {
    // Until one is seen, the guess is what must fit.
    let (charge, fake) = (Charge::default(), Fake::new(40 * MIB, 2 * MIB));
    assert!(allocate(&charge, &fake, 3 * MIB));
    assert_eq!((fake.step.bytes(), fake.above()), (4 * MIB, 0));
    assert!(allocate(&charge, &fake, 34 * MIB));
    assert_eq!((charge.charged(), fake.above()), (38 * MIB, 0));
    let fake = Fake::new(31 * MIB, 2 * MIB);
    assert!(!allocate(&Charge::default(), &fake, 3 * MIB));
    assert_eq!(fake.above(), 0);
    // The driver grows by more than anybody thought: undone, and known from then on.
    let (charge, fake) = (Charge::default(), Fake::new(40 * MIB, 64 * MIB));
    assert!(!allocate(&charge, &fake, MIB));
    assert_eq!((fake.step.bytes(), fake.above()), (64 * MIB, 32 * MIB));
    assert!(!allocate(&charge, &fake, MIB));
    assert_eq!(
        (fake.state().taken, fake.refused.load(SeqCst) > 1),
        (0, true)
    );
}

/// A pool of two pieces with a hole in each: what fits in none of them is not tried where there is
/// no step left, and what surely fits needs none.
#[test]
fn splinters_are_no_room() {
    let (charge, fake) = (Charge::default(), Fake::new(64 * MIB, 32 * MIB));
    for _ in 0..8 {
        assert!(allocate(&charge, &fake, 8 * MIB));
    }
    free(&charge, &fake, 8 * MIB);
    free(&charge, &fake, 8 * MIB);
    assert!(charge.begin(&fake, 16 * MIB).is_err());
    // Four gaps at most, of which a quarter of 16 MiB is counted on.
    assert!(charge.begin(&fake, MIB + 1).is_err());
    let call = charge.begin(&fake, MIB).expect("there is a gap");
    assert!(charge.begin(&fake, 512).is_err(), "one at a time");
    fake.alloc(MIB);
    charge.end(&fake, &call).expect("it took nothing");
    let call = charge.begin(&fake, 512).expect("that one is over");
    charge.cancel(&fake, &call);
}

#[test]
fn what_cannot_be_paid_is_owed() {
    let (charge, fake) = (Charge::default(), Fake::new(40 * MIB, 32 * MIB));
    assert!(allocate(&charge, &fake, 20 * MIB));
    let call = charge.begin(&fake, MIB).expect("there is room");
    fake.alloc(30 * MIB); // It grew all the same.
    assert!(charge.end(&fake, &call).is_err());
    assert_eq!(charge.settle(&fake), 32 * MIB);
    assert!(charge.begin_growth(&fake, 512).is_err(), "pay first");
    fake.free(30 * MIB);
    fake.trim();
    let call = charge.begin_growth(&fake, 0).expect("nothing is owed");
    charge.cancel(&fake, &call);
    assert_eq!((charge.charged(), fake.state().taken), (32 * MIB, 32 * MIB));
}

#[test]
fn a_destroyed_pool_is_charged_until_its_last_allocation_is_gone() {
    let (charge, fake) = (Charge::default(), Fake::new(100 * MIB, 32 * MIB));
    assert!(allocate(&charge, &fake, MIB) && allocate(&charge, &fake, MIB));
    assert!(!charge.bury(&fake), "it is not destroyed");
    charge.close();
    fake.state().reserved = 0; // Must not be asked any more.
    charge.settle(&fake);
    charge.parted(MIB);
    assert!(!charge.bury(&fake));
    assert_eq!(fake.state().taken, 32 * MIB);
    charge.parted(MIB);
    assert!(charge.bury(&fake));
    assert_eq!(fake.state().taken, 0);
    assert_eq!(fake.state().unseen, 0);
}

#[test]
fn a_silent_driver_is_charged_by_what_was_allocated() {
    let mut fake = Fake::new(100 * MIB, 32 * MIB);
    fake.tells = false;
    let charge = Charge::default();
    assert!(allocate(&charge, &fake, MIB) && allocate(&charge, &fake, 3));
    charge.settle(&fake);
    assert_eq!(fake.state().taken, MIB + 512);
    free(&charge, &fake, MIB);
    assert_eq!(fake.state().taken, 512);
}

/// Eight threads that allocate and free, and a ninth that trims and settles: after each settling as
/// much is charged as the pool had, nothing is charged twice, and the account is never passed.
#[test]
fn threads_settle_for_each_other() {
    for (cap, piece) in [
        (4096 * MIB, 32 * MIB),
        (200 * MIB, 32 * MIB),
        (150 * MIB, 2 * MIB),
    ] {
        let (charge, fake) = (Charge::default(), Fake::new(cap, piece));
        std::thread::scope(|scope| {
            for seed in 1..=8u64 {
                let (charge, fake) = (&charge, &fake);
                scope.spawn(move || {
                    let (mut random, mut mine) = (seed, Vec::new());
                    for _ in 0..2000 {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        let bytes = ((random >> 40) % (20 * MIB)).next_multiple_of(512).max(512);
                        if random >> 63 == 0 && allocate(charge, fake, bytes) {
                            mine.push(bytes);
                        } else if let Some(bytes) = mine.pop() {
                            free(charge, fake, bytes);
                        }
                        if random >> 60 == 7 {
                            fake.trim();
                            charge.settle(fake);
                        }
                    }
                    mine.into_iter().for_each(|bytes| free(charge, fake, bytes));
                });
            }
        });
        charge.settle(&fake);
        let reserved = fake.state().reserved;
        assert_eq!(charge.charged(), reserved, "cap {cap}, piece {piece}");
        assert_eq!(fake.state().taken, reserved, "nothing is left in the pot");
        assert_eq!(fake.above(), 0, "cap {cap}, piece {piece}");
        assert_eq!(fake.state().used, 0);
        assert_eq!(fake.state().unseen, reserved as i64);
        fake.trim();
        charge.settle(&fake);
        assert_eq!(fake.state().taken, 0);
        assert_eq!(fake.state().left, cap);
    }
}
