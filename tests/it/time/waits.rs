//! Streams that wait for each other end as they do without a slice: alone on the GPU, beside a busy tenant, and
//! beside one of a higher class, which closes gates in their streams.
//!
//! The program is `tests/apps/waits`. If a case does not end, it ends by itself and names the case.

use super::deadlocks::program;
use super::{Tenant, strict_node};
use crate::harness::node::Node;
use gpuslice_sim_device::Machine;

/// Runs every case of a pair of streams, with these pauses in ms between a wait and its release.
fn end(node: &Node, pair: &str, pauses: &[&str], slice: bool) {
    let words: Vec<&str> = ["waits", pair].iter().chain(pauses).copied().collect();
    let output = program(node, &words, slice).output();
    let output = output.expect("waits is staged");
    let cases = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    let last = cases.lines().last().unwrap_or("none");
    let how = output.status;
    assert!(how.success(), "{pair}, in a slice: {slice}, {last}: {how}: {said}");
}

/// Every pair of streams, beside what `company` starts, and alone where that is nothing.
fn try_all(pauses: &[&str], company: impl Fn(&Node, &Machine) -> Option<Tenant>) {
    let (node, machine) = strict_node("time::waits");
    let list = program(&node, &["waits", "list"], false).output();
    let list = String::from_utf8(list.expect("waits is staged").stdout).expect("text");
    assert!(list.lines().count() >= 9, "{list}");
    let _company = company(&node, &machine);
    // Most of the time they sleep.
    let pairs: Vec<&str> = list.lines().collect();
    std::thread::scope(|scope| {
        for some in pairs.chunks(2) {
            let node = &node;
            scope.spawn(move || {
                for pair in some {
                    end(node, pair, &["2"], false);
                    end(node, pair, pauses, true);
                }
            });
        }
    });
}

#[test]
fn streams_wait_for_each_other_alone_on_the_gpu() {
    try_all(&["2", "20", "60", "100", "300"], |_, _| None);
}

#[test]
fn streams_wait_for_each_other_beside_a_busy_tenant() {
    let busy = |node: &Node, machine: &Machine| Some(Tenant::start(node, machine, "b", 500));
    try_all(&["2", "20", "60", "300"], busy);
}

#[test]
fn streams_wait_for_each_other_beside_a_higher_class() {
    try_all(&["2", "60"], |node, machine| {
        super::must(node, &["set", "a", "--priority", "best-effort"]);
        super::must(node, &["set", "b", "--priority", "high"]);
        Some(Tenant::with(node, machine, "b", 200, &["--pause-us", "3000"]))
    });
}
