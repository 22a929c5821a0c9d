//! The demo as a person runs it: a verdict, and nothing left behind, whatever the end.

use crate::harness::{PATIENCE, is_root, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Two demos at once would share the machine's cores and judge each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn demo(runtime: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
    command
        .args(["demo", "--json", "--runtime", runtime])
        .stdin(Stdio::null());
    command
}

/// Runtimes that can be tried here; plain processes always.
fn runtimes() -> Vec<&'static str> {
    let mut all = vec!["none"];
    for runtime in ["runc", "crun"] {
        match Command::new(runtime).arg("--version").output() {
            Ok(_) if is_root() => all.push(runtime),
            Ok(_) => skip("demo", "containers need root"),
            Err(_) => skip("demo", &format!("{runtime} is not installed")),
        }
    }
    all
}

/// Every figure is there and the caps held. Shares are judged by the demo's own verdict on a quiet
/// machine; here, beside other tests, only their order is.
#[test]
fn the_demo_reports_three_tenants_within_their_caps() {
    let _alone = alone();
    for runtime in runtimes() {
        let output = demo(runtime)
            .args(["--seconds", "4"])
            .output()
            .expect("it starts");
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{runtime}: {error}: {output:?}"));
        assert!(
            ["pass", "fail"].contains(&report["verdict"].as_str().unwrap_or("")),
            "{report}"
        );
        let tenants = report["tenants"].as_array().expect("tenants");
        assert_eq!(tenants.len(), 3, "{runtime}: {report}");
        let mut last = 0.0;
        for tenant in tenants {
            let number = |key: &str| {
                tenant[key]
                    .as_f64()
                    .unwrap_or_else(|| panic!("{key}: {report}"))
            };
            assert!(tenant["name"].is_string());
            assert!(
                number("memory_peak") <= number("memory_cap"),
                "{runtime}: {tenant}"
            );
            assert!(number("denied") >= 1.0, "{runtime}: {tenant}");
            assert!((number("share_expected") * 7.0 - number("weight")).abs() < 1e-9);
            assert!(
                number("share_measured") > last,
                "{runtime}: shares follow weights: {report}"
            );
            last = number("share_measured");
        }
        assert_nothing_left(runtime, pid, place.path());
    }
}

#[test]
fn an_interrupted_demo_cleans_up() {
    let _alone = alone();
    for runtime in runtimes() {
        let mut command = demo(runtime);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command
            .args(["--seconds", "60"])
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_millis(1500));
        kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("it lives");
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("wait") {
                break status;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{runtime}: the demo does not end"
            );
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(1), "{runtime}");
        assert_nothing_left(runtime, pid, place.path());
    }
}
