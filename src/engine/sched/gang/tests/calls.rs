//! A gang's position in a queue: when it is called there, and what others are owed.

use super::*;
use crate::sched::Turns;
use crate::sched::entity::Entity;
use gpuslice_wire::units::Weight;

const MS: u64 = 1_000_000;

/// A process that has not drained.
const BUSY: u32 = u32::MAX;

/// Two GPUs, and containers of (name, GPUs, weight) with one process each.
fn node<const N: usize>(who: [(&str, &str, u32); N]) -> (Rig, [ClientId; N]) {
    let mut rig = Rig::new(Config::default(), &[16, 16]);
    let clients = who.map(|(name, gpus, weight)| {
        let weight = Weight::new(weight).expect("a weight");
        let ask = ask(name, gpus, GIB);
        rig.admit(SliceRequest { weight: Some(weight), ..ask }).expect("fits");
        rig.attach(name, 0).expect("in")
    });
    (rig, clients)
}

fn first(rig: &Rig) -> &Turns {
    &rig.engine.gpus[0].turns
}

/// Container `at` on the first GPU.
fn on_first(rig: &Rig, at: usize) -> &Entity {
    &first(rig).entities[at]
}

/// Whether the first container has a turn there.
fn may_launch(rig: &Rig) -> bool {
    gpuslice_wire::page::may_launch(on_first(rig, 0).turn)
}

/// A millisecond passes, in which `drains`, the second container, reports that it has drained.
fn passes(rig: &mut Rig, drains: ClientId) {
    rig.now += MS;
    rig.step(Event::Tick);
    if let Phase::Closing { index, .. } = first(rig).phase
        && index == on_first(rig, 1).index
    {
        claim(rig, drains, 0, true, 0);
    }
}

/// While a gang has untracked work, no other container may go before it. It drains, and waits until the
/// others have had as much by weight as that work took.
#[test]
fn untracked_work_is_paid_before_a_gangs_turn() {
    let (mut rig, [gang, single]) = node([("a", "0,1", 1), ("b", "0", 50)]);
    claim(&mut rig, single, 0, true, BUSY);
    (0..2).for_each(|lane| _ = claim(&mut rig, gang, lane, true, BUSY));
    rig.now += 10 * MS;
    claim(&mut rig, gang, 0, true, 0); // half of these were the other one's
    for _ in 0..200 {
        passes(&mut rig, single);
        assert!(!may_launch(&rig), "{} ns", rig.now);
    }
    let granted = (0..200).any(|_| {
        passes(&mut rig, single);
        may_launch(&rig)
    });
    assert!(granted, "5 ms at weight 1 are 250 ms at weight 50");
}

/// The first GPU has a holder, the second one a container that does not drain. The gang is called on the
/// first one.
fn called() -> (Rig, [ClientId; 3]) {
    let (mut rig, clients) = node([("a", "0,1", 20), ("b", "0", 1), ("c", "1", 1)]);
    let [gang, single, other] = clients;
    claim(&mut rig, single, 0, true, 0);
    claim(&mut rig, other, 0, true, 0);
    (0..2).for_each(|lane| _ = claim(&mut rig, gang, lane, true, 0));
    (1..3).for_each(|at| _ = claim(&mut rig, clients[at], 0, true, 0));
    let both = |rig: &Rig| {
        let held = |gpu: &crate::sched::gpu::Gpu| matches!(gpu.turns.phase, Phase::Held { .. });
        rig.engine.gpus.iter().all(held) && !may_launch(rig)
    };
    for _ in 0..1_000 {
        passes(&mut rig, single);
        for lane in 0..2 {
            claim(&mut rig, gang, lane, true, 0);
        }
        if !both(&rig) {
            claim(&mut rig, other, 0, true, 0);
        } else if on_first(&rig, 0).gang.is_some_and(|member| member.called) {
            return (rig, clients);
        }
    }
    panic!("it is never called");
}

/// A called gang waits for its other GPU. A container that begins to be runnable meanwhile does not come
/// before it. Nor does the next one come before that container, after the gang was dismissed.
#[test]
fn who_begins_to_be_runnable_queues_behind_a_called_gang() {
    let (mut rig, _) = called();
    rig.now += MS; // the holder may be spared up to half of that, as overhead of a switch
    rig.step(Event::Tick);
    for name in ["d", "e"] {
        rig.admit(ask(name, "0", GIB)).expect("fits");
    }
    let [next, last] = ["d", "e"].map(|name| rig.attach(name, 0).expect("in"));
    let position = |rig: &Rig, at: usize| first(rig).position(on_first(rig, at));
    claim(&mut rig, next, 0, true, 0);
    assert!(position(&rig, 0) < position(&rig, 2));
    let (token, container) = (Token(7), id("a"));
    rig.step(Event::Dismiss { token, container });
    claim(&mut rig, last, 0, true, 0);
    assert!(position(&rig, 1) < position(&rig, 2));
}

/// A gang owes its last turn, and is called all the same: the holder has no more work to launch. It does not
/// drain. A container that begins to be runnable then is owed the holder's turn.
#[test]
fn a_turn_that_drains_is_owed_to_a_container_that_begins_to_be_runnable() {
    let (mut rig, [gang, single, other]) = node([("a", "0,1", 1), ("b", "0", 50), ("c", "1", 50)]);
    (0..2).for_each(|lane| _ = claim(&mut rig, gang, lane, true, BUSY));
    for client in [single, other] {
        claim(&mut rig, client, 0, true, 0);
    }
    rig.now += 10 * MS;
    (0..2).for_each(|lane| _ = claim(&mut rig, gang, lane, true, 0));
    for client in [single, other] {
        claim(&mut rig, client, 0, true, 0);
    }
    rig.now += MS;
    claim(&mut rig, single, 0, false, BUSY);
    assert!(matches!(first(&rig).phase, Phase::Closing { .. }));
    assert!(on_first(&rig, 0).gang.is_some_and(|member| member.called));
    rig.admit(ask("d", "0", GIB)).expect("fits");
    let next = rig.attach("d", 0).expect("in");
    claim(&mut rig, next, 0, true, 0);
    rig.now += 50 * MS;
    claim(&mut rig, single, 0, true, 0); // it drains
    let (single, next) = (on_first(&rig, 1), on_first(&rig, 2));
    let lead = single.start.max(single.finish).ahead(next.start, single.weight).0;
    assert!(lead >= 50 * MS, "{lead} ns of 50 ms");
}

/// A gang waits for one of its GPUs, while others use the other one, until the process that used the first
/// one is gone: it has no credit for the wait.
#[test]
fn a_gang_that_ends_has_no_credit() {
    let (mut rig, [gang, single, _]) = called();
    let second = rig.attach("a", 0).expect("in");
    claim(&mut rig, second, 0, true, 0);
    for _ in 0..100 {
        passes(&mut rig, single);
    }
    let lag = |rig: &Rig| {
        let gang = on_first(rig, 0);
        let at = first(rig).queue_time(gang);
        at.ahead(gang.start, gang.weight).0 / MS
    };
    assert!(lag(&rig) > 500, "{} ms at weight 20", lag(&rig));
    rig.step(Event::Gone { client: gang });
    assert!(on_first(&rig, 0).gang.is_none());
    assert_eq!(lag(&rig), 0);
}

/// Turns end for good while a gang waits for the holders of its GPUs: it needs none on a GPU that becomes free, and
/// begins none that would end at once.
#[test]
fn a_gang_begins_no_turn_where_turns_have_ended_for_good() {
    let (mut rig, [_, single, other]) = called();
    let (token, gpus, policy) = (Token(9), GpuSelector::All, Policy::Native);
    rig.step(Event::SetPolicy { token, gpus: gpus.into(), policy });
    let before = on_first(&rig, 0).turn;
    assert!(matches!(first(&rig).phase, Phase::Closing { .. }));
    for client in [single, other] {
        claim(&mut rig, client, 0, true, 0);
        assert_eq!((first(&rig).phase, on_first(&rig, 0).turn), (Phase::Open, before));
    }
}

/// The first GPU has a holder, and the second one a container that drains: when that ends is a guess, for the first GPU
/// too.
#[test]
fn a_gpu_is_reserved_until_a_guess_while_another_one_drains() {
    let (mut rig, [_, single, _]) = called();
    let kept = |rig: &Rig| {
        let of = |at: usize| rig.engine.gpus[at].turns.demand.kept.map(|kept| kept.guessed);
        [of(0), of(1)]
    };
    let drains = |rig: &Rig| matches!(rig.engine.gpus[1].turns.phase, Phase::Closing { .. });
    let mut seen = Vec::new();
    for _ in 0..100 {
        seen.push((drains(&rig), kept(&rig)));
        passes(&mut rig, single);
    }
    seen.retain(|(_, kept)| kept[0].is_some());
    assert!(seen.iter().any(|it| it.0), "it never drains");
    let guessed = |it: &(bool, [Option<bool>; 2])| it.1 == [Some(it.0); 2];
    assert!(seen.iter().all(guessed), "{seen:?}");
}

/// Two gangs wait for the same GPUs, of which one has a holder. The first gang is ready; behind it the second one is
/// first in no queue.
#[test]
fn of_two_gangs_that_wait_for_a_holder_one_is_ready() {
    let (mut rig, clients) = node([("a", "0,1", 1), ("b", "0,1", 1), ("c", "0", 1)]);
    let mut most = 0;
    for _ in 0..60 {
        for (client, lanes) in clients.into_iter().zip([2, 2, 1]) {
            (0..lanes).for_each(|lane| _ = claim(&mut rig, client, lane, true, 0));
        }
        rig.now += MS;
        rig.step(Event::Tick);
        if first(&rig).held_by(on_first(&rig, 2).index).is_some() {
            let ready = rig.engine.gangs.iter().filter(|gang| gang.ready.is_some());
            most = most.max(ready.count());
        }
    }
    assert_eq!(most, 1);
}
