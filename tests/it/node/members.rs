//! Only processes of the container may connect to its socket, whatever path they use.

use super::cases::Case;
use super::group::{Group, Idle, mount};
use crate::harness::agent::Agent;
use crate::harness::node::Node;
use crate::harness::process::{become_user, private_mounts};
use crate::harness::wire::{Connection, TenantClient};
use crate::harness::{is_root, skip};
use gpuslice_wire::tenant::{Rejection, Reply};
use gpuslice_wire::units::{Bytes, GIB, MIB};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::Signal;
use nix::unistd::chdir;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

const SIMULATED: &str = "devices=1,mem=1GiB";
/// A user without any slice.
const NOBODY: u32 = 65534;

/// The process that connected is served.
fn assert_served(connection: Connection) {
    let tenant = TenantClient(connection, None);
    tenant.attach(Bytes::ZERO);
    let reply = tenant.reserve(0, MIB, MIB);
    assert!(matches!(reply, Reply::Reserved { .. }), "{reply:?}");
}

fn assert_refused(connection: &Connection) {
    connection.expect_rejected(Rejection::NotYours);
}

/// How many log lines report refused processes.
fn log_lines(node: &Node) -> usize {
    let log = node.log();
    log.lines().filter(|line| line.contains("refused a process")).count()
}

#[test]
fn only_processes_in_the_containers_control_group_are_served() {
    let Some(mount) = mount("members by control group") else {
        return;
    };
    let mut case = Case::start(SIMULATED, "");
    let (group, other) = (Group::new(&mount), Group::new(&mount));
    let (idle, seen) = (group.idle(), other.idle());
    case.must_admit("web", GIB / 4, idle.pid());
    case.must_admit("other", GIB / 4, seen.pid());
    let below = Group::within(&group.dir, "below");
    for life in 0..2 {
        let socket = case.node.socket("web");
        assert_served(group.agent().connect(&socket));
        assert_served(below.agent().connect(&socket));
        let (elsewhere, host) = (other.agent(), Agent::start());
        let lines = log_lines(&case.node);
        for _ in 0..100 {
            assert_refused(&elsewhere.connect(&socket));
            assert_refused(&host.connect(&socket));
        }
        assert_eq!(log_lines(&case.node), lines + 1, "life {life}");
        assert_served(elsewhere.connect(&case.node.socket("other")));
        // The note beside the record survives a restart.
        case.node.end_daemon(Signal::SIGKILL);
        case.start_again();
    }
}

/// Like `nsenter --mount` from the host, which does not change control groups; or a container without one.
#[test]
fn processes_in_the_containers_mount_namespace_are_served() {
    if !is_root() {
        return skip("members by mount namespace", "needs root");
    }
    let mut case = Case::start(SIMULATED, "");
    let mut first = Command::new("sleep");
    first.arg("600").stdin(Stdio::null());
    // SAFETY: two system calls on constants.
    let first = Idle::of(unsafe { first.pre_exec(private_mounts) });
    case.must_admit("web", GIB / 4, first.pid());
    let socket = case.node.socket("web");
    let namespace = File::open(format!("/proc/{}/ns/mnt", first.pid())).expect("it lives");
    for _life in 0..2 {
        let entered = Agent::start_after(|| Ok(setns(&namespace, CloneFlags::CLONE_NEWNS)?));
        assert_served(entered.connect(&socket));
        assert_refused(&Agent::start_after(private_mounts).connect(&socket));
        assert_refused(&Agent::start().connect(&socket));
        drop(entered);
        case.node.wait_refunded("web");
        case.node.end_daemon(Signal::SIGKILL);
        case.start_again();
    }
}

/// Becomes another user, inside a directory that this user cannot enter.
fn as_nobody(dir: &Path) -> io::Result<()> {
    chdir(dir)?;
    become_user(NOBODY)
}

/// This command's slice has no control group of its own, so its members are known by their user.
#[test]
fn another_user_cannot_take_the_memory_of_a_command() {
    if !is_root() {
        return skip("members by user", "needs root, to be another user");
    }
    let mut node = Node::start();
    node.must_admit("run", Bytes(GIB));
    let socket = node.socket("run");
    for _life in 0..2 {
        let by_path = Agent::start_after(|| as_nobody(Path::new("/")));
        assert!(by_path.try_connect(&socket).is_none(), "it got there");
        let dir = node.inside("run");
        let inside = Agent::start_after(|| as_nobody(&dir));
        assert_refused(&inside.connect(Path::new("tenant.sock")));
        assert_served(Agent::start().connect(&socket));
        assert_eq!(node.slice("run").map(|(reserved, _)| reserved <= Bytes(MIB)), Some(true));
        node.wait_refunded("run");
        node.end_daemon(Signal::SIGKILL);
        node.start_daemon(&[]);
    }
}

/// A container's processes may run as the command's user.
#[test]
fn a_containers_process_cannot_take_the_memory_of_a_command_of_its_user() {
    let Some(mount) = mount("members by user") else {
        return;
    };
    let case = Case::start(SIMULATED, "");
    let group = Group::new(&mount);
    let idle = group.idle();
    case.must_admit("web", GIB / 4, idle.pid());
    case.must_admit("run", GIB / 4, 0);
    assert_refused(&group.agent().connect(&case.node.socket("run")));
    assert_served(Agent::start().connect(&case.node.socket("run")));
}
