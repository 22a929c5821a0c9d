//! Memory of many real processes at once: whatever they do and however they die, the cap holds and
//! the daemon's ledger agrees with the device.
//!
//! [`DeviceView`] is the simulated device's own account: how much is used, by which process, and the most that the
//! container ever held, which must not be above its cap (`harness/caps.rs`). Whenever all are idle, ledger and device
//! must agree. Managed memory is the one difference: a driver does not show it as a
//! process's, so the managed bytes that the programs report are added.

mod borrow;
mod churn;
mod contention;
mod full_node;
mod kills;
mod lifetimes;
mod reattach;
mod slow_context;
mod unfreed;
mod upgrades;

use crate::harness::node::Node;
use crate::harness::process::{KillOnDrop, put_in_slice};
use crate::harness::{setting, target_dir};
use gpuslice_sim_device::Machine;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const MIB: u64 = 1 << 20;
/// The device's page size; with sizes of whole pages the ledger is exact.
const PAGE: u64 = 2 * MIB;
/// The container of a test.
const CONTAINER: &str = "memory";

/// A program of this build.
fn program(name: &str) -> PathBuf {
    let path = target_dir().join(name);
    assert!(path.exists(), "{name} is not built; run packaging/stage debug");
    path
}

/// `program` in the container's slice, by preload injection and without a wrapper: the process
/// that the test starts and kills is the program itself.
fn in_slice(node: &Node, program: PathBuf) -> Command {
    in_slice_of(node, CONTAINER, program)
}

/// The same in the slice of another container.
fn in_slice_of(node: &Node, container: &str, program: PathBuf) -> Command {
    let libraries = ["libgpuslice.so", "libgpuslice_nvml.so"].map(|name| {
        let library = target_dir().join(name);
        assert!(library.exists(), "the shim is not built; run packaging/stage debug");
        library.to_str().expect("plain").to_owned()
    });
    let mut command = Command::new(program);
    put_in_slice(&mut command, node, container).env("LD_PRELOAD", libraries.join(":"));
    command
}

/// The program `churn`, which obeys commands on its standard input.
struct Tenant {
    child: KillOnDrop,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Whether it may hold memory besides its context.
    holding: bool,
}

impl Tenant {
    /// Starts one with this many threads and sizes of up to `most` pages, and waits until it is ready.
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
            child: KillOnDrop(child),
            holding: false,
        }
    }

    /// Sends a command; one to a dead process is lost.
    fn order(&mut self, order: &str) {
        let mut input = self.input.as_ref().expect("not ended");
        let _ = input.write_all(format!("{order}\n").as_bytes());
    }

    /// The next answer, or `None` if the process is dead.
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

    /// Closes its input, which ends it, and checks its exit status.
    fn end(mut self) {
        self.input = None;
        let status = self.child.wait().expect("ours");
        assert!(status.success(), "churn: {status}");
    }
}

fn numbers(answer: &str) -> Vec<u64> {
    let words = answer.split(' ').skip(1);
    words.map(|word| word.parse().expect("a number")).collect()
}

/// The simulated device, seen by an observer.
struct DeviceView(Machine);

impl DeviceView {
    fn of(node: &Node) -> DeviceView {
        DeviceView(node.machine())
    }

    /// Used bytes of GPU 0.
    fn used(&self) -> u64 {
        self.0.mem_info(0).expect("a GPU").used
    }

    /// The same without memory that is only being wiped.
    fn held(&self) -> u64 {
        self.0.mem_held(0).expect("a GPU")
    }

    /// Bytes that the device shows for its processes.
    fn shown(&self) -> u64 {
        let processes = self.0.processes(0).expect("a GPU");
        processes.iter().map(|process| process.used_bytes).sum()
    }

    /// The most that the container's processes ever held.
    fn most(&self) -> u64 {
        let mut marks = self.0.slice_marks().into_iter();
        marks.find(|mark| mark.slice == CONTAINER).expect("a process has run").most_bytes[0]
    }
}

/// A node whose container has the cap `cap`. One process has run in it before, so that the cost of
/// a context is known.
fn node(cap: u64) -> Node {
    node_of("memory", cap)
}

/// The same on the driver of another suite.
fn node_of(suite: &str, cap: u64) -> Node {
    let node = Node::start_strict(suite);
    node.must_admit(CONTAINER, gpuslice_wire::units::Bytes(cap));
    Tenant::start(&node, 1, 1, 1).end();
    node.wait_refunded(CONTAINER);
    node
}
