//! `gpuslice doctor`, with and without a daemon and a driver.

use super::cases::Case;
use super::group::{Group, mount};
use crate::harness::target_dir;
use gpuslice_wire::units::GIB;
use serde_json::Value;
use std::process::{Command, Output, Stdio};

fn doctor(case: &Case, more: &[&str]) -> Output {
    let driver = target_dir().join("sim");
    let driver = driver.to_str().expect("plain");
    let mut words = vec!["doctor", "--driver-dir", driver];
    words.extend(more);
    case.gpuslice(&words)
}

/// The checks, each of which says what to do about what is missing.
fn checks(output: &Output) -> Vec<Value> {
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let checks = all["checks"].as_array().expect("checks").clone();
    for check in &checks {
        let has_fix = check["fix"].as_str().is_some_and(|fix| !fix.is_empty());
        assert!(check["ok"] == true || has_fix, "{check}");
    }
    checks
}

fn named<'a>(checks: &'a [Value], name: &str) -> &'a Value {
    let found = checks.iter().find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {checks:?}"))
}

#[test]
fn doctor_shows_memory_enforcement_of_gpus_and_slices() {
    let Some(mount) = mount("doctor") else { return };
    let case = Case::start("devices=1,mem=1GiB,limits=dmem", "");
    let group = Group::new(&mount);
    let idle = group.idle();
    case.must_admit("web", GIB / 2, idle.pid());
    case.is_enforced_by("web", "driver");
    let output = doctor(&case, &["--json"]);
    assert!(output.status.success(), "{output:?}");
    let checks = checks(&output);
    let gpu = named(&checks, "gpu 0")["found"].as_str().expect("text");
    assert!(gpu.ends_with("driver: the driver enforces caps"), "{gpu}");
    let slice = named(&checks, "slice web")["found"].as_str().expect("text");
    assert!(slice.starts_with("gpu 0 (simulated): driver"), "{slice}");
    assert_eq!(named(&checks, "daemon")["ok"], true);
}

#[test]
fn a_missing_part_is_reported_with_its_fix() {
    let mut case = Case::start("devices=1,mem=1GiB", "");
    case.node.end_daemon(nix::sys::signal::Signal::SIGTERM);
    let strict = doctor(&case, &["--strict"]);
    assert_eq!(strict.status.code(), Some(1), "the daemon is missing: {strict:?}");
    let output = doctor(&case, &[]);
    assert!(output.status.success(), "nothing that is needed: {output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(
        text.contains("missing daemon")
            && (text.contains("-> start gpusliced") || text.contains("-> systemctl enable")),
        "{text}"
    );
    assert!(
        text.contains(": accounted: ") && text.contains("the next level is not available"),
        "{text}"
    );

    let nowhere = case.node.root().join("nowhere");
    let nowhere = nowhere.to_str().expect("plain");
    let output = case.gpuslice(&["doctor", "--json", "--driver-dir", nowhere]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let driver = named(&checks(&output), "driver").clone();
    assert_eq!((&driver["ok"], &driver["needed"]), (&false.into(), &true.into()));
    assert!(driver["fix"].as_str().is_some_and(|fix| fix.contains("fix the driver")), "{driver}");
}

/// A file that is no library, and a wrong configuration, are reported and do not end the command.
#[test]
fn doctor_describes_a_broken_node() {
    let case = Case::start("devices=1,mem=1GiB", "");
    let dir = case.node.root().join("broken");
    std::fs::create_dir(&dir).expect("a directory");
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        std::fs::write(dir.join(name), "no library").expect("written");
    }
    let config = dir.join("config");
    std::fs::write(&config, "cgroup_limits = \"maybe\"").expect("written");
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
    doctor.arg("doctor").arg("--driver-dir").arg(&dir).arg("--config").arg(&config);
    doctor.arg("--runtime-dir").arg(case.node.runtime_dir()).stdin(Stdio::null());
    let output = doctor
        .env("GPUSLICE_SIM_DEVICE", case.node.root().join("device"))
        .output()
        .expect("gpuslice starts");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("missing nvml") && text.contains("missing configuration"), "{text}");
    assert!(text.contains("gpusliced --check"), "{text}");
}

/// Which requests the node takes, and what NVIDIA's toolkit makes of the same variables.
#[test]
fn doctor_names_sources_of_requests_and_the_toolkit() {
    let case = Case::start("devices=1,mem=1GiB", "");
    let dir = case.node.root().join("toolkit");
    std::fs::create_dir(&dir).expect("a directory");
    let config = dir.join("config");
    let text = "requests_from = [\"annotations\", \"nvidia\"]\nenvironment_memory_max = \"1/2\"";
    std::fs::write(&config, text).expect("written");
    let program = dir.join("nvidia-ctk");
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").expect("a path"));
    for (script, ok, found) in [
        ("echo NVIDIA Container Toolkit CLI version 1.20.1; echo commit: 1a2b", true, "1.20.1; "),
        ("echo NVIDIA Container Toolkit CLI version 1.17.8", true, "the toolkit does not read it"),
        ("echo no library >&2; exit 1", false, "no library"),
    ] {
        // By a child: another test's process, forked meanwhile, would keep a file of ours open for writing, and it
        // could not be executed.
        let write = "printf '#!/bin/sh\n%s\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
        let written = Command::new("sh").args(["-c", write]).arg(&program).arg(script).status();
        assert!(written.expect("a shell").success());
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
        doctor.args(["doctor", "--json", "--driver-dir"]).arg(target_dir().join("sim"));
        doctor.arg("--config").arg(&config).arg("--runtime-dir").arg(case.node.runtime_dir());
        doctor.env("GPUSLICE_SIM_DEVICE", case.node.root().join("device"));
        let output = doctor.env("PATH", &path).stdin(Stdio::null()).output().expect("it starts");
        let checks = checks(&output);
        let requests = named(&checks, "requests")["found"].as_str().expect("text");
        assert_eq!(
            requests,
            "taken from annotations, nvidia, CDI devices; variables may ask for one GPU and at most 1/2 of the GPU's memory"
        );
        let toolkit = named(&checks, "toolkit");
        let said = toolkit["found"].as_str().expect("text");
        assert!(toolkit["ok"] == ok && said.contains(found), "{script}: {toolkit}");
    }
}
