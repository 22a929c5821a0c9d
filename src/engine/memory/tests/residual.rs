//! The residual of a process that measures what the driver took for it, and is granted that.

use super::apart::{attach, held};
use super::*;
use gpuslice_wire::units::MIB;

/// A slice of 1 GiB and a process in it, of which two samples showed so many MiB before any grant.
fn begun(mib: u64) -> (Rig, ClientId) {
    let mut rig = Rig::new(Config::default(), &[16]);
    rig.admit(ask("a", "0", GIB)).expect("fits");
    let client = attach(&mut rig, Some(1), held(0)).expect("in");
    (1..3).for_each(|_| sample(&mut rig, &[(client, mib)]));
    assert_eq!(charged(&rig), mib);
    (rig, client)
}

/// The next sample, a second later, shows so many MiB of each process.
fn sample(rig: &mut Rig, shown: &[(ClientId, u64)]) {
    rig.now += 1_000 * MS;
    rig.step(Event::Looking { container: id("a"), lane: Lane(0) });
    for (client, mib) in shown {
        rig.step(measured(*client, mib * MIB));
    }
    rig.step(Event::Looked { container: id("a"), lane: Lane(0) });
}

/// The process asks for a measurement, which shows so many MiB.
fn asks(rig: &mut Rig, client: ClientId, mib: u64) {
    rig.step(requested(client, mib * MIB));
}

/// It is granted so many MiB.
fn gets(rig: &mut Rig, client: ClientId, mib: u64) -> Vec<Action> {
    let actions = rig.reserve(client, mib * MIB, mib * MIB);
    assert_eq!(answers(&actions), [(client, Some(mib * MIB))]);
    actions
}

fn returns(rig: &mut Rig, client: ClientId, mib: u64) {
    rig.give_back(client, 0, mib * MIB);
}

/// MiB that count for the container.
fn charged(rig: &Rig) -> u64 {
    reserved(rig) / MIB
}

/// The driver creates a context in steps, slower than two samples. The process is granted what it measured: the 14 MiB
/// are part of that. Its page shows as much when it is answered.
#[test]
fn a_context_that_was_sampled_half_made_is_charged_once() {
    let (mut rig, client) = begun(14);
    asks(&mut rig, client, 518);
    assert_eq!(charged(&rig), 14, "nothing is granted yet");
    let actions = gets(&mut rig, client, 518);
    assert_eq!(charged(&rig), 518);
    let page = view(&actions).expect("a page");
    assert_eq!((page.reserved, page.untracked), (Bytes(518 * MIB), Bytes::ZERO));
    assert!(matches!(actions[0], Action::SetLane { .. }), "{actions:?}");
    gets(&mut rig, client, 100);
    assert_eq!(charged(&rig), 618, "the context is measured, and has no residual");
    let actions = rig.step(measured(client, 618 * MIB));
    assert_eq!(charged(&rig), 618, "a sample tells its figure before the sum over all processes");
    assert!(view(&actions).is_none_or(|page| page.untracked == Bytes::ZERO), "{actions:?}");
    sample(&mut rig, &[(client, 618)]);
    assert_eq!(charged(&rig), 618);
}

/// A sample shows a context before its process has measured it, which takes long. The process then makes three more and
/// ends all of them before the next sample: nothing of them counts, though each was measured before its grant.
#[test]
fn a_measurement_that_a_process_requests_confirms_no_sample() {
    let (mut rig, client) = begun(0);
    sample(&mut rig, &[(client, 56)]);
    for contexts in 1..5 {
        rig.now += 400 * MS;
        asks(&mut rig, client, 64 * contexts);
        gets(&mut rig, client, 64);
        assert_eq!(charged(&rig), 64 * contexts);
    }
    returns(&mut rig, client, 4 * 64);
    assert_eq!(charged(&rig), 0);
}

/// A restarted daemon grants nothing into memory that the earlier one had charged beyond grants. The first sample makes
/// it less, and takes two to make it more.
#[test]
fn what_was_measured_before_a_restart_counts_at_once() {
    let config = Config { sees_devices: true, ..Config::default() };
    let (container, mut first) = (id("a"), Rig::new(config, &[16]));
    let record = first.admit(ask("a", "0", GIB)).expect("fits");
    let client = attach(&mut first, Some(1), held(0)).expect("in");
    let both = |rig: &mut Rig, client, attached, others| {
        sample(rig, &[(client, attached)]);
        rig.step(unattributed(others * MIB));
    };
    (0..2).for_each(|_| both(&mut first, client, 300, 200));
    let untracked = first.engine.untracked_of(container);
    let mut rig = Rig::new(config, &[16]);
    rig.step(Event::Restore(record.into()));
    rig.step(Event::Complete { container });
    rig.step(Event::RestoreUntracked { container, untracked });
    let client = attach(&mut rig, Some(1), held(0)).expect("in");
    assert_eq!(answers(&rig.reserve(client, 600 * MIB, GIB)), [(client, None)]);
    assert_eq!(charged(&rig), 500);
    for (attached, others, counts) in [(300, 200, 500), (400, 200, 500), (200, 0, 200)] {
        both(&mut rig, client, attached, others);
        assert_eq!(charged(&rig), counts);
    }
}

/// In a slice that has room for one context and not for two, the residual of the whole one is no reason to refuse it.
#[test]
fn what_is_covered_needs_no_room() {
    let (mut rig, client) = begun(1000);
    let all = answers(&rig.reserve(client, 1000 * MIB, 1000 * MIB));
    assert_eq!(all, [(client, None)], "nothing explains it");
    asks(&mut rig, client, 1010);
    let all = answers(&rig.reserve(client, 1025 * MIB, 1025 * MIB));
    assert_eq!((all, charged(&rig)), ([(client, None)].into(), 1000), "more than the cap");
    let all = answers(&rig.reserve(client, 1010 * MIB, 2048 * MIB));
    assert_eq!(all, [(client, Some(GIB))], "and credit, as far as it fits");
    assert_eq!(charged(&rig), 1024);
    assert_eq!(answers(&rig.reserve(client, 1, 1)), [(client, None)]);
}

/// It makes another one before the next sample, and is granted what that costs.
#[test]
fn a_second_context_is_charged_beside_the_first() {
    let (mut rig, client) = begun(14);
    for (shown, costs) in [(518, 518), (520, 2), (900, 380)] {
        asks(&mut rig, client, shown);
        gets(&mut rig, client, costs);
        assert_eq!(charged(&rig), shown);
    }
    returns(&mut rig, client, 382);
    asks(&mut rig, client, 518);
    assert_eq!(charged(&rig), 518, "two have ended");
    sample(&mut rig, &[(client, 518)]);
    assert_eq!(charged(&rig), 518);
}

/// Two processes of a container do the same, each with samples of its own.
#[test]
fn each_process_covers_its_own_residual_alone() {
    let (mut rig, one) = begun(14);
    let other = attach(&mut rig, Some(2), held(0)).expect("in");
    (1..3).for_each(|_| sample(&mut rig, &[(one, 14), (other, 20)]));
    asks(&mut rig, one, 300);
    gets(&mut rig, other, 10);
    assert_eq!(charged(&rig), 44, "the other one has not asked");
    gets(&mut rig, one, 300);
    assert_eq!(charged(&rig), 330);
    sample(&mut rig, &[(one, 300), (other, 20)]);
    assert_eq!(charged(&rig), 320);
}

/// Grants up to less than the figure may be for other memory: the residual counts beside them.
#[test]
fn as_much_is_charged_as_was_measured_at_least() {
    let (mut rig, client) = begun(50);
    asks(&mut rig, client, 200);
    for (grants, counts) in [(100, 150), (40, 190), (30, 200), (20, 200), (10, 200), (5, 205)] {
        gets(&mut rig, client, grants);
        assert_eq!(charged(&rig), counts, "after {grants} more");
    }
}

/// A liar holds 500 MiB that were never requested. It measures, is granted as much, and returns it unused.
#[test]
fn a_grant_that_is_returned_covers_nothing() {
    let (mut rig, liar) = begun(500);
    for round in 0..20 {
        asks(&mut rig, liar, 500);
        gets(&mut rig, liar, 500);
        // After a sample between two such grants, the sum over all processes counts, which no grant covers.
        assert_eq!(charged(&rig), if round < 3 { 500 } else { 1000 }, "round {round}");
        returns(&mut rig, liar, 200);
        assert!(charged(&rig) >= 500, "round {round}");
        returns(&mut rig, liar, 300);
        assert_eq!(charged(&rig), 500, "round {round}");
        if round % 3 == 2 {
            sample(&mut rig, &[(liar, 500)]);
            assert_eq!(charged(&rig), 500, "round {round}");
        }
    }
    let refused = answers(&rig.reserve(liar, 525 * MIB, 525 * MIB));
    assert_eq!(refused, [(liar, None)], "524 MiB are left");
}

/// It has filled its cap without a request, and is granted as much once: then its account is above the limit.
#[test]
fn an_account_above_its_limit_is_granted_nothing() {
    let (mut rig, liar) = begun(1024);
    for _ in 0..8 {
        asks(&mut rig, liar, 1024);
        gets(&mut rig, liar, 128);
        assert_eq!(charged(&rig), 1024);
    }
    let refused = answers(&rig.reserve(liar, 1, 1));
    assert_eq!((refused, charged(&rig)), ([(liar, None)].into(), 1024), "it was granted its cap");
    for _ in 0..3 {
        sample(&mut rig, &[(liar, 2048)]);
        assert_eq!(charged(&rig), 2048);
        asks(&mut rig, liar, 2048);
        assert_eq!(answers(&rig.reserve(liar, 1, 1)), [(liar, None)]);
    }
    returns(&mut rig, liar, 128);
    assert_eq!(charged(&rig), 1920, "the next two samples compare what it has still");
    asks(&mut rig, liar, 2048);
    assert_eq!(answers(&rig.reserve(liar, 1, 1)), [(liar, None)]);
    (0..3).for_each(|_| sample(&mut rig, &[(liar, 2048)]));
    assert_eq!(charged(&rig), 2048);
}

/// It keeps the grant and uses it: its residual counts again with the next sample, which need not be confirmed.
#[test]
fn a_grant_for_other_memory_hides_a_residual_until_the_next_sample() {
    let (mut rig, liar) = begun(500);
    asks(&mut rig, liar, 500);
    gets(&mut rig, liar, 500);
    gets(&mut rig, liar, 524);
    assert_eq!(charged(&rig), 1024);
    sample(&mut rig, &[(liar, 1524)]);
    assert_eq!(charged(&rig), 1524);
    // From then on it gets nothing, whatever it measures.
    for _ in 0..5 {
        asks(&mut rig, liar, 1524);
        assert_eq!(answers(&rig.reserve(liar, MIB, MIB)), [(liar, None)]);
        assert_eq!(charged(&rig), 1524);
        sample(&mut rig, &[(liar, 1524)]);
    }
}

/// The figure of a sample covers nothing, and ends the cover of an earlier measurement.
#[test]
fn only_a_measurement_that_was_requested_since_the_last_sample_counts() {
    let (mut rig, client) = begun(50);
    asks(&mut rig, client, 50);
    sample(&mut rig, &[(client, 50)]);
    gets(&mut rig, client, 50);
    assert_eq!(charged(&rig), 100);
    asks(&mut rig, client, 50);
    assert_eq!(charged(&rig), 50);
    sample(&mut rig, &[(client, 70)]);
    assert_eq!(charged(&rig), 70, "20 beyond its grants, and 50 were confirmed before");
}

/// A new connection of the process covers nothing, nor does its end leave anything.
#[test]
fn a_cover_ends_with_the_connection() {
    let (mut rig, client) = begun(50);
    asks(&mut rig, client, 50);
    gets(&mut rig, client, 50);
    assert_eq!(charged(&rig), 50);
    rig.step(Event::Left { client });
    let again = attach(&mut rig, Some(1), held(50 * MIB)).expect("back");
    assert_eq!(charged(&rig), 100, "until a sample shows less");
    gets(&mut rig, again, 50);
    assert_eq!(charged(&rig), 150);
    asks(&mut rig, again, 100);
    gets(&mut rig, again, 50);
    rig.step(Event::Gone { client: again });
    assert_eq!(charged(&rig), 0);
}

/// Processes that were granted memory for a moment have a hidden sum: a measurement of one of them covers none of it.
#[test]
fn a_hidden_sum_is_not_covered() {
    let (mut rig, one) = begun(0);
    let other = attach(&mut rig, Some(2), held(0)).expect("in");
    let pulse = |rig: &mut Rig| {
        for client in [one, other] {
            gets(rig, client, 200);
            returns(rig, client, 200);
        }
    };
    for _ in 0..3 {
        pulse(&mut rig);
        sample(&mut rig, &[(one, 200), (other, 200)]);
    }
    assert_eq!(charged(&rig), 400);
    asks(&mut rig, one, 200);
    gets(&mut rig, one, 200);
    assert_eq!(charged(&rig), 600);
}
