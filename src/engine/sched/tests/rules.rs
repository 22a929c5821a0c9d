//! Rules of the scheduler, each in the smallest state that shows it. A state is written down rather than reached, since
//! longer runs meet it by chance.

use super::*;
use crate::sched::entity::{QueueWeight, Virtual};
use crate::sched::overhead::{SwitchCosts, Turn, WorkSpan, compensation};
use crate::sched::preempt::{Answer, Preemption};
use crate::sched::untracked::Untracked;
use gpuslice_wire::turns::TurnKind;

const FIRST: ContainerIndex = ContainerIndex(0);
const SECOND: ContainerIndex = ContainerIndex(1);

impl Rig {
    /// How long the cap of `who` pays for a turn, ms.
    fn lasts(&self, who: usize) -> u64 {
        self.turns.entities[who].bucket.lasts().expect("a cap").0 / MS
    }
}

/// A container with a share of 50, which is its limit, beside three without. Its bucket has 100 ms, and more after a
/// fifth of a second in which time was owed to it.
#[test]
fn a_bucket_fills_above_its_depth_only_while_time_is_owed() {
    let untracked = |rig: &mut Rig, who: usize| {
        rig.entity(who).untracked = Some(Untracked::new(Instant(0)));
    };
    type Row<'a> = (&'static str, bool, u64, &'a dyn Fn(&mut Rig));
    let rows: [Row; 8] = [
        ("it waits for another one", true, 300, &|rig| rig.hold(1)),
        ("which overran before", true, 300, &|rig| {
            rig.hold(1);
            rig.entity(1).overrun = Some(Instant(0));
        }),
        ("it waits for work that is not tracked", true, 300, &|rig| untracked(rig, 1)),
        ("it has no work", false, 100, &|rig| rig.hold(1)),
        ("it waits for a higher class", true, 100, &|rig| {
            rig.entity(1).class = Class::High;
            rig.hold(1);
        }),
        ("it waits, and no other runs", true, 100, &|_| {}),
        ("it waits beside an overrun container", true, 100, &|rig| {
            rig.entity(1).overrun = Some(Instant(0));
        }),
        ("it drains beside two others, a third of the time each", false, 166, &|rig| {
            (0..3).for_each(|who| untracked(rig, who));
        }),
    ];
    for (case, runnable, expected, state) in rows {
        let mut rig = Rig::new(&[(1, 50, false), (1, 0, false), (1, 0, false), (1, 0, false)]);
        rig.turns.phase = Phase::Idle;
        rig.entity(0).reported.runnable = runnable;
        state(&mut rig);
        rig.pass(200 * MS);
        assert_eq!(rig.lasts(0), expected, "{case}");
    }
}

#[test]
fn only_idle_time_makes_up_for_what_was_withheld() {
    let after = |holder: Option<usize>| {
        let mut rig = Rig::new(&[(1, 50, false), (1, 0, false)]);
        rig.turns.phase = Phase::Idle;
        holder.into_iter().for_each(|who| rig.hold(who));
        rig.entity(0).bucket.withhold(Duration::from_millis(100));
        rig.pass(10 * MS);
        rig.lasts(0)
    };
    assert_eq!((after(Some(1)), after(None)), (10, 20));
}

/// Under `preemptive` a second container halves the first one's cap. Its bucket loses the time above the new depth.
#[test]
fn a_lower_cap_leaves_no_more_than_its_depth() {
    let mut rig = Rig::new(&[(1, 0, false)]);
    rig.turns.set_policy(Policy::Preemptive);
    rig.wake(0, 0);
    let entitlement = rig.turns.entities[0].entitlement;
    rig.turns.enter(SECOND, Lane(1), entitlement);
    assert_eq!(rig.lasts(0), 100);
}

#[test]
fn a_container_that_goes_on_waiting_keeps_its_position() {
    let mut rig = Rig::new(&[(1, 0, false); 3]);
    rig.wake(0, 0);
    rig.wake(0, 2);
    rig.wake(MS, 1);
    rig.report(2 * MS, 2, true, true);
    let position = |who: usize| rig.turns.position(&rig.turns.entities[who]);
    assert!(position(2) < position(1), "{:?} and {:?}", position(2), position(1));
}

/// A class earns its guard turn anew when the first of its containers begins to wait.
#[test]
fn the_first_that_waits_puts_the_guard_turn_of_its_class_off() {
    let mut rig = Rig::new(&[(1, 0, true), (1, 0, false), (1, 0, false)]);
    rig.wake(0, 0);
    let due = |rig: &Rig| rig.turns.guards.due(Class::Normal).map(|due| due.0 / MS);
    rig.pass(100 * MS);
    assert_eq!(due(&rig), Some(0));
    rig.wake(100 * MS, 1);
    // 1 ms is a twentieth of the time
    assert_eq!(due(&rig), Some(120));
    rig.wake(110 * MS, 2);
    assert_eq!(due(&rig), Some(120));
}

#[test]
fn a_gpu_without_work_looks_again_when_it_may_open() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    (0..2).for_each(|who| rig.wake(0, who));
    rig.run(100 * MS);
    for who in [0, 1, 0, 1] {
        rig.report(100 * MS, who, false, true);
    }
    assert_eq!(rig.turns.phase, Phase::Idle);
    assert_eq!(rig.turns.deadline(), Some(Instant(100 * MS).plus(rig.turns.config.open_after)));
}

/// A bucket that pays for a turn needs no step to fill.
#[test]
fn a_container_that_waits_with_a_full_bucket_needs_no_step() {
    let mut rig = Rig::new(&[(1, 50, false), (1, 50, false)]);
    (0..2).for_each(|who| rig.wake(0, who));
    let due = rig.turns.deadline().expect("a turn ends");
    assert!(due.0 >= MS, "{due:?}");
}

/// Nor does an empty one, as long as its container has no work.
#[test]
fn an_idle_container_with_an_empty_bucket_needs_no_step() {
    let mut rig = Rig::new(&[(1, 50, false), (1, 50, false)]);
    rig.entity(0).bucket.spend(Duration::from_millis(1_000));
    rig.at(MS);
    assert_eq!((rig.turns.phase, rig.turns.deadline()), (Phase::Idle, None));
    rig.wake(MS, 0);
    assert!(rig.turns.deadline().is_some());
}

/// The costs of sixteen turns with this idle time, ns.
fn costs(idle: u64) -> SwitchCosts {
    let mut costs = SwitchCosts::default();
    for _ in 0..16 {
        let turn =
            Turn { granted: Instant(0), closed: Instant(5 * MS), drained: Instant(5 * MS + idle) };
        costs.saw(turn, WorkSpan { began: Instant(0), calm: Instant(5 * MS) }, Duration(10 * MS));
    }
    costs
}

/// The container and its pool are not charged for the overhead of a switch, 100 us here, or for half of the last run if
/// that is less.
#[test]
fn the_overhead_of_a_switch_is_charged_to_none() {
    let charged = |run: u64, compensated: Option<bool>| {
        let mut rig = Rig::new(&[(1, 0, false), (1, 50, false)]);
        rig.turns.entities.iter_mut().for_each(|it| {
            it.reported.runnable = true;
            it.switch_costs = costs(MS / 10);
        });
        rig.entity(0).guest = compensated == Some(true);
        let run = Duration(run);
        rig.entity(0).charge(run);
        let it = rig.turns.entities[0].clone();
        rig.turns.queues[Class::Normal as usize].charge(&Entity { guest: false, ..it }, run);
        compensated.into_iter().for_each(|_| rig.turns.compensate(FIRST));
        let pool = rig.turns.queues(Class::Normal).pool_debt();
        let own = rig.turns.entities[0].debt(Virtual::default());
        [own, pool, rig.turns.entities[0].compensated].map(|it| it.0 / 1_000)
    };
    assert_eq!(charged(MS, None), [1_000, 1_000, 0]);
    assert_eq!(charged(MS, Some(false)), [900, 900, 100]);
    assert_eq!(charged(MS / 10, Some(false)), [50, 50, 50]);
    // its pool was not charged for a turn that it began with a share
    assert_eq!(charged(MS, Some(true)), [900, 1_000, 100]);
}

/// GPU time that is not charged is taken from the next charges, once.
#[test]
fn gpu_time_waits_until_what_was_compensated_is_used() {
    let mut rig = Rig::new(&[(1, 0, false)]);
    let entity = rig.entity(0);
    entity.charge(Duration(10));
    entity.compensate(Duration(5));
    let gpu_time = [3, 10, 10].map(|used| {
        entity.charge(Duration(used));
        entity.gpu_time.0
    });
    assert_eq!(gpu_time, [10, 18, 28]);
}

/// Idle time of a turn counts as overhead up to half of the shortest turn, and only of a container that has more work.
#[test]
fn a_long_idle_time_is_no_overhead() {
    let after = |runnable: bool| {
        let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
        for n in 0..16 {
            let at = |ms: u64| Instant((n * 100 + ms) * MS);
            rig.turns.now = at(50);
            let work_span = Some(WorkSpan { began: at(0), calm: at(10) });
            let entity = rig.entity(0);
            entity.reported =
                Report { attached: true, runnable, drained: true, work_span, ..Report::default() };
            entity.granted = at(0);
            rig.turns.phase =
                Phase::Closing { index: FIRST, closed: at(40), guard: None, reported: false };
            rig.turns.drain(&mut Vec::new());
        }
        let costs = &rig.turns.entities[0].switch_costs;
        compensation([costs, costs].into_iter())
    };
    assert_eq!((after(true), after(false)), (Duration(MS / 2), Duration(0)));
}

#[test]
fn a_tail_is_forgotten_by_half() {
    let mut rig = Rig::new(&[(1, 0, false)]);
    let tails = [8, 0, 3].map(|waited| {
        rig.entity(0).drained_in(Duration(waited), Duration(MS));
        rig.entity(0).tail.0
    });
    assert_eq!(tails, [8, 4, 3]);
}

#[test]
fn a_debt_of_the_shortest_turn_is_ignored() {
    let mut rig = Rig::new(&[(1, 0, false)]);
    let owes = [1_000, 1].map(|us| {
        rig.entity(0).charge(Duration::from_micros(us));
        rig.turns.owes(&rig.turns.entities[0])
    });
    assert_eq!(owes, [false, true]);
}

/// The pool keeps its position while another one of its containers waits, and is enqueued anew where none does.
#[test]
fn a_pool_is_enqueued_with_the_first_of_its_containers() {
    // two of the pool, one with a share, one of another class
    let after = |waits: usize| {
        let mut rig = Rig::new(&[(1, 0, false), (1, 0, false), (1, 50, false), (1, 0, true)]);
        rig.entity(waits).reported.runnable = true;
        rig.pass(MS);
        rig.entity(0).reported.runnable = true;
        rig.turns.becomes_runnable(FIRST);
        rig.turns.position(&rig.turns.entities[0]).1
    };
    let (old, new) = (Instant(0), Instant(MS));
    assert_eq!([1, 2, 3].map(after), [old, new, new]);
}

/// Two containers of the pool, one with a share, and one of another class without. The pool has used 10 ms.
fn pool() -> Rig {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false), (1, 50, false), (1, 0, true)]);
    let it = rig.turns.entities[0].clone();
    rig.turns.queues[Class::Normal as usize].charge(&it, Duration::from_millis(10));
    rig.entity(0).charge(Duration::from_millis(10));
    rig.turns.phase = Phase::Idle;
    rig.turns.now = Instant(5 * MS);
    rig
}

/// The pool of a container that runs is where it would be if its turn ended now.
#[test]
fn a_pool_is_enqueued_anew_where_one_of_it_runs() {
    let queued = |holder: usize| {
        let mut rig = pool();
        rig.hold(holder);
        rig.turns.position_now(&rig.turns.entities[1]).1
    };
    assert_eq!([0, 1, 2, 3].map(queued), [5, 5, 0, 0].map(|ms| Instant(ms * MS)));
}

/// Where one of a pool runs, half of the shortest turn may still be taken from what it is charged.
#[test]
fn the_least_tags_of_a_pool_are_those_of_a_shorter_turn() {
    let tags = |holder: usize, who: usize| {
        let mut rig = pool();
        rig.turns.entities.iter_mut().for_each(|it| it.reported.runnable = true);
        rig.hold(holder);
        rig.turns.least_tags(&rig.turns.entities[who])
    };
    let used = |weight: QueueWeight| {
        let half = Duration(MS / 2);
        Virtual::default().after(Duration::from_millis(10), weight).before(half, weight)
    };
    let (rig, start) = (pool(), Virtual::default());
    let upper = used(QueueWeight::new(rig.turns.queues(Class::Normal).pool_weight() as u32));
    let lower = used(rig.turns.entities[0].weight);
    assert_eq!(tags(0, 0), (upper, Some(lower)));
    assert_eq!(tags(0, 1), (upper, Some(start)));
    assert_eq!([tags(2, 1), tags(3, 1)], [(start, Some(start)); 2]);
    assert_eq!(tags(0, 2), (start, None));
}

/// A queue's time does not pass those that wait in it, and is not held back by those of another queue or class.
#[test]
fn virtual_times_stay_behind_those_that_wait() {
    let ahead = |who: usize| {
        let mut rig = pool();
        let served = rig.entity(0);
        served.start = Virtual::default().after(Duration::from_millis(100), served.weight);
        let start = served.start;
        rig.entity(who).reported.runnable = true;
        rig.turns.advance_queues(FIRST);
        rig.turns.queues(Class::Normal).time_of(false) == start
    };
    assert_eq!([1, 2, 3].map(ahead), [false, true, true]);
}

/// Two containers of one pool are compared with each other. A container with a share is compared with the whole pool.
#[test]
fn which_container_stays_first_in_its_queue() {
    let stays = |rival: usize, ahead_ms: u64| {
        let mut rig = pool();
        let all = rig.turns.entities[0].clone();
        rig.turns.queues[Class::Normal as usize].charge(&all, Duration::from_millis(390));
        let entity = rig.entity(rival);
        entity.reported.runnable = true;
        let weight = if rival == 2 { QueueWeight::new(1_000_000) } else { entity.weight };
        entity.start = Virtual::default().after(Duration::from_millis(ahead_ms), weight);
        rig.turns.stays_first(&rig.turns.entities[0], Duration::from_millis(1))
    };
    assert_eq!((stays(1, 20), stays(1, 5)), (true, false), "it has used 11 ms");
    assert_eq!((stays(2, 100_000), stays(2, 200)), (true, false), "and its pool 401 ms");
}

/// At the end of the open mode each container keeps the position that it has.
#[test]
fn the_longest_runnable_goes_first_when_turns_begin() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    rig.turns.now = Instant(5 * MS);
    for (who, ms) in [(0, 5), (1, 0)] {
        let entity = rig.entity(who);
        entity.reported = Report { attached: true, runnable: true, ..Report::default() };
        entity.arrives = false;
        entity.queued = Instant(ms * MS);
    }
    rig.turns.revoke(&mut Vec::new());
    let position = |who: usize| rig.turns.position(&rig.turns.entities[who]);
    assert!(position(1) < position(0), "{:?} and {:?}", position(1), position(0));
}

/// How a container has the GPU, whatever another one does.
#[test]
fn a_charge_is_recorded_as_what_it_is() {
    let closing = Phase::Closing { index: FIRST, closed: Instant(0), guard: None, reported: false };
    let held = Phase::Held { index: FIRST, end: Instant(0), guard: None };
    let (turn, drain, overrun) = (TurnKind::Turn, TurnKind::Drain, TurnKind::Overrun);
    for (phase, first, second) in [(closing, drain, overrun), (held, turn, overrun)] {
        let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
        rig.turns.phase = phase;
        (0..2).for_each(|who| rig.entity(who).overrun = Some(Instant(0)));
        let kind = |who: usize| rig.turns.kind(&rig.turns.entities[who]);
        assert_eq!((kind(0), kind(1)), (first, second), "{phase:?}");
    }
}

/// Work between gates goes on in the turn of its container, while no turn is needed, and where it has overrun.
#[test]
fn gates_open_for_those_that_may_run() {
    let row = |turn: u32, overrun: bool, phase: Phase| {
        let mut rig = Rig::new(&[(1, 0, true), (1, 0, false)]);
        rig.turns.phase = phase;
        let entity = rig.entity(1);
        (entity.class, entity.entitlement.class) = (Class::BestEffort, Class::BestEffort);
        (entity.turn, entity.overrun) = (turn, overrun.then_some(Instant(0)));
        let shown = rig.turns.to_all().and_to(&rig.turns.entities[1]);
        (shown.gates, shown.gate_open)
    };
    assert_eq!(row(2, false, Phase::Idle), (true, false));
    assert_eq!(row(1, false, Phase::Idle), (true, true));
    assert_eq!(row(2, true, Phase::Idle), (true, true));
    assert_eq!(row(2, false, Phase::Open), (false, true));
    let mut rig = Rig::new(&[(1, 0, true), (1, 0, false)]);
    rig.turns.phase = Phase::Idle;
    let shown = rig.turns.to_all().and_to(&rig.turns.entities[1]);
    assert!(!shown.gates, "only best-effort containers have gates");
}

/// A stop is not ordered twice, nor for half a collective, nor where no turn is taken.
#[test]
fn a_stop_is_ordered_where_it_may_help() {
    let config = Config { stop: true, ..Config::default() };
    let rig = || Rig::with(config, &[(1, 0, true), (1, 0, false)]);
    let stop_at = |rig: &Rig| rig.turns.stop_at(SECOND, Instant(0)).is_some();
    assert!(stop_at(&rig()));
    for preemption in [Preemption::Stopping, Preemption::Stopped, Preemption::Resuming] {
        let mut rig = rig();
        rig.entity(1).preemption = preemption;
        assert!(!stop_at(&rig), "{preemption:?}");
        let stopped = matches!(preemption, Preemption::Stopping | Preemption::Stopped);
        assert_eq!(rig.turns.may_be_stopped(SECOND), stopped);
    }
    assert!(!rig().turns.may_be_stopped(SECOND));
    let mut gang = rig();
    gang.entity(1).gang = Some(Default::default());
    assert!(!stop_at(&gang));
    assert!(!stop_at(&Rig::new(&[(1, 0, true), (1, 0, false)])), "the configuration stops nothing");
    let mut native = rig();
    native.turns.set_policy(Policy::Native);
    assert!(!stop_at(&native));
}

/// Answers to a stop before the last one change nothing, and a stop counts once.
#[test]
fn an_answer_counts_for_its_own_order() {
    let mut rig = Rig::new(&[(1, 0, false)]);
    (rig.entity(0).preemption, rig.entity(0).order) = (Preemption::Stopping, 2);
    let after = [(1, false), (1, true), (2, true), (2, true)].map(|(order, ok)| {
        rig.turns.preemption_answered(FIRST, Answer::Stop { order, ok });
        (rig.turns.entities[0].preemption, rig.turns.entities[0].stops)
    });
    let (stopping, stopped) = (Preemption::Stopping, Preemption::Stopped);
    assert_eq!(after, [(stopping, 0), (stopping, 0), (stopped, 1), (stopped, 1)]);
}

/// A tag keeps its distance from the queue's time in GPU time, on either side.
#[test]
fn a_tag_keeps_its_lead_or_lag_at_another_weight() {
    let (mut rig, four, two) =
        (Rig::new(&[(1, 0, false)]), QueueWeight::new(4), QueueWeight::new(2));
    let queue_time = Virtual::default().after(Duration(100), four);
    let entity = rig.entity(0);
    entity.weight = four;
    (entity.start, entity.finish) =
        (queue_time.before(Duration(40), four), queue_time.after(Duration(40), four));
    entity.rescale(queue_time, two);
    assert_eq!(entity.start, queue_time.before(Duration(40), two));
    assert_eq!(entity.finish, queue_time.after(Duration(40), two));
}

/// While a higher class waits, the holder of the GPU is looked at when a class below it may interrupt, which is in the
/// future: a class that may do so already has been asked.
#[test]
fn a_holder_is_looked_at_when_a_guard_turn_is_due() {
    let look = |class: Class, waits: bool, due_ms: u64| {
        let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
        rig.turns.entities.iter_mut().for_each(|it| it.reported.runnable = true);
        rig.entity(1).reported.runnable = waits;
        rig.entity(0).class = class;
        rig.turns.guards.later(Class::Normal, Instant((due_ms - 20) * MS));
        rig.turns.now = Instant(100 * MS);
        rig.hold(0);
        let end = Instant(2_000 * MS);
        rig.turns.held_until(&rig.turns.entities[0], end, None).0 / MS
    };
    assert_eq!(look(Class::High, true, 300), 300);
    let end = look(Class::High, false, 300);
    assert_eq!((look(Class::High, true, 90), look(Class::High, true, 100)), (end, end));
    assert!(look(Class::Normal, true, 300) > 1_000, "the end of its turn");
}

/// Containers without work shorten no turn.
#[test]
fn the_only_container_with_work_has_the_longest_turn() {
    let mut rig = Rig::new(&[(1, 0, false), (1, 0, false)]);
    rig.wake(0, 1);
    assert_eq!(rig.turns.length_of(SECOND), Some(rig.turns.config.turn_max));
}

/// A turn is extended one window before its end, at no step before that and at none after it.
#[test]
fn a_turn_is_extended_a_window_before_its_end() {
    let mut rig = Rig::new(&[(1, 50, false), (1, 50, false)]);
    rig.wake(0, 0);
    let end = |rig: &Rig| rig.turns.entities[0].turn_end;
    let first = end(&rig);
    assert_eq!(rig.holder(), Some(0));
    rig.at(MS);
    assert_eq!(end(&rig), first, "in the middle");
    let window = Duration::from_micros(u64::from(rig.turns.window_us()));
    rig.at(first.0 - window.min(rig.turns.config.turn_min).0);
    assert!(end(&rig) > first, "a window before its end");
}
