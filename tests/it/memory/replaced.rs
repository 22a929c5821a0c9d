//! The daemon is replaced while processes allocate: stopped as for an upgrade, or killed; each time the program's file
//! is another one. No allocation fails, and no process loses what it holds.
//!
//! `UPGRADES` sets the number of rounds. The time from the new daemon's readiness to the first grant of each process is
//! printed; it is promised for a quiet machine, which this test does not ask for.

use super::{CONTAINER, DeviceView, MIB, Tenant, node, setting};
use crate::harness::eventually;
use crate::harness::node::Node;
use nix::sys::signal::Signal;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const CAP: u64 = 512 * MIB;
/// What each process keeps all the time.
const KEPT: u64 = 16 * MIB;
/// What it takes and gives back: more than its credit, so that each time the daemon is asked.
const TAKEN: u64 = 96 * MIB;
const PROCESSES: u64 = 3;

/// A process that takes and gives back memory without a pause.
struct Load {
    stop: Arc<AtomicBool>,
    /// Allocations so far.
    done: Arc<AtomicU64>,
    thread: JoinHandle<(Tenant, Vec<u64>)>,
}

impl Load {
    fn start(node: &Node, seed: u64) -> Load {
        let mut keeper = Tenant::start(node, seed, 1, 1);
        assert_eq!(keeper.numbers(&format!("take {KEPT}"))[0], 0);
        let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (ended, count) = (Arc::clone(&stop), Arc::clone(&done));
        let thread = std::thread::spawn(move || {
            let mut failures = Vec::new();
            while !ended.load(SeqCst) {
                let result = keeper.numbers(&format!("take {TAKEN}"))[0];
                if result != 0 {
                    failures.push(result);
                }
                count.fetch_add(1, SeqCst);
                assert_eq!(keeper.ask("drop"), "dropped");
                let kept = keeper.numbers(&format!("take {KEPT}"))[0];
                if kept != 0 {
                    failures.push(kept);
                }
            }
            (keeper, failures)
        });
        Load { stop, done, thread }
    }

    /// Ends it, and returns its process and the results of allocations that failed.
    fn end(self) -> (Tenant, Vec<u64>) {
        self.stop.store(true, SeqCst);
        self.thread.join().expect("no allocation breaks the process")
    }
}

/// The daemon's command line with the program in `file`, which is a new file after each call.
fn another_program(node: &Node, file: &Path) -> Command {
    let usual = node.daemon_command(&[]);
    let new = file.with_extension("new");
    fs::copy(usual.get_program(), &new).expect("a copy");
    fs::rename(&new, file).expect("replaced");
    let mut command = Command::new(file);
    command.args(usual.get_args()).stdin(Stdio::null());
    for (name, value) in usual.get_envs() {
        command.env(name, value.expect("set"));
    }
    command
}

/// From now until each load has been granted memory.
fn first_grants(loads: &[Load]) -> Vec<Duration> {
    let ready = Instant::now();
    let before: Vec<u64> = loads.iter().map(|load| load.done.load(SeqCst)).collect();
    let mut grants: Vec<Option<Duration>> = vec![None; loads.len()];
    eventually("a grant for each process", || {
        for (at, load) in loads.iter().enumerate() {
            if load.done.load(SeqCst) > before[at] {
                grants[at].get_or_insert(ready.elapsed());
            }
        }
        grants.iter().all(Option::is_some)
    });
    grants.into_iter().flatten().collect()
}

#[test]
fn a_daemon_replaced_under_load_fails_no_allocation() {
    let mut node = node(CAP);
    let device = DeviceView::of(&node);
    let file = node.root().join("gpusliced");
    let loads: Vec<Load> = (1..=PROCESSES).map(|seed| Load::start(&node, seed)).collect();
    let mut grants = Vec::new();
    for round in 0..setting("UPGRADES", 6) {
        std::thread::sleep(Duration::from_millis(60));
        node.end_daemon(if round % 2 == 0 { Signal::SIGTERM } else { Signal::SIGKILL });
        let command = another_program(&node, &file);
        node.start_command(command);
        grants.extend(first_grants(&loads));
        assert!(device.held() <= CAP, "round {round}");
        let connected = || node.slice(CONTAINER).map(|(_, clients)| u64::from(clients));
        eventually("all processes", || connected() == Some(PROCESSES));
    }
    for load in loads {
        let (tenant, failures) = load.end();
        assert!(failures.is_empty(), "results of failed allocations: {failures:?}");
        tenant.end();
    }
    node.wait_refunded(CONTAINER);
    grants.sort();
    let at = |percent: usize| grants[(grants.len() - 1) * percent / 100];
    eprintln!(
        "ready to first grant: {:?} (median), {:?} (p99 of {})",
        at(50),
        at(99),
        grants.len()
    );
}
