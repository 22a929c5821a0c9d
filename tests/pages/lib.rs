//! The shim's accesses to words that it shares, under every order that a weak memory model allows.
//!
//! `gpuslice_wire::page` says how a turn is closed: the daemon changes a word and then reads the claims, a process
//! writes its claim and then reads the word. Whether that excludes each other is not a question of interleavings
//! alone: each side may read *before* its own write has reached the other.
//!
//! The modules `claim`, `turn` and `word` below are the shim's own files: all that a launch reads, decides and claims,
//! on the fast path and at each look of the slow one. So is `balance`, whose word other processes read.
//! Only the module `atomic` that they import is another one: [loom](https://docs.rs/loom) runs the tests again and
//! again, with every order of the threads up to a bound, and with every value that each load may return. The daemon
//! and the GPU are written here: a close and a look at the claims, and a count of the work in flight, which no thread
//! of the protocol reads.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(test)]
mod atomic;
#[cfg(test)]
#[path = "../../shim/daemon/credit/balance.rs"]
mod balance;
#[cfg(test)]
#[path = "../../shim/launch/claim.rs"]
mod claim;
#[cfg(test)]
mod credit;
#[cfg(test)]
#[path = "../../shim/launch/turn.rs"]
#[expect(dead_code, reason = "how long a launch waits is no question of orders")]
mod turn;
#[cfg(test)]
mod turns;
#[cfg(test)]
#[path = "../../shim/launch/word.rs"]
mod word;
#[cfg(test)]
mod words;

/// Runs in every order of the threads with at most so many preemptions.
#[cfg(test)]
fn in_every_order(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut bounds = loom::model::Builder::new();
    bounds.preemption_bound = Some(preemptions);
    bounds.check(run);
}
