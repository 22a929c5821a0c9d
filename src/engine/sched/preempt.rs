//! Preemption: late work is stopped on the GPU itself.
//!
//! # Problem
//! A container that lost its turn stops launching, but its process cannot call back a kernel that runs:
//! beside a kernel of 5 s, a high-priority container waits for seconds.
//!
//! # Idea
//! Some drivers can take a container's channel groups off the GPU and resume them later, whatever their
//! work is doing. So the engine orders a stop when a container of a higher class has waited as long as an
//! honest drain takes, or any container as long as `drain`:
//! ```text
//!            late                  stopped
//!   None ----------> Stopping -----------------> Stopped
//!    ^ ^                 | not stopped              | its next turn begins, or turns end
//!    | +-----------------+                          v
//!    +------------------------------------------ Resuming
//! ```
//! Stopped counts as drained: others get their turns. It also counts as runnable, whatever the processes
//! claim, so that its turn comes; stopped work goes on at the beginning of that turn, inside it, and is
//! charged as usual. An order to stop reaches the processes attached when it is given; a process that
//! attached later and launched before the answer is waited for. Without an answer, turns go on as without
//! preemption. A failed stop is tried again after ever longer waits: a launch that was on its way at that
//! moment arrives later.
//!
//! A container whose work had to be stopped after each of its last turns runs long kernels: the wait for an honest
//! drain is in vain then. It is stopped as soon as its claims after the close can have been read, and waited for again
//! after every 128th turn, since its kernels may have become shorter. Mostly that shows before: it drains before the
//! stop.

use alloc::vec::Vec;
use gpuslice_wire::units::{Duration, Instant};

use super::entity::Entity;
use super::untracked::Untracked;
use super::{Note, Phase, Turns};
use crate::index::ContainerIndex;

/// So many turns in a row that ended with a stop show long kernels.
const STUCK: u32 = 2;
/// Of such turns, each of this number is waited for as an honest one.
const WAITS_EVERY: u32 = 128;
/// From a close to the reading of the claims that answer it.
const CLAIMED: Duration = Duration::from_micros(25);

/// Whether a container's work is stopped on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preemption {
    /// It runs when it can.
    None,
    /// A stop is ordered and not yet answered.
    Stopping,
    /// It does not run.
    Stopped,
    /// A resume is ordered; it may run already.
    Resuming,
}

/// The hardware's answer to an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// To a stop: it stopped all of the work, or none.
    Stop { order: u32, ok: bool },
    /// To a resume.
    Resume,
}

impl Preemption {
    /// The container waits for its turn with work that it cannot call back.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Preemption::Stopped | Preemption::Resuming)
    }

    /// The state after the answer to an order. `last` is false for a stop before the last one, whose processes have
    /// all gone; so has what an answer belongs to that the state does not expect.
    fn answered(self, done: Answer, last: bool) -> Preemption {
        match (self, done) {
            (Preemption::Stopping, Answer::Stop { ok: true, .. }) if last => Preemption::Stopped,
            (Preemption::Stopping, Answer::Stop { ok: false, .. }) if last => Preemption::None,
            (Preemption::Resuming, Answer::Resume) => Preemption::None,
            (unchanged, _) => unchanged,
        }
    }

    /// The state with processes attached, or without: work of no process needs no resume.
    pub(crate) fn with(self, attached: bool) -> Preemption {
        if attached { self } else { Preemption::None }
    }
}

impl Turns {
    /// How long an honest container takes to drain after a close: the work allowed in flight, half of it
    /// again, and the round trip.
    pub(super) fn honest_drain(&self) -> Duration {
        Duration::from_micros(u64::from(self.window_us()) * 3 / 2 + 100)
    }

    /// How long `entity` is waited for when a container of a higher class waits. If its streams have gates, the work
    /// between two of them drains sooner than a window.
    fn patience(&self, entity: &Entity) -> Duration {
        if entity.stuck >= STUCK && !entity.stuck.is_multiple_of(WAITS_EVERY) {
            return CLAIMED;
        }
        match self.gates() && entity.may_have_gates() {
            true => Duration::from_micros(u64::from(self.window_us()) / 3 + 100),
            false => self.honest_drain(),
        }
    }

    /// When to stop the work of `index`, whose turn was closed.
    pub(super) fn stop_at(&self, index: ContainerIndex, closed: Instant) -> Option<Instant> {
        let entity = self.find(index)?;
        // half a collective that is stopped would keep its other half spinning in turns of others
        let asked = entity.preemption != Preemption::None || entity.gang.is_some();
        if !self.config.stop || asked || !self.policy.rules().turns {
            return None;
        }
        let (class, tries) = (entity.class, entity.stop_tries.min(16));
        let wait = if self.others_wait(|other| other < class) {
            self.patience(entity)
        } else {
            self.config.drain
        };
        Some(closed.plus(Duration(wait.0 << (2 * tries))))
    }

    /// Orders a stop for all late work, before the next turn is decided.
    pub(super) fn stop_all_late(&mut self, notes: &mut Vec<Note>) {
        if !self.config.stop {
            return;
        }
        if let Phase::Closing { index, closed, .. } = self.phase {
            self.stop_late(index, closed, notes);
        }
        for at in 0..self.entities.len() {
            let entity = &self.entities[at];
            if let Some(since) = entity.untracked.map(Untracked::since) {
                self.stop_late(entity.index, since, notes);
            }
        }
    }

    /// Orders a stop for the work of `index`, if it is due and work is running.
    fn stop_late(&mut self, index: ContainerIndex, closed: Instant, notes: &mut Vec<Note>) {
        if self.now.since(closed) >= self.config.drain_max {
            return; // It overruns now, and may be the next to have a turn.
        }
        let due = self.stop_at(index, closed).is_some_and(|at| self.now >= at);
        let order = self.orders.wrapping_add(1);
        let Some(entity) = self.find_mut(index).filter(|it| due && !it.is_off()) else {
            return;
        };
        entity.preemption = Preemption::Stopping;
        entity.stop_tries += 1;
        entity.order = order;
        self.orders = order;
        notes.push(Note::Stop(index));
    }

    /// Resumes containers that may launch now, and stops late ones.
    pub(super) fn stop_and_resume(&mut self, notes: &mut Vec<Note>) {
        self.stop_all_late(notes);
        let phase = self.phase;
        let may_run = |entity: &Entity| match phase {
            Phase::Open => true,
            Phase::Held { index, .. } => index == entity.index,
            Phase::Idle | Phase::Closing { .. } => false,
        };
        for entity in &mut self.entities {
            if entity.preemption == Preemption::Stopped && may_run(entity) {
                entity.preemption = Preemption::Resuming;
                notes.push(Note::Resume(entity.index));
            }
        }
    }

    /// Takes in the answer to an order for `index`.
    pub(crate) fn preemption_answered(&mut self, index: ContainerIndex, done: Answer) {
        let Some(entity) = self.find_mut(index) else {
            return;
        };
        let last = !matches!(done, Answer::Stop { order, .. } if order != entity.order);
        let before = entity.preemption;
        entity.preemption = before.answered(done, last).with(entity.reported.attached);
        let stopped = entity.preemption == Preemption::Stopped;
        entity.stops += u64::from(stopped && before != Preemption::Stopped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::sched::entity::Report;
    use crate::sched::policy::Entitlement;
    use crate::sched::tests::Rig;
    use crate::tests::{ask, id};
    use crate::{Action, Claims, Event, SliceRequest};
    use gpuslice_wire::ids::Lane;
    use gpuslice_wire::policy::{Class, Policy};
    use gpuslice_wire::units::GIB;

    const US: u64 = 1_000;
    const MS: u64 = 1_000_000;

    /// A container of weight 1 has a turn with a kernel in it when a second one, of the high class or not,
    /// becomes runnable.
    fn late(high: bool) -> Rig {
        let config = Config { stop: true, ..Config::default() };
        let mut rig = Rig::with(config, &[(1, 0, false), (1, 0, high)]);
        rig.wake(0, 0);
        rig.report(MS, 1, true, true);
        while rig.holder() == Some(0) {
            let due = rig.turns.deadline().expect("a turn ends");
            rig.at(due.0);
        }
        rig
    }

    fn index(who: u16) -> ContainerIndex {
        ContainerIndex(who)
    }

    /// Takes in an answer, at `now`.
    fn answer(rig: &mut Rig, now: u64, done: Answer) {
        rig.turns.preemption_answered(index(0), done);
        rig.report(now, 0, true, false);
    }

    /// The answer to the last order.
    fn stopped(rig: &Rig, ok: bool) -> Answer {
        Answer::Stop { order: rig.turns.entities[0].order, ok }
    }

    fn asked(rig: &Rig, note: Note) -> usize {
        rig.notes.iter().filter(|it| **it == note).count()
    }

    #[test]
    fn one_that_goes_first_waits_as_long_as_an_honest_drain() {
        let mut rig = late(true);
        let window = u64::from(rig.turns.window_us()) * 3 / 2 + 100;
        let closed = rig.turns.now.0;
        rig.at(closed + (window - 1) * US);
        assert_eq!(asked(&rig, Note::Stop(index(0))), 0);
        let due = rig.turns.deadline().map(|at| at.0);
        assert_eq!(due, Some(closed + window * US), "it is looked at then");
        rig.at(closed + window * US);
        assert_eq!(asked(&rig, Note::Stop(index(0))), 1);
        let now = closed + (window + 300) * US;
        let done = stopped(&rig, true);
        answer(&mut rig, now, done);
        assert_eq!(rig.holder(), Some(1));
        let paid = rig.turns.find(index(0)).map(|it| it.gpu_time.0);
        assert_eq!(paid, Some(now), "until it was stopped, and no longer");
        // it claims to have no work, and gets its turn all the same
        rig.report(now + MS, 0, false, false);
        rig.report(now + 2 * MS, 1, false, true);
        rig.report(now + 2 * MS, 1, false, true); // read after the close
        assert_eq!(rig.holder(), Some(0));
        assert_eq!(asked(&rig, Note::Resume(index(0))), 1);
    }

    /// What the next late turn is waited for, after `stuck` ones that ended with a stop, µs.
    fn patience_after(rig: &mut Rig, stuck: u32) -> u64 {
        let entity = &mut rig.turns.entities[0];
        entity.stuck = stuck;
        rig.turns.patience(&rig.turns.entities[0]).0 / US
    }

    #[test]
    fn one_that_is_always_late_is_stopped_at_once_and_waited_for_now_and_then() {
        let mut rig = late(true);
        let honest = rig.turns.honest_drain().0 / US;
        let waits = [0, 1, 2, 127, 128, 129, 256].map(|stuck| patience_after(&mut rig, stuck));
        assert_eq!(waits, [honest, honest, 25, 25, honest, 25, honest]);
        rig.turns.entities[0].stuck = 2;
        let closed = rig.turns.now.0;
        rig.at(closed + 24 * US);
        assert_eq!(asked(&rig, Note::Stop(index(0))), 0);
        assert_eq!(rig.turns.deadline().map(|at| at.0), Some(closed + 25 * US));
        rig.at(closed + 25 * US);
        assert_eq!(asked(&rig, Note::Stop(index(0))), 1);
        let done = stopped(&rig, true);
        answer(&mut rig, closed + 300 * US, done);
        assert_eq!(rig.turns.entities[0].stuck, 3);
    }

    #[test]
    fn one_that_drains_by_itself_is_waited_for_again() {
        let mut rig = late(true);
        rig.turns.entities[0].stuck = 5;
        let now = rig.turns.now.0 + 20 * US;
        rig.report(now, 0, true, true);
        assert_eq!((rig.holder(), rig.turns.entities[0].stuck), (Some(1), 0));
    }

    /// A container with several GPUs has no gates, nor has one that is not best-effort.
    #[test]
    fn gates_make_the_wait_for_a_drain_shorter() {
        let mut rig = late(true);
        let drain = |rig: &Rig| rig.turns.find(index(0)).map(|it| rig.turns.patience(it).0 / US);
        assert_eq!(drain(&rig), Some(325));
        let of =
            |alone, class| Entitlement { alone, class, ..late(true).turns.entities[0].entitlement };
        rig.turns.retune(index(0), of(true, Class::BestEffort));
        assert_eq!(drain(&rig), Some(150));
        rig.turns.retune(index(0), of(false, Class::BestEffort));
        assert_eq!(drain(&rig), Some(325));
    }

    #[test]
    fn an_equal_one_waits_until_it_is_late() {
        let mut rig = late(false);
        let closed = rig.turns.now.0;
        rig.at(closed + 99 * MS);
        assert_eq!(asked(&rig, Note::Stop(index(0))), 0);
        rig.at(closed + 100 * MS);
        assert_eq!(asked(&rig, Note::Stop(index(0))), 1);
    }

    #[test]
    fn refused_it_is_waited_for_as_ever() {
        let mut rig = late(true);
        let closed = rig.turns.now.0;
        for (tries, ms) in [1, 2, 6, 21, 84, 333, 1_332].into_iter().enumerate() {
            rig.at(closed + ms * MS);
            assert_eq!(asked(&rig, Note::Stop(index(0))), tries + 1, "{ms} ms");
            let done = stopped(&rig, false);
            answer(&mut rig, closed + ms * MS, done);
        }
        rig.at(closed + 1_999 * MS);
        assert_eq!(asked(&rig, Note::Stop(index(0))), 7);
        assert_eq!(rig.holder(), None);
        rig.at(closed + 2_000 * MS);
        assert_eq!(rig.holder(), Some(1), "after the longest wait");
    }

    /// Two stops are ordered, because the processes left and others came between. The second is answered
    /// when the work is already resuming, and the work goes on in the turn that it has.
    #[test]
    fn an_answer_that_an_order_to_go_on_has_overtaken_says_nothing() {
        let mut rig = late(true);
        let closed = rig.turns.now.0;
        rig.at(closed + MS);
        let done = stopped(&rig, true);
        answer(&mut rig, closed + 2 * MS, done);
        rig.report(closed + 3 * MS, 1, false, true);
        rig.report(closed + 3 * MS, 1, false, true); // read after the close
        assert_eq!(rig.holder(), Some(0));
        assert_eq!(asked(&rig, Note::Resume(index(0))), 1);
        let done = stopped(&rig, true);
        answer(&mut rig, closed + 4 * MS, done);
        rig.wake(closed + 5 * MS, 1);
        assert_eq!(rig.holder(), None, "it is not off the GPU");
        answer(&mut rig, closed + 5 * MS, Answer::Resume);
        assert_eq!(rig.holder(), None, "and drains as any other");
    }

    #[test]
    fn an_answer_that_comes_too_late_is_still_true() {
        let mut rig = late(true);
        let closed = rig.turns.now.0;
        rig.at(closed + MS);
        rig.report(closed + 2 * MS, 0, true, true);
        assert_eq!(rig.holder(), Some(1), "drained by itself");
        rig.report(closed + 3 * MS, 1, false, true);
        rig.report(closed + 3 * MS, 1, false, true); // read after the close
        assert_eq!(rig.holder(), Some(0), "and it has its next turn");
        let done = stopped(&rig, true);
        answer(&mut rig, closed + 4 * MS, done);
        assert_eq!(asked(&rig, Note::Resume(index(0))), 1);
        answer(&mut rig, closed + 5 * MS, Answer::Resume);
        assert_eq!(asked(&rig, Note::Resume(index(0))), 1);
    }

    /// A stop is answered after a process has attached, which launched in a turn that began before.
    #[test]
    fn an_answer_says_nothing_of_processes_that_came_after_the_order() {
        let config = Config { stop: true, ..Config::default() };
        let mut rig = crate::tests::Rig::new(config, &[16]);
        for (name, class) in [("a", Class::Normal), ("b", Class::High)] {
            let it = ask(name, "0", GIB);
            rig.admit(SliceRequest { class, ..it }).expect("it fits");
        }
        let [first, high] = ["a", "b"].map(|name| rig.attach(name, 0).expect("in"));
        let word = |rig: &crate::tests::Rig, name| {
            let entities = &rig.engine.gpus[0].turns.entities;
            let index = rig.engine.containers.find(id(name)).expect("known");
            let of = |it: &&Entity| it.index == index;
            entities.iter().find(of).expect("on the GPU").turn
        };
        let says = |rig: &mut crate::tests::Rig, client, runnable, active, drained| {
            let lane = Lane(0);
            let claims = Claims { runnable, active, drained, ..Claims::default() };
            rig.step(Event::Claims { client, lane, claims })
        };
        says(&mut rig, first, true, 0, 0);
        says(&mut rig, first, true, 0, 0); // read as turns begin
        says(&mut rig, high, false, 0, 0);
        let turn = word(&rig, "a");
        assert_eq!(turn % 2, 1);
        says(&mut rig, high, true, 0, 0);
        says(&mut rig, first, true, turn, 0);
        rig.now += MS;
        let stop = rig.step(Event::Tick);
        assert!(stop.iter().any(|it| matches!(it, Action::Stop { .. })));
        says(&mut rig, first, true, turn, turn);
        assert_eq!(word(&rig, "b") % 2, 1, "drained by itself");
        says(&mut rig, high, false, 0, 0);
        says(&mut rig, high, false, 0, 0);
        let turn = word(&rig, "a");
        assert_eq!(turn % 2, 1, "its next turn");
        let second = rig.attach("a", 0).expect("in");
        says(&mut rig, second, true, turn, 0);
        says(&mut rig, high, true, 0, 0);
        says(&mut rig, second, true, turn, 0);
        let (container, lane, ok) = (id("a"), Lane(0), true);
        rig.step(Event::Stopped { container, lane, order: 1, ok });
        assert_eq!(word(&rig, "b") % 2, 0, "the second process runs");
        says(&mut rig, second, true, turn, turn);
        assert_eq!(word(&rig, "b") % 2, 1, "and now does not");
    }

    /// All processes that the stop could reach have ended when it is answered; a later one runs without
    /// turns.
    #[test]
    fn an_answer_begins_no_turn_beside_one_that_came_after_the_order() {
        for newcomer in [false, true] {
            let mut rig = Rig::with(Config::default(), &[(1, 0, false), (1, 0, false)]);
            rig.wake(0, 1);
            assert_eq!(rig.turns.phase, Phase::Open);
            rig.turns.entities[0].preemption = Preemption::Stopping;
            let done = stopped(&rig, true);
            rig.turns.preemption_answered(index(0), done);
            for who in 0..2 {
                let reported = Report {
                    attached: true,
                    runnable: who == 1,
                    drained: true,
                    newcomer: newcomer && who == 0,
                    ..Report::default()
                };
                rig.turns.report(index(who), reported);
            }
            rig.turns.decide(&mut rig.notes);
            let expected = (!newcomer).then_some(1);
            assert_eq!(rig.holder(), expected, "it may have launched since");
        }
    }

    /// The processes that a stop reached have gone; its answer comes when the next stop is ordered.
    #[test]
    fn an_answer_to_an_earlier_order_says_nothing() {
        let mut rig = late(true);
        let stopping = |rig: &mut Rig| {
            while rig.turns.entities[0].preemption != Preemption::Stopping {
                let due = rig.turns.deadline().expect("a stop that is due");
                rig.at(due.0);
            }
            rig.turns.entities[0].order
        };
        let first = stopping(&mut rig);
        let now = rig.turns.now.0;
        let gone = Report { drained: true, ..Report::default() };
        rig.turns.report(index(0), gone);
        assert_eq!(rig.turns.entities[0].preemption, Preemption::None);
        rig.report(now, 1, false, true);
        rig.report(now, 1, false, true);
        rig.report(now, 0, true, false);
        assert_eq!(rig.holder(), Some(0));
        rig.report(now + MS, 1, true, true);
        let second = stopping(&mut rig);
        assert_ne!(first, second);
        rig.turns.preemption_answered(index(0), Answer::Stop { order: first, ok: true });
        assert_eq!(rig.turns.entities[0].preemption, Preemption::Stopping);
        rig.turns.preemption_answered(index(0), Answer::Resume);
        rig.turns.preemption_answered(index(0), Answer::Stop { order: second, ok: true });
        assert_eq!(rig.turns.entities[0].preemption, Preemption::Stopped);
    }

    /// Turns begin because of stopped work; the container that runs is charged for its own use.
    #[test]
    fn stopped_work_is_not_charged_when_turns_begin() {
        let mut rig = Rig::with(Config::default(), &[(1, 0, false), (1, 0, false)]);
        rig.wake(0, 1);
        rig.at(100 * MS);
        assert_eq!(rig.turns.phase, Phase::Open);
        rig.turns.entities[0].preemption = Preemption::Stopping;
        let done = stopped(&rig, true);
        rig.turns.preemption_answered(index(0), done);
        for (who, runnable) in [(0, false), (1, true)] {
            let reported = Report { attached: true, runnable, ..Report::default() };
            rig.turns.report(index(who), reported);
        }
        rig.turns.decide(&mut rig.notes);
        assert_eq!(rig.holder(), Some(1), "no other container runs");
        let now = rig.turns.now;
        let later = Duration(MS);
        let booked = rig.turns.booked.plus(later);
        rig.turns.advance(now.plus(later), booked);
        let paid = [0, 1].map(|who| rig.turns.entities[who].gpu_time.0 / MS);
        assert_eq!(paid, [0, 101]);
    }

    #[test]
    fn without_turns_no_work_is_stopped() {
        let mut rig = late(true);
        let closed = rig.turns.now.0;
        rig.at(closed + MS);
        let done = stopped(&rig, true);
        answer(&mut rig, closed + 2 * MS, done);
        rig.turns.set_policy(Policy::Native);
        rig.at(closed + 3 * MS);
        rig.report(closed + 4 * MS, 1, true, true);
        rig.at(closed + 5 * MS);
        assert_eq!(rig.turns.phase, Phase::Open);
        assert_eq!(asked(&rig, Note::Resume(index(0))), 1);
    }
}
