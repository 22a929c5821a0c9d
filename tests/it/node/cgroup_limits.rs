//! Caps as the driver's own limits, end to end: every pitfall that the driver's documentation names.

use super::cases::Case;
use super::group::{Group, Idle, mount};
use super::stranger::Stranger;
use crate::harness::agent_client::{AgentClient, words};
use crate::harness::cli::{command, json};
use crate::harness::{eventually, target_dir};
use gpuslice_sim_device::{LimitError, Machine, MemoryLimits};
use gpuslice_wire::admin::Answer;
use gpuslice_wire::node::NodeDenial;
use gpuslice_wire::units::{Bytes, GIB, MIB};
use nix::sys::signal::{Signal, kill};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

const LIMITED: &str = "devices=1,mem=1GiB,limits=dmem";
const CAP: u64 = GIB / 2;
/// A short interval between samples.
const QUICK: &str = "accounting_interval_ms = 20\n";

/// Soft and hard limit of a group.
fn limits(machine: &Machine, dir: &Path) -> Result<(u64, u64), LimitError> {
    let found = machine.limits_of(0, dir);
    found.map(|MemoryLimits { soft, hard, .. }| (soft, hard))
}

#[test]
fn the_limit_is_on_the_leaf_before_the_answer_and_holds_a_program_without_the_shim() {
    let Some(mount) = mount("cgroup limits") else {
        return;
    };
    let (case, group, _idle) = capped(&mount, CAP);
    let machine = case.node.machine();
    case.has(|| limits(&machine, &group.dir), Ok((0, CAP)));
    let above = limits(&machine, group.parent());
    assert_eq!(above, Err(LimitError::NotFound), "on the leaf alone");
    case.is_enforced_by("web", "driver");
    let stranger = Stranger::start(&case.node, &group);
    assert!(stranger.got < CAP && stranger.total == CAP, "{}", stranger.got);
    eventually("what the driver counts in ps", || {
        case.row("web")["memory_reserved"].as_u64() > Some(stranger.got)
    });
    drop(stranger);
    assert!(matches!(case.node.dismiss("web"), Answer::Dismissed {}));
    case.has(|| limits(&machine, &group.dir), Err(LimitError::NotFound));
    assert!(Stranger::start(&case.node, &group).got > CAP, "a limit is left");
}

/// The driver gets the directory's name as bytes, which need not be text.
#[test]
fn a_group_whose_name_is_not_text_has_its_limit() {
    let Some(mount) = mount("cgroup limits") else {
        return;
    };
    let case = Case::start(LIMITED, QUICK);
    let around = Group::new(&mount);
    let group = Group::within(around.parent(), OsStr::from_bytes(b"x\xff\x1b"));
    let idle = group.idle();
    case.must_admit("web", CAP, idle.pid());
    let machine = case.node.machine();
    case.has(|| limits(&machine, &group.dir), Ok((0, CAP)));
    case.is_enforced_by("web", "driver");
    let stranger = Stranger::start(&case.node, &group);
    assert!(stranger.got < CAP, "{}", stranger.got);
    eventually("what the driver counts in ps", || {
        case.row("web")["memory_reserved"].as_u64() > Some(stranger.got)
    });
}

/// A node with a slice `web` of this cap, whose container is a group with one idle process.
fn capped(mount: &Path, cap: u64) -> (Case, Group, Idle) {
    let case = Case::start(LIMITED, QUICK);
    let group = Group::new(mount);
    let idle = group.idle();
    case.must_admit("web", cap, idle.pid());
    (case, group, idle)
}

#[test]
fn a_limit_is_raised_at_once_and_lowered_as_memory_is_freed() {
    let Some(mount) = mount("live caps") else {
        return;
    };
    let (case, group, _idle) = capped(&mount, CAP / 2);
    let machine = case.node.machine();
    let said = case.says(&["set", "web", "--memory", "512MiB"]);
    assert_eq!(said, "web: gpu 0 (simulated): 256MiB -> 512MiB\n");
    case.has(|| limits(&machine, &group.dir), Ok((0, CAP)));

    let stranger = Stranger::start(&case.node, &group);
    let held = machine.limits_of(0, &group.dir).expect("limits").used;
    eventually("the stranger", || case.row("web")["memory_reserved"].as_u64() >= Some(held));
    let said = case.says(&["set", "web", "--memory", "64MiB"]);
    assert!(said.contains("512MiB -> 64MiB; ") && said.contains("are held"), "{said}");
    eventually("a limit at the memory used", || limits(&machine, &group.dir) == Ok((0, held)));
    assert_eq!(case.row("web")["memory_over"], true);
    assert!(case.says(&["ps"]).contains("  over  simulated\n"));
    drop(stranger);
    eventually("a limit at the cap", || limits(&machine, &group.dir) == Ok((0, 64 * MIB)));
    // More than the GPU has: refused, and the limit is unchanged.
    let output = case.gpuslice(&["set", "web", "--memory", "2GiB"]);
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(limits(&machine, &group.dir), Ok((0, 64 * MIB)));
    assert_eq!(case.row("web")["memory_cap"], 64 * MIB);
}

/// The hook waits for half a second at most. An administrator can wait for a driver that is only slow.
#[test]
fn a_slow_driver_refuses_no_changed_cap() {
    let Some(mount) = mount("live caps") else {
        return;
    };
    let (case, group, _idle) = capped(&mount, CAP / 2);
    let asker = case.node.children().remove("--ask-nvml").expect("a process that asks NVML");
    kill(asker, Signal::SIGSTOP).expect("it lives");
    std::thread::scope(|scope| {
        let set = scope.spawn(|| case.says(&["set", "web", "--memory", "512MiB"]));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!set.is_finished(), "it did not wait for the driver");
        kill(asker, Signal::SIGCONT).expect("it lives");
        let said = set.join().expect("the cap is changed");
        assert_eq!(said, "web: gpu 0 (simulated): 256MiB -> 512MiB\n");
    });
    assert_eq!(limits(&case.node.machine(), &group.dir), Ok((0, CAP)));
    assert!(!case.node.log().contains("NVML does not answer; the cap"), "{}", case.node.log());
}

#[test]
fn a_guarantee_is_not_left_behind() {
    let Some(mount) = mount("guarantees") else {
        return;
    };
    let case = Case::start(LIMITED, "cgroup_guarantees = true\n");
    let group = Group::new(&mount);
    let machine = case.node.machine();
    for _ in 0..2 {
        let idle = group.idle();
        case.must_admit("web", CAP, idle.pid());
        case.has(|| limits(&machine, &group.dir), Ok((CAP, CAP)));
        case.has(|| limits(&machine, group.parent()).map(|both| both.0), Ok(CAP));
        case.node.dismiss("web");
        // Cleared before the answer, unless NVML was too slow.
        eventually("nothing left above", || {
            limits(&machine, group.parent()) == Err(LimitError::NotFound)
        });
    }
}

#[test]
fn a_refused_guarantee_is_logged_and_the_slice_works_without() {
    let Some(mount) = mount("full guarantees") else {
        return;
    };
    let case = Case::start(LIMITED, "cgroup_guarantees = true\noversubscribe = true\n");
    let group = Group::new(&mount);
    let other = Group::within(group.parent(), "other");
    let (one, two) = (group.idle(), other.idle());
    case.must_admit("one", GIB, one.pid());
    case.must_admit("two", GIB, two.pid());
    case.is_enforced_by("one", "driver");
    case.has(|| case.node.log().contains("NVML_ERROR_INVALID_ARGUMENT"), true);
    eventually("its enforcement level, once NVML has answered", || {
        case.row("two")["memory_enforcement"] == "accounted"
    });
}

#[test]
fn a_restarted_daemon_restores_limits_and_clears_them_later() {
    let Some(mount) = mount("restarts") else {
        return;
    };
    let mut case = Case::start(LIMITED, QUICK);
    let group = Group::new(&mount);
    let idle = group.idle();
    case.must_admit("web", CAP, idle.pid());
    let machine = case.node.machine();
    case.has(|| limits(&machine, &group.dir), Ok((0, CAP)));
    case.node.end_daemon(Signal::SIGKILL);
    assert_eq!(limits(&machine, &group.dir), Ok((0, CAP)), "it outlives the daemon");
    machine.set_limits(0, &group.dir, 0, CAP + CAP / 2).expect("set by another program");
    case.start_again();
    eventually("the limit again", || limits(&machine, &group.dir) == Ok((0, CAP)));
    eventually("its enforcement level", || case.row("web")["memory_enforcement"] == "driver");
    case.says(&["rm", "web"]);
    eventually("no limit", || limits(&machine, &group.dir) == Err(LimitError::NotFound));
}

/// NVIDIA's container toolkit sets such a limit too, before gpuslice's hook is called or after it.
#[test]
fn the_smaller_of_two_programs_limits_stays() {
    let Some(mount) = mount("others' limits") else {
        return;
    };
    let mut case = Case::start(LIMITED, QUICK);
    let group = Group::new(&mount);
    let idle = group.idle();
    let machine = case.node.machine();
    let theirs = |bytes| machine.set_limits(0, &group.dir, 0, bytes).expect("set by a program");
    theirs(CAP / 2);
    case.must_admit("web", CAP, idle.pid());
    case.has(|| limits(&machine, &group.dir), Ok((0, CAP / 2)));
    let told = "memory limit 512MiB -> 256MiB: another program's";
    eventually("the event", || case.says(&["events"]).contains(told));
    case.is_enforced_by("web", "driver");
    case.node.end_daemon(Signal::SIGKILL);
    case.start_again();
    eventually("the event", || case.says(&["events"]).contains(told));
    theirs(CAP + CAP / 2);
    eventually("the slice's own", || limits(&machine, &group.dir) == Ok((0, CAP)));
    theirs(CAP / 4);
    eventually("the event", || case.says(&["events"]).contains("512MiB -> 128MiB: another"));
    assert_eq!(limits(&machine, &group.dir), Ok((0, CAP / 4)));
    case.says(&["rm", "web"]);
    assert_eq!(limits(&machine, &group.dir), Ok((0, CAP / 4)), "not gpuslice's to clear");
}

#[test]
fn a_removed_cgroup_does_not_block_the_end_of_its_slice() {
    let Some(mount) = mount("vanished groups") else {
        return;
    };
    let mut case = Case::start(LIMITED, QUICK);
    let machine = case.node.machine();
    for restart in [false, true] {
        let group = Group::new(&mount);
        let idle = group.idle();
        case.must_admit("web", CAP, idle.pid());
        group.remove();
        drop(idle);
        if restart {
            case.node.end_daemon(Signal::SIGKILL);
            case.start_again();
        }
        assert!(matches!(case.node.dismiss("web"), Answer::Dismissed {}));
        assert_eq!(limits(&machine, &group.dir), Err(LimitError::NoGroup));
    }
    let log = case.node.log();
    assert!(!log.contains("ERROR"), "a limit stayed behind: {log}");
}

#[test]
fn a_required_limit_is_set_or_the_slice_is_refused() {
    let Some(mount) = mount("required limits") else {
        return;
    };
    let case = Case::start("devices=1,mem=1GiB", "cgroup_limits = \"require\"\n");
    let group = Group::new(&mount);
    let idle = group.idle();
    let why = case.refusal("web", CAP, idle.pid());
    assert!(why.contains("does not support limits per cgroup"), "{why}");
    assert!(case.node.containers().is_empty());
    drop(case);

    let case = Case::start(LIMITED, "cgroup_limits = \"require\"\n");
    let ownerless = case.refusal("web", CAP, 0);
    assert!(ownerless.contains("no cgroup of its own"), "{ownerless}");
    case.must_admit("web", CAP, idle.pid());
    let second = group.idle();
    let shared = case.refusal("other", CAP / 2, second.pid());
    assert!(shared.contains("no cgroup of its own"), "{shared}");
    assert_eq!(limits(&case.node.machine(), &group.dir), Ok((0, CAP)), "the first one's stays");
}

/// The driver cannot enforce the cap of what several control groups share.
#[test]
fn claims_are_refused_where_limits_are_required() {
    let case = Case::start(LIMITED, "cgroup_limits = \"require\"\n");
    let agent = AgentClient::of(&case.node);
    let gpus = agent.gpus();
    let (why, text) = agent.reserve(words("c-1", &gpus[..1])).expect_err("refused");
    assert_eq!(why, NodeDenial::Host);
    assert!(text.contains("share a claim") && text.contains("\"auto\""), "{text}");
    assert_eq!(agent.facts()[0].promised, Bytes::ZERO);
    let (driver, config) = (target_dir().join("sim"), case.node.root().join("config"));
    let [driver, config] = [&driver, &config].map(|path| path.to_str().expect("plain"));
    let words = ["doctor", "--kubernetes", "--json", "--driver-dir", driver, "--config", config];
    let output = case.gpuslice(&words);
    assert_eq!(output.status.code(), Some(1), "claims need it: {output:?}");
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut checks = all["checks"].as_array().expect("checks").iter();
    let named = checks.find(|check| check["name"] == "claims").expect("named");
    assert_eq!((&named["ok"], &named["needed"]), (&false.into(), &true.into()), "{named}");
    assert!(named["fix"].as_str().is_some_and(|fix| fix.contains("\"auto\"")), "{named}");
}

#[test]
fn without_a_leaf_or_when_off_a_slice_is_accounted() {
    let Some(mount) = mount("no limits") else {
        return;
    };
    let group = Group::new(&mount);
    let idle = group.idle();
    let case = Case::start(LIMITED, "cgroup_limits = \"off\"\n");
    case.must_admit("web", CAP, idle.pid());
    assert_eq!(limits(&case.node.machine(), &group.dir), Err(LimitError::NotFound));
    eventually("its enforcement level", || case.row("web")["memory_enforcement"] == "accounted");
    drop(case);
    let case = Case::start(LIMITED, "");
    // In the daemon's own cgroup, as a plain process mostly is.
    case.must_admit("web", CAP, std::process::id());
    eventually("its enforcement level", || case.row("web")["memory_enforcement"] == "accounted");
}

#[test]
fn a_plain_command_gets_its_own_leaf_which_is_removed_at_its_end() {
    let Some(mount) = mount("leaves") else { return };
    let case = Case::start(LIMITED, QUICK);
    let leaves_of = |pid: u32| {
        let all = std::fs::read_dir(&mount).expect("a directory").flatten();
        let names = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let name = format!("gpuslice-run-{pid}-");
        names.filter(|one| one.starts_with(&name)).count()
    };
    let run = |words: &[&str]| {
        let plain = ["run", "--memory", "256MiB", "--pinned", "64MiB", "--name", "plain"];
        let mut command = command(&case.node, &plain);
        command.arg("--").args(words);
        command
    };
    let mut child = run(&["sleep", "600"]).spawn().expect("gpuslice starts");
    let row = || {
        let all = json(&case.node, &["ps", "--json"]);
        all["slices"].as_array().expect("slices").first().cloned()
    };
    eventually("a slice with a limit", || {
        row().is_some_and(|row| row["memory_enforcement"] == "driver")
    });
    assert_eq!(row().expect("a slice")["pinned_cap"], 64 * MIB);
    let id = row().expect("a slice")["container"].as_str().expect("an id").to_owned();
    let leaf = mount.join(id.replace("run-", "gpuslice-run-"));
    child.kill().expect("killed");
    child.wait().expect("ended");
    eventually("an empty leaf", || {
        let pids = std::fs::read_to_string(leaf.join("cgroup.procs"));
        // Another `gpuslice run` on this machine may have removed it already.
        pids.map_or(!leaf.exists(), |pids| pids.is_empty())
    });
    eventually("no slice", || row().is_none());
    let tenant = target_dir().join("tenant");
    let tenant = tenant.to_str().expect("plain");
    let words = [tenant, "--step-mib", "32", "--no-launch"];
    let mut child = run(&words).spawn().expect("gpuslice starts");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(leaves_of(child.id()), 0);
    assert!(!leaf.exists(), "the leaf of the killed command is not removed");
    // With groups that the command made below its own.
    let deeper = r#"own=$(sed -n s/^0:://p /proc/self/cgroup); mkdir -p "$0$own/a/b" "$0$own/c""#;
    let mut child = run(&["sh", "-c", deeper, mount.to_str().expect("plain")]).spawn();
    let child = child.as_mut().expect("gpuslice starts");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(leaves_of(child.id()), 0);
}
