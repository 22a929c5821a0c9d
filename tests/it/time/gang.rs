//! Containers of two GPUs whose work on one waits for their work on the other, beside each other and beside
//! one that has a single GPU: all get on, and get what their weights say.
//!
//! The program is `tests/apps/collectives`; it runs bare first. Shares are judged by the daemon's bills, over
//! the whole of the run; a machine that stands still charges whoever has the turn, so the bounds are wide.

use super::{Tenant, bill, node, shown};
use crate::harness::node::{Node, admit};
use crate::harness::wire::client_page;
use crate::harness::{PATIENCE, eventually, target_dir};
use gpuslice_wire::admin::{Answer, Command as Admin, MemoryAsk};
use gpuslice_wire::policy::Gangs;
use gpuslice_wire::units::{Bytes, GIB};
use nix::sys::signal::Signal;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// The program for so many seconds, in the slice `who` or outside of any.
fn start(node: &Node, seconds: u64, who: Option<&str>) -> Child {
    let driver = node.root().join("driver");
    let mut command = Command::new(target_dir().join("collectives"));
    command
        .arg(seconds.to_string())
        .env("LD_LIBRARY_PATH", &driver)
        .env("GPUSLICE_SIM_DEVICE", node.root().join("device"))
        .stdout(Stdio::piped());
    if let Some(who) = who {
        command
            .env("LD_PRELOAD", target_dir().join("libgpuslice.so"))
            .env(
                "GPUSLICE_SOCKET",
                node.container_dir(who).join("tenant.sock"),
            )
            .env("GPUSLICE_DRIVER_DIR", &driver);
    }
    command.spawn().expect("collectives are staged")
}

/// How many rounds it ended.
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
    let (node, truth) = node();
    for who in ["c", "d"] {
        let ask = admit(who, "0,1", MemoryAsk::Exactly(Bytes(GIB)));
        let answer = node.admin().ask(&ask);
        assert!(matches!(answer, Answer::Admitted { .. }), "{answer:?}");
    }
    assert!(ends("bare", start(&node, 1, None), PATIENCE) > 0);
    let single = Tenant::start(&node, &truth, "b", 500);
    let before = bill(&node, "b");
    // Until both are known to use both GPUs, each may hold one with half of its first collective. Both are then
    // passed after 2 s, and the others have as much before they are served again.
    let seconds = 16;
    let both = ["c", "d"].map(|who| (who, start(&node, seconds, Some(who))));
    eventually("gangs", || {
        let gang = |who| shown(&node, who)["gang"] == true;
        gang("c") && gang("d") && !gang("b")
    });
    let rounds = both.map(|(who, child)| ends(who, child, 3 * PATIENCE));
    let bills = [
        bill(&node, "c"),
        bill(&node, "d"),
        bill(&node, "b") - before,
    ];
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

/// A container that says that none of its GPUs waits for another takes turns on each by itself, also under the
/// next daemon; one that says nothing takes them together.
#[test]
fn one_that_asks_to_be_no_gang() {
    let (mut node, _truth) = node();
    for (who, gangs) in [("c", Gangs::Auto), ("d", Gangs::Never)] {
        let mut ask = admit(who, "0,1", MemoryAsk::Exactly(Bytes(GIB)));
        if let Admin::Admit { gang, .. } = &mut ask {
            *gang = gangs;
        }
        let answer = node.admin().ask(&ask);
        assert!(matches!(answer, Answer::Admitted { .. }), "{answer:?}");
    }
    for _ in 0..2 {
        let both = ["c", "d"].map(|who| {
            let tenant = node.tenant(who);
            let attached = tenant.attach(Bytes::ZERO);
            let claims = client_page(&attached);
            (0..2).for_each(|lane| claims.lane[lane].runnable.store(1, SeqCst));
            nix::unistd::write(&attached.bell, &1_u64.to_ne_bytes()).expect("a bell");
            (tenant, attached)
        });
        for (who, gang) in [("c", true), ("d", false)] {
            eventually("it is runnable", || shown(&node, who)["runnable"] == true);
            assert_eq!(shown(&node, who)["gang"], gang, "{who}");
        }
        drop(both);
        node.end_daemon(Signal::SIGKILL);
        node.start_daemon(&[]);
    }
}
