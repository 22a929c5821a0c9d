//! NVML is late with the figure of a first context.

use super::*;
use crate::OWED;

fn owes(client: ClientId, owes: bool) -> Event {
    Event::Owed { client, lane: Lane(0), owes }
}

/// Growth waits until NVML has answered. What it shows then counts before a sibling's request is decided, and the
/// process's own request is for that memory.
#[test]
fn growth_waits_for_the_figure_of_a_first_context() {
    let (mut rig, who) = slice_of(&[10, 0]);
    rig.step(owes(who[1], true));
    assert_eq!(answers(&rig.reserve(who[0], 50, 50)), []);
    assert_eq!(answers(&rig.reserve(who[1], 0, 0)), [], "the process itself waits");
    assert_eq!(answers(&rig.step(requested(who[1], 60))), [], "another answer is due");
    assert_eq!((reserved(&rig), context_cost(&rig, "a")), (70, 50));
    let over = rig.step(owes(who[1], false));
    assert_eq!(answers(&over), [(who[0], None), (who[1], Some(0))]);
    assert_eq!(answers(&rig.reserve(who[1], 31, 31)), [], "a sibling is asked for what it leaves");
    assert_eq!(answers(&rig.give_back(who[0], 1, 0)), [(who[1], None)], "for other memory");
    rig.step(requested(who[1], 60));
    assert_eq!(answers(&rig.reserve(who[1], 60, 60)), [(who[1], Some(60))]);
    rig.now = 1_000 * MS;
    rig.step(measured(who[1], 60));
    assert_eq!((reserved(&rig), rig.engine.next_deadline()), (70, None));
    assert_eq!(answers(&rig.reserve(who[0], 30, 30)), [(who[0], Some(30))]);
}

/// NVML tells no figure, or shows no context yet: nothing is known of it, and nothing waits for ever.
#[test]
fn a_late_answer_without_a_figure_ends_the_wait() {
    for figure in [None, Some(0)] {
        let (mut rig, who) = slice_of(&[0, 0]);
        rig.step(owes(who[1], true));
        rig.reserve(who[0], 100, 100);
        if let Some(used) = figure {
            rig.step(requested(who[1], used));
        }
        assert_eq!(answers(&rig.step(owes(who[1], false))), [(who[0], Some(100))], "{figure:?}");
        assert_eq!((reserved(&rig), rig.engine.next_deadline()), (100, None));
    }
}

#[test]
fn growth_waits_for_a_figure_no_longer_than_for_a_daemon() {
    let (mut rig, who) = slice_of(&[0, 0]);
    rig.step(owes(who[1], true));
    rig.reserve(who[0], 50, 50);
    rig.now = 1_000 * MS;
    rig.step(owes(who[1], true));
    let until = rig.engine.next_deadline().expect("an end");
    assert_eq!(until, Instant(OWED.0), "since it was late for the first time");
    rig.now = until.0;
    assert_eq!(answers(&rig.step(Event::Tick)), [(who[0], Some(50))]);
    assert_eq!(rig.engine.next_deadline(), None);
}

/// Another process of the container has had its context measured: the next one is charged as much in advance.
#[test]
fn growth_does_not_wait_where_the_cost_of_a_context_is_known() {
    let (mut rig, who) = slice_of(&[0, 0, 0]);
    rig.step(requested(who[0], 30));
    rig.step(owes(who[1], true));
    assert_eq!(answers(&rig.reserve(who[2], 50, 50)), [(who[2], Some(50))]);
}

/// It has ended, or it has no connection and nothing is charged to it.
#[test]
fn growth_does_not_wait_for_a_process_that_is_gone() {
    let ends = [|client| Event::Gone { client }, |client| Event::Left { client }];
    for end in ends {
        let (mut rig, who) = slice_of(&[0, 0]);
        rig.step(owes(who[1], true));
        rig.reserve(who[0], 50, 50);
        assert_eq!(answers(&rig.step(end(who[1]))), [(who[0], Some(50))]);
        assert_eq!(rig.engine.next_deadline(), None);
    }
}
