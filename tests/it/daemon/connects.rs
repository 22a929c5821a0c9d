//! Containers whose processes connect and close without a pause.

use super::answer;
use crate::harness::eventually;
use crate::harness::node::Node;
use crate::harness::wire::TenantClient;
use gpuslice_wire::limits::CLIENTS_PER_CONTAINER_MAX;
use gpuslice_wire::tenant::Reply;
use gpuslice_wire::units::{Bytes, GIB};
use std::fs;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::{Duration, Instant};

/// Connections that are accepted at once: as many as a container may have processes, and the node's 64.
const AT_ONCE: usize = CLIENTS_PER_CONTAINER_MAX + 64;
/// Accepted in each second from then on: the node's 500, and 4 of each container's own.
const EACH_SECOND: f64 = 500.0;
const OWN_EACH_SECOND: f64 = 4.0;
/// Attacking containers.
const ATTACKERS: [&str; 2] = ["a", "b"];

fn is_attached(reply: &Reply) -> bool {
    matches!(reply, Reply::Attached { .. })
}

/// Two containers connect as often as they can: the daemon accepts no more of them in a time than it states, and
/// attaches all processes of a third container meanwhile.
#[test]
fn connections_without_end_are_bounded() {
    let node = Node::start();
    ATTACKERS.iter().chain(&["c"]).for_each(|name| node.must_admit(name, Bytes(GIB)));
    let start = Instant::now();
    let (stop, accepted) = (AtomicBool::new(false), ATTACKERS.map(|_| AtomicUsize::new(0)));
    let attack = |at: usize| {
        while !stop.load(SeqCst) {
            assert!(
                is_attached(&answer(&node.tenant(ATTACKERS[at]), 0)),
                "it is accepted in the end"
            );
            accepted[at].fetch_add(1, SeqCst);
        }
    };
    let counts = || accepted.each_ref().map(|it| it.load(SeqCst));
    let told = || node.log().matches("its processes connect very often").count();
    let (mut more, mut is_slow) = (0.0, false);
    thread::scope(|scope| {
        for at in [0, 1, 0, 1] {
            let attack = &attack;
            scope.spawn(move || attack(at));
        }
        eventually("no connection at once is left", || {
            counts().iter().all(|count| *count > AT_ONCE)
        });
        // A process that says nothing for a second is closed, so each says something at once.
        let others = (0..64).map(|_| node.tenant("c"));
        let others: Vec<_> = others.inspect(|it| it.ask_to_attach(Bytes::ZERO)).collect();
        let attached =
            |it: &TenantClient| it.0.message().is_some_and(|(_, reply, _)| is_attached(&reply));
        assert!(others.iter().all(attached));
        let sum = || counts().iter().sum::<usize>();
        let (before, limited) = (sum(), Instant::now());
        thread::sleep(Duration::from_secs(1));
        more = (sum() - before) as f64 / limited.elapsed().as_secs_f64();
        // Attacks that are little faster than is allowed use up what is allowed at once in a while.
        while told() < ATTACKERS.len() && limited.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, SeqCst);
        let (sum, took) = (sum(), start.elapsed().as_secs_f64());
        let most = 2 * AT_ONCE + (took * (EACH_SECOND + 2.0 * OWN_EACH_SECOND)) as usize;
        assert!(sum <= most, "{sum} in {took} s; at last {more} a second");
        // The node's 64 are in `most` twice.
        is_slow = sum + 2 * 64 < most;
    });
    // A machine that is too busy to connect as often as is allowed has no container that is slowed.
    let told = told();
    eprintln!("{told} containers told of, at last {more} connections a second");
    assert!(told == 2 || is_slow, "{told} told, at last {more} a second: {}", node.log());
}

/// Descriptors that the daemon waits for.
fn watched(node: &Node) -> usize {
    let all = fs::read_dir(format!("/proc/{}/fdinfo", node.pid())).expect("it lives");
    let texts = all.flatten().map(|entry| fs::read_to_string(entry.path()).unwrap_or_default());
    texts.map(|text| text.lines().filter(|line| line.starts_with("tfd:")).count()).sum()
}

/// A process that attaches again and again, and keeps its doorbells: the daemon waits for none of them any more.
#[test]
fn kept_doorbells_are_not_watched() {
    let node = Node::start();
    node.must_admit("a", Bytes(GIB));
    let kept = || {
        let kept = node.tenant("a").attach(Bytes::ZERO);
        node.wait_disconnected("a");
        kept.bell
    };
    drop(kept()); // from then on the daemon waits for this process's end
    let before = watched(&node);
    let bells: Vec<_> = (0..32).map(|_| kept()).collect();
    // Of its own helpers one may have come meanwhile.
    eventually("about as many as before", || watched(&node) < before + bells.len() / 2);
}
