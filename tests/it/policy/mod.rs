//! The six policies with real processes, judged by the simulated device's own account.
//!
//! The bounds are wide, because tests share their machine; they distinguish one policy from another.
//! `make bench` has the exact figures.

mod live;
mod words;

use crate::harness::node::Node;
use crate::harness::{PATIENCE, cli, eventually, target_dir};
use gpuslice_sim_device::{ContextId, Machine};
use serde_json::Value;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

/// The time over which parts are measured.
const SPAN: Duration = Duration::from_millis(2_000);
/// The burst that a limited tenant may have saved, and one long turn, as a part of `SPAN`.
const BURST: f64 = 0.06;
/// The part of its GPU time that a tenant may miss while it waits for a CPU of this machine.
const LATE: f64 = 0.5;

/// A node, and its device as an observer sees it.
struct Stage {
    node: Node,
    machine: Machine,
}

/// A tenant under `gpuslice run`; ended when dropped.
struct Tenant {
    child: Child,
    context: ContextId,
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

impl Stage {
    fn new() -> Stage {
        let node = Node::start();
        let machine = node.machine();
        Stage { node, machine }
    }

    /// `gpuslice WORDS` on this node, to its end.
    fn gpuslice(&self, words: &[&str]) -> Output {
        cli::gpuslice(&self.node, words)
    }

    /// The same, which must succeed; returns its output.
    fn must(&self, words: &[&str]) -> String {
        cli::must(&self.node, words)
    }

    fn ps(&self) -> Value {
        cli::json(&self.node, &["ps", "--json"])
    }

    /// A slice's row.
    fn slice(&self, name: &str) -> Value {
        let view = self.ps();
        let all = view["slices"].as_array().expect("slices");
        let found = all.iter().find(|slice| slice["name"] == name).cloned();
        found.unwrap_or_else(|| panic!("no slice {name}: {view}"))
    }

    /// Starts a tenant on GPU 0 that launches kernels of 2 ms, or none with `--idle`.
    fn tenant(&self, name: &str, slice: &[&str], work: &[&str]) -> Tenant {
        let contexts = || self.machine.contexts(0).expect("GPU 0");
        let before = contexts();
        let words = ["run", "--quiet", "--memory", "1GiB", "--gpus", "0", "--name", name];
        let mut command = cli::command(&self.node, &[&words[..], slice].concat());
        command.arg("--").arg(target_dir().join("tenant"));
        command.args(["--seconds", "600", "--kernel-us", "2000", "--step-mib", "512"]);
        command.args(work).stdout(Stdio::null());
        let child = command.spawn().expect("gpuslice starts");
        let new = || contexts().into_iter().find(|id| !before.contains(id));
        eventually("the tenant has a context", || new().is_some());
        let context = new().expect("a context");
        Tenant { child, context }
    }

    fn busy(&self, tenants: &[&Tenant]) -> Vec<u64> {
        let busy = |tenant: &&Tenant| {
            let info = self.machine.context_info(tenant.context);
            info.expect("a living tenant").busy_ns
        };
        tenants.iter().map(busy).collect()
    }

    /// The tenants' parts of the GPU time, a while after a change.
    fn parts(&self, tenants: &[&Tenant]) -> Vec<f64> {
        std::thread::sleep(Duration::from_millis(300));
        let (start, before) = (gpuslice_sim_device::now_ns(), self.busy(tenants));
        std::thread::sleep(SPAN);
        let (after, end) = (self.busy(tenants), gpuslice_sim_device::now_ns());
        let gained = after.iter().zip(before).map(|(now, then)| now - then);
        gained.map(|ns| ns as f64 / (end - start) as f64).collect()
    }

    /// Waits until the tenants get parts that `fit`; repeats the measurement on a busy machine.
    fn settles(&self, what: &str, tenants: &[&Tenant], fit: impl Fn(&[f64]) -> bool) {
        let start = std::time::Instant::now();
        let mut parts = self.parts(tenants);
        while !fit(&parts) {
            assert!(start.elapsed() < PATIENCE, "{what}: {parts:?}");
            parts = self.parts(tenants);
        }
        eprintln!("{what}: {parts:?}");
    }
}

/// Whether a tenant gets its due part and, if that is its limit, no more.
fn is(part: f64, due: f64) -> bool {
    (due * LATE..=due + BURST).contains(&part)
}
