//! A slice ends with its container's first process, without a request to end it.

use super::cases::Case;
use super::group::{Group, Idle, mount};
use crate::harness::eventually;
use crate::harness::node::denied;
use gpuslice_sim_device::LimitError;
use gpuslice_wire::admin::Denial;
use gpuslice_wire::units::GIB;
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

const LIMITED: &str = "devices=1,mem=1GiB,limits=dmem";
/// Two of these do not fit.
const CAP: u64 = GIB / 4 * 3;

fn idle() -> Idle {
    let mut command = Command::new("sleep");
    Idle::of(command.arg("600").stdin(Stdio::null()))
}

/// An engine starts the next container when the first has ended; the daemon must have seen that end.
#[test]
fn a_container_that_reuses_name_or_memory_starts_at_once() {
    let case = Case::start("devices=1,mem=1GiB", "");
    for round in 0..50 {
        let name = if round % 2 == 0 { "web" } else { "other" };
        let first = idle();
        case.must_admit(name, CAP, first.pid());
        drop(first);
        let next = idle();
        case.must_admit("web", CAP, next.pid());
        drop(next);
    }
    eventually("no slice", || case.node.containers().is_empty());
    let left = std::fs::read_dir(case.node.runtime_dir().join("c"));
    assert_eq!(left.expect("there").count(), 0, "directories");
}

/// The driver's limits must be cleared first, which takes an answer from NVML.
#[test]
fn the_next_container_waits_until_the_limits_are_cleared() {
    let Some(mount) = mount("the next container waits") else {
        return;
    };
    let case = Case::start(LIMITED, "");
    let machine = case.node.machine();
    for _ in 0..10 {
        let (group, another) = (Group::new(&mount), Group::new(&mount));
        let first = group.idle();
        case.must_admit("web", CAP, first.pid());
        case.is_enforced_by("web", "driver");
        drop(first);
        let next = another.idle();
        case.must_admit("web", CAP, next.pid());
        let limit = |group: &Group| machine.limits_of(0, &group.dir).map(|limits| limits.hard);
        case.has(|| limit(&group), Err(LimitError::NotFound));
        case.has(|| limit(&another), Ok(CAP));
        drop(next);
        eventually("no slice", || case.node.containers().is_empty());
    }
}

#[test]
fn a_restarted_daemon_sees_the_end_too() {
    let mut case = Case::start("devices=1,mem=1GiB", "");
    let first = idle();
    case.must_admit("web", CAP, first.pid());
    case.must_admit("nameless", CAP / 4, 0);
    case.node.end_daemon(Signal::SIGKILL);
    case.start_again();
    assert_eq!(case.node.containers().len(), 2);
    drop(first);
    eventually("one slice", || case.node.containers().len() == 1);
}

/// The name of the first process can be any bytes and does not identify the container.
#[test]
fn a_container_keeps_its_slice_whatever_its_first_process_is_called() {
    for before_it_asks in [true, false] {
        let mut case = Case::start("devices=1,mem=1GiB", "");
        let mut sh = Command::new("sh");
        sh.args(["-c", r"read x; printf 'a) \377' >/proc/$$/comm; echo; read x"]);
        sh.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut sh = sh.spawn().expect("it starts");
        let (to, from) = (sh.stdin.take(), sh.stdout.take());
        let (mut to, mut from) = to.zip(from).expect("pipes");
        let mut rename = || {
            to.write_all(b"\n").expect("it listens");
            from.read_exact(&mut [0]).expect("its name is another");
        };
        if before_it_asks {
            rename();
        }
        case.must_admit("web", CAP, sh.id());
        if !before_it_asks {
            rename();
        }
        case.node.end_daemon(Signal::SIGKILL);
        case.start_again();
        assert_eq!(case.node.containers().len(), 1, "{}", case.node.log());
        sh.kill().and_then(|()| sh.wait()).expect("it ends");
        eventually("no slice", || case.node.containers().is_empty());
    }
}

#[test]
fn an_ended_process_gets_no_slice() {
    let case = Case::start("devices=1,mem=1GiB", "");
    let gone = idle();
    let pid = gone.pid();
    drop(gone);
    let (why, text) = denied(case.admit("web", CAP, pid));
    assert_eq!(why, Denial::Invalid, "{text}");
    assert!(text.contains("has ended"), "{text}");
    assert!(case.node.containers().is_empty());
}
