//! Bad tenants, one by one, each beside a good one.

use super::{DRAIN_MAX, Hiccups, TURNS, Tenant, bill, late_turns, node};
use crate::harness::node::Node;
use crate::harness::wire::{TenantClient, client_page, container_page, own_slot};
use crate::harness::{Random, eventually};
use gpuslice_sim_device::{Kind, Role, Work};
use gpuslice_wire::page::{ClientLane, ContainerLane, may_launch};
use gpuslice_wire::units::Bytes;
use nix::sys::signal::Signal;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The words of lane 0 that a container's processes see.
fn lane(node: &Node, container: &str) -> (&'static ContainerLane, TenantClient) {
    let observer = node.tenant(container);
    let page = container_page(&observer.attach(Bytes::ZERO));
    (&page.lane[0], observer)
}

/// Processes are caught in a turn of theirs after so many tries.
const TRIES: usize = 30;

/// Repeats the step of an attack for so long. Returns the time of all steps but those that the machine held up.
fn ran_for(long: Duration, mut step: impl FnMut()) -> Duration {
    let (start, mut ran) = (Instant::now(), Duration::ZERO);
    while start.elapsed() < long {
        let begin = Instant::now();
        step();
        let took = begin.elapsed();
        ran += if took > Duration::from_millis(50) { Duration::ZERO } else { took };
    }
    ran
}

/// A process is stopped in the middle of its turn: the others wait for it, but not for ever, and it is charged
/// for all that time. When it continues, so do its turns.
#[test]
fn stopped_in_its_turn() {
    let (node, machine) = node();
    let bad = Tenant::start(&node, &machine, "a", 500);
    let good = Tenant::start(&node, &machine, "b", 500);
    let (turn, _observer) = lane(&node, "a");
    let hiccups = Hiccups::of(&[&node], &[&good]);
    let mut held_up = Duration::ZERO;
    let was_late = |held_up| held_up > Duration::from_millis(100) && late_turns(&node, "a") > 0;
    for round in 0..TRIES {
        if round >= 5 && was_late(held_up) {
            break;
        }
        good.watch(&machine);
        let before = bill(&node, "a");
        eventually("its turn", || may_launch(turn.turn.load(SeqCst)));
        bad.stop(&machine);
        sleep(DRAIN_MAX + Duration::from_millis(500));
        let gap = good.longest_gap(&machine);
        let billed = bill(&node, "a").saturating_sub(before);
        bad.signal(Signal::SIGCONT);
        assert!(gap <= DRAIN_MAX + TURNS + hiccups.allowance(), "{gap:?}");
        assert!(
            billed + TURNS + hiccups.allowance() >= gap,
            "held up for {gap:?}, billed {billed:?}"
        );
        held_up = held_up.max(gap);
        // The good tenant first: it has less than its part.
        good.gets(&machine, Duration::from_millis(50));
        bad.gets(&machine, Duration::from_millis(20));
    }
    assert!(was_late(held_up), "never stopped in its turn: {held_up:?}");
}

/// A process is killed in the middle of its turn: the others go on at once, and its charge ends.
#[test]
fn killed_in_its_turn() {
    let (node, machine) = node();
    let good = Tenant::start(&node, &machine, "b", 500);
    let mut hits = 0;
    for round in 0..TRIES {
        if round >= 5 && hits > 0 {
            break;
        }
        let mut bad = Tenant::start(&node, &machine, "a", 500);
        let (turn, observer) = lane(&node, "a");
        let hiccups = Hiccups::of(&[&node], &[&good]);
        good.watch(&machine);
        eventually("its turn", || may_launch(turn.turn.load(SeqCst)));
        bad.child.kill().expect("ours");
        // Where the machine was slow, its turn was over by then.
        hits += u32::from(may_launch(turn.turn.load(SeqCst)));
        bad.child.wait().expect("ours");
        sleep(Duration::from_millis(400));
        let gap = good.longest_gap(&machine);
        let allowed = Duration::from_millis(200) + hiccups.allowance();
        assert!(gap <= allowed, "held up for {gap:?}, allowed {allowed:?}");
        drop(observer);
        node.wait_refunded("a");
        let before = bill(&node, "a");
        good.gets(&machine, Duration::from_millis(100));
        assert_eq!(bill(&node, "a"), before, "the dead are charged");
    }
    assert!(hits > 0, "never killed in its turn");
}

/// Kernels of several seconds: each delays the others for 2 s at most, and is charged in full.
#[test]
fn kernels_that_last_for_seconds() {
    let (node, machine) = node();
    let good = Tenant::start(&node, &machine, "b", 500);
    good.watch(&machine);
    let before = bill(&node, "b");
    let got = good.busy(&machine);
    let hiccups = Hiccups::of(&[&node], &[&good]);
    let bad = Tenant::start(&node, &machine, "a", 3_000_000);
    sleep(Duration::from_secs(8));
    let gap = good.longest_gap(&machine);
    assert!(gap <= DRAIN_MAX + TURNS + hiccups.allowance(), "{gap:?}");
    let (had, billed) = (bad.busy(&machine), bill(&node, "a"));
    assert!(had > Duration::from_secs(3), "{had:?}");
    assert!(billed + TURNS + hiccups.allowance() >= had, "had {had:?}, billed {billed:?}");
    let (got, billed) = (good.busy(&machine) - got, bill(&node, "b") - before);
    eprintln!("the good one got {got:?}");
    // 2.5 s, and less where a busy machine does not run its program.
    assert!(got > Duration::from_millis(200), "the good one got {got:?}");
    // While the other's kernel runs on beside its turns, it is charged for their whole length.
    assert!(billed + TURNS >= got / 2, "got {got:?}, billed {billed:?}");
}

/// A process that claims work in every turn and never reports that it has drained; it has no work.
fn mute(lane: &ClientLane, turn: u32) {
    lane.runnable.store(1, SeqCst);
    if may_launch(turn) {
        lane.active.store(turn, SeqCst);
    }
}

#[test]
fn a_process_that_never_drains() {
    let (node, machine) = node();
    let good = Tenant::start(&node, &machine, "b", 500);
    let bad = node.tenant("a");
    let attached = bad.attach(Bytes::ZERO);
    let (claims, page) = (client_page(&attached), container_page(&attached));
    let hiccups = Hiccups::of(&[&node], &[&good]);
    good.watch(&machine);
    let before = bill(&node, "a");
    let ran = ran_for(Duration::from_secs(4), || {
        mute(&claims.lane[0], page.lane[0].turn.load(SeqCst));
        nix::unistd::write(&attached.bell, &1_u64.to_ne_bytes()).expect("a bell");
        sleep(Duration::from_millis(1));
    });
    let gap = good.longest_gap(&machine);
    assert!(gap <= DRAIN_MAX + TURNS + hiccups.allowance(), "{gap:?}");
    let billed = bill(&node, "a") - before;
    assert!(billed > ran * 3 / 4, "only {billed:?} of {ran:?}");
    good.gets(&machine, Duration::from_millis(200));
}

/// A process that always reports that it has drained and has not: the GPU's own time slices are the bound then.
/// Its GPU time in the others' turns is unreported and not charged; its own turns are.
#[test]
fn a_process_that_reports_drained_and_is_not() {
    let (node, machine) = node();
    let good = Tenant::start(&node, &machine, "b", 500);
    let bad = node.tenant("a");
    let attached = bad.attach(Bytes::ZERO);
    let (claims, page) = (client_page(&attached), container_page(&attached));
    // Its work comes past every gate, from this process.
    let device = node.machine_as(Role::Driver);
    let context = device.context_create(0).expect("a context");
    let work = Work::new(Kind::Kernel, 3_000_000);
    good.watch(&machine);
    let (before, begun) = (good.busy(&machine), Instant::now());
    let bills = || ["a", "b"].map(|container| bill(&node, container));
    let billed = bills();
    let hiccups = Hiccups::of(&[&node], &[&good]);
    let start = Instant::now();
    let ran = ran_for(Duration::from_secs(3), || {
        let (lane, turn) = (&claims.lane[0], page.lane[0].turn.load(SeqCst));
        mute(lane, turn);
        lane.drained.store(lane.active.load(SeqCst), SeqCst);
        nix::unistd::write(&attached.bell, &1_u64.to_ne_bytes()).expect("a bell");
        while device.context_info(context).expect("ours").pending < 4 {
            device.submit(context, work).expect("room");
        }
        sleep(Duration::from_millis(1));
    });
    let (took, got) = (start.elapsed(), good.busy(&machine) - before);
    device.context_destroy(context).expect("ours");
    let gap = good.longest_gap(&machine);
    assert!(gap <= 3 * TURNS + hiccups.allowance(), "{gap:?}");
    let now = bills();
    let (billed, span) = ([0, 1].map(|at: usize| now[at] - billed[at]), begun.elapsed());
    // Half of the turns, and in them every second slice, less the waits for a slice at their ends.
    assert!(got > took / 20, "the good one got {got:?} of {took:?}");
    assert!(billed[0] > ran / 4, "only {billed:?} of {ran:?} on its bill");
    // In the good one's turns the good one alone is charged.
    assert!(billed[0] + billed[1] <= span + TURNS, "{billed:?} charged in {span:?}");
    eprintln!("got {got:?} of {took:?}, longest gap {gap:?}, bills {billed:?}");
}

/// A process that writes random numbers to all its claims all the time.
#[test]
fn a_process_with_random_claims() {
    let seed = super::setting("SEED", 9);
    eprintln!("SEED={seed}");
    let mut random = Random(seed | 1 << 32);
    let (node, machine) = node();
    let good = Tenant::start(&node, &machine, "b", 500);
    let bad = node.tenant("a");
    let attached = bad.attach(Bytes::ZERO);
    let (claims, page) = (client_page(&attached), container_page(&attached));
    let hiccups = Hiccups::of(&[&node], &[&good]);
    good.watch(&machine);
    let before = good.busy(&machine);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        let lane = &claims.lane[0];
        let turn = page.lane[0].turn.load(SeqCst);
        for word in [&lane.runnable, &lane.active, &lane.drained] {
            let near = turn.wrapping_add(random.below(5) as u32).wrapping_sub(2);
            let any = [0, 1, near, near, random.next() as u32][random.below(5) as usize];
            word.store(any, SeqCst);
        }
        let held = &own_slot(&attached).held[0];
        let words = [&lane.held, &lane.launches, &lane.unseen, &lane.began_ns, &lane.drained_ns];
        for word in words.into_iter().chain([held]) {
            word.store(random.next(), SeqCst);
        }
        nix::unistd::write(&attached.bell, &1_u64.to_ne_bytes()).expect("a bell");
        sleep(Duration::from_micros(random.below(2_000)));
    }
    let (took, got) = (start.elapsed(), good.busy(&machine) - before);
    let gap = good.longest_gap(&machine);
    assert!(gap <= DRAIN_MAX + TURNS + hiccups.allowance(), "{gap:?}");
    // At most, it takes a turn of its own and the wait for its end, again and again.
    assert!(got > took / 20, "the good one got {got:?} of {took:?}");
    eprintln!("got {got:?} of {took:?}, longest gap {gap:?}");
}
