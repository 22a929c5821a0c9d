//! A process in a time namespace, whose clock is hours ahead of the daemon's or behind it, takes turns like any other.
//! It notices a dead daemon as soon.

use super::{Hiccups, TURNS, Tenant, during, must, node, settles};
use crate::harness::{eventually, is_root, skip, target_dir};
use gpuslice_sim_device::Machine;
use nix::sys::signal::Signal;
use std::process::Command;
use std::time::Duration;

/// As in `absence.rs`.
const STALL_MAX: Duration = Duration::from_millis(300);

/// A command that runs a program with its clocks so many seconds ahead; `None` where that is impossible.
fn shifted(test: &str, seconds: i64) -> Option<Command> {
    if !is_root() {
        skip(test, "only root makes time namespaces");
        return None;
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        let offset = seconds.to_string();
        command.args(["--time", "--monotonic", &offset, "--boottime", &offset]);
        command.args(["--fork", "--kill-child"]);
        command
    };
    if !unshare().arg("true").status().is_ok_and(|it| it.success()) {
        skip(test, "no `unshare --time` here");
        return None;
    }
    let mut command = unshare();
    command.arg(target_dir().join("tenant"));
    Some(command)
}

/// The machine's uptime, s: a clock cannot be set back further.
fn uptime() -> i64 {
    let text = std::fs::read_to_string("/proc/uptime").expect("a kernel");
    let seconds = text.split('.').next().and_then(|word| word.parse().ok());
    seconds.expect("a number")
}

/// Weights hold between a tenant with a shifted clock and one without, also after the first one's daemon was killed,
/// which stalls neither.
fn takes_turns(test: &str, seconds: i64) {
    let Some(command) = shifted(test, seconds) else {
        return;
    };
    let (mut node, machine) = node();
    must(&node, &["set", "b", "--weight", "3"]);
    let light = Tenant::by(command, &node, &machine, "a", 500, &[]);
    let heavy = Tenant::start(&node, &machine, "b", 500);
    share(&light, &heavy, &machine);
    [&light, &heavy].into_iter().for_each(|tenant| tenant.watch(&machine));
    let hiccups = Hiccups::of(&[&node], &[&light, &heavy]);
    node.end_daemon(Signal::SIGKILL);
    let enough = [&light, &heavy].map(|tenant| tenant.busy(&machine) + Duration::from_millis(300));
    eventually("both go on", || {
        light.busy(&machine) >= enough[0] && heavy.busy(&machine) >= enough[1]
    });
    for tenant in [&light, &heavy] {
        let gap = tenant.longest_gap(&machine);
        let allowed = STALL_MAX + TURNS + hiccups.allowance();
        assert!(gap <= allowed, "{} stood still for {gap:?}", tenant.container);
    }
    node.start_daemon(&[]);
    light.gets(&machine, Duration::from_millis(300));
    share(&light, &heavy, &machine);
}

/// Weights 1 and 3: a misread clock would give all to one, or the same to both, as stretches of a second show. On a
/// busy machine one that is woken late loses half of its turns, and no more: the lost parts have been at most a third,
/// with two busy programs on each processor.
fn share(light: &Tenant, heavy: &Tenant, machine: &Machine) {
    light.gets(machine, Duration::from_millis(100));
    let ratio = || {
        let got = during(machine, &[light, heavy], Duration::from_millis(200));
        got[1] / got[0]
    };
    settles("the ratio of two", ratio, |ratio| (1.5..6.0).contains(ratio));
}

#[test]
fn a_clock_that_is_ahead() {
    takes_turns("a_clock_that_is_ahead", 5_000);
}

#[test]
fn a_clock_that_is_behind() {
    takes_turns("a_clock_that_is_behind", -uptime() / 2);
}
