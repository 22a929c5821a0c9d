//! Containers of two GPUs whose work on one waits for their work on the other, beside each other and beside
//! one with a single GPU: all make progress, with the GPU time of their weights.
//!
//! The program is `tests/apps/collectives`; it runs bare first. Shares are judged by the daemon's charges over
//! the whole run. A pause of the machine is charged to the holder of the turn, so the bounds are wide.

use super::{Tenant, bill, shown, strict_node};
use crate::harness::cli::command;
use crate::harness::node::{Node, admit};
use crate::harness::process::{put_in_slice, put_on_device};
use crate::harness::wire::client_page;
use crate::harness::{PATIENCE, eventually, go_before_other_work, target_dir};
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::policy::Gangs;
use gpuslice_wire::units::{Bytes, GIB};
use nix::sys::signal::Signal;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// The program for so many seconds, in the slice `container` or outside of any.
fn start(node: &Node, seconds: u64, container: Option<&str>) -> Child {
    let mut command = Command::new(target_dir().join("collectives"));
    let command = put_on_device(command.arg(seconds.to_string()), node).stdout(Stdio::piped());
    if let Some(container) = container {
        put_in_slice(command, node, container);
    }
    command.spawn().expect("collectives are staged")
}

/// The number of rounds it finished.
fn ends(what: &str, mut program: Child, within: Duration) -> u64 {
    let start = Instant::now();
    while program.try_wait().expect("ours").is_none() {
        if start.elapsed() > within {
            let _ = program.kill();
            let _ = program.wait();
            panic!("{what} never ends");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let Output { stdout, status, .. } = program.wait_with_output().expect("ours");
    assert!(status.success(), "{what}: {status}");
    let text = String::from_utf8(stdout).expect("text");
    text.trim().parse().expect("a number")
}

#[test]
fn collectives_beside_each_other() {
    go_before_other_work(); // where it may: what is late on a busy machine loses time that it did not want to give up
    let (node, machine) = strict_node("time::gang");
    for container in ["c", "d"] {
        node.must_grant(&admit(container, "0,1", MemoryAsk::Exactly(Bytes(GIB))));
    }
    assert!(ends("bare", start(&node, 1, None), PATIENCE) > 0);
    let single = Tenant::start(&node, &machine, "b", 500);
    let before = bill(&node, "b");
    // Until both are known to use both GPUs, each may hold one with half of its first collective. Both are then
    // passed after 2 s, and the others have as much before they are served again.
    let seconds = 16;
    let both = ["c", "d"].map(|container| (container, start(&node, seconds, Some(container))));
    eventually("gangs", || {
        let gang = |container| shown(&node, container)["gang"] == true;
        gang("c") && gang("d") && !gang("b")
    });
    let rounds = both.map(|(container, child)| ends(container, child, 3 * PATIENCE));
    let bills = [bill(&node, "c"), bill(&node, "d"), bill(&node, "b") - before];
    eprintln!("rounds {rounds:?}, bills on GPU 0 {bills:?}");
    drop(single);
    let all: Duration = bills.iter().sum();
    for bill in bills {
        let part = bill.as_secs_f64() / all.as_secs_f64();
        assert!((0.2..=0.5).contains(&part), "{part} of GPU 0, {bills:?}");
    }
    // each round takes a quarter of a millisecond at least, a third of the time after that
    let least = rounds.into_iter().min().unwrap_or(0);
    assert!(least > seconds * 50, "only {rounds:?} rounds");
}

/// Has work on both of its GPUs, until it is dropped.
fn works_on_both(node: &Node, container: &str) -> impl Sized + use<> {
    let tenant = node.tenant(container);
    let attached = tenant.attach(Bytes::ZERO);
    let claims = client_page(&attached);
    (0..2).for_each(|lane| claims.lane[lane].runnable.store(1, SeqCst));
    nix::unistd::write(&attached.bell, &1_u64.to_ne_bytes()).expect("a bell");
    eventually("it is runnable", || shown(node, container)["runnable"] == true);
    (tenant, attached)
}

/// The option of `gpuslice run` says the same as the annotation.
#[test]
fn a_command_that_opts_out_of_gangs() {
    let (node, _truth) = strict_node("time::gang");
    for (option, gang) in [("never", false), ("auto", true)] {
        let before = node.containers();
        let words = ["run", "--memory", "1GiB", "--gpus", "all", "--gang", option];
        let mut run = command(&node, &words);
        let mut run = run.args(["--", "sleep", "60"]).spawn().expect("it starts");
        let id = || node.containers().into_iter().find(|it| !before.contains(it));
        eventually("its slice", || id().is_some());
        let id = id().expect("a slice");
        let working = works_on_both(&node, &id);
        assert_eq!(shown(&node, &id)["gang"], gang, "{option}");
        drop(working);
        run.kill().expect("ours");
        run.wait().expect("ours");
    }
}

/// A container that declares its GPUs independent takes turns on each separately, also under the next daemon; one
/// without that declaration takes them together.
#[test]
fn a_container_that_opts_out_of_gangs() {
    let (mut node, _truth) = strict_node("time::gang");
    for (container, gangs) in [("c", Gangs::Auto), ("d", Gangs::Never)] {
        node.must_admit_with(container, "0,1", Bytes(GIB), |asked| asked.gang = gangs);
    }
    for _ in 0..2 {
        let both = ["c", "d"].map(|container| works_on_both(&node, container));
        for (container, gang) in [("c", true), ("d", false)] {
            assert_eq!(shown(&node, container)["gang"], gang, "{container}");
        }
        drop(both);
        node.end_daemon(Signal::SIGKILL);
        node.start_daemon(&[]);
    }
}
