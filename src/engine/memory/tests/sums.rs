//! NVML's sum over all processes, against the sum of their grants.

use super::*;

/// One measurement of all processes: the memory of each.
fn look(rig: &mut Rig, who: &[ClientId], used: &[u64]) {
    for (&client, &used) in who.iter().zip(used) {
        rig.step(measured(client, used));
    }
    rig.step(Event::Looked { container: id("a"), lane: Lane(0) });
}

/// The process is granted `bytes` for a moment, if there is as much.
fn pulse(rig: &mut Rig, client: ClientId, bytes: u64) {
    let answer = answers(&rig.reserve(client, bytes, bytes));
    if answer == [(client, Some(bytes))] {
        rig.give_back(client, 0, bytes);
    }
}

/// Each process was granted all of the cap for a moment, and keeps as much without a request.
#[test]
fn processes_that_pulse_one_after_the_other_hide_no_more_than_one_cap() {
    let (mut rig, who) = slice_of(&[0, 0, 0, 0]);
    for second in 1..3 {
        who.iter().for_each(|&client| pulse(&mut rig, client, 100));
        rig.now = second * 1_000 * MS;
        look(&mut rig, &who, &[100; 4]);
    }
    assert_eq!(reserved(&rig), 300, "400 shown, 100 granted at most at once");
    assert_eq!(answers(&rig.reserve(who[0], 1, 1)), [(who[0], None)]);
    // its own query does not change the sum over all
    rig.step(measured(who[0], 100));
    assert_eq!(reserved(&rig), 300);
    for second in 3..8 {
        rig.now = second * 1_000 * MS;
        look(&mut rig, &who, &[100; 4]);
    }
    assert_eq!(reserved(&rig), 400, "without pulses all of it");
    rig.now = 9_000 * MS;
    look(&mut rig, &who, &[100, 0, 0, 0]);
    assert_eq!(reserved(&rig), 100, "less is believed at once");
    for client in who {
        rig.step(Event::Gone { client });
    }
    assert_eq!(reserved(&rig), 0);
}

/// Grants beyond a lowered cap are within it again when it is raised: a measurement from before they were
/// given back shows no unrequested memory.
#[test]
fn a_cap_that_is_raised_counts_what_it_covers_as_granted() {
    let (mut rig, who) = slice_of(&[100]);
    let set = |rig: &mut Rig, cap| resize(rig, Lane(0), MemoryAsk::Exactly(Bytes(cap)));
    set(&mut rig, 40).expect("lowered");
    for second in 1..3 {
        rig.now = second * 1_000 * MS;
        look(&mut rig, &who, &[100]);
    }
    set(&mut rig, 200).expect("raised");
    rig.give_back(who[0], 0, 90);
    for second in 3..5 {
        rig.now = second * 1_000 * MS;
        look(&mut rig, &who, &[100]);
    }
    assert_eq!(reserved(&rig), 10);
}

/// NVML is asked, and answers after `meanwhile`.
fn asked(rig: &mut Rig, who: &[ClientId], used: &[u64], meanwhile: impl FnOnce(&mut Rig)) {
    rig.step(Event::Looking { container: id("a"), lane: Lane(0) });
    meanwhile(rig);
    look(rig, who, used);
}

/// A grant that was returned before NVML was asked explains nothing.
#[test]
fn a_pulse_before_the_question_raises_no_peak() {
    let (mut rig, who) = slice_of(&[0, 0]);
    for second in 1..3 {
        pulse(&mut rig, who[0], 100);
        pulse(&mut rig, who[1], 100);
        rig.now = second * 1_000 * MS;
        asked(&mut rig, &who, &[50, 50], |_| ());
    }
    assert_eq!(reserved(&rig), 100);
}

/// Processes that pulse without a pause have a large grant in every window. After the first look that needs
/// it, growth waits for NVML's answer.
#[test]
fn pulses_during_the_question_hide_one_look() {
    let (mut rig, who) = slice_of(&[0]);
    let pulses = |rig: &mut Rig| pulse(rig, who[0], 100);
    for second in 1..4 {
        rig.now = second * 1_000 * MS;
        assert_eq!(reserved(&rig), 0, "second {second}");
        asked(&mut rig, &who, &[100], pulses);
        // the pulse that waited is granted, and given back
        rig.give_back(who[0], 0, rig.engine.granted_to(who[0]).expect("known")[0].0);
    }
    assert_eq!(reserved(&rig), 100);
    for second in 4..40 {
        rig.now = second * 1_000 * MS;
        asked(&mut rig, &who, &[100], pulses);
        assert_eq!(reserved(&rig), 100, "second {second}");
    }
}

/// The wait for NVML's answer has an end, and honest growth meanwhile is no excess.
#[test]
fn growth_waits_for_an_answer_at_most_for_a_hold() {
    let (mut rig, who) = slice_of(&[0, 0]);
    rig.now = 1_000 * MS;
    asked(&mut rig, &who, &[50, 50], |rig| pulse(rig, who[0], 100));
    rig.now = 2_000 * MS;
    rig.step(Event::Looking { container: id("a"), lane: Lane(0) });
    assert_eq!(answers(&rig.reserve(who[0], 60, 60)), []);
    let until = rig.engine.next_deadline().expect("an end");
    assert_eq!(until, Instant(2_100 * MS));
    rig.now = until.0;
    assert_eq!(answers(&rig.step(Event::Tick)), [(who[0], Some(60))]);
    look(&mut rig, &who, &[60, 0]);
    rig.now = 3_000 * MS;
    rig.step(Event::Looking { container: id("a"), lane: Lane(0) });
    assert_eq!(answers(&rig.reserve(who[1], 40, 40)), []);
    rig.step(measured(who[0], 60));
    let looked = rig.step(Event::Looked { container: id("a"), lane: Lane(0) });
    assert_eq!(answers(&looked), [(who[1], Some(40))]);
    assert_eq!((reserved(&rig), rig.engine.next_deadline()), (100, None));
}

/// An NVML that is asked again and again and never answers delays growth once.
#[test]
fn growth_waits_for_a_silent_nvml_once() {
    let (mut rig, who) = slice_of(&[0]);
    asked(&mut rig, &who, &[50], |rig| pulse(rig, who[0], 100));
    let begin = 1_000 * MS;
    let until = Instant(begin).plus(crate::HOLD);
    for at in (begin..until.0).step_by(30 * MS as usize) {
        rig.now = at;
        rig.step(Event::Looking { container: id("a"), lane: Lane(0) });
        if at == begin {
            assert_eq!(answers(&rig.reserve(who[0], 60, 60)), []);
        }
        assert_eq!(rig.engine.next_deadline(), Some(until), "asked at {at}");
    }
    rig.now = until.0;
    assert_eq!(answers(&rig.step(Event::Tick)), [(who[0], Some(60))]);
}

/// Siblings answer a recall while growth waits for NVML: it is decided with NVML's answer.
#[test]
fn a_recall_that_ends_while_growth_waits_for_nvml_is_over() {
    let (mut rig, who) = slice_of(&[0, 0]);
    asked(&mut rig, &who, &[50], |rig| pulse(rig, who[0], 100));
    rig.reserve(who[0], 60, 60);
    assert_eq!(answers(&rig.reserve(who[1], 50, 50)), [], "it waits for the sibling");
    rig.now = 1_000 * MS;
    rig.step(Event::Looking { container: id("a"), lane: Lane(0) });
    assert_eq!(answers(&rig.give_back(who[0], 1, 0)), [], "and now for NVML");
    assert_eq!(rig.engine.next_deadline(), Some(Instant(rig.now).plus(crate::HOLD)));
    let looked = rig.step(Event::Looked { container: id("a"), lane: Lane(0) });
    assert_eq!(answers(&looked), [(who[1], None)]);
    assert_eq!(rig.engine.next_deadline(), None);
}

/// A container that is believed again waits no more.
#[test]
fn looks_without_excess_end_the_doubt() {
    let (mut rig, who) = slice_of(&[0]);
    asked(&mut rig, &who, &[50], |rig| pulse(rig, who[0], 100));
    for _ in 0..8 {
        rig.now += 1_000 * MS;
        rig.step(Event::Looking { container: id("a"), lane: Lane(0) });
        assert!(rig.engine.next_deadline().is_some());
        look(&mut rig, &who, &[0]);
    }
    rig.step(Event::Looking { container: id("a"), lane: Lane(0) });
    assert_eq!(rig.engine.next_deadline(), None);
}

/// A claim to hold memory explains none.
#[test]
fn a_claim_at_the_attach_raises_no_peak() {
    let mut first = Rig::new(Config::default(), &[16]);
    let record = first.admit(ask("a", "0", 100)).expect("fits");
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.step(Event::Restore(record.into()));
    let client = rig.attach("a", 100).expect("the grants are unknown");
    rig.step(Event::Looking { container: id("a"), lane: Lane(0) });
    rig.give_back(client, 0, 100);
    let liar = rig.attach("a", 100).expect("the grants are unknown");
    rig.give_back(liar, 0, 100);
    for second in 1..3 {
        rig.now = second * 1_000 * MS;
        asked(&mut rig, &[client], &[100], |_| ());
    }
    assert_eq!(reserved(&rig), 100);
}

/// To pulse before every second measurement shows now one sum, now the other: the sum over all counts.
#[test]
fn pulses_at_every_other_look_hide_nothing_more() {
    let (mut rig, who) = slice_of(&[0, 0, 0, 0]);
    for second in 1..12 {
        if second % 2 == 0 {
            who.iter().for_each(|&client| pulse(&mut rig, client, 100));
        }
        rig.now = second * 1_000 * MS;
        look(&mut rig, &who, &[100; 4]);
        rig.step(measured(who[0], 100));
        assert!(second == 1 || reserved(&rig) >= 300, "second {second}");
    }
}

/// Memory beyond the sum of grants is released with the last process, if no measurement shows it gone
/// before.
#[test]
fn hidden_memory_ends_with_the_last_process() {
    let (mut rig, who) = slice_of(&[0, 0]);
    for second in 1..4 {
        who.iter().for_each(|&client| pulse(&mut rig, client, 60));
        rig.now = second * 1_000 * MS;
        look(&mut rig, &who, &[60, 60]);
    }
    assert_eq!(reserved(&rig), 60);
    rig.step(Event::Gone { client: who[0] });
    assert_eq!(reserved(&rig), 60, "it may be of either");
    rig.step(Event::Gone { client: who[1] });
    assert_eq!(reserved(&rig), 0);
}

/// Honest processes that hand the whole cap to each other all the time are charged nothing more.
#[test]
fn alternating_grants_and_returns_are_charged_once() {
    let (mut rig, who) = slice_of(&[0, 0, 0]);
    for second in 1..20 {
        let mut used = [0; 3];
        for (n, client) in who.iter().enumerate() {
            rig.reserve(*client, 100, 100);
            if second % 3 == n as u64 {
                used[n] = 100;
                rig.now = second * 1_000 * MS;
                look(&mut rig, &who, &used);
            }
            rig.give_back(*client, 0, 100);
        }
        assert_eq!(reserved(&rig), 0, "second {second}");
    }
}

/// Memory beyond a lowered cap is charged once, and not again by NVML.
#[test]
fn memory_above_a_lowered_cap_is_not_charged_twice() {
    let (mut rig, who) = slice_of(&[60, 40]);
    resize(&mut rig, Lane(0), MemoryAsk::Exactly(Bytes(30))).expect("less is no promise");
    for second in 1..5 {
        rig.now = second * 1_000 * MS;
        look(&mut rig, &who, &[60, 40]);
    }
    assert_eq!(reserved(&rig), 100);
}
