//! GPU time with misbehaving tenants: a process that stops, dies, lies, never answers or never ends in its turn
//! costs the others no more than the documented bound, and is charged itself.
//!
//! A tenant's GPU time is read from the simulated device's own account: the end of each piece of its work by
//! the device's clock. A *gap* is the time from one end to the next, which a program would notice as a stall.
//! The device keeps the longest one: nothing is sampled, so a test that is not run for seconds misses none.
//! A pause of the machine makes gaps longer; [`Hiccups`] measures such pauses, and the tests allow for them.

mod absence;
mod bad;
mod deadlocks;
mod events;
mod explain;
mod gang;
mod gates;
mod hangs;
pub mod helpers;
mod history;
mod loads;
mod namespaces;
mod overruns;
mod preempt;
mod slices;
mod steps;
mod strangers;
mod suspend;
mod waits;
mod wall_time;

use crate::harness::cli::{must, shown};
use crate::harness::node::Node;
use crate::harness::process::{KillOnDrop, children, put_in_slice};
use crate::harness::{PATIENCE, eventually, setting, target_dir};
use gpuslice_sim_device::{ContextId, Machine, Role};
use gpuslice_wire::units::{Bytes, GIB};
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a container that has not drained after its turn delays the others: the daemon's `drain_max`.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// The longest turns of the others come on top of any bound.
const TURNS: Duration = Duration::from_millis(60);

/// A node with two slices, `a` and `b`, and its device.
fn node() -> (Node, Machine) {
    with_slices(Node::start())
}

/// The same on the strict driver of a suite.
fn strict_node(suite: &str) -> (Node, Machine) {
    with_slices(Node::start_strict(suite))
}

/// Gives `a` and `b` a slice each.
fn with_slices(node: Node) -> (Node, Machine) {
    for container in ["a", "b"] {
        node.must_admit(container, Bytes(GIB));
    }
    let machine = node.machine();
    (node, machine)
}

/// A tenant that always wants the GPU.
struct Tenant {
    container: &'static str,
    child: KillOnDrop,
    context: ContextId,
}

impl Tenant {
    /// Starts one that launches kernels of so many microseconds, and waits until it does.
    fn start(node: &Node, machine: &Machine, container: &'static str, kernel_us: u64) -> Tenant {
        Tenant::with(node, machine, container, kernel_us, &[])
    }

    /// The same with more arguments for its program.
    fn with(
        node: &Node,
        machine: &Machine,
        container: &'static str,
        kernel_us: u64,
        words: &[&str],
    ) -> Tenant {
        let program = Command::new(target_dir().join("tenant"));
        Tenant::by(program, node, machine, container, kernel_us, words)
    }

    /// The same, started by `command`, which ends with the tenant's program.
    fn by(
        mut command: Command,
        node: &Node,
        machine: &Machine,
        container: &'static str,
        kernel_us: u64,
        words: &[&str],
    ) -> Tenant {
        command.args(["--seconds", "100000", "--step-mib", "512", "--kernel-us"]);
        command.arg(kernel_us.to_string()).args(words);
        Tenant::run(command, node, machine, container, Duration::from_micros(kernel_us.min(20_000)))
    }

    /// Starts any program in a container's slice, and waits until it has had so much GPU time.
    fn run(
        mut command: Command,
        node: &Node,
        machine: &Machine,
        container: &'static str,
        work: Duration,
    ) -> Tenant {
        let before = machine.contexts(0).expect("a GPU");
        put_in_slice(&mut command, node, container).stdout(Stdio::null());
        let child = KillOnDrop(command.spawn().expect("the tenant starts"));
        let fresh = || {
            let now = machine.contexts(0).expect("a GPU");
            now.into_iter().find(|context| !before.contains(context))
        };
        eventually("a context", || fresh().is_some());
        let context = fresh().expect("just seen");
        let tenant = Tenant { container, child, context };
        eventually("work", || tenant.busy(machine) > work);
        tenant
    }

    /// Its GPU time so far.
    fn busy(&self, machine: &Machine) -> Duration {
        let info = machine.context_info(self.context);
        Duration::from_nanos(info.map_or(0, |info| info.busy_ns))
    }

    /// The number of mappings of its claims: one more where the GPU reads them.
    fn claims(&self) -> usize {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id()));
        maps.expect("alive").matches("gpuslice-client").count()
    }

    fn completed(&self, machine: &Machine) -> u64 {
        machine.context_info(self.context).expect("alive").completed
    }

    /// Watches for gaps from now on.
    fn watch(&self, machine: &Machine) {
        machine.watch_gaps(self.context).expect("alive");
    }

    /// The longest gap since then; one that lasts counts up to now.
    fn longest_gap(&self, machine: &Machine) -> Duration {
        Duration::from_nanos(machine.longest_gap_ns(self.context).expect("alive"))
    }

    /// Waits until it has had so much more GPU time.
    fn gets(&self, machine: &Machine, more: Duration) {
        let before = self.busy(machine);
        let start = Instant::now();
        while self.busy(machine) < before + more {
            let waited = start.elapsed();
            assert!(waited < 2 * PATIENCE, "{} stands still", self.container);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(self.pid(), signal).expect("ours");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Stops it outside the simulated driver; inside, it would block the device for all.
    fn stop(&self, machine: &Machine) {
        for _ in 0..1_000 {
            self.signal(Signal::SIGSTOP);
            // All its threads have stopped later than the signal.
            waitid(Id::Pid(self.pid()), WaitPidFlag::WSTOPPED).expect("it stops");
            if !machine.is_inside(self.pid().as_raw()) {
                return;
            }
            self.signal(Signal::SIGCONT);
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{} never leaves the driver", self.container);
    }
}

/// A stall that has no end while it is watched must not pass.
#[test]
fn a_stall_counts_before_it_ends() {
    let node = Node::start();
    let machine = node.machine_as(Role::Driver);
    let context = machine.context_create(0).expect("a context");
    machine.watch_gaps(context).expect("alive");
    std::thread::sleep(Duration::from_millis(20));
    assert!(machine.longest_gap_ns(context).expect("alive") >= 20_000_000);
}

/// Pauses of this machine: the longest delay of a thread that sleeps for a millisecond, and how long threads of
/// processes waited for a processor in the worst second.
struct Hiccups {
    stop: Arc<AtomicBool>,
    worst: Arc<[AtomicU64; 2]>,
    thread: Option<JoinHandle<()>>,
}

impl Hiccups {
    /// Watches from now on, with the run delays of these tenants and of the daemon of these nodes.
    fn of(nodes: &[&Node], tenants: &[&Tenant]) -> Hiccups {
        let pids = nodes.iter().map(|node| node.pid()).chain(tenants.iter().map(|it| it.pid()));
        // A tenant may be a child of its command.
        let pids: Vec<Pid> = pids.flat_map(|pid| [vec![pid], children(pid)].concat()).collect();
        let (stop, worst) = (Arc::<AtomicBool>::default(), Arc::<[AtomicU64; 2]>::default());
        let (ended, seen) = (stop.clone(), worst.clone());
        let thread = std::thread::spawn(move || {
            let mut second = VecDeque::from([(Instant::now(), run_delays(&pids))]);
            while !ended.load(Relaxed) {
                let start = Instant::now();
                std::thread::sleep(Duration::from_millis(1));
                seen[0].fetch_max(start.elapsed().as_nanos() as u64, Relaxed);
                if second[second.len() - 1].0.elapsed() > Duration::from_millis(20) {
                    second.push_back((Instant::now(), run_delays(&pids)));
                    let (then, now) = (&second[0].1, &second[second.len() - 1].1);
                    // A process that has ended has none, and hides no other one's.
                    let grown = now.iter().zip(then).map(|(now, then)| now.saturating_sub(*then));
                    seen[1].fetch_max(grown.sum(), Relaxed);
                    if second[0].0.elapsed() > Duration::from_secs(1) {
                        second.pop_front();
                    }
                }
            }
        });
        Hiccups { stop, worst, thread: Some(thread) }
    }

    /// Several threads have to run one after the other until work goes on.
    fn allowance(&self) -> Duration {
        let [pause, delay] = [0, 1].map(|at| Duration::from_nanos(self.worst[at].load(Relaxed)));
        4 * pause + delay.min(DELAY_MAX)
    }
}

/// The most of these waits that is allowed for: a program that computes without an end makes others wait for longer.
const DELAY_MAX: Duration = Duration::from_millis(500);

/// The same allowance for a daemon that was started in the meantime: the waits of its threads since then.
fn delay_of_new_daemon(node: &Node) -> Duration {
    Duration::from_nanos(run_delays(&[node.pid()]).iter().sum()).min(DELAY_MAX)
}

/// How long the threads of each of these processes have waited for a processor, ns.
fn run_delays(pids: &[Pid]) -> Vec<u64> {
    let delay = |task: std::fs::DirEntry| -> Option<u64> {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse().ok()
    };
    let of = |pid: &Pid| {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok();
        tasks.into_iter().flatten().flatten().filter_map(delay).sum()
    };
    pids.iter().map(of).collect()
}

impl Drop for Hiccups {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// GPU time charged to a container so far.
fn bill(node: &Node, container: &str) -> Duration {
    Duration::from_nanos(shown(node, container)["gpu_ns"].as_u64().expect("a number"))
}

/// How often a container was not quiet in time after a turn of its own.
fn late_turns(node: &Node, container: &str) -> u64 {
    shown(node, container)["late_turns"].as_u64().expect("a number")
}

/// Asserts that a container's work was stopped, or to be stopped, in late turns of its own alone: a machine that stands
/// still lets an honest one be late.
fn stopped_only_when_late(node: &Node, container: &str) {
    let now = shown(node, container);
    let [stops, missed] = ["stops", "stops_missed"].map(|what| now[what].as_u64());
    let stops = stops.zip(missed).map(|(stops, missed)| stops + missed).expect("numbers");
    let late = late_turns(node, container);
    assert!(stops <= late, "{container} was stopped {stops} times and late {late} times");
}

/// The ratio of the heavy one's GPU time to the light one's settles, over stretches in which the light one has 1 s.
fn ratio_settles(machine: &Machine, light: &Tenant, heavy: &Tenant, range: Range<f64>) {
    let ratio = || {
        let got = during(machine, &[light, heavy], Duration::from_secs(1));
        got[1] / got[0]
    };
    settles("the ratio of two", ratio, |ratio| range.contains(ratio));
}

/// GPU time of each over a time in which the first one has had so much.
fn during(machine: &Machine, tenants: &[&Tenant], first: Duration) -> Vec<f64> {
    let look = || tenants.iter().map(|tenant| tenant.busy(machine)).collect::<Vec<_>>();
    let before = look();
    tenants[0].gets(machine, first);
    look().iter().zip(&before).map(|(now, then)| (*now - *then).as_secs_f64()).collect()
}

/// Measures up to twenty times, until what was measured `fits` twice in a row: weights and shares hold in the long run,
/// and a machine that stands still disturbs one stretch. Where they do not hold, one stretch may fit by chance.
fn settles<T: std::fmt::Debug>(
    what: &str,
    mut measure: impl FnMut() -> T,
    fits: impl Fn(&T) -> bool,
) -> T {
    let mut seen = Vec::new();
    while seen.len() < 20 {
        let got = measure();
        if fits(&got) && seen.last().is_some_and(&fits) {
            return got;
        }
        seen.push(got);
    }
    panic!("{what}: {seen:?}");
}
