//! `gpuslice run` and `ps` as users run them: real tenants, both injection methods, bad input.

use crate::harness::node::Node;
use crate::harness::process::children;
use crate::harness::profiles::simulated;
use crate::harness::{copy_of, copy_program, eventually, is_root, skip, target_dir};
use gpuslice_wire::units::GIB;
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

mod claims;
mod imposters;
mod misuse;
pub mod schemas;
mod screen;
mod shell;
mod together;
mod views;
mod web;

/// Injection methods that work here.
fn injection_methods() -> Vec<&'static str> {
    if is_root() {
        return vec!["preload", "mount"];
    }
    skip("injection", "mount injection needs root");
    vec!["preload"]
}

fn gpuslice() -> Command {
    with_signals("--default-signal")
}

/// `gpuslice` under `env`, which sets the ignored signals, independent of the test's caller (`nohup`).
fn with_signals(env: &str) -> Command {
    let mut command = Command::new("env");
    command.arg(env).arg(env!("CARGO_BIN_EXE_gpuslice"));
    command.stdin(Stdio::null());
    command
}

/// `gpuslice run` on the staged simulated driver with a device of its own.
fn run(options: &[&str], command: &[&str]) -> Output {
    let mut run = gpuslice();
    run.arg("run").args(options).arg("--driver-dir").arg(driver()).arg("--").args(command);
    // A daemon of its own, whatever else runs.
    let place = tempfile::tempdir().expect("a directory");
    run.env("TMPDIR", place.path());
    let output = run.env("GPUSLICE_SIM", simulated("mem=4GiB")).output();
    output.expect("gpuslice starts")
}

/// Lets `gpuslice` run a command in a slice of 1 GiB by this injection method; the command's words follow.
pub(crate) fn in_1gib<'a>(
    gpuslice: &'a mut Command,
    method: &str,
    driver: &Path,
) -> &'a mut Command {
    gpuslice.args(["run", "--memory", "1GiB", "--inject", method]);
    gpuslice.arg("--driver-dir").arg(driver).arg("--")
}

fn driver() -> PathBuf {
    let staged = target_dir().join("sim");
    assert!(staged.exists(), "not staged; run packaging/stage debug");
    staged
}

fn tenant() -> String {
    target_dir().join("tenant").display().to_string()
}

/// The event of that kind among the JSON lines a tenant printed.
fn event(output: &Output, kind: &str) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = events.into_iter().find(|event| event["event"] == kind);
    found.unwrap_or_else(|| panic!("no {kind} event: {output:?}"))
}

#[test]
fn a_command_sees_its_cap_and_no_more() {
    for method in injection_methods() {
        let output = run(
            &["--memory", "1GiB", "--inject", method],
            &[&tenant(), "--step-mib", "64", "--no-launch"],
        );
        assert!(output.status.success(), "{method}: {output:?}");
        let memory = event(&output, "memory");
        assert_eq!(memory["total"], GIB, "{method}");
        assert_eq!(memory["refusal"], 2, "{method}");
        let got = memory["got"].as_u64().expect("a number");
        assert!((GIB - (128 << 20)..=GIB).contains(&got), "{method}: {got}");
    }
}

/// The package's program says what it can do, and needs no driver for that.
#[test]
fn the_tenant_lists_its_options() {
    let answer = |word| Command::new(tenant()).arg(word).output().expect("it starts");
    let help = answer("--help");
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(help.status.success() && text.contains("\n  --most-mib N "), "{help:?}");
    let unknown = answer("--nosuch");
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert!(!unknown.status.success() && said.contains("tenant --help lists all"), "{said}");
}

/// The command cannot use a GPU of the node outside its slice: the GPU is not visible, and if it is made
/// visible nevertheless, no context can be created on it.
#[test]
fn other_gpus_are_out_of_reach() {
    let both = "unset CUDA_VISIBLE_DEVICES; exec \"$0\" --no-launch --device 1";
    for method in injection_methods() {
        let (tenant, driver) = (tenant(), driver());
        let hidden = [&tenant, "--no-launch", "--device", "1"];
        let shown = ["sh", "-c", both, &tenant];
        for (command, code) in [(hidden, "cuDeviceGet answered 101"), (shown, "answered 46")] {
            let mut run = gpuslice();
            run.args(["run", "--memory", "1GiB", "--gpus", "0", "--inject"])
                .args([method, "--driver-dir"])
                .arg(&driver)
                .arg("--")
                .args(command);
            let output = run.env("GPUSLICE_SIM", simulated("devices=2,mem=4GiB")).output();
            let output = output.expect("gpuslice starts");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && said.contains(code), "{method}: {output:?}");
        }
    }
}

#[test]
fn kernels_run_to_their_end_in_a_slice() {
    for method in injection_methods() {
        let output = run(
            &["--memory", "1GiB", "--inject", method],
            &[&tenant(), "--seconds", "3", "--kernel-us", "100"],
        );
        assert!(output.status.success(), "{method}: {output:?}");
        let end = event(&output, "end");
        assert_eq!(end["launched"], end["finished"], "{method}");
        assert!(end["launched"].as_u64() > Some(100), "{method}: {end}");
    }
}

#[test]
fn the_commands_status_is_returned() {
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 128 + 15)] {
        let output = run(&["--memory", "1GiB"], &["sh", "-c", script]);
        assert_eq!(output.status.code(), Some(code), "{script}: {output:?}");
    }
    for (program, code) in
        [("/nonexistent/program", 127), ("nosuchprogram", 127), ("/etc/passwd", 126)]
    {
        let output = run(&["--memory", "1GiB"], &[program]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(program), "{output:?}");
    }
}

#[test]
fn it_reports_its_injection_method_and_driver() {
    for method in injection_methods() {
        let output = run(&["--memory", "1GiB", "--inject", method], &["true"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let word = if method == "mount" { "mount" } else { "preload" };
        assert!(said.contains(word) && said.contains("simulated GPU"), "{said}");
        let quiet = run(&["--memory", "1GiB", "--inject", method, "--quiet"], &["true"]);
        assert!(quiet.stderr.is_empty(), "{quiet:?}");
    }
}

#[test]
fn a_cap_may_be_a_part_of_the_gpus_memory() {
    let output = run(&["--memory", "1/4"], &[&tenant(), "--step-mib", "64", "--no-launch"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("1/4 of the GPU's memory"), "{output:?}");
    assert_eq!(event(&output, "memory")["total"], GIB, "of 4 GiB");
    let output = run(&["--memory", "5/4"], &["true"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("as in 1/4"), "{output:?}");
}

#[test]
fn bad_requests_are_refused_with_their_reason() {
    let cases: [(&[&str], &str); 15] = [
        (&["--memory", "0"], "at least one byte"),
        (&["--memory", "-1"], "a size is"),
        (&["--memory", "1e30"], "a size is"),
        (&["--memory", "1G"], "write 1GiB"),
        (&["--memory", "5GiB"], "4GiB"),
        (&["--memory", "1GiB", "--weight", "0"], "1 to 1000"),
        (&["--memory", "1GiB", "--weight", "1000000000"], "1 to 1000"),
        (&["--memory", "1GiB", "--share", "101"], "1 to 100"),
        (&["--memory", "1GiB", "--share-limit", "0"], "1 to 100"),
        (&["--memory", "1GiB", "--share-limit", "half"], "1 to 100"),
        (&["--memory", "1GiB", "--share", "50", "--share-limit", "40"], "at least 50 %"),
        (&["--memory", "1GiB", "--gpus", "9"], "9"),
        (&["--memory", "1GiB", "--gpus", "first"], "all"),
        (&["--memory", "1GiB", "--gpus", "GPU-dead"], "32 hexadecimal digits"),
        (&[], "--memory"),
    ];
    for (options, expected) in cases {
        let output = run(options, &["echo", "it ran"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty(), "{options:?}: {output:?}");
        assert!(said.contains(expected), "{options:?}: {said}");
    }
}

/// The driver of the benches, which has no simulated GPU behind it and no NVML beside it.
fn stub_driver(to: &Path) {
    static MADE: OnceLock<File> = OnceLock::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bench/stub.c");
    copy_of(&MADE, to, |out| {
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", "-o"]);
        assert!(cc.arg(out).arg(source).status().expect("cc").success());
    });
}

/// Another driver, without NVML: the stub of the benches.
#[test]
fn any_driver_with_the_driver_api_works() {
    let dir = tempfile::tempdir().expect("a directory");
    stub_driver(&dir.path().join("libcuda.so.1"));
    for method in injection_methods() {
        let output = in_1gib(&mut gpuslice(), method, dir.path())
            .args([&tenant(), "--no-launch"])
            .output()
            .expect("gpuslice starts");
        assert!(output.status.success(), "{method}: {output:?}");
        let memory = event(&output, "memory");
        assert_eq!((&memory["total"], &memory["got"]), (&GIB.into(), &GIB.into()), "{method}");
        assert_eq!(memory["refusal"], 2, "{method}");
    }
}

#[test]
fn a_directory_without_a_driver_is_named() {
    let empty = tempfile::tempdir().expect("a directory");
    let output = gpuslice()
        .args(["run", "--memory", "1GiB", "--driver-dir"])
        .arg(empty.path())
        .args(["--", "true"])
        .output()
        .expect("gpuslice starts");
    assert!(String::from_utf8_lossy(&output.stderr).contains("has no libcuda.so.1"), "{output:?}");
}

#[test]
fn without_a_daemon_ps_suggests_what_to_do() {
    let empty = tempfile::tempdir().expect("a directory");
    let output =
        gpuslice().args(["ps", "--runtime-dir"]).arg(empty.path()).output().expect("it starts");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("start gpusliced"), "{output:?}");
}

#[test]
fn a_user_without_rights_gets_a_clear_error() {
    if !is_root() {
        return skip(
            "a_user_without_rights_gets_a_clear_error",
            "becoming somebody else needs root",
        );
    }
    let node = Node::start();
    // The programs are root's; a copy that every user can run.
    let public = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let copy = public.path().join("gpuslice");
    copy_program(Path::new(env!("CARGO_BIN_EXE_gpuslice")), &copy);
    for (path, mode) in [(public.path(), 0o755), (node.root(), 0o755), (node.runtime_dir(), 0o755)]
    {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    }
    for words in [&["ps"][..], &["metrics"], &["run", "--memory", "1GiB"]] {
        let mut command = Command::new(&copy);
        command.args(words).arg("--runtime-dir").arg(node.runtime_dir()).uid(65534).gid(65534);
        if words[0] == "run" {
            command.args(["--", "true"]);
        }
        command.stdin(Stdio::null());
        let output = command.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{words:?}: {output:?}");
        assert!(words[0] == "run" || said.contains("may not ask the daemon"), "{words:?}: {said}");
        assert!(output.stdout.is_empty(), "a daemon that may not be asked is not away: {output:?}");
    }
}

fn ps(node: &Node) -> Value {
    ps_at(node.runtime_dir())
}

fn ps_at(runtime_dir: &Path) -> Value {
    let output = gpuslice().args(["ps", "--json", "--runtime-dir"]).arg(runtime_dir).output();
    let output = output.expect("it starts");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Starts a tenant in a slice of the node's daemon.
fn tenant_of(node: &Node, name: &str, seconds: &str) -> std::process::Child {
    let mut command = gpuslice();
    command.args(["run", "--memory", "1GiB", "--name", name, "--runtime-dir"]);
    command.arg(node.runtime_dir()).args(["--", &tenant(), "--seconds", seconds]);
    command.env("GPUSLICE_SIM_DEVICE", node.root().join("device"));
    command.stdout(Stdio::null()).spawn().expect("gpuslice starts")
}

fn slice_named(view: &Value, name: &str) -> Option<Value> {
    let all = view["slices"].as_array().expect("slices");
    all.iter().find(|slice| slice["name"] == name).cloned()
}

#[test]
fn ps_shows_a_running_tenant_until_it_ends() {
    let node = Node::start();
    let mut child = tenant_of(&node, "seen", "60");
    let busy = |slice: Value| {
        slice["denied"].as_u64() > Some(0)
            && slice["launches"].as_u64() > Some(0)
            && slice["memory_used"].as_u64() > Some(GIB / 2)
            && slice["memory_used"].as_u64() <= slice["memory_cap"].as_u64()
    };
    eventually("the tenant at work", || slice_named(&ps(&node), "seen").is_some_and(busy));
    interrupt(&child);
    child.wait().expect("it ends");
    eventually("the slice is gone", || slice_named(&ps(&node), "seen").is_none());
}

/// Interrupts the tenant under `gpuslice run`, as Ctrl-C at a terminal does.
fn interrupt(run: &std::process::Child) {
    let started = children(nix::unistd::Pid::from_raw(run.id().cast_signed()));
    assert!(!started.is_empty(), "a live process");
    for pid in started {
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("a live child");
    }
}

#[test]
fn tenants_outlive_their_daemon_and_are_known_again() {
    let mut node = Node::start();
    let mut child = tenant_of(&node, "survivor", "60");
    let used = |view: &Value| slice_named(view, "survivor").and_then(|s| s["memory_used"].as_u64());
    let denied = |view: &Value| slice_named(view, "survivor").and_then(|s| s["denied"].as_u64());
    let launches =
        |view: &Value| slice_named(view, "survivor").and_then(|s| s["launches"].as_u64());
    eventually("all memory taken", || denied(&ps(&node)) > Some(0));
    // Its last request counts as held until it has read the refusal; then it begins to launch.
    eventually("it launches", || launches(&ps(&node)) > Some(0));
    let before = used(&ps(&node));
    assert!(before > Some(GIB / 2), "{before:?}");
    node.end_daemon(nix::sys::signal::Signal::SIGKILL);
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert!(child.try_wait().expect("wait").is_none(), "the tenant died with its daemon");
    node.start_daemon(&[]);
    eventually("the ledger is right again", || used(&ps(&node)) == before);
    let then = launches(&ps(&node));
    eventually("it goes on launching", || launches(&ps(&node)) > then);
    interrupt(&child);
    child.wait().expect("it ends");
}
