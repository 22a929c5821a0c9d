//! Loans that meet restarts, suspensions by an administrator, and each other.

use super::*;
use crate::Process;
use crate::tests::{attached, holds, uuid};
use gpuslice_wire::limits::RECALL_WAIT_NS;
use gpuslice_wire::select::GpuSelector;

/// A request that waited for its container's resume is a claim from then on: the borrower has the whole grace.
#[test]
fn a_claim_of_a_resumed_container_waits_for_the_whole_grace() {
    let (mut rig, burst, web) = rig(Config::default());
    take(&mut rig, burst, 12);
    let (token, container) = (Token(5), id("web"));
    rig.step(Event::Suspend { token, container });
    pass(&mut rig, 3_000 * MS);
    moved(&mut rig, "web", true);
    assert_eq!(answer(&take(&mut rig, web, 6), web), None);
    let later = rig.now + 60_000 * MS;
    pass(&mut rig, later);
    rig.step(Event::EndSuspension { token, container });
    let resumed = moved(&mut rig, "web", false);
    assert_eq!((answer(&resumed, web), wanted(&resumed, "burst")), (None, Some(2)));
    let until = rig.now + GRACE - MS;
    pass(&mut rig, until);
    assert_eq!(state(&rig), None, "it may still give back");
    let until = rig.now + 2 * MS;
    pass(&mut rig, until);
    assert_eq!(state(&rig), Some(SuspensionState::Suspending));
}

/// A resume lacks memory on one of two GPUs. What the other one has does not end its wait.
#[test]
fn a_resume_waits_for_the_gpu_that_lacks_memory() {
    let mut rig = Rig::new(Config::default(), &[16, 16]);
    rig.admit(limited("burst", 4, 16)).expect("fits");
    rig.admit(ask("web", "0,1", 12 * GIB)).expect("fits");
    let [burst, web] = ["burst", "web"].map(|it| rig.attach(it, 0).expect("attaches"));
    for lane in [Lane(0), Lane(1)] {
        let (token, need) = (Token(3), Bytes(8 * GIB));
        rig.step(Event::Reserve { client: web, token, lane, need, wish: need });
    }
    let (token, container) = (Token(5), id("web"));
    rig.step(Event::Suspend { token, container });
    pass(&mut rig, 3_000 * MS);
    moved(&mut rig, "web", true);
    take(&mut rig, burst, 12);
    rig.step(Event::EndSuspension { token, container });
    let until = rig.now + GRACE + 3_000 * MS;
    let waits = pass(&mut rig, until);
    let order =
        |away| move |it: &Action| matches!(it, Action::MoveMemory { away: to, .. } if *to == away);
    assert!(!waits.iter().any(|it| matches!(it, Action::Denied { .. })), "{waits:?}");
    assert!(waits.iter().any(order(true)), "the borrower is suspended");
    assert!(moved(&mut rig, "burst", true).iter().any(order(false)), "there is room");
}

/// A borrower that is resumed takes memory in this step, and others see that in this step.
#[test]
fn what_a_returning_borrower_takes_is_not_shown_as_free() {
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.admit(limited("burst", 4, 16)).expect("fits");
    rig.admit(limited("other", 4, 16)).expect("fits");
    rig.admit(ask("web", "0", 8 * GIB)).expect("fits");
    let [burst, _, web] = ["burst", "other", "web"].map(|it| rig.attach(it, 0).expect("attaches"));
    take(&mut rig, burst, 10);
    take(&mut rig, web, 8);
    pass(&mut rig, GRACE + 3_000 * MS);
    assert_eq!(answer(&moved(&mut rig, "burst", true), web), Some(Ok(8)));
    give(&mut rig, web, 8);
    assert_eq!(seen(&rig, "other"), (16, 16));
    for _ in 0..1_000 {
        rig.now = rig.engine.next_deadline().expect("it is to be resumed").0;
        let actions = rig.step(Event::Tick);
        if actions.iter().any(|it| matches!(it, Action::MoveMemory { away: false, .. })) {
            assert_eq!(seen(&rig, "other"), (16, 6));
            return;
        }
    }
    panic!("it is not resumed");
}

/// After a restart, a process of the borrower has not attached again, and another one waits for that with a request.
/// Neither owes an answer to a recall for a claim, and the recall ends with the answer of the third.
#[test]
fn a_recall_ends_while_processes_may_attach_again() {
    let (first, ..) = rig(Config::default());
    let records = first.engine.containers.iter().map(|(_, it)| it.record.clone());
    let mut rig = Rig::new(Config::default(), &[16]);
    let held = holds(4 * GIB);
    let process = |pid| Process { pid, born: 1 };
    for record in records {
        let container = record.container;
        rig.step(Event::Restore(record.into()));
        for pid in (1..4).filter(|_| container == id("burst")) {
            let (token, process, granted) = (Token(1), process(pid), held);
            rig.step(Event::RestoreProcess { token, container, process, granted });
        }
        rig.step(Event::Complete { container });
    }
    let mut again = |pid| {
        let (token, container, process) = (Token(1), id("burst"), Some(process(pid)));
        let actions = rig.step(Event::Attach { token, container, process, held });
        attached(&actions).expect("it attaches again")
    };
    let [waits, answers] = [2, 3].map(&mut again);
    assert_eq!(answer(&take(&mut rig, waits, 5), waits), None);
    let web = rig.attach("web", 0).expect("attaches");
    assert_eq!(wanted(&take(&mut rig, web, 6), "burst"), Some(2));
    let index = rig.engine.containers.find(id("burst")).expect("a slice");
    let recalls = |rig: &Rig| {
        let recall = &rig.engine.containers.get(index).expect("a slice").slices.gpus[0].recall;
        (recall.number(), recall.is_on())
    };
    let (recall, on) = recalls(&rig);
    assert!(on, "its unused credit is recalled");
    let (lane, bytes) = (Lane(0), Bytes::ZERO);
    rig.step(Event::Yield { client: answers, lane, recall, bytes });
    assert_eq!(recalls(&rig), (recall, false));
}

/// A container is suspended for a claim on its second GPU. The borrower beside it on the first is asked in this step
/// for what is still missing there.
#[test]
fn a_suspension_for_one_gpu_counts_on_the_others_in_its_step() {
    let mut rig = Rig::new(Config::default(), &[16, 16]);
    let wide = SliceRequest { class: Class::BestEffort, ..limited("wide", 2, 8) };
    rig.admit(SliceRequest { gpus: GpuSelector::parse("0,1").expect("two"), ..wide })
        .expect("fits");
    rig.admit(limited("burst", 2, 16)).expect("fits");
    let on_second = ask("second", "1", 12 * GIB);
    rig.admit(ask("first", "0", 12 * GIB)).expect("fits");
    rig.admit(on_second).expect("fits");
    let [wide, burst, first, second] =
        ["wide", "burst", "first", "second"].map(|it| rig.attach(it, 0).expect("attaches"));
    take(&mut rig, wide, 4);
    let (token, need) = (Token(3), Bytes(8 * GIB));
    rig.step(Event::Reserve { client: wide, token, lane: Lane(1), need, wish: need });
    take(&mut rig, burst, 12);
    assert_eq!(wanted(&take(&mut rig, second, 10), "wide"), Some(2));
    rig.now += GRACE / 2;
    let asked = take(&mut rig, first, 8);
    assert_eq!((wanted(&asked, "wide"), wanted(&asked, "burst")), (Some(2), Some(6)));
    let until = rig.now + GRACE / 2;
    let actions = pass(&mut rig, until);
    assert_eq!(state(&rig), Some(SuspensionState::Suspending), "{actions:?}");
    assert_eq!(wanted(&actions, "burst"), Some(4), "{actions:?}");
}

/// A request that is a claim as soon as the memory of the container's own ended process is free waits for that first,
/// and then for what others borrowed.
#[test]
fn a_claim_waits_for_its_containers_own_unfreed_memory_and_then_for_borrowers() {
    let (mut rig, burst, web) = rig(Config { sees_devices: true, ..Config::default() });
    take(&mut rig, web, 8);
    take(&mut rig, burst, 8);
    let next = rig.attach("web", 0).expect("attaches");
    rig.step(Event::Gone { client: web });
    assert_eq!(answer(&take(&mut rig, next, 12), next), None, "8 GiB of them are not free yet");
    let freed = pass(&mut rig, 5_000 * MS);
    assert_eq!((answer(&freed, next), wanted(&freed, "burst")), (None, Some(4)));
    let until = rig.now + GRACE - MS;
    let early = pass(&mut rig, until);
    assert_eq!((answer(&early, next), state(&rig)), (None, None), "borrowers have the whole grace");
    assert_eq!(answer(&give(&mut rig, burst, 4), next), Some(Ok(12)));
}

/// Devices are seen, and borrowers have no time to give back.
fn without_grace(reclaim: Reclaim) -> Config {
    let reclaim_grace = Duration(0);
    Config { sees_devices: true, reclaim, reclaim_grace, ..Config::default() }
}

/// What a borrower had is not free when it ends: a claim waits for the driver, and others are asked for nothing.
#[test]
fn a_claim_waits_for_what_an_ended_borrower_has_left() {
    for reclaim in [Reclaim::Suspend, Reclaim::Refuse] {
        let (mut rig, burst, web) = rig(without_grace(reclaim));
        take(&mut rig, burst, 16);
        rig.step(Event::Dismiss { token: Token(4), container: id("burst") });
        assert_eq!(answer(&take(&mut rig, web, 6), web), None, "the driver has not freed it");
        let freed = pass(&mut rig, 5_000 * MS);
        assert_eq!((answer(&freed, web), rig.now), (Some(Ok(6)), 5_000 * MS));
    }
}

/// A container that is admitted before the driver has freed that memory is charged for it up to its own cap. The rest
/// is promised to an older container, whose claim waits for it.
#[test]
fn a_claim_waits_for_what_an_ended_borrower_has_left_beyond_a_new_containers_cap() {
    let (mut rig, burst, web) = rig(Config { sees_devices: true, ..Config::default() });
    take(&mut rig, burst, 16);
    rig.step(Event::Dismiss { token: Token(4), container: id("burst") });
    rig.admit(ask("new", "0", 4 * GIB)).expect("promised");
    let new = rig.attach("new", 0).expect("attaches");
    assert_eq!(answer(&take(&mut rig, web, 6), web), None, "the driver has not freed it");
    assert_eq!(answer(&take(&mut rig, new, 4), new), None);
    let freed = pass(&mut rig, 5_000 * MS);
    assert_eq!((answer(&freed, web), answer(&freed, new)), (Some(Ok(6)), Some(Ok(4))));
}

/// A process that stayed on the GPU when its container was suspended ends. The driver has not freed its memory yet.
#[test]
fn a_claim_waits_for_what_an_ended_process_of_a_suspended_borrower_has_left() {
    for reclaim in [Reclaim::Suspend, Reclaim::Refuse] {
        let (mut rig, burst, web) = rig(without_grace(reclaim));
        take(&mut rig, burst, 12);
        let (token, container) = (Token(5), id("burst"));
        rig.step(Event::Suspend { token, container });
        pass(&mut rig, 3_000 * MS);
        let stays = Some(Vec::from([burst]));
        rig.step(Event::MemoryMoved { container, away: true, stays });
        rig.step(Event::Gone { client: burst });
        assert_eq!(answer(&take(&mut rig, web, 12), web), None, "the driver has not freed it");
        let freed = pass(&mut rig, 8_000 * MS);
        assert_eq!((answer(&freed, web), rig.now), (Some(Ok(12)), 8_000 * MS));
    }
}

/// Memory of processes outside of all slices is not lent: a claim waits for a borrower and does not fail at the driver.
#[test]
fn memory_of_processes_outside_of_all_slices_is_not_lent() {
    let (mut rig, burst, web) = rig(Config::default());
    let sample = |rig: &mut Rig, gib| {
        rig.step(Event::Outside { gpu: uuid(0), used: Bytes(gib * GIB) });
    };
    sample(&mut rig, 2);
    assert_eq!(seen(&rig, "burst"), (16, 16), "one sample may show a process that has ended");
    sample(&mut rig, 2);
    assert_eq!(seen(&rig, "burst"), (16, 14));
    assert_eq!(answer(&take(&mut rig, burst, 15), burst), Some(Err(false)));
    assert_eq!(answer(&take(&mut rig, burst, 14), burst), Some(Ok(14)));
    let actions = take(&mut rig, web, 2);
    assert_eq!((answer(&actions, web), wanted(&actions, "burst")), (None, Some(2)));
    assert_eq!(answer(&give(&mut rig, burst, 2), web), Some(Ok(2)));
    // Where nothing is lent the driver decides, as without limits.
    give(&mut rig, burst, 12);
    sample(&mut rig, 9);
    sample(&mut rig, 9);
    assert_eq!(answer(&take(&mut rig, web, 10), web), Some(Ok(10)));
}

/// Requests of one container wait behind each other: borrowers are asked for all of them at once.
#[test]
fn borrowers_are_asked_for_every_request_that_waits() {
    let (mut rig, burst, web) = rig(Config { reclaim: Reclaim::Refuse, ..Config::default() });
    let second = rig.attach("web", 0).expect("attaches");
    take(&mut rig, burst, 12);
    assert_eq!(wanted(&take(&mut rig, web, 6), "burst"), Some(2), "4 GiB are free");
    rig.now = GRACE / 2;
    assert_eq!(wanted(&take(&mut rig, second, 5), "burst"), Some(7));
    let given = give(&mut rig, burst, 2);
    assert_eq!((answer(&given, web), wanted(&given, "burst")), (Some(Ok(6)), Some(5)));
    let given = give(&mut rig, burst, 5);
    assert_eq!((answer(&given, second), wanted(&given, "burst")), (Some(Ok(5)), Some(0)));
}

/// The cap has no room for both requests. Borrowers are asked for the second one when the first is refused, and have
/// the whole grace then.
#[test]
fn a_request_that_becomes_a_claim_has_the_whole_grace() {
    for ends in [false, true] {
        let (mut rig, burst, web) = rig(Config { reclaim: Reclaim::Refuse, ..Config::default() });
        let second = rig.attach("web", 0).expect("attaches");
        take(&mut rig, burst, 12);
        assert_eq!(wanted(&take(&mut rig, web, 6), "burst"), Some(2));
        assert_eq!(wanted(&take(&mut rig, second, 8), "burst"), None, "14 GiB are beyond the cap");
        let mut first = pass(&mut rig, GRACE - MS);
        if ends {
            first.extend(rig.step(Event::Gone { client: web }));
        } else {
            first.extend(pass(&mut rig, GRACE));
            assert_eq!(answer(&first, web), Some(Err(true)));
        }
        assert_eq!((answer(&first, second), wanted(&first, "burst")), (None, Some(4)));
        let early = pass(&mut rig, 2 * GRACE - 2 * MS);
        assert_eq!(answer(&early, second), None);
        assert_eq!(answer(&pass(&mut rig, 2 * GRACE), second), Some(Err(true)));
    }
}

/// Processes of the same container have memory that they do not use. A claim waits for their answers, however short the
/// grace of borrowers is.
#[test]
fn without_a_grace_a_claim_waits_for_its_siblings_answers() {
    for reclaim in [Reclaim::Suspend, Reclaim::Refuse] {
        let begin = || {
            let (mut rig, burst, web) = rig(without_grace(reclaim));
            let second = rig.attach("web", 0).expect("attaches");
            take(&mut rig, burst, 10);
            take(&mut rig, web, 6);
            let asked = take(&mut rig, second, 4);
            assert_eq!(answer(&asked, second), None);
            assert_eq!(answer(&rig.step(Event::Tick), second), None, "{reclaim:?}");
            (rig, web, second)
        };
        let (mut answers, web, second) = begin();
        let given = answers.give_back(web, 1, 4 * GIB);
        assert_eq!((answer(&given, second), state(&answers)), (Some(Ok(4)), None));
        // A sibling that uses all of its memory, and one that is silent.
        let ended = match reclaim {
            Reclaim::Suspend => (None, Some(SuspensionState::Suspending)),
            Reclaim::Refuse => (Some(Err(true)), None),
        };
        let (mut uses_all, web, second) = begin();
        let mut answered = uses_all.give_back(web, 1, 0);
        answered.extend(uses_all.step(Event::Tick));
        assert_eq!((answer(&answered, second), state(&uses_all)), ended);
        let (mut silent, _, second) = begin();
        assert_eq!(answer(&pass(&mut silent, RECALL_WAIT_NS - 1), second), None);
        assert_eq!(state(&silent), None);
        assert_eq!((answer(&pass(&mut silent, RECALL_WAIT_NS), second), state(&silent)), ended);
    }
}

/// A part of what a process asks for is charged already, as memory that NVML showed before. It is a part of one of its
/// requests, and borrowers are asked for all else.
#[test]
fn what_is_charged_already_counts_for_one_of_several_requests() {
    let (mut rig, burst, web) = rig(Config::default());
    let (container, lane, used) = (id("web"), Lane(0), Bytes(2 * GIB));
    let shows = |requested| Event::Measured { client: web, lane, used, requested };
    for _ in 0..2 {
        rig.now += 1_000 * MS;
        rig.step(Event::Looking { container, lane });
        rig.step(shows(false));
        rig.step(Event::Looked { container, lane });
    }
    rig.step(shows(true));
    assert_eq!(answer(&take(&mut rig, burst, 14), burst), Some(Ok(14)));
    assert_eq!(wanted(&take(&mut rig, web, 3), "burst"), Some(1));
    assert_eq!(wanted(&take(&mut rig, web, 3), "burst"), Some(4));
    let granted = give(&mut rig, burst, 1);
    assert_eq!((answer(&granted, web), wanted(&granted, "burst")), (Some(Ok(3)), Some(3)));
    assert_eq!(answer(&give(&mut rig, burst, 3), web), Some(Ok(3)));
}
