//! The hardware of the world: it stops a container's work on a GPU when ordered to, at once, slowly, or
//! never.
//!
//! Stopped work stays stopped if the daemon dies; the next daemon finds it in its records and resumes it.

use gpuslice_engine::Event;
use gpuslice_wire::ids::{ContainerId, Lane};

use super::{Happening, Letter, MS, US, World};
use crate::rng::Rng;
use crate::tenant::Work;

/// How the hardware answers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hardware {
    /// How often it refuses to stop, of 1000.
    refuses: u64,
    /// The longest time it takes, ns.
    slow: u64,
    /// When the last order is done: orders are executed in sequence.
    done: u64,
    /// When the last answer arrives.
    sent: u64,
}

impl Hardware {
    /// One of several kinds.
    pub(super) fn any(rng: &mut Rng) -> Hardware {
        Hardware {
            refuses: rng.pick(&[0, 0, 0, 100, 1000]),
            slow: rng.pick(&[400 * US, 5 * MS, 500 * MS]),
            ..Hardware::default()
        }
    }
}

impl Work {
    /// Stops a running kernel where it is.
    pub(super) fn pause(&mut self, now: u64) {
        self.stopped = true;
        // a kernel that waits for its other parts has no end yet, stopped or not
        if let Some(until) = self.until.filter(|until| *until != u64::MAX) {
            self.left = Some(until.saturating_sub(now));
            self.until = Some(u64::MAX);
        }
    }
}

impl World {
    pub(super) fn order_later(&mut self, container: ContainerId, lane: Lane, stop: bool) {
        let done = self.now + self.rng.below(self.hardware.slow);
        self.hardware.done = self.hardware.done.max(done);
        let what = Happening::StopOrResume(self.daemon.life, container, lane, stop);
        self.after(self.hardware.done - self.now, what);
    }

    pub(super) fn stop_or_resume(&mut self, container: ContainerId, lane: Lane, stop: bool) {
        let refused = stop && self.rng.per_mille(self.hardware.refuses);
        if !refused {
            self.set_stopped(lane, stop, |of| of == container);
        }
        let held = (!refused).then_some(stop);
        let sent = self.now + self.rng.below(200 * US);
        self.hardware.sent = self.hardware.sent.max(sent);
        let letter = Letter::StopAnswer(container, lane, held);
        let letter = Happening::Letter(self.daemon.life, letter);
        self.after(self.hardware.sent - self.now, letter);
    }

    /// The event of the hardware's answer.
    pub(super) fn answer(&self, container: ContainerId, lane: Lane, held: Option<bool>) -> Event {
        match held {
            Some(false) => Event::Resumed { container, lane },
            _ => Event::Stopped { container, lane, ok: held.is_some() },
        }
    }

    /// A daemon that starts resumes all work.
    pub(super) fn resume_all(&mut self) {
        for lane in 0..16 {
            self.set_stopped(Lane(lane), false, |_| true);
        }
    }

    fn set_stopped(&mut self, lane: Lane, stop: bool, whose: impl Fn(ContainerId) -> bool) {
        let (now, at) = (self.now, usize::from(lane.0));
        for who in 0..self.processes.len() {
            let process = &mut self.processes[who];
            // only an attached process has reported where its work runs
            let known = !stop || process.client.is_some();
            let its = whose(process.container) && process.alive && known;
            let Some(work) = process.work.get_mut(at).filter(|_| its) else {
                continue;
            };
            match stop {
                true => work.pause(now),
                false => self.go_on(who, at),
            }
        }
    }

    /// Resumes a process's stopped work on one lane; also when it loses its connection.
    pub(super) fn go_on(&mut self, who: usize, lane: usize) {
        let work = &mut self.processes[who].work[lane];
        work.stopped = false;
        if let Some(left) = work.left.take() {
            work.until = Some(self.now + left);
            self.after(left, Happening::Done(who, lane));
        }
    }

    /// The engine knows of all stopped work: none stays stopped for ever.
    pub(super) fn no_stop_is_forgotten(&self) {
        for process in self.processes.iter().filter(|p| p.alive && p.client.is_some()) {
            for (lane, _) in process.work.iter().enumerate().filter(|(_, w)| w.stopped) {
                let lane = Lane(lane as u8);
                if !self.checkers.may_be_stopped(process.container, lane) {
                    let what = format!("{} is stopped and forgotten", process.container);
                    self.checkers.object(&what);
                }
            }
        }
    }
}
