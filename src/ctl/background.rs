//! Processes that a command of `gpuslice run` leaves in the background, as `sh -c 'server &'` does.
//!
//! # Problem
//! Without a slice such a process is unlimited: it keeps its GPU memory, which the daemon grants to the
//! next command, and launches during other containers' turns.
//!
//! # Idea
//! The slice lasts until the daemon knows no process of it, attached or, after a restart of the daemon, not yet
//! attached again. `gpuslice run` waits for that. A terminating signal to `gpuslice run` ends the wait, so that a
//! supervisor's SIGTERM works as before.

use crate::admin::Admin;
use crate::child;
use crate::out;
use crate::processes;
use crate::text::counted;
use gpuslice_wire::ids::ContainerId;
use std::time::{Duration, Instant};

/// Interval between two queries to the daemon: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(200)];
/// Time for the daemon to notice exits, before the user is told.
const TELL_AFTER: Duration = Duration::from_millis(500);

/// Waits until no process of the slice is left, or a terminating signal arrives.
pub fn wait(admin: &Admin, container: ContainerId) {
    let (began, mut pause, mut told) = (Instant::now(), PAUSES[0], false);
    while let Some(processes) = left(admin, container) {
        let processes = counted(processes as u64, "process");
        if child::is_interrupted() {
            out::note(&format!("the command left {processes} on the GPU without a slice"));
            return;
        }
        if !told && began.elapsed() > TELL_AFTER {
            told = true;
            out::note(&format!(
                "the command has ended and left {processes} on the GPU; the slice lasts as long \
                 (interrupt to end it now)"
            ));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSES[1]);
    }
}

/// Number of processes of the slice; `None` for zero, or if the slice or the daemon is gone.
fn left(admin: &Admin, container: ContainerId) -> Option<usize> {
    let all = admin.over_restarts(|admin| admin.processes(container)).ok()??;
    Some(processes::number(&all)).filter(|number| *number > 0)
}
