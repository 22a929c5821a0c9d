//! Many real processes at once: whatever they do and however they die, the cap holds and the books
//! agree with the device.
//!
//! The *truth* is the simulated device's own: what it says is used, and by which process. The books
//! are the daemon's. While everything runs a watcher looks at the device a thousand times a
//! second; whenever everything rests, both must say the same. Managed memory is the one difference:
//! a driver does not show it as a process's, so what the programs say they have of it is added.

mod apart;
mod births;
mod cap;
mod churn;
mod kills;

use crate::harness::node::Node;
use crate::harness::target_dir;
use gpuslice_sim_device::{Machine, Role};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// The device's memory comes in pages of this; sizes that are whole pages make the books exact.
const PAGE: u64 = 2 * MIB;
/// The container of a test.
const WHO: &str = "racers";

/// A program of this build.
fn program(name: &str) -> PathBuf {
    let path = target_dir().join(name);
    assert!(
        path.exists(),
        "{name} is not built; run packaging/stage debug"
    );
    path
}

/// `program` in the container's slice, by preload injection, without anything around it: what
/// the test starts and kills is the process itself.
fn in_slice(node: &Node, program: PathBuf) -> Command {
    let driver = node.root().join("driver");
    let libraries = ["libgpuslice.so", "libgpuslice_nvml.so"].map(|name| {
        let library = target_dir().join(name);
        assert!(
            library.exists(),
            "the shim is not built; run packaging/stage debug"
        );
        library.to_str().expect("plain").to_owned()
    });
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", libraries.join(":"))
        .env(
            "GPUSLICE_SOCKET",
            node.container_dir(WHO).join("tenant.sock"),
        )
        .env("GPUSLICE_DRIVER_DIR", &driver)
        .env("LD_LIBRARY_PATH", &driver)
        .env("GPUSLICE_SIM_DEVICE", node.root().join("device"));
    command
}

/// The program `churn`, which does what it is told.
struct Tenant {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Whether it may have memory beside its context.
    holding: bool,
}

impl Tenant {
    /// One with this many threads, and sizes of up to `most` pages.
    fn start(node: &Node, seed: u64, threads: u64, most: u64) -> Tenant {
        let mut tenant = Tenant::spawn(node, seed, threads, most);
        assert_eq!(tenant.answer().as_deref(), Some("ready"));
        tenant
    }

    /// The same, which may not be ready yet.
    fn spawn(node: &Node, seed: u64, threads: u64, most: u64) -> Tenant {
        Tenant::spawn_of(node, seed, threads, most, "012345")
    }

    /// The same with these kinds of memory.
    fn spawn_of(node: &Node, seed: u64, threads: u64, most: u64, kinds: &str) -> Tenant {
        let mut command = in_slice(node, program("churn"));
        command.args([seed, threads, PAGE, most].map(|number| number.to_string()));
        command.arg(kinds);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Tenant::of(command.spawn().expect("churn starts"))
    }

    /// A churn with pipes.
    fn of(mut child: Child) -> Tenant {
        Tenant {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().expect("piped")),
            child,
            holding: false,
        }
    }

    /// Gives an order; one to the dead is lost.
    fn order(&mut self, order: &str) {
        let mut input = self.input.as_ref().expect("not ended");
        let _ = input.write_all(format!("{order}\n").as_bytes());
    }

    /// What it answers, or `None` when it is dead.
    fn answer(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).expect("text");
        (read > 0).then(|| line.trim_end().to_owned())
    }

    fn ask(&mut self, order: &str) -> String {
        self.order(order);
        let answer = self.answer();
        answer.unwrap_or_else(|| panic!("{order}: it ended with {:?}", self.child.wait()))
    }

    /// The numbers of an answer.
    fn numbers(&mut self, order: &str) -> Vec<u64> {
        numbers(&self.ask(order))
    }

    fn kill(&mut self) {
        self.child.kill().expect("ours");
        self.child.wait().expect("ours");
    }

    /// Lets it end by itself.
    fn end(mut self) {
        self.input = None;
        let status = self.child.wait().expect("ours");
        assert!(status.success(), "churn: {status}");
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn numbers(answer: &str) -> Vec<u64> {
    let words = answer.split(' ').skip(1);
    words.map(|word| word.parse().expect("a number")).collect()
}

/// The device as it is.
struct Truth(Machine);

impl Truth {
    fn of(node: &Node) -> Truth {
        let device = node.root().join("device");
        Truth(Machine::open(&device, Role::Observer).expect("the node's device"))
    }

    /// All that is used of GPU 0.
    fn used(&self) -> u64 {
        self.0.mem_info(0).expect("a GPU").used
    }

    /// The same without what is only being wiped.
    fn held(&self) -> u64 {
        self.0.mem_held(0).expect("a GPU")
    }

    /// What its processes are shown to use.
    fn shown(&self) -> u64 {
        let processes = self.0.processes(0).expect("a GPU");
        processes.iter().map(|process| process.used_bytes).sum()
    }

    /// The same without those that are just dying.
    fn shown_of_living(&self) -> u64 {
        let processes = self.0.processes(0).expect("a GPU");
        let living = processes.iter().filter(|process| lives(process.pid));
        living.map(|process| process.used_bytes).sum()
    }
}

/// Whether a process still has memory of its own: the first thing that one who dies gives up,
/// before its files and sockets.
fn lives(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| status.contains("VmSize:"))
}

/// Looks at the device all the time.
struct Watcher {
    stop: Arc<AtomicBool>,
    most: Arc<[AtomicU64; 2]>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    fn start(node: &Node) -> Watcher {
        let (stop, most) = (
            Arc::<AtomicBool>::default(),
            Arc::<[AtomicU64; 2]>::default(),
        );
        let (truth, ended, seen) = (Truth::of(node), stop.clone(), most.clone());
        let thread = std::thread::spawn(move || {
            while !ended.load(Relaxed) {
                seen[0].fetch_max(truth.held(), Relaxed);
                seen[1].fetch_max(truth.shown_of_living(), Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Watcher {
            stop,
            most,
            thread: Some(thread),
        }
    }

    /// The most that was ever used, of the whole device and by living processes.
    fn most(&self) -> (u64, u64) {
        (self.most[0].load(Relaxed), self.most[1].load(Relaxed))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A number from the environment: more of it makes a soak.
fn setting(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(otherwise, |text| text.parse().expect("a number"))
}

/// A node whose container may have `cap`, and in which one process has run before, so that what a
/// context costs has been seen.
fn node(cap: u64) -> Node {
    let node = Node::start();
    node.must_admit(WHO, gpuslice_wire::units::Bytes(cap));
    Tenant::start(&node, 1, 1, 1).end();
    node.wait_refunded(WHO);
    node
}
