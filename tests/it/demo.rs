//! The demo as a person runs it: a verdict, and nothing left behind, whatever the end.

use crate::command::schemas::assert_fits;
use crate::harness::process::child_named;
use crate::harness::{can_go_before_other_work, eventually, go_before_other_work};
use crate::harness::{is_root, names, programs_of, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Two demos whose shares are judged would disturb each other. Demos that judge no shares take no lock.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A demo whose temporary files all are in `place`.
fn demo(runtime: &str, seconds: &str, place: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
    command.args(["demo", "--json", "--runtime", runtime, "--seconds", seconds]);
    command.env("TMPDIR", place).stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).spawn().expect("it starts")
}

/// Asserts that an ended demo left neither processes, files, simulated GPUs, mounts nor control groups. The kernel ends
/// its daemon's children after the daemon, when they have a processor.
fn assert_nothing_left(runtime: &str, pid: u32, place: &Path) {
    eventually(&format!("{runtime}: no processes"), || programs_of(place).is_empty());
    assert_eq!(names(place), Vec::<String>::new(), "{runtime}: files");
    let device = format!("gpuslice-sim-{pid}-");
    let devices = names(Path::new("/dev/shm")).into_iter().filter(|name| name.starts_with(&device));
    assert_eq!(devices.collect::<Vec<_>>(), Vec::<String>::new(), "{runtime}: devices");
    let groups = names(Path::new("/sys/fs/cgroup"));
    let inside = groups.iter().flat_map(|group| names(&Path::new("/sys/fs/cgroup").join(group)));
    let end = format!("-{pid}");
    let ours = groups
        .iter()
        .cloned()
        .chain(inside)
        .filter(|name| name.starts_with("gpuslice-") && name.ends_with(&end));
    assert_eq!(ours.collect::<Vec<_>>(), Vec::<String>::new(), "{runtime}: control groups");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    assert!(!mounts.contains(&place.display().to_string()), "{runtime}: a mount in {place:?}");
}

/// Waits until the three tenants of a demo run.
fn await_tenants(pid: u32, place: &Path) {
    let end = format!("-{pid}\n");
    let is_contained = |process: &Path| {
        let read = |name: &str| std::fs::read_to_string(process.join(name)).unwrap_or_default();
        read("comm") == "tenant\n" && read("cgroup").contains(&end)
    };
    eventually("three tenants", || {
        let plain = programs_of(place).iter().filter(|name| name.starts_with("tenant ")).count();
        let all = names(Path::new("/proc"));
        let contained = all.iter().filter(|it| is_contained(&Path::new("/proc").join(it))).count();
        plain.max(contained) == 3
    });
}

/// Runtimes that can be tried here; plain processes always.
fn runtimes() -> Vec<&'static str> {
    let mut all = vec!["none"];
    for runtime in ["runc", "crun"] {
        match Command::new(runtime).arg("--version").output() {
            Ok(_) if is_root() => all.push(runtime),
            Ok(_) => {
                skip("demo", "containers need root");
            }
            Err(_) => {
                skip("demo", &format!("{runtime} is not installed"));
            }
        }
    }
    all
}

/// A tenant borrows memory beyond its cap, and is suspended when the owner of the promise comes.
#[test]
fn the_demo_of_a_memory_limit() {
    for runtime in runtimes() {
        let place = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
        command.args([
            "demo",
            "--json",
            "--policy",
            "soft",
            "--memory-limit",
            "--runtime",
            runtime,
        ]);
        command.env("TMPDIR", place.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let pid = child.id();
        let output = child.wait_with_output().expect("it ends");
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{runtime}: {error}: {output:?}"));
        assert_fits("demo-memory", &report);
        assert_eq!(
            (&report["verdict"], &report["policy"]),
            (&"pass".into(), &"soft".into()),
            "{report}"
        );
        assert_nothing_left(runtime, pid, place.path());
    }
}

/// Every figure is there and the caps held. Shares are judged by the demo's own verdict on a quiet machine; here,
/// beside other tests, only their order is, where the tenants go before the machine's other work. A container has a
/// control group of its own, whose processes wait for the other ones: there the time that the daemon gave is in order.
#[test]
fn the_demo_reports_three_tenants_within_their_caps() {
    let _alone = alone();
    let judged = can_go_before_other_work("demo");
    for runtime in runtimes() {
        let place = tempfile::tempdir().expect("a directory");
        // A thread of its own: what it starts has its priority.
        let prior = judged && runtime == "none";
        let start = || {
            if prior {
                go_before_other_work();
            }
            demo(runtime, "12", place.path())
        };
        let child = std::thread::scope(|scope| scope.spawn(start).join()).expect("it starts");
        let ordered = if prior { "share_measured" } else { "share_ledger" };
        let pid = child.id();
        let output = child.wait_with_output().expect("it ends");
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{runtime}: {error}: {output:?}"));
        assert_fits("demo", &report);
        assert!(["pass", "fail"].contains(&report["verdict"].as_str().unwrap_or("")), "{report}");
        let nodes = ["/dev/nvidiactl", "/dev/dxg"];
        let real = nodes.iter().any(|node| Path::new(node).exists());
        assert_eq!(report["simulated"], !real, "{report}");
        let tenants = report["tenants"].as_array().expect("tenants");
        assert_eq!(tenants.len(), 3, "{runtime}: {report}");
        let mut last = 0.0;
        for tenant in tenants {
            let number =
                |key: &str| tenant[key].as_f64().unwrap_or_else(|| panic!("{key}: {report}"));
            assert!(tenant["name"].is_string());
            assert!(number("memory_peak") <= number("memory_cap"), "{runtime}: {tenant}");
            assert!(number("denied") >= 1.0, "{runtime}: {tenant}");
            assert!((number("share_expected") * 7.0 - number("weight")).abs() < 1e-9);
            assert!(number("share_measured") > 0.0, "{runtime}: {tenant}");
            let share = number(ordered);
            assert!(!judged || share > last, "{runtime}: {ordered} follows weights: {report}");
            last = share;
        }
        assert_nothing_left(runtime, pid, place.path());
    }
}

/// One test: as two, one of them would keep a thread of the tests waiting for the other one.
#[test]
fn the_demos_of_policies_and_loads() {
    let _alone = alone();
    a_policy_reports_what_each_was_due();
    programs_that_wait_for_their_kernels();
}

/// Tenants that wait for each kernel, with pauses: their shares follow their weights too. An ordinary user's tenants
/// wait for the machine's other work as well, and are not judged by their order.
fn programs_that_wait_for_their_kernels() {
    let judged = can_go_before_other_work("demo");
    if judged {
        go_before_other_work();
    }
    let place = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
    command.args(["demo", "--json", "--runtime", "none", "--seconds", "12", "--load", "steps"]);
    let output = command.env("TMPDIR", place.path()).stdin(Stdio::null()).output();
    let output = output.expect("it starts");
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_fits("demo", &report);
    assert_eq!(report["load"], "steps");
    let tenants = report["tenants"].as_array().expect("tenants");
    let shares: Vec<f64> =
        tenants.iter().filter_map(|tenant| tenant["share_measured"].as_f64()).collect();
    assert_eq!(shares.len(), 3, "{report}");
    assert!(shares.iter().all(|share| *share > 0.0), "{report}");
    assert!(!judged || (shares[0] < shares[1] && shares[1] < shares[2]), "{report}");
}

/// An idle tenant gets nothing, and a limited one no more than its limit, a burst and a turn.
fn a_policy_reports_what_each_was_due() {
    for (asked, policy) in [("fair", "fair"), ("1", "preemptive"), ("native", "native")] {
        let place = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
        command.args(["demo", "--json", "--runtime", "none", "--seconds", "5"]);
        command.args(["--policy", asked]).env("TMPDIR", place.path());
        let output = command.stdin(Stdio::null()).output().expect("it starts");
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{policy}: {error}: {output:?}"));
        assert_eq!(report["policy"], policy);
        let tenants = report["tenants"].as_array().expect("tenants");
        assert_eq!(tenants.len(), 3, "{report}");
        for tenant in tenants {
            let number = |key: &str| tenant[key].as_f64().expect("a number");
            let (due, got) = (number("share_expected"), number("share_measured"));
            match (due, policy) {
                (0.0, _) => assert_eq!(got, 0.0, "{policy}: {tenant}"),
                (_, "native") => assert_eq!(number("turns"), 0.0, "{tenant}"),
                _ => assert!(got > 0.0 && got < due + 0.06, "{policy}: {tenant}"),
            }
        }
    }
}

/// The hook waits for the daemon for half a second, which a busy machine may not give it; the demo starts that
/// container again. Here the daemon is stopped when the first runtime starts.
#[test]
fn a_container_whose_hook_was_late_is_started_again() {
    for runtime in runtimes().into_iter().filter(|name| *name != "none") {
        let place = tempfile::tempdir().expect("a directory");
        let child = demo(runtime, "3", place.path());
        let of_demo = |name: &str| child_named(Pid::from_raw(child.id().cast_signed()), name);
        eventually("a runtime", || of_demo(runtime).is_some());
        let daemon = of_demo("gpusliced").expect("a daemon");
        kill(daemon, Signal::SIGSTOP).expect("it lives");
        std::thread::sleep(Duration::from_millis(1_200));
        kill(daemon, Signal::SIGCONT).expect("it lives");
        let pid = child.id();
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("is started again"), "{runtime}: {output:?}");
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{runtime}: {error}: {output:?}"));
        assert_eq!(report["tenants"].as_array().map(Vec::len), Some(3), "{report}");
        assert_nothing_left(runtime, pid, place.path());
    }
}

#[test]
fn an_interrupted_demo_cleans_up() {
    let moments = runtimes().into_iter().flat_map(|runtime| [(runtime, true), (runtime, false)]);
    for (runtime, at_start) in moments {
        let place = tempfile::tempdir().expect("a directory");
        let mut child = demo(runtime, "60", place.path());
        let pid = child.id();
        match at_start {
            // It catches signals before it makes its directory. Runtimes are just starting containers then.
            true => eventually("a directory", || !names(place.path()).is_empty()),
            false => await_tenants(pid, place.path()),
        }
        kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("it lives");
        eventually("its end", || child.try_wait().expect("wait").is_some());
        assert_eq!(child.wait().expect("ours").code(), Some(1), "{runtime}");
        assert_nothing_left(runtime, pid, place.path());
    }
}

/// Killed, it cannot clean up; those it started do.
#[test]
fn a_killed_demo_leaves_nothing() {
    for runtime in runtimes() {
        let place = tempfile::tempdir().expect("a directory");
        let mut child = demo(runtime, "60", place.path());
        let pid = child.id();
        // Those that it has just started wait for memory, and no daemon grants it.
        await_tenants(pid, place.path());
        child.kill().expect("it lives");
        child.wait().expect("it ends");
        let groups = || {
            let cpu = names(Path::new("/sys/fs/cgroup/cpu"));
            let all = cpu.into_iter().chain(names(Path::new("/sys/fs/cgroup")));
            all.filter(|name| name.ends_with(&format!("-{pid}"))).count()
        };
        eventually("processes, files and control groups are gone", || {
            names(place.path()).is_empty() && groups() == 0 && programs_of(place.path()).is_empty()
        });
        assert_nothing_left(runtime, pid, place.path());
    }
}
