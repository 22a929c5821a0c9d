//! Misuse of the commands by users, scripts and crashes: closed pipes, full disks, signals at any moment,
//! unusual paths, leftover slices.

use super::{
    driver, gpuslice, in_1gib, injection_methods, interrupt, ps, slice_named, tenant_of,
    with_signals,
};
use crate::harness::cli::said;
use crate::harness::node::{Node, denied};
use crate::harness::process::child_named;
use crate::harness::{copy_program, eventually, names, programs_of, skip, target_dir};
use gpuslice_wire::admin::Answer;
use gpuslice_wire::tenant::Reply;
use gpuslice_wire::units::{Bytes, GIB};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

pub(super) fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

#[test]
fn a_closed_pipe_is_no_error_and_a_full_disk_is_one() {
    let node = Node::start();
    for json in [false, true] {
        let mut ps = gpuslice();
        ps.arg("ps").arg("--runtime-dir").arg(node.runtime_dir());
        if json {
            ps.arg("--json");
        }
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let left = ps.stdout(writer).output().expect("it starts");
        assert!(left.status.success() && left.stderr.is_empty(), "{left:?}");
        let full = File::options().write(true).open("/dev/full").expect("full");
        let full = ps.stdout(full).output().expect("it starts");
        assert_eq!(full.status.code(), Some(1), "{full:?}");
        assert!(said(&full).contains("standard output"), "{full:?}");
    }
}

#[test]
fn a_closed_standard_error_does_not_prevent_a_command() {
    let place = tempfile::tempdir().expect("a directory");
    let proof = place.path().join("ran");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut run = gpuslice();
    run.args(["run", "--memory", "1GiB", "--driver-dir"]).arg(driver());
    run.arg("--").arg("touch").arg(&proof).stderr(writer);
    assert!(run.status().expect("it starts").success() && proof.exists());
}

/// `gpuslice run` with all its files in `place`, once its command has started.
fn started(place: &Path, method: &str, script: &str) -> Child {
    let mut run = gpuslice();
    in_1gib(&mut run, method, &driver())
        .args(["sh", "-c"])
        .arg(format!("{script}; touch $0/started; sleep 60 & wait"))
        .arg(place);
    run.env("GPUSLICE_SIM", "mem=4GiB").env("TMPDIR", place);
    let child = run.stderr(Stdio::null()).spawn().expect("it starts");
    eventually("the command runs", || place.join("started").exists());
    child
}

fn assert_nothing_left(place: &Path, of: Pid) {
    eventually("its processes are gone", || programs_of(place).is_empty());
    eventually("its files are gone", || names(place) == ["started"]);
    let device = format!("gpuslice-sim-{of}-");
    let is_its = |name: &String| name.starts_with(&device);
    eventually("its simulated GPU is gone", || !names(Path::new("/dev/shm")).iter().any(is_its));
}

#[test]
fn a_terminated_command_ends_and_leaves_nothing() {
    for method in injection_methods() {
        for (signal, code) in [
            (Signal::SIGTERM, Some(143)),
            (Signal::SIGHUP, Some(129)),
            (Signal::SIGINT, Some(130)),
            (Signal::SIGQUIT, Some(131)),
            (Signal::SIGKILL, None),
        ] {
            let place = tempfile::tempdir().expect("a directory");
            let mut child = started(place.path(), method, "true");
            kill(pid(&child), signal).expect("it lives");
            let status = child.wait().expect("it ends");
            assert_eq!(status.code(), code, "{method}: {signal}");
            assert_nothing_left(place.path(), pid(&child));
        }
    }
}

#[test]
fn a_signal_ignored_at_start_stays_ignored() {
    for method in injection_methods() {
        let mut run = with_signals("--ignore-signal=HUP");
        let script = "kill -HUP $PPID $$ && echo here";
        let run = in_1gib(&mut run, method, &driver()).args(["sh", "-c", script]);
        let ended = run.output().expect("it starts");
        assert!(ended.status.success(), "{method}: {ended:?}");
        assert_eq!(ended.stdout, b"here\n", "{method}");
    }
}

/// At every stage of setting up at which the signal can arrive.
#[test]
fn a_command_terminated_early_leaves_nothing() {
    for ms in [0, 5, 10, 20, 40, 80] {
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            let place = tempfile::tempdir().expect("a directory");
            let mut run = gpuslice();
            run.args(["run", "--memory", "1GiB", "--driver-dir"]).arg(driver());
            run.args(["--", "sleep", "60"]).env("TMPDIR", place.path());
            let mut child = run.stderr(Stdio::null()).spawn().expect("it starts");
            eventually("it is no longer what starts it", || {
                let name = fs::read_to_string(format!("/proc/{}/comm", child.id()));
                name.is_ok_and(|name| name == "gpuslice\n")
            });
            std::thread::sleep(std::time::Duration::from_millis(ms));
            kill(pid(&child), signal).expect("it lives");
            assert!(!child.wait().expect("it ends").success(), "{ms} ms");
            fs::write(place.path().join("started"), "").expect("a file");
            assert_nothing_left(place.path(), pid(&child));
        }
    }
}

#[test]
fn terminal_signals_do_not_reach_a_private_daemon() {
    let place = tempfile::tempdir().expect("a directory");
    let mut child = started(place.path(), "preload", "trap exit INT");
    let of = pid(&child);
    let daemon = child_named(of, "gpusliced").expect("a private daemon");
    assert_ne!(getpgid(Some(daemon)), getpgid(Some(of)));
    let ours = programs_of(place.path());
    assert!(
        ours.iter().any(|it| it.starts_with("gpusliced ")),
        "what is looked for later: {ours:?}"
    );
    interrupt_command(&child);
    child.wait().expect("it ends");
    assert_nothing_left(place.path(), of);
}

/// As [`interrupt`], of the command alone.
fn interrupt_command(run: &Child) {
    kill(pid(run), Signal::SIGINT).expect("it lives");
}

/// A copy of the programs and libraries in `dir`.
pub(super) fn install(dir: &Path) {
    fs::create_dir_all(dir.join("sim")).expect("a directory");
    for name in ["gpuslice", "gpusliced", "tenant"].into_iter().chain([
        "libgpuslice.so",
        "libgpuslice_mount.so",
        "libgpuslice_nvml.so",
        "libgpuslice_sim_cuda.so",
        "libgpuslice_sim_nvml.so",
    ]) {
        copy_program(&target_dir().join(name), &dir.join(name));
    }
    for (name, real) in [
        ("libcuda.so.1", "../libgpuslice_sim_cuda.so"),
        ("libnvidia-ml.so.1", "../libgpuslice_sim_nvml.so"),
    ] {
        symlink(real, dir.join("sim").join(name)).expect("a link");
    }
}

#[test]
fn unusual_paths_keep_the_cap_or_are_refused_with_a_reason() {
    let root = tempfile::tempdir().expect("a directory");
    let long = "x".repeat(90);
    for (installed, temporary, refused) in [
        ("a space", "tmp", None),
        ("größe 🦀", "tmp", None),
        ("plain", "tmp with space", None),
        ("space too", "tmp space", Some("LD_PRELOAD holds no path")),
        ("a:colon", "tmp", Some("no path with colons")),
        ("long", &long, None),
    ] {
        let (installed, temporary) = (root.path().join(installed), root.path().join(temporary));
        install(&installed);
        fs::create_dir_all(&temporary).expect("a directory");
        for method in injection_methods() {
            let mut gpuslice = Command::new(installed.join("gpuslice"));
            let output = in_1gib(&mut gpuslice, method, &installed.join("sim"))
                .arg(installed.join("tenant"))
                .args(["--no-launch"])
                .env("TMPDIR", &temporary)
                .stdin(Stdio::null())
                .output()
                .expect("it starts");
            let fine = output.status.success() && super::event(&output, "memory")["total"] == GIB;
            match refused {
                Some(why) if said(&output).contains(why) => {}
                // Mount injection needs no LD_PRELOAD.
                Some(why) if method == "mount" && !why.contains("colons") => {
                    assert!(fine, "{installed:?} {temporary:?}: {output:?}");
                }
                None => assert!(fine, "{method}: {installed:?} {temporary:?}: {output:?}"),
                Some(why) => panic!("{method}: {why} was expected: {output:?}"),
            }
            assert!(!said(&output).contains("ld.so"), "{output:?}");
            assert_eq!(names(&temporary), Vec::<String>::new());
        }
    }
}

fn rm(node: &Node, words: &[&str]) -> Output {
    let mut rm = gpuslice();
    rm.arg("rm").args(words).arg("--runtime-dir").arg(node.runtime_dir());
    rm.output().expect("it starts")
}

#[test]
fn a_leftover_slice_can_be_removed() {
    let node = Node::start();
    let idle = |name: &str| slice_named(&ps(&node), name).map(|slice| slice["clients"] == 0);
    let mut killed = tenant_of(&node, "killed", "60");
    eventually("it works", || idle("killed") == Some(false));
    let busy = rm(&node, &["killed"]);
    assert!(!busy.status.success() && said(&busy).contains("--force"), "{busy:?}");
    killed.kill().expect("it lives");
    killed.wait().expect("it ends");
    // Its slice too, if it had a process in a control group of its own.
    eventually("its command ends too", || idle("killed") != Some(false));
    node.must_admit("nobodys", Bytes(GIB));
    let done = rm(&node, &["nobodys"]);
    assert!(done.status.success(), "{done:?}");
    assert!(!node.containers().contains("nobodys"));
    let again = rm(&node, &["nobodys"]);
    assert!(said(&again).contains("no slice is called \"nobodys\""), "{again:?}");
    // Of several none is removed before all are found.
    node.must_admit("one", Bytes(GIB));
    let wrong = rm(&node, &["one", "another", "--json"]);
    assert!(!wrong.status.success() && said(&wrong).contains("\"another\""), "{wrong:?}");
    assert!(node.containers().contains("one"));
    let twice = rm(&node, &["one", "on", "--json"]);
    assert!(twice.status.success() && !node.containers().contains("one"), "{twice:?}");

    let mut forced = tenant_of(&node, "forced", "60");
    eventually("it works", || idle("forced") == Some(false));
    assert!(rm(&node, &["--force", "forced"]).status.success());
    assert_eq!(slice_named(&ps(&node), "forced"), None);
    interrupt(&forced);
    forced.wait().expect("it ends");
}

/// A process that has not connected to a restarted daemon yet is one that runs.
#[test]
fn a_slice_is_not_removed_while_a_process_may_connect_again() {
    let mut node = Node::start();
    node.must_admit("web", Bytes(GIB));
    let process = node.process("web");
    process.attach(Bytes::ZERO);
    assert!(matches!(process.reserve(0, GIB / 2, GIB / 2), Reply::Reserved { .. }));
    node.end_daemon(Signal::SIGKILL);
    node.start_daemon(&[]);
    let busy = rm(&node, &["web"]);
    assert!(said(&busy).contains("web has 1 process on the GPU"), "{busy:?}");
    drop(process);
    eventually("its end is noticed", || rm(&node, &["web"]).status.success());
}

/// A container crashed with its runtime: the next one with that id is refused, and the error says what to
/// do. The same with a damaged record.
#[test]
fn a_blocking_record_is_reported_with_its_removal() {
    let mut node = Node::start();
    node.must_admit("web", Bytes(GIB));
    let (_, why) = denied(node.admit("web", Bytes(GIB)));
    assert!(why.contains("gpuslice rm web"), "{why}");
    node.end_daemon(Signal::SIGKILL);
    fs::write(node.container_dir("web").join("record"), "damaged").expect("written");
    node.start_daemon(&[]);
    let (_, why) = denied(node.admit("web", Bytes(GIB)));
    assert!(why.contains("gpuslice rm web"), "{why}");
    assert!(node.log().contains("gpuslice rm"), "{}", node.log());
    assert!(rm(&node, &["web"]).status.success());
    assert!(matches!(node.admit("web", Bytes(GIB)), Answer::Admitted { .. }));
}

/// The child of a process, once it exists.
fn child_of(parent: u32) -> Option<u32> {
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        after.split(' ').nth(1) == Some(&parent.to_string())
    };
    let mut pids = names(Path::new("/proc")).into_iter().filter_map(|name| name.parse().ok());
    pids.find(is_child)
}

/// A program under strace, which delays some system calls of it; `None` where strace is missing or may not trace.
fn delayed(program: &str, injected: &str) -> Option<Command> {
    let strace = |program: &str| {
        let mut strace = Command::new("strace");
        let call = injected.split(':').next().unwrap_or_default();
        strace.args(["-f", "-o", "/dev/null", "-e"]).arg(format!("trace={call}"));
        strace.arg("-e").arg(format!("inject={injected}")).arg(program).stdin(Stdio::null());
        strace
    };
    let traces = strace("true").output().is_ok_and(|done| done.status.success());
    traces.then(|| strace(program))
}

/// Kills it between the command's fork and its PR_SET_PDEATHSIG.
#[test]
fn a_command_whose_gpuslice_is_killed_at_its_start_never_runs() {
    let test = "a_command_whose_gpuslice_is_killed_at_its_start_never_runs";
    let node = Node::start();
    let proof = node.root().join("ran");
    let Some(mut run) = delayed(env!("CARGO_BIN_EXE_gpuslice"), "prctl:delay_enter=5000000") else {
        return skip(test, "strace is not installed, or may not trace here");
    };
    run.args(["run", "--memory", "1GiB", "--inject", "preload"])
        .arg("--runtime-dir")
        .arg(node.runtime_dir())
        .args(["--", "touch"])
        .arg(&proof);
    let mut strace = run.spawn().expect("strace starts");
    let mut forked = None;
    eventually("the command's process", || {
        let gpuslice = child_of(strace.id());
        forked = gpuslice.filter(|&pid| !node.containers().is_empty() && child_of(pid).is_some());
        forked.is_some()
    });
    let gpuslice = Pid::from_raw(forked.expect("found").cast_signed());
    kill(gpuslice, Signal::SIGKILL).expect("it lives");
    let _ = strace.wait().expect("all of them end");
    assert!(!proof.exists(), "the command ran without its slice's keeper");
}

/// The daemon closes a connection that says nothing for a second. Here this second passes after the first connection,
/// as on a busy machine.
#[test]
fn a_command_that_is_slow_to_ask_connects_again() {
    let test = "a_command_that_is_slow_to_ask_connects_again";
    let node = Node::start();
    node.must_admit("web", Bytes(GIB));
    // With its first one a command asks its connection for the daemon's user.
    let slow = "getsockopt:delay_exit=1500000:when=1";
    let Some(mut set) = delayed(env!("CARGO_BIN_EXE_gpuslice"), slow) else {
        return skip(test, "strace is not installed, or may not trace here");
    };
    set.args(["set", "--weight", "200", "web", "--runtime-dir"]).arg(node.runtime_dir());
    let output = set.output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
}
