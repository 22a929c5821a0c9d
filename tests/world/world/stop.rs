//! The hardware of the world: it stops a container's work on a GPU when ordered to, at once, slowly, or
//! never.
//!
//! Stopped work stays stopped if the daemon dies; the next daemon finds it in its records and resumes it.

use gpuslice_engine::Event;
use gpuslice_wire::ids::{ClientId, ContainerId, Lane};
use std::cmp::Reverse;

use super::{Happening, Letter, MS, US, World};
use crate::rng::Rng;
use crate::tenant::{Process, Work};

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
    /// Orders a stop. It reaches the processes that are attached now: only these have reported where their work
    /// runs.
    pub(super) fn order_stop(&mut self, container: ContainerId, lane: Lane, order: u32) {
        let its = self.processes.iter().filter(|it| it.container == container);
        let reached = its.filter_map(|it| it.client).collect();
        self.order_later(Happening::Stop(self.daemon.life, container, lane, order, reached));
    }

    pub(super) fn order_resume(&mut self, container: ContainerId, lane: Lane) {
        self.order_later(Happening::Resume(self.daemon.life, container, lane));
    }

    fn order_later(&mut self, order: Happening) {
        let done = self.now + self.rng.below(self.hardware.slow);
        self.hardware.done = self.hardware.done.max(done);
        self.after(self.hardware.done - self.now, order);
    }

    pub(super) fn stop(
        &mut self,
        container: ContainerId,
        lane: Lane,
        order: u32,
        reached: &[ClientId],
    ) {
        let refused = self.rng.per_mille(self.hardware.refuses);
        if !refused {
            let now = self.now;
            let its = |it: &&mut Process| {
                it.alive && it.client.is_some_and(|client| reached.contains(&client))
            };
            for process in self.processes.iter_mut().filter(its) {
                let work = process.work.get_mut(usize::from(lane.0));
                work.into_iter().for_each(|work| work.pause(now));
            }
        }
        self.answer_later(container, lane, order, (!refused).then_some(true));
    }

    pub(super) fn resume(&mut self, container: ContainerId, lane: Lane) {
        self.resume_all_of(lane, |of| of == container);
        self.answer_later(container, lane, 0, Some(false));
    }

    fn answer_later(&mut self, container: ContainerId, lane: Lane, order: u32, held: Option<bool>) {
        let sent = self.now + self.rng.below(200 * US);
        self.hardware.sent = self.hardware.sent.max(sent);
        let letter = Letter::StopAnswer(container, lane, order, held);
        let letter = Happening::Letter(self.daemon.life, letter);
        self.after(self.hardware.sent - self.now, letter);
    }

    /// The event of the hardware's answer.
    pub(super) fn answer(
        &self,
        container: ContainerId,
        lane: Lane,
        order: u32,
        held: Option<bool>,
    ) -> Event {
        match held {
            Some(false) => Event::Resumed { container, lane },
            _ => Event::Stopped { container, lane, order, ok: held.is_some() },
        }
    }

    /// A daemon that starts resumes all work.
    pub(super) fn resume_all(&mut self) {
        for lane in 0..16 {
            self.resume_all_of(Lane(lane), |_| true);
        }
    }

    fn resume_all_of(&mut self, lane: Lane, whose: impl Fn(ContainerId) -> bool) {
        let at = usize::from(lane.0);
        for who in 0..self.processes.len() {
            let process = &self.processes[who];
            if whose(process.container) && process.alive && at < process.work.len() {
                self.go_on(who, at);
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

    /// None stays stopped for ever: the engine knows of all stopped work, or has ordered its resume when the
    /// container's memory left the GPU. The work of a process that loses its connection goes on at once.
    pub(super) fn no_stop_is_forgotten(&self) {
        let connected = |it: &&Process| it.client.is_some_and(|it| self.checkers.is_connected(it));
        for process in self.processes.iter().filter(|it| it.alive).filter(connected) {
            for (lane, _) in process.work.iter().enumerate().filter(|(_, w)| w.stopped) {
                let (container, lane) = (process.container, Lane(lane as u8));
                let known = self.checkers.may_be_stopped(container, lane);
                if !known && !self.will_resume(container, lane) {
                    self.checkers.object(&format!("{container} is stopped and forgotten"));
                }
            }
        }
    }

    /// Whether the hardware was ordered to resume a container's work, and has not yet done so.
    fn will_resume(&self, container: ContainerId, lane: Lane) -> bool {
        let order = Happening::Resume(self.daemon.life, container, lane);
        self.queue.iter().any(|Reverse((.., what))| *what == order)
    }
}
