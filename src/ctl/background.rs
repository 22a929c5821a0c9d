//! Processes that a command of `gpuslice run` leaves in the background, as `sh -c 'server &'` does.
//!
//! # Problem
//! Without a slice such a process is unlimited: it keeps its GPU memory, which the daemon grants to the
//! next command, and launches during other containers' turns.
//!
//! # Idea
//! The slice lasts until no process of it is attached to the daemon, and `gpuslice run` waits for that. A
//! terminating signal to `gpuslice run` ends the wait, so that a supervisor's SIGTERM works as before.

use crate::admin::Admin;
use crate::child;
use crate::out;
use crate::table::View;
use std::time::{Duration, Instant};

/// Interval between two queries to the daemon: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(200)];
/// Time for the daemon to notice exits, before the user is told.
const TELL_AFTER: Duration = Duration::from_millis(500);

/// Waits until no process of the slice is attached, or a terminating signal arrives.
pub fn wait(admin: &Admin, container: &str) {
    let (began, mut pause, mut told) = (Instant::now(), PAUSES[0], false);
    while let Some(processes) = attached(admin, container) {
        if child::is_interrupted() {
            out::note(&format!(
                "the command left {} on the GPU without a slice",
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

/// Number of attached processes of the slice; `None` for zero, or if the slice or the daemon is gone.
fn attached(admin: &Admin, container: &str) -> Option<u32> {
    let view = View::of(admin.list_again().ok()?);
    let ours = view.rows.iter().filter(|row| row.container == container);
    ours.map(|row| row.clients).max().filter(|clients| *clients > 0)
}
