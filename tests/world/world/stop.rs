//! The hardware of the world: it takes a container's work off a GPU when it is asked to, at once,
//! slowly, or never.
//!
//! What is stopped stays so whatever becomes of the daemon; the one that comes after it finds what
//! was written down, and lets it go on.

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
    /// The last request is done then: they are done in their order.
    done: u64,
    /// The last answer is under way until then.
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
    /// What runs is stopped where it is.
    pub(super) fn pause(&mut self, now: u64) {
        self.stopped = true;
        // what waits for its other parts has no end yet, stopped or not
        if let Some(until) = self.until.filter(|until| *until != u64::MAX) {
            self.left = Some(until.saturating_sub(now));
            self.until = Some(u64::MAX);
        }
    }
}

impl World {
    pub(super) fn hold_later(&mut self, container: ContainerId, lane: Lane, stop: bool) {
        let done = self.now + self.rng.below(self.hardware.slow);
        self.hardware.done = self.hardware.done.max(done);
        let what = Happening::StopOrResume(self.daemon.life, container, lane, stop);
        self.after(self.hardware.done - self.now, what);
    }

    pub(super) fn stop_or_resume(&mut self, container: ContainerId, lane: Lane, stop: bool) {
        let refused = stop && self.rng.per_mille(self.hardware.refuses);
        if !refused {
            self.set_held(lane, stop, |of| of == container);
        }
        let held = (!refused).then_some(stop);
        let sent = self.now + self.rng.below(200 * US);
        self.hardware.sent = self.hardware.sent.max(sent);
        let letter = Letter::StopAnswer(container, lane, held);
        let letter = Happening::Letter(self.daemon.life, letter);
        self.after(self.hardware.sent - self.now, letter);
    }

    /// The engine is told what the hardware did.
    pub(super) fn answer(&self, container: ContainerId, lane: Lane, held: Option<bool>) -> Event {
        match held {
            Some(false) => Event::Resumed { container, lane },
            _ => Event::Stopped {
                container,
                lane,
                ok: held.is_some(),
            },
        }
    }

    /// A daemon that starts lets everything go on.
    pub(super) fn resume_all(&mut self) {
        for lane in 0..16 {
            self.set_held(Lane(lane), false, |_| true);
        }
    }

    fn set_held(&mut self, lane: Lane, stop: bool, whose: impl Fn(ContainerId) -> bool) {
        let (now, at) = (self.now, usize::from(lane.0));
        for who in 0..self.processes.len() {
            let process = &mut self.processes[who];
            // only who is attached has told of where its work runs
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

    /// What was stopped of a process on one lane goes on; also when it loses its connection.
    pub(super) fn go_on(&mut self, who: usize, lane: usize) {
        let work = &mut self.processes[who].work[lane];
        work.stopped = false;
        if let Some(left) = work.left.take() {
            work.until = Some(self.now + left);
            self.after(left, Happening::Done(who, lane));
        }
    }

    /// Whoever is stopped, the engine knows of it: nobody is for ever.
    pub(super) fn nobody_is_forgotten(&self) {
        for process in self
            .processes
            .iter()
            .filter(|p| p.alive && p.client.is_some())
        {
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
