//! Memory between the processes of a container, over the daemon's sockets: recalls, shared handles,
//! caps that change, and those who get any of it wrong.

use crate::harness::eventually;
use crate::harness::node::{Node, denied, id};
use crate::harness::wire::{TenantClient, container_page, granted};
use gpuslice_wire::admin::{Answer, Command, Denial, MemoryAsk};
use gpuslice_wire::frame::Message;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::HANDLES_PER_CLIENT_MAX;
use gpuslice_wire::page::{ContainerPage, FOREIGN_CHARGE, MODE_OPEN};
use gpuslice_wire::tenant::{HandleKey, Rejection, Reply, Request};
use gpuslice_wire::units::{Bytes, GIB, MIB};
use nix::sys::signal::Signal;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const HOST: usize = Lane::HOST.0 as usize;
/// A little less than the 300 ms that the daemon waits for siblings. On a busy machine this thread may take longer.
const RECALL_NEARLY_OVER: Duration = Duration::from_millis(250);

/// A process of a container that has just attached, and the container's page.
fn process(node: &Node, container: &str) -> (TenantClient, &'static ContainerPage) {
    let tenant = node.process(container);
    let page = container_page(&tenant.attach(Bytes::ZERO));
    (tenant, page)
}

fn node() -> Node {
    let node = Node::start();
    node.must_admit("a", Bytes(GIB));
    node
}

fn tell(tenant: &TenantClient, request: &impl Message) {
    tenant.0.send(5, request).expect("the daemon reads");
}

fn hear(tenant: &TenantClient) -> Reply {
    tenant.0.message().expect("an answer").1
}

fn want(lane: Lane, bytes: u64) -> Request {
    let (need, wish) = (Bytes(bytes), Bytes(bytes));
    Request::Reserve { lane, need, wish }
}

fn give(recall: u32, bytes: u64) -> Request {
    Request::Yield { lane: Lane(0), recall, bytes: Bytes(bytes) }
}

fn ours(tenant: &TenantClient, key: u64) -> bool {
    let key = HandleKey(key);
    tell(tenant, &Request::Open { key });
    match hear(tenant) {
        Reply::Origin { ours } => ours,
        other => panic!("{other:?}"),
    }
}

fn resize(node: &Node, container: &str, lane: Lane, memory: MemoryAsk) -> Answer {
    node.admin().ask(&Command::Resize { container: id(container), lane, memory })
}

fn exactly(bytes: u64) -> MemoryAsk {
    MemoryAsk::Exactly(Bytes(bytes))
}

#[test]
fn who_is_short_gets_what_a_sibling_does_not_use() {
    let gives = || {
        let node = node();
        let ((rich, page), (poor, _)) = (process(&node, "a"), process(&node, "a"));
        assert_eq!(granted(&rich.reserve(0, GIB, GIB)), Some(GIB));
        let told = Instant::now();
        tell(&poor, &want(Lane(0), 300 * MIB));
        eventually("a recall", || page.lane[0].recall.load(SeqCst) == 1);
        tell(&rich, &give(1, 400 * MIB));
        let took = told.elapsed();
        let Some(got) = granted(&hear(&poor)) else {
            assert!(took >= RECALL_NEARLY_OVER, "refused, though it was given after {took:?}");
            return false;
        };
        assert_eq!(got, 300 * MIB);
        eventually("the sum", || page.lane[0].reserved.load(SeqCst) == GIB - 100 * MIB);
        true
    };
    assert!((0..5).any(|_| gives()), "this thread is never in time");
}

#[test]
fn a_silent_sibling_makes_nobody_wait_for_ever() {
    let node = node();
    let ((rich, _), (poor, _)) = (process(&node, "a"), process(&node, "a"));
    rich.reserve(0, GIB, GIB);
    assert_eq!(granted(&poor.reserve(0, 1, 1)), None);
    drop(rich);
    eventually("the refund", || node.slice("a") == Some((Bytes::ZERO, 1)));
    assert_eq!(granted(&poor.reserve(0, 1, 1)), Some(1));
}

#[test]
fn answers_that_break_a_rule_end_their_own_connection_only() {
    let node = node();
    let (good, _) = process(&node, "a");
    assert_eq!(granted(&good.reserve(0, MIB, MIB)), Some(MIB));
    let overdrawn = Request::Yield { lane: Lane::HOST, recall: 0, bytes: Bytes(1) };
    let strange = Request::Yield { lane: Lane(7), recall: 0, bytes: Bytes::ZERO };
    for (request, rule) in [
        (give(0, 1), Rejection::Overdrawn),
        (give(u32::MAX, u64::MAX), Rejection::Overdrawn),
        (overdrawn, Rejection::Overdrawn),
        (strange, Rejection::NoSuchLane),
        (want(Lane(15), 1), Rejection::NoSuchLane),
    ] {
        let (bad, _) = process(&node, "a");
        tell(&bad, &request);
        bad.0.expect_rejected(rule);
    }
    let key = HandleKey(1);
    for first in [
        give(0, 0),
        Request::Share { key },
        Request::Open { key },
        Request::Measure { lane: Lane(0) },
    ] {
        let early = node.tenant("a");
        tell(&early, &first);
        early.0.expect_rejected(Rejection::Protocol);
    }
    assert_eq!(granted(&good.reserve(0, MIB, MIB)), Some(MIB));
    eventually("the ledger", || node.slice("a") == Some((Bytes(2 * MIB), 1)));
}

#[test]
fn answers_nobody_waits_for_and_strange_measures_do_no_harm() {
    let node = node();
    let (tenant, page) = process(&node, "a");
    tenant.reserve(0, MIB, MIB);
    for number in 0..2_000 {
        tell(&tenant, &give(number, 0));
    }
    tell(&tenant, &give(9, MIB));
    for lane in [Lane(9), Lane::HOST] {
        tell(&tenant, &Request::Measure { lane });
        assert_eq!(hear(&tenant), Reply::Measured { lane, used: None });
    }
    assert_eq!(granted(&tenant.reserve(0, GIB, GIB)), Some(GIB));
    assert_eq!(page.lane[0].recall.load(SeqCst), 0);
}

#[test]
fn a_handle_is_ours_while_a_sibling_that_shared_it_lives() {
    let node = node();
    node.must_admit("b", Bytes(GIB));
    let (one, two, other) = (process(&node, "a").0, process(&node, "a").0, process(&node, "b").0);
    assert!(!ours(&two, 7));
    tell(&one, &Request::Share { key: HandleKey(7) });
    eventually("it to be known", || ours(&two, 7));
    assert!(!ours(&other, 7), "another container's");
    drop(one);
    eventually("its end", || !ours(&two, 7));
}

#[test]
fn a_flood_of_handles_costs_the_flooder_its_oldest() {
    let node = node();
    let ((good, page), (flood, _)) = (process(&node, "a"), process(&node, "a"));
    tell(&good, &Request::Share { key: HandleKey(1) });
    eventually("it to be known", || ours(&good, 1));
    let many = 4 * HANDLES_PER_CLIENT_MAX as u64;
    for n in 2..many {
        tell(&flood, &Request::Share { key: HandleKey(n) });
    }
    assert!(ours(&flood, many - 1) && !ours(&flood, 2));
    assert!(ours(&good, 1));
    assert_eq!(page.foreign.load(SeqCst), FOREIGN_CHARGE, "the default");
}

#[test]
fn a_cap_changes_while_processes_live_and_is_written_down() {
    let mut node = node();
    let ((one, page), (two, _)) = (process(&node, "a"), process(&node, "a"));
    one.reserve(0, GIB, GIB);
    assert_eq!(granted(&two.reserve(0, MIB, MIB)), None);
    let answer = resize(&node, "a", Lane(0), exactly(2 * GIB));
    let (cap, reserved) = (Bytes(2 * GIB), Bytes(GIB));
    assert_eq!(answer, Answer::Resized { cap, reserved });
    eventually("the page", || page.lane[0].cap.load(SeqCst) == 2 * GIB);
    assert_eq!(granted(&two.reserve(0, MIB, MIB)), Some(MIB));
    let recalls = page.lane[0].recall.load(SeqCst);
    let answer = resize(&node, "a", Lane(0), exactly(MIB));
    let (cap, reserved) = (Bytes(MIB), Bytes(GIB + MIB));
    assert_eq!(answer, Answer::Resized { cap, reserved }, "nothing is taken away");
    eventually("unused credit is asked for", || page.lane[0].recall.load(SeqCst) > recalls);
    assert_eq!(granted(&two.reserve(0, MIB, MIB)), None, "and nothing added");
    node.end_daemon(Signal::SIGKILL);
    node.start_daemon(&[]);
    assert_eq!(node.cap("a"), Some(Bytes(MIB)));
}

#[test]
fn a_cap_that_cannot_be_changes_nothing() {
    let node = node();
    let kind = |container, lane, memory| denied(resize(&node, container, lane, memory)).0;
    assert_eq!(kind("nobody", Lane(0), exactly(1)), Denial::NoSuchSlice);
    assert_eq!(kind("a", Lane(1), exactly(1)), Denial::NoSuchSlice);
    assert_eq!(kind("a", Lane(0), exactly(1 << 60)), Denial::Memory);
    let ratio = MemoryAsk::Ratio { part: 1, whole: 2 };
    assert_eq!(kind("a", Lane::HOST, ratio), Denial::Invalid);
    assert_eq!(node.cap("a"), Some(Bytes(GIB)));
    // where the new record has to be written, there is something else
    std::fs::create_dir(node.container_dir("a").join("record.new")).expect("made");
    let (why, text) = denied(resize(&node, "a", Lane(0), exactly(MIB)));
    assert!(why == Denial::Host && text.contains("the cap is unchanged"), "{text}");
    assert_eq!(node.cap("a"), Some(Bytes(GIB)));
    let (tenant, page) = process(&node, "a");
    assert_eq!(page.lane[0].cap.load(SeqCst), GIB);
    assert_eq!(granted(&tenant.reserve(0, GIB, GIB)), Some(GIB));
}

/// A cap that reaches the limit and cannot be written is set back without it.
#[test]
fn a_cap_that_cannot_be_written_keeps_the_limit() {
    let node = node();
    let (container, lane, limit) = (id("a"), Lane(0), Some(exactly(2 * GIB)));
    let limited = node.admin().ask(&Command::Relimit { container, lane, limit });
    assert!(matches!(limited, Answer::Resized { .. }), "{limited:?}");
    std::fs::create_dir(node.container_dir("a").join("record.new")).expect("made");
    denied(resize(&node, "a", lane, exactly(2 * GIB)));
    assert_eq!(node.cap("a"), Some(Bytes(GIB)));
    let (tenant, _) = process(&node, "a");
    assert_eq!(granted(&tenant.reserve(0, 2 * GIB, 2 * GIB)), Some(2 * GIB), "up to the limit");
}

#[test]
fn pinned_memory_has_an_account_of_its_own() {
    let mut node = node();
    node.must_admit_with("b", "0", Bytes(GIB), |asked| asked.pinned = Some(Bytes(MIB)));
    let ((free, page), (tenant, capped)) = (process(&node, "a"), process(&node, "b"));
    assert_eq!(page.lane[HOST].cap.load(SeqCst), u64::MAX);
    tell(&free, &want(Lane::HOST, 1 << 50));
    assert_eq!(granted(&hear(&free)), Some(1 << 50));
    assert_eq!(node.slice("a"), Some((Bytes::ZERO, 1)));
    assert_eq!(capped.lane[HOST].cap.load(SeqCst), MIB);
    assert_eq!(capped.lane[HOST].mode.load(SeqCst), MODE_OPEN);
    tell(&tenant, &want(Lane::HOST, MIB + 1));
    assert_eq!(granted(&hear(&tenant)), None);
    let none = resize(&node, "b", Lane::HOST, exactly(2 * MIB));
    assert!(matches!(none, Answer::Resized { .. }), "{none:?}");
    tell(&tenant, &want(Lane::HOST, MIB + 1));
    assert_eq!(granted(&hear(&tenant)), Some(MIB + 1));
    eventually("the sum", || capped.lane[HOST].reserved.load(SeqCst) == MIB + 1);
    node.end_daemon(Signal::SIGKILL);
    node.start_daemon(&[]);
    let (_, capped) = process(&node, "b");
    assert_eq!(capped.lane[HOST].cap.load(SeqCst), 2 * MIB);
}
