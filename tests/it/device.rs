//! The simulated GPU under real processes: the control experiment of every claim about shares, and the effect of
//! configured faults on the program, its neighbour and NVML's listeners.

use crate::harness::node::Node;
use crate::harness::process::{KillOnDrop, put_on_device};
use crate::harness::{PATIENCE, eventually, target_dir};
use gpuslice_sim_device::{ContextId, Machine};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// A program of a node's simulated GPU, as if that were the machine's.
fn on_device(program: &Path, node: &Node) -> Command {
    let mut command = Command::new(program);
    put_on_device(&mut command, node)
        .env("GPUSLICE_SIM", "mem=4GiB")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Words for a tenant that only computes. Its kernels are long and many, so that its queue does not run empty while a
/// busy machine lets the tenant wait for a second.
fn busy(seconds: &str) -> [&str; 8] {
    ["--seconds", seconds, "--kernel-us", "10000", "--step-mib", "1000000", "--batch", "100"]
}

/// A tenant without a slice.
fn bare(node: &Node) -> KillOnDrop {
    let mut command = on_device(&target_dir().join("tenant"), node);
    KillOnDrop(command.args(busy("60")).spawn().expect("a tenant"))
}

/// Device time of each context.
fn busy_ns(machine: &Machine) -> Vec<(ContextId, u64)> {
    let contexts = machine.contexts(0).expect("GPU 0");
    let busy = |id| Some((id, machine.context_info(id).ok()?.busy_ns));
    contexts.into_iter().filter_map(busy).collect()
}

/// The contexts' parts of what all had in a second and a half.
fn parts(machine: &Machine) -> Vec<f64> {
    let before = busy_ns(machine);
    std::thread::sleep(Duration::from_millis(1500));
    let gains: Vec<u64> = busy_ns(machine)
        .into_iter()
        .zip(before)
        .map(|((id, now), (same, then))| {
            assert_eq!(id, same, "a tenant ended");
            now - then
        })
        .collect();
    let all: u64 = gains.iter().sum();
    gains.iter().map(|gain| *gain as f64 / all as f64).collect()
}

/// Without slices GPU time goes to contexts in equal parts, so a tenant with two contexts gets twice as much.
#[test]
fn without_slices_every_context_gets_the_same_time() {
    let node = Node::new();
    let mut tenants = vec![bare(&node), bare(&node)];
    eventually("the device", || node.root().join("device/node/state").exists());
    let machine = node.machine();
    for contexts in [2, 3] {
        eventually("work of all", || {
            let busy = busy_ns(&machine);
            busy.len() == contexts && busy.iter().all(|(_, ns)| *ns > 0)
        });
        let fair = 1.0 / contexts as f64;
        let is_fair = |parts: &Vec<f64>| parts.iter().all(|it| (it - fair).abs() < fair / 5.0);
        // A tenant that stands still for longer loses its part of that time.
        let windows: Vec<_> = (0..3).map(|_| parts(&machine)).collect();
        assert!(windows.iter().filter(|it| is_fair(it)).count() >= 2, "{windows:?}");
        // Another process of the second tenant's.
        tenants.push(bare(&node));
    }
}

/// The role this process plays in the test below when it is started by it.
const LISTENER: &str = "GPUSLICE_IT_LISTENER";

/// Says so when it listens, and what it has heard.
fn listen(driver: &Path) {
    let nvml = nvml_wrapper::Nvml::builder()
        .lib_path(driver.join("libnvidia-ml.so.1").as_os_str())
        .init()
        .expect("NVML");
    let device = nvml.device_by_index(0).expect("GPU 0");
    let set = nvml.create_event_set().expect("a set");
    let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).expect("Xids");
    println!("\nlistening");
    let event = set.wait(2 * PATIENCE.as_millis() as u32).expect("an event");
    match event.event_data {
        Some(XidError::Value(xid)) => println!("\nxid {xid}"),
        other => panic!("{other:?}"),
    }
}

/// A tenant in a slice of the node's daemon.
fn sliced(node: &Node, name: &str, seconds: &str) -> Command {
    let mut command = on_device(Path::new(env!("CARGO_BIN_EXE_gpuslice")), node);
    // The shim finds the driver through the daemon.
    command.env_remove("LD_LIBRARY_PATH");
    command.args(["run", "--gpus", "0", "--memory", "1GiB", "--name", name]);
    command.arg("--runtime-dir");
    command.arg(node.runtime_dir()).arg("--");
    command.arg(target_dir().join("tenant")).args(busy(seconds));
    command
}

/// An Xid ends one context: its program gets an error, its slice is released, NVML's listeners get the event, and
/// the neighbour loses nothing.
#[test]
fn a_fault_kills_one_context_only() {
    if let Some(driver) = std::env::var_os(LISTENER) {
        return listen(Path::new(&driver));
    }
    let node = Node::start();
    let mut listener = on_device(&std::env::current_exe().expect("this program"), &node);
    listener.args(["--exact", "device::a_fault_kills_one_context_only", "--nocapture"]);
    listener.env(LISTENER, node.root().join("driver"));
    let mut listener = KillOnDrop(listener.spawn().expect("a listener"));
    let lines = BufReader::new(listener.0.stdout.take().expect("piped")).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line == "listening"), "nobody listens");

    let machine = node.machine();
    let neighbour = sliced(&node, "neighbour", "3").spawn().expect("it starts");
    eventually("work of the neighbour", || busy_ns(&machine).iter().any(|(_, ns)| *ns > 0));
    let mut broken = sliced(&node, "broken", "60");
    let broken = broken.env("GPUSLICE_SIM_FAULT", "xid:31@launch=40");
    let broken = broken.output().expect("it starts");
    let said = String::from_utf8_lossy(&broken.stderr);
    assert!(!broken.status.success() && said.contains("answered 700"), "{broken:?}");
    assert!(lines.any(|line| line == "xid 31"), "NVML says nothing");

    let neighbour: Output = neighbour.wait_with_output().expect("it ends");
    assert!(neighbour.status.success(), "{neighbour:?}");
    let text = String::from_utf8_lossy(&neighbour.stdout);
    let end = text.lines().last().and_then(|line| serde_json::from_str::<Value>(line).ok());
    let end = end.expect("the neighbour's last word");
    assert_eq!((&end["event"], &end["launched"]), (&"end".into(), &end["finished"]));
    eventually("both slices given back", || node.containers().is_empty());
}

/// An invalid simulated GPU: the program that starts explains the error and makes nothing.
#[test]
fn an_invalid_simulated_gpu_is_explained() {
    for (key, value, words) in [
        ("GPUSLICE_SIM", "mem=7parsecs", "`mem=7parsecs`: expected"),
        ("GPUSLICE_SIM", "devices=2,colour=red", "`colour=red`: expected one of the keys"),
        ("GPUSLICE_SIM_FAULT", "xid", "`fault=xid`: expected"),
    ] {
        let node = Node::new();
        let mut run = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
        run.args(["run", "--memory", "1GiB", "--driver-dir"]);
        run.arg(node.root().join("driver")).args(["--", "true"]);
        run.env_remove("GPUSLICE_SIM_DEVICE").stdin(Stdio::null());
        for mut command in [node.daemon_command(&[]), run] {
            let output = command.env(key, value).stderr(Stdio::piped()).output();
            let output = output.expect("it starts");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && said.contains(words), "{key}: {output:?}");
        }
        assert!(!node.root().join("device/node/state").exists(), "{key}");
    }
}
