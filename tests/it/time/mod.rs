//! GPU time among those who do not play fair: who stops, dies, lies, never answers or never ends in its
//! turn costs the others no more than the documented bound, and pays itself.
//!
//! What a tenant got is read from the simulated device's own records: when each piece of its work ended, by
//! the device's clock. A *gap* is the time from one end to the next: what a program would notice as
//! standing still. On a machine that stands still itself, gaps grow; how long it did is measured beside
//! ([`Hiccups`]) and allowed for.

mod absence;
mod bad;
mod deadlocks;
mod gang;
mod gates;
mod namespaces;
mod preempt;
mod slices;
mod steps;
mod strangers;
mod waits;

use crate::harness::node::Node;
use crate::harness::{PATIENCE, eventually, target_dir};
use gpuslice_sim_device::{ContextId, Machine, Role, Seq, Status};
use gpuslice_wire::units::{Bytes, GIB};
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A container whose turn is over and whose work is not holds the others up for so long: the daemon's own
/// bound (`drain_max`).
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// The longest turns of the others come on top of any bound.
const TURNS: Duration = Duration::from_millis(60);

/// A number from the environment: more of it makes a soak.
fn setting(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(otherwise, |text| text.parse().expect("a number"))
}

/// A node with two slices, `a` and `b`, and its device.
fn node() -> (Node, Machine) {
    let node = Node::start();
    for who in ["a", "b"] {
        node.must_admit(who, Bytes(GIB));
    }
    let device = node.root().join("device");
    let truth = Machine::open(&device, Role::Observer).expect("the node's device");
    (node, truth)
}

/// A tenant that always wants the GPU.
struct Tenant {
    who: &'static str,
    child: Child,
    context: ContextId,
}

impl Tenant {
    /// One that launches kernels of so many microseconds, and has begun to.
    fn start(node: &Node, truth: &Machine, who: &'static str, kernel_us: u64) -> Tenant {
        Tenant::with(node, truth, who, kernel_us, &[])
    }

    /// The same with more words for its program.
    fn with(
        node: &Node,
        truth: &Machine,
        who: &'static str,
        kernel_us: u64,
        words: &[&str],
    ) -> Tenant {
        let program = Command::new(target_dir().join("tenant"));
        Tenant::by(program, node, truth, who, kernel_us, words)
    }

    /// The same, started by `command`, which ends with the tenant's program.
    fn by(
        mut command: Command,
        node: &Node,
        truth: &Machine,
        who: &'static str,
        kernel_us: u64,
        words: &[&str],
    ) -> Tenant {
        let driver = node.root().join("driver");
        let before = truth.contexts(0).expect("a GPU");
        command
            .args(["--seconds", "100000", "--step-mib", "512", "--kernel-us"])
            .arg(kernel_us.to_string())
            .args(words)
            .env("LD_PRELOAD", target_dir().join("libgpuslice.so"))
            .env(
                "GPUSLICE_SOCKET",
                node.container_dir(who).join("tenant.sock"),
            )
            .env("GPUSLICE_DRIVER_DIR", &driver)
            .env("LD_LIBRARY_PATH", &driver)
            .env("GPUSLICE_SIM_DEVICE", node.root().join("device"))
            .stdout(Stdio::null());
        let child = command.spawn().expect("the tenant starts");
        let fresh = || {
            let now = truth.contexts(0).expect("a GPU");
            now.into_iter().find(|context| !before.contains(context))
        };
        eventually("a context", || fresh().is_some());
        let context = fresh().expect("just seen");
        let tenant = Tenant {
            who,
            child,
            context,
        };
        eventually("work", || {
            tenant.busy(truth) > Duration::from_micros(kernel_us.min(20_000))
        });
        tenant
    }

    /// How long it has had the GPU.
    fn busy(&self, truth: &Machine) -> Duration {
        let info = truth.context_info(self.context);
        Duration::from_nanos(info.map_or(0, |info| info.busy_ns))
    }

    /// How often its claims are mapped: once more where the GPU reads them.
    fn claims(&self) -> usize {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id()));
        maps.expect("alive").matches("gpuslice-client").count()
    }

    fn completed(&self, truth: &Machine) -> u64 {
        truth.context_info(self.context).expect("alive").completed
    }

    /// Waits until it has got so much more of the GPU.
    fn gets(&self, truth: &Machine, more: Duration) {
        let before = self.busy(truth);
        let start = Instant::now();
        while self.busy(truth) < before + more {
            let waited = start.elapsed();
            assert!(waited < 2 * PATIENCE, "{} stands still", self.who);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(self.pid(), signal).expect("ours");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Stops it, outside the simulated driver: there it would stop the device for all.
    fn stop(&self, truth: &Machine) {
        for _ in 0..1_000 {
            self.signal(Signal::SIGSTOP);
            waitid(Id::Pid(self.pid()), WaitPidFlag::WSTOPPED).expect("it stops");
            if !truth.is_inside(self.pid().as_raw()) {
                return;
            }
            self.signal(Signal::SIGCONT);
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{} never leaves the driver", self.who);
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the ends of a tenant's work as they come.
struct Ends {
    context: ContextId,
    next: u64,
    last: u64,
    longest: u64,
}

impl Ends {
    /// From now on.
    fn of(tenant: &Tenant, truth: &Machine) -> Ends {
        Ends {
            context: tenant.context,
            next: tenant.completed(truth),
            last: 0,
            longest: 0,
        }
    }

    /// The longest gap so far, that between the last end and now not counted.
    fn longest_gap(&mut self, truth: &Machine) -> Duration {
        let completed = truth.context_info(self.context).expect("alive").completed;
        // Of older ones the times are not kept.
        assert!(completed - self.next < 4096, "looked too seldom");
        for seq in self.next..completed {
            let Ok(Status::Done { end_ns, .. }) = truth.poll(self.context, Seq(seq)) else {
                panic!("{seq} is completed");
            };
            if self.last > 0 {
                self.longest = self.longest.max(end_ns.saturating_sub(self.last));
            }
            self.last = end_ns;
        }
        self.next = completed;
        Duration::from_nanos(self.longest)
    }
}

/// How long this machine stood still: the longest a thread overslept that wanted to sleep a millisecond.
struct Hiccups {
    stop: Arc<AtomicBool>,
    worst: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Hiccups {
    fn watch() -> Hiccups {
        let (stop, worst) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (ended, seen) = (stop.clone(), worst.clone());
        let thread = std::thread::spawn(move || {
            while !ended.load(Relaxed) {
                let start = Instant::now();
                std::thread::sleep(Duration::from_millis(1));
                seen.fetch_max(start.elapsed().as_nanos() as u64, Relaxed);
            }
        });
        Hiccups {
            stop,
            worst,
            thread: Some(thread),
        }
    }

    /// Several threads have to run one after the other until work goes on.
    fn allowance(&self) -> Duration {
        4 * Duration::from_nanos(self.worst.load(Relaxed))
    }
}

impl Drop for Hiccups {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// `gpuslice WORDS` on this node.
fn must(node: &Node, words: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
    let output = command.args(words).arg("--runtime-dir");
    let output = output.arg(node.runtime_dir()).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
}

/// What `gpuslice ps --json` shows of a container.
fn shown(node: &Node, who: &str) -> Value {
    let mut ps = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
    ps.args(["ps", "--json", "--runtime-dir"]);
    let output = ps.arg(node.runtime_dir()).output().expect("it starts");
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let slices = all["slices"].as_array().expect("a list");
    let found = slices.iter().find(|slice| slice["container"] == who);
    found.expect("a slice").clone()
}

/// GPU time that a container was charged so far.
fn bill(node: &Node, who: &str) -> Duration {
    Duration::from_nanos(shown(node, who)["gpu_ns"].as_u64().expect("a number"))
}

/// How often a container was not quiet in time after a turn of its own.
fn overruns(node: &Node, who: &str) -> u64 {
    shown(node, who)["overruns"].as_u64().expect("a number")
}
