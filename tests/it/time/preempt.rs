//! Preemption: late work is stopped on the simulated GPU and continues in its own turn.

use super::events::last;
use super::{DRAIN_MAX, Hiccups, TURNS, Tenant, bill, shown, stopped_only_when_late};
use crate::harness::node::{Node, faults};
use crate::harness::profiles::simulated;
use crate::harness::{PATIENCE, eventually};
use gpuslice_sim_device::{Machine, Seq, Status};
use gpuslice_wire::policy::Class;
use gpuslice_wire::units::{Bytes, GIB, Weight};
use nix::sys::signal::Signal;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Kernels of the one that is late, µs.
const LONG_US: u64 = 8_000_000;

/// A node whose driver answers controls in this way, with a best-effort slice `a` and a high one `b`.
fn node(controls: &str) -> (Node, Machine) {
    let containers = [("a", 1, Class::BestEffort), ("b", 1, Class::High)];
    node_of("preemption = \"probe\"\n", controls, &containers)
}

/// A node of this configuration and driver, with these slices: weight and class.
pub fn node_of(config: &str, controls: &str, containers: &[(&str, u32, Class)]) -> (Node, Machine) {
    node_started(config, controls, containers, |_| ())
}

/// The same, with a change to the command that starts the daemon.
pub fn node_started(
    config: &str,
    controls: &str,
    containers: &[(&str, u32, Class)],
    change: impl FnOnce(&mut Command),
) -> (Node, Machine) {
    let mut node = Node::new();
    configure(&node, config);
    let mut daemon = daemon(&node, controls);
    change(&mut daemon);
    node.start_command(daemon);
    for (container, weighs, class) in containers {
        node.must_admit_with(container, "0", Bytes(GIB), |asked| {
            (asked.class, asked.weight) = (*class, Weight::new(*weighs).ok());
        });
    }
    let machine = node.machine();
    (node, machine)
}

fn config(node: &Node) -> PathBuf {
    node.root().join("gpusliced.toml")
}

/// The daemon's configuration from its next start on.
pub fn configure(node: &Node, text: &str) {
    std::fs::write(config(node), text).expect("a file");
}

/// Starts the daemon.
pub fn start(node: &mut Node, controls: &str) {
    start_with_fault(node, controls, "none");
}

/// Starts the daemon, with a fault of its driver in it and its children alone.
pub fn start_with_fault(node: &mut Node, controls: &str, fault: &str) {
    let mut command = daemon(node, controls);
    if fault != "none" {
        command.env("GPUSLICE_SIM_FAULT", fault);
    }
    node.start_command(command);
}

/// The command line of the daemon, with its configuration and a driver that answers controls in this way.
fn daemon(node: &Node, controls: &str) -> Command {
    let config = config(node).to_str().expect("plain").to_owned();
    let mut command = node.daemon_command(&["--config", &config, "--verbose"]);
    command.env("GPUSLICE_SIM", simulated(&format!("mem=16GiB,controls={controls}")));
    command
}

/// A number that `gpuslice ps --json` shows of a container.
pub fn number(node: &Node, container: &str, what: &str) -> u64 {
    shown(node, container)[what].as_u64().expect("a number")
}

/// The high one, and then the other: all that this one launches is of its own turns.
fn both(node: &Node, machine: &Machine, long_us: u64) -> (Tenant, Tenant) {
    let high = Tenant::start(node, machine, "b", 500);
    let low = Tenant::start(node, machine, "a", long_us);
    (high, low)
}

/// When a piece of a tenant's work ended, by the device's clock, and how long it took.
fn end_of(tenant: &Tenant, machine: &Machine, seq: u64) -> Option<(u64, u64)> {
    match machine.poll(tenant.context, Seq(seq)).expect("alive") {
        Status::Done { start_ns, end_ns } => Some((start_ns, end_ns)),
        _ => None,
    }
}

/// Beside a kernel of seconds the high one gets its turns at once; the kernel goes on in turns of its own,
/// ends later than it would have alone, and is paid for in full.
#[test]
fn a_long_kernel_is_stopped_and_goes_on() {
    let (node, machine) = node("on");
    let (high, low) = both(&node, &machine, LONG_US);
    let first = low.completed(&machine);
    high.gets(&machine, Duration::from_millis(100));
    assert_eq!(low.completed(&machine), first, "the high one waited for its end");
    assert!(number(&node, "a", "stops") > 0);
    stopped_only_when_late(&node, "b");
    let told = last(&node, "a", "preempted").expect("an event tells of it");
    assert!(told["gpu"].as_str().is_some_and(|gpu| gpu.starts_with("GPU-")), "{told}");
    let told = last(&node, "b", "preempted");
    assert!(told.is_none() || number(&node, "b", "stops") > 0, "{told:?}");
    for container in ["a", "b"] {
        assert_eq!(shown(&node, container)["time_enforcement"], "preempt");
    }
    // A driver that refuses to resume is asked again and again.
    faults(&machine, "refuse=resume");
    eventually("a refusal", || node.log().contains("not resumed; trying again"));
    drop(high);
    node.wait_disconnected("b");
    faults(&machine, "none");
    // Now it has the GPU to itself again, as far as it needs it.
    low.gets(&machine, Duration::from_micros(LONG_US));
    eventually("the end of a long kernel", || end_of(&low, &machine, first).is_some());
    let (began, ended) = end_of(&low, &machine, first).expect("just seen");
    assert!(ended - began > LONG_US * 1000, "it was interrupted");
    let (had, billed) = (low.busy(&machine), bill(&node, "a"));
    assert!(billed + Duration::from_millis(200) >= had, "had {had:?}, billed {billed:?}");
    assert!(!machine.is_disabled(low.context).expect("alive"));
}

/// A driver that refuses, cannot, or only reports success: everything is as without it, and no process stays
/// stopped. (After one long kernel, best effort gets no more GPU time until the classes above have had their
/// part: half, here.)
#[test]
fn without_an_effect_it_is_as_without_preemption() {
    let config = "preemption = \"probe\"\nhigh_cap = 50\nnormal_cap = 50\n";
    let containers = [("a", 1, Class::BestEffort), ("b", 1, Class::High)];
    for controls in ["denied", "unsupported", "void"] {
        let (node, machine) = node_of(config, controls, &containers);
        let (high, low) = both(&node, &machine, 300_000);
        high.gets(&machine, Duration::from_millis(50));
        let tried = || node.log().contains("not stopped on the GPU");
        eventually("a try", tried);
        high.gets(&machine, Duration::from_millis(50));
        low.gets(&machine, Duration::from_millis(20));
        assert_eq!(number(&node, "a", "stops"), 0, "{controls}");
        assert_eq!(shown(&node, "a")["time_enforcement"], "shim", "{controls}");
        assert_eq!(number(&node, "a", "time_slice_us"), 0, "{controls}");
        assert!(!machine.is_disabled(low.context).expect("alive"));
    }
}

/// Tries that have no effect end: from then on the container is waited for, and the log has that once.
#[test]
fn after_eight_failed_stops_in_a_row_none_is_tried() {
    let config = "preemption = \"probe\"\nhigh_cap = 50\nnormal_cap = 50\n";
    let containers = [("a", 1, Class::BestEffort), ("b", 1, Class::High)];
    let (node, machine) = node_of(config, "void", &containers);
    let (_high, low) = both(&node, &machine, 20_000);
    let told = || node.log().matches("cannot be stopped on the GPU; not tried again").count();
    eventually("the last try", || told() == 1);
    let missed = || number(&node, "a", "stops_missed");
    assert_eq!(missed(), 8);
    // As many late turns again.
    low.gets(&machine, Duration::from_millis(8 * 20));
    assert_eq!((missed(), told()), (8, 1));
}

/// Slow controls, and a slice that ends while its work is stopped.
#[test]
fn stopped_work_resumes_when_its_slice_ends() {
    let (node, machine) = node("slow");
    let (high, low) = both(&node, &machine, LONG_US);
    let stopped = || machine.is_disabled(low.context).expect("alive");
    eventually("a stop", stopped);
    node.dismiss("a");
    eventually("it goes on", || !stopped());
    high.gets(&machine, Duration::from_millis(20));
    drop(low);
}

/// A daemon that dies while work is stopped: the next one lets it go on, or, if none comes, the process
/// itself does. (Kernels are shorter here: those that are launched while there is no daemon are of no turn,
/// and run on beside the others' until they are over.)
#[test]
fn a_daemon_that_dies_leaves_no_process_stopped() {
    let (mut node, machine) = node("on");
    let (high, low) = both(&node, &machine, 300_000);
    let stopped = || machine.is_disabled(low.context).expect("alive");
    for round in 0..4 {
        eventually("a stop", stopped);
        node.end_daemon(Signal::SIGKILL);
        let written = node.container_dir("a").join("stopped");
        if round % 2 == 1 {
            start(&mut node, "on");
            assert!(!written.exists(), "a daemon that starts lets all go on");
        } else {
            eventually("it goes on by itself", || !stopped());
            start(&mut node, "on");
        }
        let back = || ["a", "b"].iter().all(|container| number(&node, container, "clients") == 1);
        eventually("both came back", back);
        high.gets(&machine, Duration::from_millis(20));
        low.gets(&machine, Duration::from_millis(1));
    }
    // An orderly end leaves nothing stopped either.
    eventually("a stop", stopped);
    assert!(node.end_daemon(Signal::SIGTERM).success());
    assert!(!stopped());
    assert!(!node.container_dir("a").join("stopped").exists());
}

/// Killed while it is stopped, a process is gone like any other, and the others go on.
#[test]
fn killed_while_stopped() {
    let (node, machine) = node("on");
    let high = Tenant::start(&node, &machine, "b", 500);
    for _ in 0..3 {
        let mut low = Tenant::start(&node, &machine, "a", LONG_US);
        let start = Instant::now();
        while !machine.is_disabled(low.context).expect("alive") {
            assert!(start.elapsed() < PATIENCE, "never stopped: {}", node.log());
            std::thread::sleep(Duration::from_millis(1));
        }
        let hiccups = Hiccups::of(&[&node], &[&high]);
        high.watch(&machine);
        low.child.kill().expect("ours");
        low.child.wait().expect("ours");
        std::thread::sleep(Duration::from_millis(400));
        let gap = high.longest_gap(&machine);
        let allowed = DRAIN_MAX + TURNS + hiccups.allowance();
        assert!(gap <= allowed, "held up for {gap:?}, allowed {allowed:?}");
        node.wait_refunded("a");
        let written = node.container_dir("a").join("stopped");
        eventually("its file is closed", || !written.exists());
        high.gets(&machine, Duration::from_millis(20));
    }
}
