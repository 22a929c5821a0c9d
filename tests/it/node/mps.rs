//! GPUs that NVIDIA's MPS uses get no slices. A server is a program with its name, as NVML shows no more of it.

use super::cases::Case;
use super::group::{Group, Idle, mount};
use crate::harness::agent_client::{AgentClient, words};
use crate::harness::node::{admit, denied, is_admitted};
use crate::harness::process::{KillOnDrop, put_on_device};
use crate::harness::{eventually, target_dir};
use gpuslice_wire::admin::{Answer, Denial, MemoryAsk};
use gpuslice_wire::history::{EventKind, History};
use gpuslice_wire::node::{HealthState, NodeDenial, Reservation};
use gpuslice_wire::tenant::Reply;
use gpuslice_wire::units::{Bytes, GIB, MIB};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::Signal;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A daemon with samples in quick succession.
const QUICK: &str = "accounting_interval_ms = 20\n";

/// A program with the name of an MPS server, which has a context and memory on a GPU; killed when dropped.
struct Server(KillOnDrop);

impl Server {
    /// A command that becomes one.
    fn command(case: &Case, gpu: &str) -> Command {
        let program = case.node.root().join("nvidia-cuda-mps-server");
        if !program.exists() {
            let tenant = target_dir().join("tenant");
            std::os::unix::fs::symlink(tenant, &program).expect("a link");
        }
        let mut command = Command::new(program);
        put_on_device(&mut command, &case.node)
            .args(["--seconds", "100000", "--idle", "--most-mib", "64", "--device", gpu])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command
    }

    /// Starts one and waits for its memory.
    fn of(mut command: Command) -> Server {
        let mut server = command.spawn().expect("it starts");
        let mut line = String::new();
        let said = BufReader::new(server.stdout.take().expect("piped")).read_line(&mut line);
        assert!(said.is_ok_and(|len| len > 0), "it has its memory");
        Server(KillOnDrop(server))
    }

    fn start(case: &Case, gpu: &str) -> Server {
        Server::of(Server::command(case, gpu))
    }
}

fn state(case: &Case, gpu: usize) -> HealthState {
    AgentClient::of(&case.node).facts()[gpu].health.state
}

fn ask(case: &Case, container: &str, gpu: &str) -> Answer {
    case.node.admin().ask(&admit(container, gpu, MemoryAsk::Exactly(Bytes(GIB))))
}

/// The texts of the events of one kind.
fn events(case: &Case, wanted: EventKind) -> Vec<String> {
    let texts = case.node.admin().events().into_iter().filter_map(|event| match event {
        History::Entry { kind, text, .. } if kind == wanted => Some(text.to_string()),
        _ => None,
    });
    texts.collect()
}

/// Lets NVML list a client of a server on these GPUs.
fn list_clients(case: &Case, gpus: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
    command.args(["sim", "mps"]).arg(case.node.root().join("device")).arg(gpus);
    let done = command.output().expect("it starts");
    assert!(done.status.success(), "{done:?}");
}

fn doctor(case: &Case) -> String {
    let driver = target_dir().join("sim");
    let words = ["doctor", "--driver-dir", driver.to_str().expect("plain")];
    String::from_utf8(case.gpuslice(&words).stdout).expect("text")
}

/// What NVML says of a GPU that MPS has, by its list of clients or by its compute mode.
#[test]
fn a_gpu_that_mps_has_gets_no_slices() {
    let mut case = Case::start("devices=3,mem=16GiB,mps=0,exclusive=1", "");
    let states = [0, 1, 2].map(|gpu| state(&case, gpu));
    assert_eq!(states, [HealthState::Mps, HealthState::Exclusive, HealthState::Healthy]);
    for (gpu, end) in [("0", "nvidia-cuda-mps-control"), ("1", "nvidia-smi -i 1 -c DEFAULT")] {
        let (kind, why) = denied(ask(&case, "web", gpu));
        assert!(kind == Denial::Capacity && why.contains(end), "{why}");
    }
    let said = doctor(&case);
    assert!(said.contains("missing gpu 0") && said.contains("-> echo quit"), "{said}");
    assert!(said.contains("missing gpu 1") && said.contains("-> nvidia-smi -i 1"), "{said}");
    assert!(is_admitted(&ask(&case, "web", "2")));
    // Without a client it is known by its name. A slice that was there before goes on.
    let _server = Server::start(&case, "2");
    case.node.end_daemon(Signal::SIGKILL);
    case.start_again();
    assert_eq!(state(&case, 2), HealthState::Mps);
    assert!(case.node.slice("web").is_some());
    assert!(denied(ask(&case, "other", "2")).1.contains("MPS"));
}

#[test]
fn a_server_that_starts_later_closes_the_gpu_until_it_ends() {
    let case = Case::start("devices=2,mem=16GiB", QUICK);
    let agent = AgentClient::of(&case.node);
    let one = |id: &str| Reservation { share: None, ..words(id, &agent.gpus()[..1]) };
    case.node.must_admit("web", Bytes(GIB));
    let client = case.node.tenant("web");
    client.attach(Bytes::ZERO);
    for round in 1..=2 {
        let server = Server::start(&case, "0");
        eventually("the server is seen", || state(&case, 0) == HealthState::Mps);
        let (kind, why) = denied(ask(&case, "other", "0"));
        let says = why.contains("has an MPS server") && why.contains("nvidia-cuda-mps-control");
        assert!(kind == Denial::Capacity && says, "{why}");
        let (why, text) = agent.reserve(one("claim")).expect_err("refused");
        assert!(why == NodeDenial::Unhealthy && text.contains("an MPS server uses it"), "{text}");
        assert_eq!(state(&case, 1), HealthState::Healthy);
        // What is there goes on, accounted.
        let reply = client.reserve(0, MIB, MIB);
        assert!(matches!(reply, Reply::Reserved { .. }), "{reply:?}");
        assert_eq!(case.row("web")["memory_enforcement"], "accounted");
        let failed = events(&case, EventKind::GpuFailed);
        assert_eq!(failed, vec!["an MPS server uses it, whose clients keep no turn"; round]);
        let said = doctor(&case);
        assert!(said.contains("missing gpu 0"), "{said}");
        let metrics = case.says(&["metrics"]);
        let healthy = metrics.lines().filter(|it| it.starts_with("gpuslice_gpu_healthy{"));
        let healthy: Vec<bool> = healthy.map(|it| it.ends_with(" 1")).collect();
        assert_eq!(healthy, [false, true], "{metrics}");
        drop(server);
        eventually("its end is seen", || state(&case, 0) == HealthState::Healthy);
        assert_eq!(events(&case, EventKind::GpuRecovered).len(), round);
        assert!(is_admitted(&ask(&case, &format!("after-{round}"), "0")));
        let log = case.node.log();
        for change in
            ["no more slices are given", "the MPS server has ended; slices are given again"]
        {
            assert_eq!(log.matches(change).count(), round, "one line for each change: {log}");
        }
    }
}

/// Without slices nothing is sampled, but the end of a server is seen.
#[test]
fn clients_that_nvml_lists_show_mps_also_when_the_last_slice_has_ended() {
    let case = Case::start("devices=1,mem=16GiB,mps=0", QUICK);
    assert_eq!(state(&case, 0), HealthState::Mps);
    let list = |gpus| list_clients(&case, gpus);
    list("none");
    eventually("the end is seen, without any slice", || state(&case, 0) == HealthState::Healthy);
    case.node.must_admit("web", Bytes(GIB));
    list("0");
    eventually("the client is seen", || state(&case, 0) == HealthState::Mps);
    case.node.dismiss("web");
    assert!(case.node.slice("web").is_none());
    assert!(denied(ask(&case, "other", "0")).1.contains("MPS"));
    list("none");
    eventually("its end is seen", || state(&case, 0) == HealthState::Healthy);
    assert!(is_admitted(&ask(&case, "other", "0")));
}

/// Nothing is sampled then, neither for the begin of a server nor for its end.
#[test]
fn without_accounting_only_the_daemons_start_looks_for_mps() {
    let mut case = Case::start("devices=1,mem=16GiB", "accounting_interval_ms = 0\n");
    case.node.must_admit("web", Bytes(GIB));
    let later = || std::thread::sleep(Duration::from_millis(700)); // two samples agree after 300 ms
    let server = Server::start(&case, "0");
    later();
    assert_eq!(state(&case, 0), HealthState::Healthy);
    case.node.end_daemon(Signal::SIGKILL);
    case.start_again();
    assert_eq!(state(&case, 0), HealthState::Mps);
    drop(server);
    later();
    assert_eq!(state(&case, 0), HealthState::Mps);
    case.node.end_daemon(Signal::SIGKILL);
    case.start_again();
    assert_eq!(state(&case, 0), HealthState::Healthy);
}

/// NVIDIA recommends an exclusive compute mode for MPS. It stays when the server ends.
#[test]
fn an_exclusive_mode_that_mps_leaves_behind_still_closes_the_gpu() {
    let case = Case::start("devices=1,mem=16GiB,mps=0,exclusive=0", QUICK);
    assert_eq!(state(&case, 0), HealthState::Mps);
    list_clients(&case, "none");
    eventually("its end is seen", || state(&case, 0) == HealthState::Exclusive);
    let why = denied(ask(&case, "web", "0")).1;
    assert!(why.contains("nvidia-smi -i 0 -c DEFAULT"), "{why}");
}

/// Lets a program with the server's name run in a container, and looks whether that closes the GPU to others.
fn a_hostile_name_changes_nothing(case: &Case, hostile: Command) {
    let _hostile = Server::of(hostile);
    assert_eq!(state(case, 0), HealthState::Healthy);
    // Samples show a server of the node, and then its end, while the container's program is in each of them.
    let server = Server::start(case, "0");
    eventually("the server is seen", || state(case, 0) == HealthState::Mps);
    drop(server);
    eventually("its end is seen", || state(case, 0) == HealthState::Healthy);
    assert!(is_admitted(&ask(case, "other", "0")));
    assert_eq!(events(case, EventKind::GpuFailed).len(), 1);
}

#[test]
fn a_container_cannot_close_a_gpu_by_the_name_of_its_process() {
    let Some(mount) = mount("the name of an MPS server") else {
        return;
    };
    let mut case = Case::start("devices=1,mem=16GiB", QUICK);
    let group = Group::new(&mount);
    let idle = group.idle();
    case.must_admit("web", GIB, idle.pid());
    // A container may make groups below its own.
    let below = Group::within(&group.dir, "below");
    let mut hostile = Server::command(&case, "0");
    below.holds(&mut hostile);
    a_hostile_name_changes_nothing(&case, hostile);
    let mut hostile = Server::command(&case, "0");
    below.holds(&mut hostile);
    let hostile = Server::of(hostile);
    case.node.end_daemon(Signal::SIGKILL);
    case.start_again();
    assert_eq!(state(&case, 0), HealthState::Healthy);
    let said = doctor(&case);
    let pid = hostile.0.id().to_string();
    let is_named = said.split(|it: char| !it.is_ascii_digit()).any(|number| number == pid);
    assert!(!said.contains("missing gpu 0") && !is_named, "{said}");
}

/// A container without a group of its own is known by its mounts.
#[test]
fn nor_can_a_container_that_has_no_group_of_its_own() {
    if mount("mounts and the name of an MPS server").is_none() {
        return;
    }
    let case = Case::start("devices=1,mem=16GiB", QUICK);
    let mut first = Command::new("sleep");
    first.arg("600").stdin(Stdio::null());
    // SAFETY: one system call between fork and exec.
    unsafe { first.pre_exec(|| Ok(unshare(CloneFlags::CLONE_NEWNS)?)) };
    let first = Idle::of(&mut first);
    case.must_admit("web", GIB, first.pid());
    let mounts = File::open(format!("/proc/{}/ns/mnt", first.pid())).expect("it lives");
    let mut hostile = Server::command(&case, "0");
    // SAFETY: one system call between fork and exec.
    unsafe { hostile.pre_exec(move || Ok(setns(&mounts, CloneFlags::CLONE_NEWNS)?)) };
    a_hostile_name_changes_nothing(&case, hostile);
}
