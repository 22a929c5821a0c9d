//! Processes that a command of `gpuslice run` leaves running, as `sh -c 'server &'` does.
//!
//! # Problem
//! Without a slice nothing limits such a process: it keeps its GPU memory, which the daemon gives to the next
//! command, and launches in the turns of others.
//!
//! # Idea
//! The slice lasts until no process of it is attached to the daemon, and `gpuslice run` waits for that. A
//! signal that asks `gpuslice run` to end ends the wait, so that a supervisor's SIGTERM works as before.

use crate::admin::Admin;
use crate::child;
use crate::out;
use crate::table::View;
use std::time::{Duration, Instant};

/// Between two questions to the daemon, at first and at last.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(200)];
/// The daemon sees an end a little later than we do: until then there is nothing to tell.
const TELL_AFTER: Duration = Duration::from_millis(500);

/// Waits until no process of the slice is attached, or a signal asks us to end.
pub fn wait(admin: &Admin, container: &str) {
    let (began, mut pause, mut told) = (Instant::now(), PAUSES[0], false);
    while let Some(processes) = attached(admin, container) {
        if child::asked_to_end() {
            out::note(&format!(
                "the command left {} on the GPU, which no slice limits any more",
                counted(processes)
            ));
            return;
        }
        if !told && began.elapsed() > TELL_AFTER {
            told = true;
            out::note(&format!(
                "the command has ended and left {} on the GPU; the slice lasts as long \
                 (interrupt to end it now)",
                counted(processes)
            ));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSES[1]);
    }
}

fn counted(processes: u32) -> String {
    match processes {
        1 => "1 process".to_owned(),
        _ => format!("{processes} processes"),
    }
}

/// How many processes of the slice are attached; `None` for none, and where there is no slice or no daemon
/// any more.
fn attached(admin: &Admin, container: &str) -> Option<u32> {
    let view = View::of(admin.list_again().ok()?);
    let ours = view.rows.iter().filter(|row| row.container == container);
    ours.map(|row| row.clients)
        .max()
        .filter(|clients| *clients > 0)
}
