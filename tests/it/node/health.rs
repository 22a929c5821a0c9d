//! A GPU whose driver reports a critical error takes no more containers, until it has worked for long enough.

use super::cases::Case;
use crate::harness::agent_client::{AgentClient, claim, words};
use crate::harness::node::{admit, denied, id};
use crate::harness::{eventually, target_dir};
use gpuslice_wire::admin::{Answer, Command as AdminCommand, Denial, MemoryAsk};
use gpuslice_wire::history::{EventKind, History};
use gpuslice_wire::node::{Health, HealthState, NodeAnswer, NodeDenial, NodeRequest, Reservation};
use gpuslice_wire::owner::Owner;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::{Bytes, GIB};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs a program outside of all slices whose first kernel ends with this Xid, on GPU 0.
pub fn fail(case: &Case, xid: u32) {
    let program = target_dir().join("tenant");
    assert!(program.exists(), "tenant is not built; run packaging/stage debug");
    let output = Command::new(program)
        .args(["--seconds", "1", "--most-mib", "64"])
        .env("LD_LIBRARY_PATH", case.node.root().join("driver"))
        .env("GPUSLICE_SIM_DEVICE", case.node.root().join("device"))
        .env("GPUSLICE_SIM_FAULT", format!("xid:{xid}@launch=1"))
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    assert!(!output.status.success(), "its kernel fails: {output:?}");
}

/// How long a GPU must have worked after a critical error, in the test of that.
const UNHEALTHY_S: u64 = 4;

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
    assert!(matches!(case.node.admin().ask(&any), Answer::Admitted { .. }));
    fail(&case, 79);
    assert_eq!(health(&agent).state, HealthState::Mig, "an error does not end the mode");
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
