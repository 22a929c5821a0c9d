//! A GPU whose driver reports a critical error takes no more containers, until it has worked for long enough. The
//! daemon sees the error by itself.

use super::cases::Case;
use crate::harness::agent_client::{AgentClient, claim, words};
use crate::harness::cli::{command, json, refusal};
use crate::harness::node::{admit, denied, id, is_admitted};
use crate::harness::process::put_on_device;
use crate::harness::{eventually, target_dir};
use crate::time::helpers::{Helper, helpers};
use gpuslice_wire::admin::{Answer, Command as AdminCommand, Denial, MemoryAsk};
use gpuslice_wire::history::{EventKind, History};
use gpuslice_wire::node::{Health, HealthState, NodeAnswer, NodeDenial, NodeRequest, Reservation};
use gpuslice_wire::owner::Owner;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::tenant::Reply;
use gpuslice_wire::units::{Bytes, GIB, MIB};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs a program outside of all slices whose first kernel ends with this Xid, on GPU 0.
pub fn fail(case: &Case, xid: u32) {
    let program = target_dir().join("tenant");
    assert!(program.exists(), "tenant is not built; run packaging/stage debug");
    let output = put_on_device(&mut Command::new(program), &case.node)
        .args(["--seconds", "1", "--most-mib", "64"])
        .env("GPUSLICE_SIM_FAULT", format!("xid:{xid}@launch=1"))
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    assert!(!output.status.success(), "its kernel fails: {output:?}");
}

/// How long a GPU must have worked after a critical error, in the test of that.
const UNHEALTHY_S: u64 = 10;

fn health(agent: &AgentClient) -> Health {
    agent.facts()[0].health
}

#[test]
fn an_unhealthy_gpu_takes_no_containers_until_it_recovers() {
    let case = Case::start("devices=2,mem=16GiB", &format!("unhealthy_s = {UNHEALTHY_S}"));
    let agent = AgentClient::of(&case.node);
    let gpus = agent.gpus();
    let one = |id: &str, gpu: usize| Reservation { share: None, ..words(id, &gpus[gpu..=gpu]) };
    agent.reserve(one("before", 0)).expect("it is healthy");
    let watching = AgentClient::of(&case.node);
    watching.0.send(5, &NodeRequest::Watch {}).expect("the daemon reads");
    watching.rows();
    // The child may not watch yet.
    eventually("the error is seen", || {
        fail(&case, 79);
        std::thread::sleep(Duration::from_millis(300));
        health(&agent).state == HealthState::Xid
    });
    assert!(health(&agent).xid == 79 && health(&agent).since > 1_600_000_000);
    let (why, text) = agent.reserve(one("after", 0)).expect_err("refused");
    assert!(why == NodeDenial::Unhealthy && text.contains("Xid 79"), "{text}");
    agent.reserve(one("other", 1)).expect("the other GPU is healthy");
    let claims = [Some(claim("before")), None, None, None];
    let (container, pid) = (id("web"), std::process::id());
    let join = AdminCommand::Join { container, claims, owner: Owner::default(), pid };
    let (_, text) = denied(case.node.admin().ask(&join));
    assert!(text.contains("Xid 79"), "{text}");
    assert!(agent.slice("before").is_some(), "what is promised stays");
    eventually("it recovers", || health(&agent).state == HealthState::Healthy);
    agent.reserve(one("after", 0)).expect("it is healthy again");
    // So do the events.
    let admin = case.node.admin();
    let mut kinds = Vec::new();
    let mut at_ns = BTreeMap::new();
    for event in admin.events() {
        let History::Entry { kind, gpu, amounts, text, unix_ns, .. } = event else {
            continue;
        };
        at_ns.entry(kind as u8).or_insert(unix_ns);
        if kind == EventKind::GpuFailed {
            assert_eq!(
                (gpu, amounts[0], text.as_str()),
                (gpus[0], 79, "the driver reported Xid 79")
            );
        }
        kinds.push(kind);
    }
    let at = |kind| kinds.iter().position(|it| *it == kind);
    assert!(at(EventKind::GpuFailed) < at(EventKind::GpuRecovered), "{kinds:?}");
    assert!(at(EventKind::GpuFailed).is_some(), "{kinds:?}");
    let after = at_ns[&(EventKind::GpuRecovered as u8)] - at_ns[&(EventKind::GpuFailed as u8)];
    // Events have the wall clock's time, which may be set a little meanwhile.
    let least = UNHEALTHY_S * 1_000_000_000 - 10_000_000;
    assert!(after >= least, "{after} ns after the first error");
    // The watching agent has seen the same: unhealthy, then healthy.
    let mut seen = Vec::new();
    while seen.last() != Some(&HealthState::Healthy) || seen.len() < 2 {
        for row in watching.rows() {
            if let NodeAnswer::Gpu { gpu } = row
                && gpu.number == 0
            {
                seen.push(gpu.health.state);
            }
        }
    }
    assert!(seen.contains(&HealthState::Xid), "{seen:?}");
}

/// The state of GPU 0 as `gpuslice gpus` and a list show it, neither of which starts a watch.
fn listed(case: &Case) -> Health {
    let rows = case.node.admin().list().into_iter();
    let mut unhealthy = rows.filter_map(|row| match row {
        Snapshot::GpuHealth { health, .. } => Some(health),
        _ => None,
    });
    unhealthy.next().unwrap_or_default()
}

/// Lets GPU 0 fail until the daemon has seen it, whose child may not watch yet.
fn fail_until_listed(case: &Case) {
    eventually("the error is seen", || {
        fail(case, 79);
        std::thread::sleep(Duration::from_millis(300));
        listed(case).state == HealthState::Xid
    });
}

fn ask(case: &Case, container: &str, gpus: &str, gib: u64) -> Answer {
    case.node.admin().ask(&admit(container, gpus, MemoryAsk::Exactly(Bytes(gib * GIB))))
}

/// NVML's index of the GPU of a slice.
fn gpu_of(case: &Case, container: &str) -> Option<u32> {
    let rows = case.node.admin().list();
    let uuid = rows.iter().find_map(|row| match row {
        Snapshot::Slice { container: whose, gpu, .. } if *whose == id(container) => Some(*gpu),
        _ => None,
    })?;
    rows.iter().find_map(|row| match row {
        Snapshot::Gpu { uuid: it, index, .. } if *it == uuid => Some(index.0),
        _ => None,
    })
}

/// What `gpuslice gpus` shows as unpromised, MiB.
fn unpromised(case: &Case) -> Vec<u64> {
    let all = json(&case.node, &["gpus", "--json"]);
    let gpus = all["gpus"].as_array().expect("GPUs");
    gpus.iter().map(|gpu| gpu["memory_unpromised"].as_u64().expect("bytes") >> 20).collect()
}

fn is_refused(case: &Case) {
    let (kind, why) = denied(ask(case, "other", "0", 1));
    let begin = "GPU 0 is unhealthy: the driver reported Xid 79; name another GPU, or wait";
    let says = why.starts_with(begin) && why.contains("unhealthy_s");
    assert!(kind == Denial::Capacity && says, "{why}");
    let (kind, why) = denied(ask(case, "other", "any", 12));
    let begin = "only GPU 0 has room, and is unhealthy: the driver reported Xid 79; end another";
    assert!(kind == Denial::Capacity && why.starts_with(begin), "{why}");
}

/// No agent and no reader of metrics is there.
#[test]
fn containers_without_a_claim_avoid_an_unhealthy_gpu() {
    let mut case = Case::start("devices=2,mem=16GiB", "unhealthy_s = 3600");
    assert!(is_admitted(&ask(&case, "web", "0", 1)) && is_admitted(&ask(&case, "full", "1", 8)));
    let client = case.node.tenant("web");
    client.attach(Bytes::ZERO);
    fail_until_listed(&case);
    is_refused(&case);
    let mut run = command(&case.node, &["run", "--gpus", "0", "--memory", "1GiB"]);
    let said = refusal(&run.args(["--", "true"]).output().expect("it starts"));
    assert!(said.contains("GPU 0 is unhealthy"), "{said}");
    // The healthy GPU has less memory left.
    assert!(is_admitted(&ask(&case, "second", "any", 1)));
    assert_eq!((gpu_of(&case, "second"), unpromised(&case)), (Some(1), vec![0, 7 * 1024]));
    // What is there goes on, also with the next daemon, which sees the next error too.
    assert!(matches!(client.reserve(0, MIB, MIB), Reply::Reserved { .. }));
    case.node.end_daemon(Signal::SIGKILL);
    case.start_again();
    assert_eq!((gpu_of(&case, "web"), gpu_of(&case, "second")), (Some(0), Some(1)));
    fail_until_listed(&case);
    is_refused(&case);
    let client = case.node.tenant("web");
    client.attach(Bytes::ZERO);
    assert!(matches!(client.reserve(0, MIB, MIB), Reply::Reserved { .. }));
    // So far it could not recover, however slow this test was.
    case.node.end_daemon(Signal::SIGKILL);
    std::fs::write(case.node.root().join("config"), "unhealthy_s = 4").expect("written");
    case.start_again();
    eventually("it recovers", || listed(&case).state == HealthState::Healthy);
    assert_eq!(unpromised(&case), [15 * 1024, 7 * 1024]);
    assert!(is_admitted(&ask(&case, "other", "any", 12)));
    assert_eq!(gpu_of(&case, "other"), Some(0));
    let events = case.node.admin().events();
    let has = |wanted| {
        events.iter().any(|it| matches!(it, History::Entry { kind, .. } if *kind == wanted))
    };
    assert!(has(EventKind::GpuFailed) && has(EventKind::GpuRecovered), "{events:?}");
    let metrics = case.says(&["metrics"]);
    let healthy = metrics.lines().filter(|it| it.starts_with("gpuslice_gpu_healthy{"));
    assert!(healthy.into_iter().all(|it| it.ends_with(" 1")), "{metrics}");
}

/// The driver tells an error once.
#[test]
fn a_daemon_that_is_started_again_knows_that_a_gpu_has_failed() {
    let mut case = Case::start("devices=2,mem=16GiB", "unhealthy_s = 3600");
    assert!(is_admitted(&ask(&case, "web", "0", 1)) && is_admitted(&ask(&case, "full", "1", 8)));
    fail_until_listed(&case);
    let before = listed(&case);
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        case.node.end_daemon(signal);
        case.start_again();
        assert_eq!(listed(&case), before, "{signal}");
        is_refused(&case);
        let events = case.node.admin().events();
        let failed = |it: &History| matches!(it, History::Entry { kind, .. } if *kind == EventKind::GpuFailed);
        assert!(events.iter().any(failed), "{events:?}");
    }
}

/// NVML counts a GPU that fell off the bus, and answers no more about it.
#[test]
fn a_gpu_that_does_not_answer_leaves_the_others_served_and_watched() {
    let mut case = Case::start("devices=3,mem=16GiB,lost=1", "");
    let agent = AgentClient::of(&case.node);
    assert_eq!(agent.gpus().len(), 2);
    assert!(is_admitted(&ask(&case, "web", "0", 1)) && is_admitted(&ask(&case, "other", "2", 2)));
    assert!(!is_admitted(&ask(&case, "none", "1", 1)));
    assert_eq!(unpromised(&case), [15 * 1024, 14 * 1024]);
    assert!(case.node.log().contains("GPU_IS_LOST"), "{}", case.node.log());
    fail_until_listed(&case);
    // The next daemon finds the same ones.
    case.node.end_daemon(Signal::SIGKILL);
    case.start_again();
    assert_eq!((gpu_of(&case, "web"), gpu_of(&case, "other")), (Some(0), Some(2)));
    // One that is started when that GPU answers again serves it, too.
    case.node.end_daemon(Signal::SIGKILL);
    case.start_beside("devices=3,mem=16GiB", "mended");
    assert_eq!(unpromised(&case), [0, 16 * 1024, 14 * 1024]);
    assert!(is_admitted(&ask(&case, "none", "1", 1)));
    assert_eq!((gpu_of(&case, "none"), gpu_of(&case, "other")), (Some(1), Some(2)));
}

/// CUDA shows the instances of a GPU in MIG mode in its place: caps and turns of it would mean nothing.
#[test]
fn a_gpu_in_mig_mode_has_no_slices() {
    let case = Case::start("devices=2,mem=16GiB,mig=0", "");
    let agent = AgentClient::of(&case.node);
    assert_eq!(health(&agent).state, HealthState::Mig);
    let listed = case.node.admin().list().into_iter().filter_map(|row| match row {
        Snapshot::GpuHealth { health, .. } => Some(health.state),
        _ => None,
    });
    assert_eq!(listed.collect::<Vec<_>>(), [HealthState::Mig], "the healthy one has no row");
    let gpus = agent.gpus();
    let one = |gpu: usize| Reservation { share: None, ..words("claim", &gpus[gpu..=gpu]) };
    let (why, text) = agent.reserve(one(0)).expect_err("refused");
    assert!(why == NodeDenial::Unhealthy && text.contains("MIG mode"), "{text}");
    agent.reserve(one(1)).expect("the other one");
    let (kind, why) = denied(case.node.admit("web", Bytes(GIB)));
    assert!(kind == Denial::Capacity && why.contains("nvidia-smi -i 0 -mig 0"), "{why}");
    let any = admit("web", "any", MemoryAsk::Exactly(Bytes(GIB)));
    assert!(is_admitted(&case.node.admin().ask(&any)));
    fail(&case, 79);
    assert_eq!(health(&agent).state, HealthState::Mig, "an error does not end the mode");
}

/// NVML hangs when a GPU fails: no GPU recovers that is not seen to answer.
#[test]
fn a_gpu_that_is_not_seen_to_work_does_not_recover() {
    let case = Case::start("devices=1,mem=16GiB", "unhealthy_s = 6");
    let watcher = || match helpers(&case.node).get("--watch-nvml") {
        Some(Helper::Child(pid)) => Some(Pid::from_raw(*pid)),
        _ => None,
    };
    let mut hung = None;
    for _ in 0..10 {
        fail_until_listed(&case);
        hung = watcher();
        kill(hung.expect("it runs"), Signal::SIGSTOP).expect("it lives");
        // On a slow machine it has recovered before that.
        if listed(&case).state == HealthState::Xid {
            break;
        }
        kill(hung.expect("it runs"), Signal::SIGCONT).expect("it lives");
    }
    let hung = hung.expect("it runs");
    std::thread::sleep(Duration::from_secs(9));
    assert_eq!(listed(&case).state, HealthState::Xid);
    kill(hung, Signal::SIGCONT).expect("it lives");
    eventually("it recovers", || listed(&case).state == HealthState::Healthy);
}

/// Errors of programs say nothing about the GPU.
#[test]
fn a_programs_own_error_leaves_the_gpu_healthy() {
    let case = Case::start("devices=1,mem=16GiB", "unhealthy_s = 60");
    let agent = AgentClient::of(&case.node);
    fail(&case, 31);
    fail(&case, 13);
    // Until an error of the GPU is seen, the child has told of all before.
    eventually("the GPU's own error is seen", || {
        let before = health(&agent).state;
        assert!(before != HealthState::Xid || health(&agent).xid == 62);
        fail(&case, 43);
        fail(&case, 45);
        fail(&case, 62);
        std::thread::sleep(Duration::from_millis(300));
        health(&agent).state == HealthState::Xid
    });
    assert_eq!(health(&agent).xid, 62);
}
