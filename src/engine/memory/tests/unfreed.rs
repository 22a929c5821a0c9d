//! Memory of ended processes counts until the driver has freed it.

use super::*;
use crate::tests::{attached, uuid};
use crate::{FIGURE_AGE, FREED_WITHIN};
use gpuslice_wire::units::MIB;

fn config() -> Config {
    Config { sees_devices: true, ..Config::default() }
}

/// A slice of 100 bytes of a GPU of 16 GiB, with processes that hold these grants.
fn slice_of(granted: &[u64]) -> (Rig, Vec<ClientId>) {
    slice_with(config(), granted)
}

/// NVML is asked twice, and shows so much beside living processes.
fn device(rig: &mut Rig, beside: u64) -> Vec<Action> {
    look(rig, beside);
    look(rig, beside)
}

/// NVML is asked once.
fn look(rig: &mut Rig, beside: u64) -> Vec<Action> {
    unsure(rig, beside, beside)
}

/// NVML is asked once, while processes take and free memory.
fn unsure(rig: &mut Rig, least: u64, most: u64) -> Vec<Action> {
    let (gpu, asked) = (uuid(0), Instant(rig.now));
    rig.step(Event::DeviceLooked { gpu, asked, least: Bytes(least), most: Bytes(most) })
}

fn gone(rig: &mut Rig, client: ClientId) {
    rig.step(Event::Gone { client });
}

#[test]
fn the_memory_of_an_ended_process_is_granted_again_when_the_device_has_it() {
    let (mut rig, who) = slice_of(&[80, 0]);
    device(&mut rig, 7);
    rig.now = 1_000 * MS;
    gone(&mut rig, who[0]);
    assert_eq!(reserved(&rig), 80);
    assert_eq!(answers(&rig.reserve(who[1], 20, 20)), [(who[1], Some(20))], "that is free");
    assert_eq!(answers(&rig.reserve(who[1], 50, 60)), [], "that is not yet");
    assert_eq!(rig.engine.look_due(), Some(Instant(1_150 * MS)));
    device(&mut rig, 7);
    assert_eq!(reserved(&rig), 100, "the figure may be older than the end");
    rig.now += FIGURE_AGE.0;
    assert_eq!(answers(&device(&mut rig, 7 + 31)), []);
    assert_eq!(reserved(&rig), 51, "the rest is the driver's own");
    look(&mut rig, 7);
    assert_eq!(reserved(&rig), 51, "one look may be unlucky");
    assert_eq!(answers(&look(&mut rig, 7 + 30)), [(who[1], Some(50))], "its need and no more");
    device(&mut rig, 7);
    assert_eq!((reserved(&rig), rig.engine.next_deadline()), (70, None));
    assert_eq!(rig.engine.look_due(), None);
}

/// Managed memory that was on the host while the device was looked at may be on the GPU before the ended process's
/// memory is free.
#[test]
fn managed_memory_of_the_container_hides_none_of_it() {
    for (unseen, charged) in [(0, 30), (10, 40), (30, 60), (u64::MAX, 60)] {
        let (mut rig, who) = slice_of(&[40, 30]);
        device(&mut rig, 7);
        rig.now = 1_000 * MS;
        says(&mut rig, who[1], 30, unseen);
        gone(&mut rig, who[0]);
        rig.now += FIGURE_AGE.0;
        device(&mut rig, 7);
        assert_eq!(reserved(&rig), charged, "{unseen}");
        rig.now = 1_000 * MS + FREED_WITHIN.0;
        rig.step(Event::Tick);
        assert_eq!(reserved(&rig), 30, "{unseen}");
    }
}

#[test]
fn no_request_waits_for_memory_that_would_not_suffice_or_for_ever() {
    let (mut rig, who) = slice_of(&[40, 20]);
    gone(&mut rig, who[0]);
    assert_eq!(answers(&rig.reserve(who[1], 81, 81)), [(who[1], None)]);
    assert_eq!(answers(&rig.reserve(who[1], 80, 80)), []);
    let until = rig.engine.next_deadline().expect("an end");
    assert_eq!((until, FREED_WITHIN.0), (Instant(5_000 * MS), 5_000 * MS));
    for ms in (200..5_000).step_by(200) {
        rig.now = ms * MS;
        assert_eq!(answers(&device(&mut rig, 500)), [], "after {ms} ms");
    }
    rig.now = until.0;
    assert_eq!(answers(&rig.step(Event::Tick)), [(who[1], Some(80))]);
    assert_eq!((reserved(&rig), rig.engine.next_deadline()), (100, None));
}

/// A grant that covers what was measured before needs no room for that, as soon as the ended process's memory is free.
#[test]
fn a_request_for_what_was_measured_waits_for_unfreed_memory() {
    let (mut rig, who) = slice_of(&[60, 0]);
    for second in 1..3 {
        rig.now = second * 1_000 * MS;
        rig.step(measured(who[1], 50));
    }
    gone(&mut rig, who[0]);
    assert_eq!(reserved(&rig), 110);
    rig.step(requested(who[1], 50));
    assert_eq!(answers(&rig.reserve(who[1], 60, 60)), [], "50 of them are charged already");
    rig.now += FREED_WITHIN.0;
    assert_eq!(answers(&rig.step(Event::Tick)), [(who[1], Some(60))]);
}

/// Figures and claims of any size leave nothing behind that no process has.
#[test]
fn the_largest_figures_of_ended_processes_are_forgotten_too() {
    for (used, unseen) in [(u64::MAX, 0), (40, u64::MAX)] {
        let (mut rig, who) = slice_of(&[40, 20]);
        for second in 1..3 {
            rig.now = second * 1_000 * MS;
            for client in &who {
                says(&mut rig, *client, 20, unseen);
                rig.step(measured(*client, used));
            }
        }
        for client in who {
            rig.now += 10 * MS;
            gone(&mut rig, client);
        }
        rig.now += FREED_WITHIN.0;
        rig.step(Event::Tick);
        assert_eq!(reserved(&rig), 0, "of {used} and {unseen}");
    }
}

/// Siblings are asked for what they do not use, also where that and unfreed memory suffice only together.
#[test]
fn unused_credit_and_unfreed_memory_serve_one_request() {
    let (mut rig, who) = slice_of(&[30, 60, 0]);
    gone(&mut rig, who[0]);
    assert_eq!(answers(&rig.reserve(who[2], 80, 80)), []);
    assert_eq!(answers(&rig.give_back(who[1], 1, 40)), []);
    rig.now = FIGURE_AGE.0;
    assert_eq!(answers(&device(&mut rig, 0)), [(who[2], Some(80))]);
}

/// A program that replaces another one in its process begins without memory; the former one's may not be free yet.
#[test]
fn the_memory_of_a_replaced_program_counts_as_of_an_ended_one() {
    let mut rig = Rig::new(config(), &[16]);
    rig.admit(ask("a", "0", 100)).expect("fits");
    let process = Some(crate::Process { pid: 7, born: 1 });
    let attach = |rig: &mut Rig| {
        let held = [Bytes::ZERO; ACCOUNTS_MAX];
        let answer = rig.step(Event::Attach { token: Token(2), container: id("a"), process, held });
        attached(&answer).expect("in")
    };
    let first = attach(&mut rig);
    rig.reserve(first, 70, 70);
    rig.step(Event::Left { client: first });
    let second = attach(&mut rig);
    assert_eq!(reserved(&rig), 70);
    assert_eq!(answers(&rig.reserve(second, 60, 60)), []);
    rig.now = FIGURE_AGE.0;
    assert_eq!(answers(&device(&mut rig, 0)), [(second, Some(60))]);
}

/// A new container waits for the memory of an ended one; the promises to older ones hold at once.
#[test]
fn only_a_container_that_came_later_waits_for_the_memory_of_an_ended_one() {
    let mut rig = Rig::new(config(), &[16]);
    for (name, gib) in [("old", 8), ("a", 6)] {
        rig.admit(ask(name, "0", gib * GIB)).expect("fits");
    }
    let (old, ended) = (rig.attach("old", 0).expect("in"), rig.attach("a", 0).expect("in"));
    rig.reserve(ended, 6 * GIB, 6 * GIB);
    gone(&mut rig, ended);
    rig.step(Event::Dismiss { token: Token(1), container: id("a") });
    rig.admit(ask("a", "0", 7 * GIB)).expect("promised");
    assert_eq!(reserved(&rig), 5 * GIB, "16 GiB less 8, 7 and 6");
    let new = rig.attach("a", 0).expect("in");
    assert_eq!(answers(&rig.reserve(new, 2 * GIB, 2 * GIB)), [(new, Some(2 * GIB))]);
    assert_eq!(answers(&rig.reserve(new, 5 * GIB, 5 * GIB)), []);
    assert_eq!(answers(&rig.reserve(old, 8 * GIB, 8 * GIB)), [(old, Some(8 * GIB))]);
    rig.now = FIGURE_AGE.0;
    assert_eq!(answers(&device(&mut rig, GIB)), []);
    assert_eq!(answers(&device(&mut rig, 0)), [(new, Some(5 * GIB))]);
    assert_eq!(rig.engine.next_deadline(), None);
}

/// More host memory, or less of a GPU, is no promise of the GPU's memory.
#[test]
fn only_a_larger_promise_of_a_gpu_waits_for_what_an_ended_container_left_there() {
    let mut rig = Rig::new(config(), &[16]);
    rig.admit(ask("b", "0", 10 * GIB)).expect("fits");
    let ended = rig.attach("b", 0).expect("in");
    rig.reserve(ended, 10 * GIB, 10 * GIB);
    let (token, memory) = (Token(1), MemoryAsk::Exactly(Bytes(2 * GIB)));
    rig.step(Event::Resize { token, container: id("b"), lane: Lane(0), memory });
    rig.admit(ask("a", "0", 13 * GIB)).expect("promised");
    rig.step(Event::Dismiss { token, container: id("b") });
    for (lane, gib, charged) in [(Lane::HOST, 1, 0), (Lane(0), 12, 0), (Lane(0), 14, 8)] {
        resize(&mut rig, lane, MemoryAsk::Exactly(Bytes(gib * GIB))).expect("fits");
        assert_eq!(reserved(&rig), charged * GIB, "{lane:?}: {gib} GiB");
    }
}

/// What the driver has for itself is not taken for unfreed memory, and one look in which a process had just ended does
/// not change that.
#[test]
fn the_drivers_own_memory_is_known_from_two_looks() {
    let (mut rig, who) = slice_of(&[50]);
    look(&mut rig, 30);
    look(&mut rig, 80);
    rig.now = 10 * MS;
    gone(&mut rig, who[0]);
    rig.now += FIGURE_AGE.0;
    device(&mut rig, 80);
    assert_eq!(reserved(&rig), 50);
    device(&mut rig, 30);
    assert_eq!(reserved(&rig), 0);
}

/// What ended before a restart of the daemon is not taken for the driver's own.
#[test]
fn memory_from_before_a_restart_hides_none_that_ends_after_it() {
    let record = Rig::new(config(), &[16]).admit(ask("a", "0", 100)).expect("fits");
    let mut rig = Rig::new(config(), &[16]);
    rig.step(Event::Restore(record.into()));
    rig.step(Event::Complete { container: id("a") });
    let client = rig.attach("a", 0).expect("in");
    rig.reserve(client, 40, 40);
    device(&mut rig, 60);
    rig.now = 1_000 * MS;
    device(&mut rig, 60);
    gone(&mut rig, client);
    rig.now = 2_000 * MS;
    device(&mut rig, 40);
    assert_eq!(reserved(&rig), 40);
}

/// Without NVML nothing would show the end of the wait.
#[test]
fn without_figures_of_the_device_nothing_waits() {
    let (mut rig, who) = super::slice_of(&[100, 0]);
    gone(&mut rig, who[0]);
    assert_eq!(answers(&rig.reserve(who[1], 100, 100)), [(who[1], Some(100))]);
}

/// A process ends before its first context is measured: the device shows memory that was charged to none.
#[test]
fn an_end_that_left_uncharged_memory_hides_none_of_the_next_one() {
    let (mut rig, who) = slice_of(&[0, 40]);
    device(&mut rig, 7);
    rig.now = 1_000 * MS;
    gone(&mut rig, who[0]);
    rig.now += FIGURE_AGE.0;
    device(&mut rig, 7 + 64);
    gone(&mut rig, who[1]);
    rig.now += FIGURE_AGE.0;
    device(&mut rig, 7 + 64);
    assert_eq!(reserved(&rig), 40, "its own, or the first one's");
    device(&mut rig, 7);
    assert_eq!(reserved(&rig), 0);
}

/// Processes that begin while NVML is asked are not taken for the driver's own memory.
#[test]
fn what_begins_during_a_look_hides_nothing_that_ends() {
    let (mut rig, who) = slice_of(&[40]);
    unsure(&mut rig, 7, 7 + 64);
    unsure(&mut rig, 7, 7 + 64);
    gone(&mut rig, who[0]);
    rig.now += FIGURE_AGE.0;
    device(&mut rig, 7 + 40);
    assert_eq!(reserved(&rig), 40);
    device(&mut rig, 7);
    assert_eq!(reserved(&rig), 0);
}

/// The process claims so many contexts, and no memory.
fn claims_contexts(rig: &mut Rig, client: ClientId, contexts: u32) {
    let claims = Claims { contexts, ..Claims::default() };
    rig.step(Event::Claims { client, lane: Lane(0), claims });
}

/// A slice of 8 GiB with processes that hold nothing.
fn large_slice(processes: usize) -> (Rig, Vec<ClientId>) {
    let mut rig = Rig::new(config(), &[16]);
    rig.admit(ask("a", "0", 8 * GIB)).expect("fits");
    let who = (0..processes).map(|_| rig.attach("a", 0).expect("in")).collect();
    (rig, who)
}

/// A process ends while it creates its first context, which is charged only when it is measured.
#[test]
fn a_context_that_was_not_measured_counts_as_the_containers_others_do() {
    let (mut rig, who) = large_slice(4);
    device(&mut rig, 7);
    claims_contexts(&mut rig, who[0], 1);
    rig.now = 1_000 * MS;
    gone(&mut rig, who[0]);
    assert_eq!(reserved(&rig), 600 * MIB, "the most that a context takes");
    rig.now += FIGURE_AGE.0;
    device(&mut rig, 7 + 300 * MIB);
    assert_eq!(reserved(&rig), 300 * MIB, "what the device shows");
    device(&mut rig, 7);
    assert_eq!(reserved(&rig), 0);
    rig.step(requested(who[1], 400 * MIB));
    claims_contexts(&mut rig, who[2], 1);
    gone(&mut rig, who[2]);
    assert_eq!(reserved(&rig), 400 * MIB, "as much as one was seen to take");
    gone(&mut rig, who[3]);
    assert_eq!(reserved(&rig), 400 * MIB, "one without a context leaves nothing");
}

/// A request for nothing, by which a process waits for its container's resume before its first context, is no grant.
#[test]
fn a_request_for_nothing_explains_nothing_of_a_context() {
    // Its own measurement shows all of a context, a sample perhaps the half of one that is being made.
    for (figure, counts) in [(requested as fn(_, _) -> Event, 300), (measured, 600)] {
        let (mut rig, who) = large_slice(1);
        assert_eq!(answers(&rig.reserve(who[0], 0, 0)), [(who[0], Some(0))]);
        claims_contexts(&mut rig, who[0], 1);
        rig.step(figure(who[0], 300 * MIB));
        gone(&mut rig, who[0]);
        assert_eq!(reserved(&rig), counts * MIB);
    }
}

/// The claim is the process's own: it costs the container no more than its slice has left.
#[test]
fn a_context_that_was_not_measured_counts_only_within_the_slice() {
    let (mut rig, who) = slice_of(&[0, 30]);
    claims_contexts(&mut rig, who[0], u32::MAX);
    gone(&mut rig, who[0]);
    assert_eq!(reserved(&rig), 100);
}

/// NVML's figure is charged when two looks agree; a process may end between the two, also after its connection.
#[test]
fn what_was_measured_once_counts_at_the_end() {
    for left in [false, true] {
        let (mut rig, who) = slice_of(&[10, 0]);
        rig.step(measured(who[0], 50));
        assert_eq!(reserved(&rig), 10);
        if left {
            rig.step(Event::Left { client: who[0] });
        }
        gone(&mut rig, who[0]);
        assert_eq!(reserved(&rig), 50);
    }
}
