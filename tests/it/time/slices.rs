//! Time slices of the hardware: where turns do not hold, the simulated GPU itself divides by weight.
//!
//! The division is judged by the device's own account.

use super::preempt::{configure, node_of, number, start};
use super::{Tenant, must};
use crate::harness::eventually;
use crate::harness::node::Node;
use crate::harness::wire::{client_page, container_page};
use gpuslice_sim_device::Machine;
use gpuslice_wire::page::may_launch;
use gpuslice_wire::policy::Class;
use gpuslice_wire::units::Bytes;
use nix::sys::signal::Signal;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const PROBE: &str = "preemption = \"probe\"\n";
/// The device's value for a context without a slice of its own.
const OWN_US: u64 = 2_000;
/// Kernels so long that they overrun, and are stopped, after every turn.
const LONG_US: u64 = 300_000;

/// Weights 1 and 3, each always busy, and the first stop was seen.
fn two(controls: &str, a_us: u64) -> (Node, Machine, [Tenant; 2]) {
    let containers = [("a", 1, Class::Normal), ("b", 3, Class::Normal)];
    let (node, machine) = node_of(PROBE, controls, &containers);
    let a = Tenant::start(&node, &machine, "a", a_us);
    let b = Tenant::start(&node, &machine, "b", LONG_US);
    eventually("a stop", || number(&node, "a", "stops") > 0);
    (node, machine, [a, b])
}

fn slices(machine: &Machine, both: &[Tenant; 2]) -> [u64; 2] {
    [0, 1].map(|at| machine.time_slice(both[at].context).expect("alive"))
}

/// The daemon has set these and knows that it has. A's slice alone does not show it: its own is as long.
fn wait_until_set(node: &Node, machine: &Machine, both: &[Tenant; 2], what: [u64; 2]) {
    wait_for(machine, both, what);
    let known = || ["a", "b"].map(|of| number(node, of, "time_slice_us"));
    eventually("it is known", || known() == what);
}

fn wait_for(machine: &Machine, both: &[Tenant; 2], what: [u64; 2]) {
    let is = || slices(machine, both) == what;
    eventually(&format!("time slices of {what:?}"), is);
}

/// The first one's part of both tenants' GPU time, while `overlap` finds that both have work. Between two looks that
/// the machine has kept apart one of them may have had none.
fn part(machine: &Machine, both: &[Tenant; 2], overlap: impl Fn() -> bool) -> f64 {
    let (mut had, mut all) = (Duration::ZERO, Duration::ZERO);
    let look = || (Instant::now(), overlap(), [0, 1].map(|at| both[at].busy(machine)));
    let mut before = look();
    while all < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(5));
        let now = look();
        let apart = now.0.elapsed() + (now.0 - before.0);
        if before.1 && now.1 && apart < Duration::from_millis(50) {
            let more = [0, 1].map(|at| now.2[at] - before.2[at]);
            had += more[0];
            all += more[0] + more[1];
        }
        before = now;
    }
    had.as_secs_f64() / all.as_secs_f64()
}

/// Both have work, the same as at the last check, and neither is stopped.
fn busy(machine: &Machine, both: &[Tenant; 2]) -> bool {
    both.iter().all(|tenant| {
        let info = machine.context_info(tenant.context).expect("alive");
        info.pending > 0 && !machine.is_disabled(tenant.context).expect("alive")
    })
}

/// The daemon is dead and all tenants run freely: the hardware divides 1:3. The next daemon removes the dead one's
/// slices, also where preemption is off by now.
#[test]
fn a_dead_daemons_weights_stay() {
    let (mut node, machine, both) = two("on", LONG_US);
    wait_until_set(&node, &machine, &both, [2_000, 6_000]);
    assert_eq!(number(&node, "b", "time_slice_changes"), 0);
    node.end_daemon(Signal::SIGKILL);
    let written = node.container_dir("b").join("sliced");
    assert!(written.exists(), "what it was before is written down");
    eventually("freedom", || busy(&machine, &both));
    let part = part(&machine, &both, || busy(&machine, &both));
    assert!((0.2..=0.3).contains(&part), "{part} is not a quarter");
    configure(&node, "preemption = \"off\"\n");
    start(&mut node, "on");
    assert_eq!(slices(&machine, &both), [OWN_US; 2]);
    assert!(!written.exists());
}

/// A holder that never lets go, and cannot be stopped because one of its processes did not say where it runs:
/// beside the others' turns it has a quarter of the GPU, as its weight says.
#[test]
fn a_container_that_never_drains_has_its_part() {
    let (node, machine, both) = two("on", 600_000_000);
    wait_for(&machine, &both, [2_000, 6_000]);
    let secretive = node.tenant("a");
    let attached = secretive.attach(Bytes::ZERO);
    let (claims, page) = (client_page(&attached), container_page(&attached));
    let secret = || {
        let turn = page.lane[0].turn.load(SeqCst);
        claims.lane[0].runnable.store(1, SeqCst);
        if may_launch(turn) {
            claims.lane[0].active.store(turn, SeqCst);
        }
        nix::unistd::write(&attached.bell, &1_u64.to_ne_bytes()).expect("a bell");
        busy(&machine, &both)
    };
    let part = part(&machine, &both, secret);
    assert!((0.2..=0.3).contains(&part), "{part} is not a quarter");
}

/// A process that sets its own slice has it until the daemon's next check, which logs it. Later changes of weight take
/// effect with the next check. Contexts get their own slices back when their container, the turns or the daemon end.
#[test]
fn slices_follow_weights_and_not_tenants() {
    for controls in ["on", "slow"] {
        let (mut node, machine, both) = two(controls, LONG_US);
        wait_until_set(&node, &machine, &both, [2_000, 6_000]);
        let greedy = both[0].context;
        machine.set_time_slice(greedy, 1_000_000).expect("alive");
        wait_for(&machine, &both, [2_000, 6_000]);
        eventually("it is told", || number(&node, "a", "time_slice_changes") == 1);
        assert_eq!(number(&node, "b", "time_slice_changes"), 0);
        assert!(node.log().contains("changes its own time slices"));
        let said = must(&node, &["ps"]);
        assert_eq!(said.matches("time slice changed").count(), 1, "{said}");
        must(&node, &["set", "a", "--weight", "3"]);
        wait_for(&machine, &both, [2_000; 2]);
        must(&node, &["policy", "0", "native"]);
        wait_for(&machine, &both, [OWN_US; 2]);
        eventually("it is told", || number(&node, "a", "time_slice_us") == 0);
        must(&node, &["policy", "0", "soft"]);
        wait_for(&machine, &both, [2_000; 2]);
        node.dismiss("a");
        wait_for(&machine, &both, [OWN_US, 2_000]);
        assert!(node.end_daemon(Signal::SIGTERM).success());
        assert_eq!(slices(&machine, &both), [OWN_US; 2]);
        assert!(!node.container_dir("b").join("sliced").exists());
    }
}

/// A driver that stops and cannot set slices: said once, and everything else is as before.
#[test]
fn where_they_cannot_be_set() {
    let (node, machine, both) = two("stops", LONG_US);
    let said = "its time slices by weight cannot be set on the GPU";
    eventually("it is said", || node.log().matches(said).count() == 2);
    for container in ["a", "b"] {
        let stops = number(&node, container, "stops");
        eventually("another stop", || number(&node, container, "stops") > stops);
        assert_eq!(number(&node, container, "time_slice_us"), 0);
        assert!(!node.container_dir(container).join("sliced").exists());
    }
    assert_eq!(slices(&machine, &both), [OWN_US; 2]);
    assert_eq!(node.log().matches(said).count(), 2, "and not again");
}
