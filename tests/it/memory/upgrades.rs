//! The daemon's program is replaced and the daemon restarted while programs allocate: no allocation is refused, and no
//! program ends or loses its connection for good.

use super::churn::{Said, agree};
use super::{CONTAINER, DeviceView, Tenant, node, numbers, setting};
use crate::harness::node::Node;
use crate::harness::{Random, copy_program, eventually};
use gpuslice_wire::units::GIB;
use nix::sys::signal::Signal;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Beyond all that the programs can hold at once (13 allocations of 2 pages for a thread, and what pools add), so that
/// no refusal is the cap's.
const CAP: u64 = 8 * GIB;
const PROCESSES: u64 = 3;
const THREADS: u64 = 4;
/// Steps of a thread in one round: more than it makes while a daemon is replaced.
const STEPS: u64 = 1_000;

/// Replaces the program's file, as a package does, and the daemon: by an orderly end or a sudden one.
fn upgrade(node: &mut Node, signal: Signal) {
    let (new, place) = (node.root().join("gpusliced.new"), node.root().join("gpusliced"));
    copy_program(Path::new(env!("CARGO_BIN_EXE_gpusliced")), &new);
    fs::rename(&new, &place).expect("replaced");
    node.end_daemon(signal);
    let daemon = node.daemon_command(&[]);
    let mut command = Command::new(place);
    command.args(daemon.get_args());
    let variables = daemon.get_envs().filter_map(|(name, value)| Some((name, value?)));
    command.envs(variables);
    node.start_command(command);
}

#[test]
fn an_upgrade_under_load_refuses_nothing_and_drops_no_program() {
    let (seed, upgrades) = (setting("SEED", 5), setting("UPGRADES", 5));
    eprintln!("SEED={seed} UPGRADES={upgrades}");
    let mut random = Random(seed | 1 << 32);
    let mut node = node(CAP);
    let device = DeviceView::of(&node);
    let start = |number| Tenant::start(&node, seed + number, THREADS, 2);
    let mut tenants: Vec<Tenant> = (0..PROCESSES).map(start).collect();
    for round in 0..upgrades {
        tenants.iter_mut().for_each(|tenant| tenant.order(&format!("go {STEPS}")));
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        let signal = if round % 2 == 0 { Signal::SIGTERM } else { Signal::SIGKILL };
        upgrade(&mut node, signal);
        let mut said = Said::default();
        for tenant in &mut tenants {
            let answer = tenant.answer().expect("alive");
            let [_, refused, held, managed] = numbers(&answer)[..] else { panic!("{answer}") };
            assert_eq!(refused, 0, "round {round}, {signal}: an allocation was refused");
            said.held += held;
            said.managed += managed;
        }
        let clients = || node.slice(CONTAINER).map(|(_, clients)| u64::from(clients));
        eventually("all are attached again", || clients() == Some(PROCESSES));
        agree(&node, &device, &said);
    }
    tenants.into_iter().for_each(Tenant::end);
    node.wait_refunded(CONTAINER);
}
