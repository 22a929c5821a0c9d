//! Every interleaving of two launching threads, the gate thread, the GPU and the daemon, over three
//! turns: is the GPU ever granted to another container while this process may still use it?
//!
//! The process's side runs the very steps of [`ClaimWords`]; the state is small enough for an exhaustive
//! search. The daemon follows `gpuslice_wire::page`.

use super::{ClaimWords, Take};
use gpuslice_wire::page::{ClientLane, ContainerPage, may_launch};
use std::collections::HashSet;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Launcher {
    Start,
    Look,
    Taking(u32, Take),
    Unlock { inside: bool },
    Driver,
    Count,
    Leave,
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Daemon {
    Open,
    Close,
    ReadActive,
    ReadDrained,
    ElsewhereBegins,
    ElsewhereEnds,
    Finished,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    turn: u32,
    active: u32,
    drained: u32,
    locked: bool,
    inside: u8,
    in_flight: u8,
    launchers: [Launcher; 2],
    left: [u8; 2],
    /// The gate thread holds the lock.
    gate_in: bool,
    daemon: Daemon,
    /// Another container has the GPU.
    elsewhere: bool,
}

/// Memory the real steps run on; every step sees the state's values and leaves its own there.
fn with_words<R>(state: &mut State, work: impl FnOnce(&ClaimWords<'_>) -> R) -> R {
    let claims = blank_claims();
    claims.active.store(state.active, SeqCst);
    claims.drained.store(state.drained, SeqCst);
    let turn = AtomicU32::new(state.turn);
    let result = work(&ClaimWords { turn: &turn, claims: &claims });
    state.active = claims.active.load(SeqCst);
    state.drained = claims.drained.load(SeqCst);
    result
}

fn blank_claims() -> ClientLane {
    crate::launch::fake::blank_client_lane()
}

fn launcher_step(state: &mut State, who: usize, bug: Bug) -> bool {
    let next = match state.launchers[who] {
        Launcher::Start | Launcher::Leave if state.locked => return false,
        Launcher::Start => {
            state.locked = true;
            Launcher::Look
        }
        Launcher::Look if may_launch(state.turn) => {
            let (turn, active, drained) = (state.turn, state.active, state.drained);
            if active == turn && (drained != turn || bug == Bug::NoUndrain) {
                state.inside += 1;
                Launcher::Unlock { inside: true }
            } else {
                Launcher::Taking(turn, Take::Undrain)
            }
        }
        Launcher::Look => Launcher::Unlock { inside: false },
        Launcher::Taking(turn, step) => match with_words(state, |words| words.step(step, turn)) {
            Ok(next) => Launcher::Taking(turn, next),
            Err(taken) => {
                let taken = taken || bug == Bug::NoConfirm;
                state.inside += u8::from(taken);
                Launcher::Unlock { inside: taken }
            }
        },
        Launcher::Unlock { inside } => {
            state.locked = false;
            if inside { Launcher::Driver } else { Launcher::Start }
        }
        Launcher::Driver => Launcher::Leave,
        Launcher::Leave => {
            state.locked = true;
            Launcher::Count
        }
        Launcher::Count => {
            state.inside -= 1;
            state.in_flight += 1;
            state.locked = false;
            state.left[who] -= 1;
            if state.left[who] == 0 { Launcher::Finished } else { Launcher::Start }
        }
        Launcher::Finished => return false,
    };
    state.launchers[who] = next;
    true
}

/// The gate thread: takes the lock, and where nothing is in flight reports it, whether the turn is
/// over or merely idle.
fn gate_step(state: &mut State) -> bool {
    if !state.gate_in {
        if state.locked || state.drained == state.active {
            return false;
        }
        (state.locked, state.gate_in) = (true, true);
        return true;
    }
    if state.inside == 0 && state.in_flight == 0 {
        with_words(state, |words| words.report_drained(0));
    }
    (state.locked, state.gate_in) = (false, false);
    true
}

fn daemon_step(state: &mut State) -> bool {
    state.daemon = match state.daemon {
        Daemon::Open => {
            state.turn += 1;
            Daemon::Close
        }
        Daemon::Close => {
            state.turn += 1;
            Daemon::ReadActive
        }
        Daemon::ReadActive if state.active == state.turn - 1 => Daemon::ReadDrained,
        Daemon::ReadActive => Daemon::ElsewhereBegins,
        Daemon::ReadDrained if state.drained == state.active => Daemon::ElsewhereBegins,
        Daemon::ReadDrained => Daemon::ReadActive,
        Daemon::ElsewhereBegins => {
            state.elsewhere = true;
            Daemon::ElsewhereEnds
        }
        Daemon::ElsewhereEnds => {
            state.elsewhere = false;
            if state.turn >= 6 { Daemon::Finished } else { Daemon::Open }
        }
        Daemon::Finished => return false,
    };
    true
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    NoConfirm,
    NoUndrain,
}

/// Visits every reachable state. Returns their number, and one that violates exclusion.
fn explore(bug: Bug) -> (usize, Option<State>) {
    let start = State {
        turn: 0,
        active: 0,
        drained: 0,
        locked: false,
        inside: 0,
        in_flight: 0,
        launchers: [Launcher::Start; 2],
        left: [3; 2],
        gate_in: false,
        daemon: Daemon::Open,
        elsewhere: false,
    };
    let mut seen = HashSet::from([start.clone()]);
    let mut todo = vec![start];
    while let Some(state) = todo.pop() {
        if state.elsewhere && (state.inside > 0 || state.in_flight > 0) {
            return (seen.len(), Some(state));
        }
        for actor in 0..5 {
            let mut next = state.clone();
            let moved = match actor {
                0 | 1 => launcher_step(&mut next, actor, bug),
                2 => gate_step(&mut next),
                3 => daemon_step(&mut next),
                _ => {
                    next.in_flight = next.in_flight.saturating_sub(1);
                    state.in_flight > 0
                }
            };
            if moved && seen.insert(next.clone()) {
                todo.push(next);
            }
        }
    }
    (seen.len(), None)
}

#[test]
fn no_other_container_is_granted_the_gpu_while_this_process_may_use_it() {
    let (states, broken) = explore(Bug::None);
    assert_eq!(broken, None);
    assert!(states > 10_000, "only {states} states: the model no longer races");
}

/// The model finds the two likely mistakes, so it can fail.
#[test]
fn the_model_finds_known_mistakes() {
    assert!(explore(Bug::NoConfirm).1.is_some(), "launching without a second check of the turn");
    assert!(explore(Bug::NoUndrain).1.is_some(), "launching after an early report of a drain");
}

/// `take` consists of its steps.
#[test]
fn take_confirms_or_refuses() {
    let page: &'static ContainerPage = crate::launch::fake::blank_container();
    let claims = blank_claims();
    let words = ClaimWords { turn: &page.lane[0].turn, claims: &claims };
    page.lane[0].turn.store(5, SeqCst);
    assert!(words.take(5) && words.take(5) && !words.owes_report(false));
    page.lane[0].turn.store(6, SeqCst);
    assert!(words.owes_report(false));
    words.report_drained(0);
    assert!(!words.owes_report(false) && !words.take(5));
    assert_eq!(claims.drained.load(SeqCst), 4);
}
