//! The conditions of `claim.rs`, in one thread. `tests/pages` runs its functions on a weak memory.

use super::super::claim::ClaimWords;
use super::*;
use std::sync::atomic::AtomicU64;

/// Words of a process whose last turn was `active`, reported drained up to `drained`.
fn with_words<R>(
    (turn, mode): (u32, u32),
    (active, drained): (u32, u32),
    call: impl FnOnce(&ClaimWords<'_>) -> R,
) -> R {
    let [turn, mode, active, drained] = [turn, mode, active, drained].map(AtomicU32::new);
    let (turn, mode, active, drained) = (&turn, &mode, &active, &drained);
    call(&ClaimWords { turn, mode, active, drained, drained_ns: &AtomicU64::new(0) })
}

#[test]
fn the_open_mode_is_claimed_while_its_word_and_the_mode_last() {
    let cases = [(4, MODE_OPEN, true), (4, MODE_TURNS, false), (5, MODE_OPEN, false)];
    for (turn, mode, claimed) in cases {
        with_words((turn, mode), (1, 1), |words| assert_eq!(words.take_open(4), claimed));
    }
}

#[test]
fn a_report_is_owed_once_the_claimed_turn_or_the_open_mode_is_over() {
    let cases = [
        ((3, 2), 3, false, false),
        ((3, 2), 4, false, true),
        ((3, 2), 5, false, true),
        ((3, 3), 4, false, false),
        ((4, 3), 4, true, false),
        ((4, 3), 4, false, true),
        ((4, 3), 5, false, true),
    ];
    for (claims, turn, free, owed) in cases {
        let owes = with_words((turn, MODE_OPEN), claims, |words| words.owes_report(free));
        assert_eq!(owes, owed, "{claims:?} in {turn}, free: {free}");
    }
}
