//! Programs that wait for their work and pause, and attackers that do so on purpose: cells of the bench's matrix and
//! its attacks, judged as ratios of GPU time by the device's own account.
//!
//! `tests/bench/timing` has the whole table, and exact bounds. Here the machine may be busy, so a holder may be idle
//! for longer than its pause: `idle_us` is long enough for that, and root's daemon and tenants go before other work.

use super::{Tenant, during, must, node, ratio_settles, settles, shown, strict_node};
use crate::harness::node::Node;
use crate::harness::wire::{client_page, container_page};
use crate::harness::{can_go_before_other_work, go_before_other_work, target_dir};
use gpuslice_sim_device::Machine;
use gpuslice_wire::page::{MODE_OPEN, may_launch};
use gpuslice_wire::units::{Bytes, GIB};
use nix::sys::signal::Signal;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Of the cells: kernels that are longer end a turn if the idle time counts from their launch.
const CELLS_IDLE_US: u64 = 4_000;
/// Of the attacks: an honest tenant that the machine delays for so long still counts as runnable. Where it does not,
/// the attacker rightly gets a turn.
const HONEST_IDLE_US: u64 = 20_000;

/// Whether the tests can judge here.
fn can_judge() -> bool {
    can_go_before_other_work("time::loads")
}

/// Two slices of a daemon that lets holders idle for so long.
fn patient(idle_us: u64) -> (Node, Machine) {
    patient_on(node(), idle_us)
}

fn patient_on((mut node, machine): (Node, Machine), idle_us: u64) -> (Node, Machine) {
    go_before_other_work();
    node.end_daemon(Signal::SIGTERM);
    node.start_configured(&format!("idle_us = {idle_us}\n"));
    (node, machine)
}

/// A program of `loads` without an end.
fn load(
    node: &Node,
    machine: &Machine,
    container: &'static str,
    program: &str,
    options: &[&str],
) -> Tenant {
    let mut command = Command::new(target_dir().join("loads"));
    command.args([program, "--seconds", "100000"]).args(options);
    Tenant::run(command, node, machine, container, Duration::from_millis(20))
}

/// A program that launches so many kernels, waits for their end, and pauses.
fn steps(
    node: &Node,
    machine: &Machine,
    container: &'static str,
    [kernel_us, pause_us, launches]: [u64; 3],
) -> Tenant {
    let [kernel, pause, launches] = [kernel_us, pause_us, launches].map(|it| it.to_string());
    let options = ["--kernel-us", &kernel, "--pause-us", &pause, "--launches", &launches];
    load(node, machine, container, "steps", &options)
}

/// Each load can use more than three quarters of a GPU. The work between two pauses is long enough that a holder keeps
/// its turn over a pause which the machine makes longer.
#[test]
fn weights_hold_in_cells_of_the_matrix() {
    if !can_judge() {
        return;
    }
    for load in [[200, 100, 32], [1_000, 100, 8], [5_000, 300, 1], [20_000, 1_000, 1]] {
        let (node, machine) = patient(CELLS_IDLE_US);
        must(&node, &["set", "b", "--weight", "3"]);
        let light = steps(&node, &machine, "a", load);
        let heavy = steps(&node, &machine, "b", load);
        light.gets(&machine, Duration::from_millis(100));
        ratio_settles(&machine, &light, &heavy, 2.4..3.6);
    }
}

/// The GPU works for several streams of a program at the same time, and ends their work in another order than it was
/// launched in: a turn has drained when the last of it has ended.
#[test]
fn weights_hold_for_programs_with_several_streams() {
    if !can_judge() {
        return;
    }
    for program in ["streams", "copy"] {
        let (node, machine) = patient_on(strict_node("time::loads"), CELLS_IDLE_US);
        must(&node, &["set", "b", "--weight", "3"]);
        let light = load(&node, &machine, "a", program, &[]);
        let heavy = load(&node, &machine, "b", program, &[]);
        light.gets(&machine, Duration::from_millis(100));
        ratio_settles(&machine, &light, &heavy, 2.4..3.6);
    }
}

/// All three wait for their kernels; the share is half of what they get together.
#[test]
fn a_share_holds_beside_weights() {
    if !can_judge() {
        return;
    }
    let (node, machine) = patient(CELLS_IDLE_US);
    node.must_admit("c", Bytes(GIB));
    must(&node, &["set", "a", "--share", "50"]);
    must(&node, &["set", "c", "--weight", "3"]);
    let tenants = ["a", "b", "c"].map(|name| steps(&node, &machine, name, [1_000, 100, 1]));
    let part = || {
        let got = during(&machine, &tenants.each_ref(), Duration::from_secs(1));
        got[0] / got.iter().sum::<f64>()
    };
    settles("half of the GPU time", part, |part| (0.44..0.56).contains(part));
}

/// What an attack may cost once: a long kernel, or a claim of one.
const ONCE: Duration = Duration::from_millis(1_200);
/// Pauses of an attack: turns end in a pause also on a busy machine, if they end before debts are paid.
const PAUSE: Duration = Duration::from_millis(300);

/// The honest tenant's time beside an attack of 6 s: at least nine tenths of its due.
fn honest(machine: &Machine, tenant: &Tenant, attack: impl FnOnce(Duration)) {
    let (before, start) = (tenant.busy(machine), Instant::now());
    attack(Duration::from_secs(6));
    let took = start.elapsed();
    let got = tenant.busy(machine) - before;
    let due = (took - ONCE - Duration::from_millis(100)).mul_f64(100.0 / 101.0);
    assert!(got >= due.mul_f64(0.9), "{got:?} of {due:?}");
}

/// Kernels far longer than a turn, and pauses after which turns could end: each kernel is owed.
#[test]
fn long_kernels_and_pauses_gain_nothing() {
    if !can_judge() {
        return;
    }
    let (node, machine) = patient(HONEST_IDLE_US);
    must(&node, &["set", "b", "--weight", "100"]);
    let good = Tenant::start(&node, &machine, "b", 500);
    honest(&machine, &good, |long| {
        let pause = PAUSE.as_micros().to_string();
        let kernel_us = ONCE.as_micros() as u64;
        let _bad = Tenant::with(&node, &machine, "a", kernel_us, &["--pause-us", &pause]);
        std::thread::sleep(long);
    });
    assert!(shown(&node, "b")["turns"].as_u64() > Some(0), "the attack began no turns");
}

/// Claims of work without any, and quiet times after which turns could end: the claims are owed.
#[test]
fn claims_without_work_gain_nothing() {
    if !can_judge() {
        return;
    }
    let (node, machine) = patient(HONEST_IDLE_US);
    must(&node, &["set", "b", "--weight", "100"]);
    let good = Tenant::start(&node, &machine, "b", 500);
    let bad = node.tenant("a");
    let attached = bad.attach(Bytes::ZERO);
    let (claims, page) = (client_page(&attached), container_page(&attached));
    let ring = || nix::unistd::write(&attached.bell, &1_u64.to_ne_bytes()).expect("a bell");
    honest(&machine, &good, |long| {
        let (start, lane, shown) = (Instant::now(), &claims.lane[0], &page.lane[0]);
        while start.elapsed() < long {
            let begin = Instant::now();
            while begin.elapsed() < ONCE {
                lane.runnable.store(1, SeqCst);
                let turn = shown.turn.load(SeqCst);
                if may_launch(turn) || shown.mode.load(SeqCst) == MODE_OPEN {
                    lane.drained.store(turn.wrapping_sub(1), SeqCst);
                    lane.active.store(turn, SeqCst);
                }
                ring();
                std::thread::sleep(Duration::from_millis(1));
            }
            lane.runnable.store(0, SeqCst);
            lane.drained.store(lane.active.load(SeqCst), SeqCst);
            ring();
            std::thread::sleep(PAUSE);
        }
    });
    assert!(shown(&node, "b")["turns"].as_u64() > Some(0), "the attack began no turns");
}
