//! The units, judged by systemd's own tools. They do not need a running systemd.

use crate::harness::{skip, target_dir};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The highest exposure that each service may have, in tenths.
const EXPOSURE_MAX: [(&str, u32); 2] =
    [("gpuslice-metrics.service", 10), ("gpusliced.service", 25)];

/// Keys of systemd 254. Older ones ignore them.
const NEWER: [&str; 2] = ["RestartSteps", "RestartMaxDelaySec"];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd")
}

fn names(suffix: &str) -> Vec<String> {
    let all = fs::read_dir(source()).expect("units");
    let names = all.map(|entry| entry.expect("a file").file_name().into_string());
    let names = names.map(|name| name.expect("plain"));
    let mut names: Vec<String> = names.filter(|name| name.ends_with(suffix)).collect();
    names.sort();
    names
}

fn analyze(args: &[&str], unit: &Path) -> Option<Output> {
    let run =
        Command::new("systemd-analyze").args(args).arg(unit).env("SYSTEMD_COLORS", "0").output();
    run.ok()
}

/// The units with the programs where this build has them: `verify` looks whether they are there.
fn copies(dir: &Path) {
    for name in names("").iter().filter(|name| !name.ends_with(".sysusers")) {
        let text = fs::read_to_string(source().join(name)).expect("readable");
        let here = target_dir().display();
        let text = text
            .replace("/usr/sbin/gpusliced", &format!("{here}/gpusliced"))
            .replace("/usr/bin/gpuslice", &format!("{here}/gpuslice"));
        fs::write(dir.join(name), text).expect("written");
    }
}

#[test]
fn systemd_understands_every_word() {
    let dir = tempfile::tempdir().expect("a directory");
    copies(dir.path());
    for name in names(".service").iter().chain(&names(".socket")) {
        let Some(said) = analyze(&["verify", "--man=no"], &dir.path().join(name)) else {
            return skip("the units", "no systemd-analyze in PATH");
        };
        // An unknown key is a line on standard error and no failure.
        let text = String::from_utf8_lossy(&said.stderr);
        let is_newer = |line: &&str| {
            line.contains("Unknown key") && NEWER.iter().any(|key| line.contains(key))
        };
        let text: String = text.lines().filter(|line| !is_newer(line)).collect();
        assert!(said.status.success() && text.is_empty(), "{name}: {text}");
    }
}

#[test]
fn a_mistake_would_be_heard() {
    let dir = tempfile::tempdir().expect("a directory");
    copies(dir.path());
    let unit = dir.path().join("gpusliced.service");
    let text = fs::read_to_string(&unit).expect("readable");
    fs::write(&unit, text.replace("WatchdogSec=", "WatchdogSecond=")).expect("written");
    if let Some(said) = analyze(&["verify", "--man=no"], &unit) {
        assert!(String::from_utf8_lossy(&said.stderr).contains("WatchdogSecond"));
    }
}

/// The pause between a daemon's ends, where systemd makes none: the unit's own script, with a `sleep` that tells.
#[test]
fn a_daemon_that_ends_again_and_again_pauses() {
    let unit = fs::read_to_string(source().join("gpusliced.service")).expect("readable");
    let script = unit.lines().find_map(|line| line.strip_prefix("ExecStopPost=-+/bin/sh -c '"));
    let dir = tempfile::tempdir().expect("a directory");
    let ended = dir.path().join("ended");
    let script = script.and_then(|text| text.strip_suffix('\'')).expect("a script");
    let script = script.replace("/run/gpuslice/ended", ended.to_str().expect("plain"));
    let pauses = |result: &str, status: &str| {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &format!("sleep() {{ echo \"$1\"; }}; {script}")]);
        shell.env("SERVICE_RESULT", result).env("EXIT_STATUS", status);
        let output = shell.output().expect("it runs");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        !output.stdout.is_empty()
    };
    assert!(!pauses("success", "0") && !pauses("exit-code", "69") && !ended.exists());
    assert!(!pauses("signal", "KILL"), "the first restart comes at once");
    assert!(pauses("signal", "KILL") && pauses("exit-code", "1"));
    assert!(!pauses("success", "0") && !pauses("exit-code", "69"));
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(11);
    fs::File::open(&ended).and_then(|file| file.set_modified(long_ago)).expect("a time");
    assert!(!pauses("watchdog", "ABRT"));
}

#[test]
fn services_are_exposed_little() {
    assert_eq!(names(".service"), EXPOSURE_MAX.map(|(name, _)| name));
    for (name, most) in EXPOSURE_MAX {
        let threshold = format!("--threshold={most}");
        let args = ["security", "--offline=true", "--no-pager", &threshold];
        let Some(said) = analyze(&args, &source().join(name)) else {
            return skip("the units", "no systemd-analyze in PATH");
        };
        let text = String::from_utf8_lossy(&said.stdout);
        let last = text.lines().last().unwrap_or_default();
        assert!(said.status.success() && last.contains("exposure"), "{name}: {last}");
    }
}

/// Every permission has its reason: in a service, whatever follows the programs stands below a comment.
#[test]
fn every_block_of_permissions_is_explained() {
    for name in names(".service") {
        let text = fs::read_to_string(source().join(&name)).expect("readable");
        for word in ["CapabilityBoundingSet=", "SystemCallFilter=", "ProtectSystem="] {
            let at = text.find(&format!("\n{word}")).expect(word);
            let above = text[..at].lines().rev().take(3);
            let explained = above.into_iter().any(|line| line.starts_with('#'));
            assert!(explained, "{name}: {word}");
        }
    }
}
