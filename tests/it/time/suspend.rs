//! `gpuslice suspend` and `resume` with real processes: the memory of a container is free for others meanwhile, its
//! work goes on afterwards, and nothing is lost whatever ends, refuses or hangs in between. That each byte is back is
//! tested with the simulated driver (`sim/cuda/tests/driver/checkpoints.rs`).

use super::helpers::{Helper, helpers};
use super::{Tenant, must, node};
use crate::harness::cli::{self, command, json, refusal, refused};
use crate::harness::node::{Node, faults};
use crate::harness::{eventually, target_dir};
use gpuslice_sim_device::{Machine, ProcessState, Role};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// More GPU time than any work in flight has.
const MORE: Duration = Duration::from_millis(200);
/// What a tenant holds beside its context: all of its cap in steps of 512 MiB.
const HELD: u64 = 512 << 20;

/// What `gpuslice explain` says of a container.
fn explained(node: &Node, container: &str) -> Value {
    json(node, &["explain", container, "--json", "--seconds", "1"])["slices"][0].clone()
}

fn is_suspended(node: &Node, container: &str) -> bool {
    explained(node, container)["why"] == "suspended"
}

/// The first GPU, as `gpuslice gpus` shows it.
fn shown_gpu(node: &Node) -> Value {
    json(node, &["gpus", "--json"])["gpus"][0].clone()
}

/// Bytes of the GPU that are in use.
fn used(machine: &Machine) -> u64 {
    machine.mem_info(0).expect("a GPU").used
}

/// The kinds of events of a container that suspensions have.
fn events(node: &Node, container: &str) -> Vec<(String, Value)> {
    let all = cli::events(node, &["--slice", container])
        .into_iter()
        .map(|event| (event["event"].as_str().expect("a kind").to_owned(), event));
    all.filter(|(kind, _)| ["suspended", "resumed", "not-moved"].contains(&kind.as_str())).collect()
}

fn kinds(node: &Node) -> Vec<String> {
    events(node, "a").into_iter().map(|(kind, _)| kind).collect()
}

#[test]
fn memory_is_free_for_others_and_work_goes_on() {
    let (node, machine) = node();
    let a = Tenant::start(&node, &machine, "a", 500);
    let full = used(&machine);
    must(&node, &["suspend", "a"]);
    assert!(used(&machine) + HELD <= full, "{} of {full}", used(&machine));
    let gpu = shown_gpu(&node);
    let [held, away] = ["memory_used", "memory_suspended"].map(|it| gpu[it].as_u64());
    assert!(held < Some(HELD) && away >= Some(HELD), "{gpu}");
    let answer = explained(&node, "a");
    assert_eq!(answer["why"], "suspended", "{answer}");
    let advice = answer["try"].as_str().expect("a command");
    assert!(advice.starts_with("gpuslice resume a"), "{answer}");
    let time = &answer["time"];
    assert_eq!((&time["suspended_ns"], &time["idle_ns"]), (&answer["wall_ns"], &0.into()));
    let stands = a.busy(&machine);
    let b = Tenant::start(&node, &machine, "b", 500);
    b.gets(&machine, MORE);
    assert_eq!(a.busy(&machine), stands, "it worked while it was suspended");
    // a proposed command finds the daemon, which the caller had to name
    let resume = format!("gpuslice resume a --runtime-dir {} ", node.runtime_dir().display());
    for words in [&["suspend", "a"][..], &["rm", "a"], &["rm", "--force", "a"]] {
        let why = refused(&node, words);
        assert!(why.contains("container a is suspended") && why.contains(&resume), "{why}");
    }
    must(&node, &["resume", "a"]);
    a.gets(&machine, MORE);
    b.gets(&machine, MORE);
    assert!(!is_suspended(&node, "a"));
    assert!(refused(&node, &["resume", "a"]).contains("is not suspended"));
    for word in ["suspend", "resume"] {
        assert!(refused(&node, &[word, "nobody"]).contains("no slice"));
    }
    assert_eq!(kinds(&node), ["suspended", "resumed"]);
    let me = nix::unistd::getuid().as_raw();
    assert!(
        events(&node, "a")
            .iter()
            .all(|(_, it)| it["uid"] == me && it["bytes"].as_u64() >= Some(HELD))
    );
}

/// The daemon is killed, and another one resumes the container. A process that has not reconnected to it waits for that
/// as well: its slice is not removed.
#[test]
fn a_restarted_daemon_knows_it() {
    let (mut node, machine) = node();
    let a = Tenant::start(&node, &machine, "a", 500);
    must(&node, &["suspend", "a"]);
    a.stop(&machine);
    node.end_daemon(Signal::SIGKILL);
    node.start_daemon(&[]);
    assert!(is_suspended(&node, "a"));
    let why = refused(&node, &["rm", "a"]);
    assert!(why.contains("is suspended, and its processes wait"), "{why}");
    a.signal(Signal::SIGCONT);
    let stands = a.busy(&machine);
    let b = Tenant::start(&node, &machine, "b", 500);
    b.gets(&machine, MORE);
    assert_eq!(a.busy(&machine), stands);
    must(&node, &["resume", "a"]);
    a.gets(&machine, MORE);
}

/// The daemon is killed in the middle of a move, and the process is stopped: it may be locked, so the container stays
/// suspended, and the resume frees the process.
#[test]
fn a_stopped_process_of_a_move_that_was_cut_short() {
    let (mut node, machine) = node();
    let mut a = still(&node, &machine);
    let b = Tenant::start(&node, &machine, "b", 500);
    faults(&machine, "hang=checkpoint");
    let suspend =
        command(&node, &["suspend", "a"]).stderr(Stdio::piped()).spawn().expect("it starts");
    let state = || machine.process_state(a.pid().as_raw());
    eventually("it is locked", || state() == Ok(ProcessState::Locked));
    node.end_daemon(Signal::SIGKILL);
    let output = suspend.wait_with_output().expect("ours");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && told.contains("the daemon ended before the move"),
        "{told}"
    );
    assert!(told.contains("ps --runtime-dir"), "{told}");
    b.gets(&machine, MORE);
    a.stop(&machine);
    faults(&machine, "none");
    node.start_daemon(&[]);
    eventually("the move is refused again", || {
        events(&node, "a").iter().any(|(kind, it)| {
            kind == "not-moved" && it["text"].as_str().is_some_and(|why| why.contains("is stopped"))
        })
    });
    assert!(is_suspended(&node, "a"));
    b.gets(&machine, MORE);
    a.signal(Signal::SIGCONT);
    must(&node, &["resume", "a"]);
    goes_on(&mut a);
}

/// A program that computes nothing and waits for its streams and its context every 20 ms.
fn still(node: &Node, machine: &Machine) -> Tenant {
    load(node, machine, "still")
}

fn load(node: &Node, machine: &Machine, name: &str) -> Tenant {
    let mut command = Command::new(target_dir().join("loads"));
    command.args([name, "--seconds", "100000"]);
    Tenant::run(command, node, machine, "a", Duration::ZERO)
}

/// How often the tenant's first thread has slept; also fails if it has died.
fn sleeps(tenant: &mut Tenant) -> u64 {
    let ended = tenant.child.try_wait().expect("ours");
    assert_eq!(ended, None, "it has ended");
    let text = std::fs::read_to_string(format!("/proc/{}/status", tenant.pid()));
    let text = text.expect("it lives");
    let count = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|it| it.trim().parse().ok()).expect("a number")
}

/// It sleeps through a second and more: neither does it go on, nor does it look for the end again and again.
fn waits(tenant: &mut Tenant) {
    let before = sleeps(tenant);
    sleep(Duration::from_millis(1_300));
    let more = sleeps(tenant) - before;
    assert!(more < 20, "it slept {more} times");
}

fn goes_on(tenant: &mut Tenant) {
    let before = sleeps(tenant);
    eventually("it goes on", || sleeps(tenant) > before + 20);
}

/// The driver ends a process whose memory is on the host and which waits for a stream or its context: the shim holds
/// these calls, with turns and without.
#[test]
fn a_program_that_only_waits_lives() {
    let (node, machine) = node();
    let mut a = still(&node, &machine);
    for beside in [false, true] {
        let b = beside.then(|| Tenant::start(&node, &machine, "b", 500));
        goes_on(&mut a);
        must(&node, &["suspend", "a"]);
        waits(&mut a);
        must(&node, &["resume", "a"]);
        goes_on(&mut a);
        b.inspect(|b| b.gets(&machine, MORE));
    }
    faults(&machine, "refuse=checkpoint");
    refused(&node, &["suspend", "a"]);
    goes_on(&mut a);
}

/// The same while there is no daemon, and with the next one.
#[test]
fn a_program_that_only_waits_outlives_the_daemon() {
    let (mut node, machine) = node();
    let mut a = still(&node, &machine);
    must(&node, &["suspend", "a"]);
    node.end_daemon(Signal::SIGKILL);
    waits(&mut a);
    node.start_daemon(&[]);
    waits(&mut a);
    must(&node, &["resume", "a"]);
    goes_on(&mut a);
}

/// Its process is killed: what it had on the host is gone, and the container can be used again.
#[test]
fn a_container_that_dies_is_over() {
    let (node, machine) = node();
    let a = Tenant::start(&node, &machine, "a", 500);
    let b = Tenant::start(&node, &machine, "b", 500);
    must(&node, &["suspend", "a"]);
    drop(a);
    node.wait_refunded("a");
    b.gets(&machine, MORE);
    drop(b);
    must(&node, &["resume", "a"]);
    Tenant::start(&node, &machine, "a", 500).gets(&machine, MORE);
    must(&node, &["suspend", "a"]);
    must(&node, &["rm", "b"]);
}

/// A driver that refuses one of the calls: the container stays as it was, and the reason is said.
#[test]
fn a_refusal_leaves_it_as_it_was() {
    let (node, machine) = node();
    let [a, b] = ["a", "b"].map(|name| Tenant::start(&node, &machine, name, 500));
    for call in ["lock", "checkpoint"] {
        faults(&machine, &format!("refuse={call}"));
        let why = refused(&node, &["suspend", "a"]);
        assert!(
            why.contains("refused cuCheckpointProcess") && why.contains("it is not suspended"),
            "{why}"
        );
        [&a, &b].iter().for_each(|it| it.gets(&machine, MORE));
        assert!(!is_suspended(&node, "a"));
    }
    faults(&machine, "none");
    must(&node, &["suspend", "a"]);
    faults(&machine, "refuse=restore");
    let why = refused(&node, &["resume", "a"]);
    assert!(
        why.contains("gpuslice resume a --runtime-dir ") && why.contains(" tries again"),
        "{why}"
    );
    assert!(is_suspended(&node, "a"));
    b.gets(&machine, MORE);
    faults(&machine, "none");
    must(&node, &["resume", "a"]);
    a.gets(&machine, MORE);
    assert_eq!(kinds(&node), ["not-moved", "not-moved", "suspended", "not-moved", "resumed"]);
}

/// A driver's calls for a process that is stopped hang: it is refused before, and so is a resume.
#[test]
fn a_stopped_process_is_not_moved() {
    let (node, machine) = node();
    let a = Tenant::start(&node, &machine, "a", 500);
    let is_refused = |word: &str| {
        let why = refused(&node, &[word, "a"]);
        let hint = format!("process {} is stopped; continue it first", a.pid());
        assert!(why.contains(&hint), "{why}");
    };
    a.stop(&machine);
    is_refused("suspend");
    a.signal(Signal::SIGCONT);
    a.gets(&machine, MORE);
    must(&node, &["suspend", "a"]);
    a.stop(&machine);
    is_refused("resume");
    a.signal(Signal::SIGCONT);
    must(&node, &["resume", "a"]);
    a.gets(&machine, MORE);
}

/// A driver does not move back what a process shares with others, or ends the process: it is refused before the first
/// call, also by the next daemon, and the program goes on. When the process has ended, the container can be suspended.
#[test]
fn a_process_that_shares_memory_is_not_moved() {
    let (mut node, machine) = node();
    let mut a = load(&node, &machine, "shared");
    faults(&machine, "hang=lock");
    for _ in 0..2 {
        let named =
            format!("process {} (loads) has shared GPU memory with another process", a.pid());
        eventually("it is refused for that", || {
            let why = refused(&node, &["suspend", "a"]);
            // Until the process has connected to the next daemon, it tells nothing.
            assert!(why.contains("it is not suspended"), "{why}");
            why.contains(&named) && why.contains("end it first")
        });
        goes_on(&mut a);
        assert!(!is_suspended(&node, "a") && worker(&node).is_none());
        node.end_daemon(Signal::SIGKILL);
        node.start_daemon(&[]);
    }
    faults(&machine, "none");
    drop(a);
    node.wait_refunded("a");
    let mut a = still(&node, &machine);
    must(&node, &["suspend", "a"]);
    must(&node, &["resume", "a"]);
    goes_on(&mut a);
}

/// A process outside of all slices has the room, of which the ledger does not know. A restore that finds too little is
/// the last one, so none is tried: the container stays suspended, and is resumed when there is room.
#[test]
fn a_resume_waits_for_the_room_that_strangers_have() {
    let (node, machine) = node();
    let a = Tenant::start(&node, &machine, "a", 500);
    must(&node, &["suspend", "a"]);
    let stranger = node.machine_as(Role::Driver);
    stranger.context_create(0).expect("a context");
    let free = machine.mem_info(0).expect("a GPU").free;
    let taken = stranger.mem_alloc(0, free - HELD).expect("it is free");
    let why = refused(&node, &["resume", "a"]);
    let holder = format!("process {} (", std::process::id());
    let parts = ["GPU 0 has 512MiB free, and 584MiB are wanted", &holder, "it is suspended"];
    assert!(parts.iter().all(|part| why.contains(part)), "{why}");
    assert!(is_suspended(&node, "a"));
    stranger.mem_free(taken.key).expect("it is ours");
    must(&node, &["resume", "a"]);
    a.gets(&machine, MORE);
    assert_eq!(kinds(&node), ["suspended", "not-moved", "resumed"]);
}

/// The process that calls the driver, while it has or waits for a move.
fn worker(node: &Node) -> Option<Pid> {
    match helpers(node).get("--move-memory")? {
        Helper::Child(pid) => Some(Pid::from_raw(*pid)),
        Helper::Thread(_) => panic!("a thread calls the driver"),
    }
}

/// It stays for the next move, of any container, unless the driver refused something; and another one is started if it
/// was killed while it waited.
#[test]
fn a_worker_stays_for_the_next_move() {
    let (node, machine) = node();
    let [a, b] = ["a", "b"].map(|name| Tenant::start(&node, &machine, name, 500));
    must(&node, &["suspend", "a"]);
    let first = worker(&node).expect("it waits");
    for words in [["suspend", "b"], ["resume", "a"], ["resume", "b"]] {
        must(&node, &words);
        assert_eq!(worker(&node), Some(first), "{words:?}");
    }
    kill(first, Signal::SIGKILL).expect("it lives");
    must(&node, &["suspend", "a"]);
    let second = worker(&node).expect("it waits");
    assert_ne!(second, first);
    faults(&machine, "refuse=lock");
    refused(&node, &["suspend", "b"]);
    eventually("its end", || worker(&node).is_none());
    faults(&machine, "none");
    must(&node, &["resume", "a"]);
    a.gets(&machine, MORE);
    b.gets(&machine, MORE);
}

/// The worker that waits is given a job and is killed before it takes it: another one does the job.
#[test]
fn a_worker_that_dies_before_its_next_move() {
    let (node, machine) = node();
    let a = Tenant::start(&node, &machine, "a", 500);
    let mark = node.container_dir("a").join("suspended");
    must(&node, &["suspend", "a"]);
    for word in ["resume", "suspend", "resume"] {
        let kept = worker(&node).expect("it waits");
        kill(kept, Signal::SIGSTOP).expect("it lives");
        let mut moved = command(&node, &[word, "a"]).spawn().expect("it starts");
        eventually("its job", || matches!(std::fs::read_to_string(&mark).as_deref(), Ok("")));
        kill(kept, Signal::SIGKILL).expect("it lives");
        assert!(moved.wait().expect("ours").success(), "{word}");
        assert_ne!(worker(&node), Some(kept));
    }
    a.gets(&machine, MORE);
    assert_eq!(kinds(&node), ["suspended", "resumed", "suspended", "resumed"]);
}

/// The worker is killed while a driver restores. That goes on and leaves the process locked: another worker unlocks it.
#[test]
fn a_worker_that_dies_in_a_restore() {
    let node = Node::start_with("devices=1,mem=16GiB,restore=256MiB");
    let (node, machine) = super::with_slices(node);
    let a = Tenant::start(&node, &machine, "a", 500);
    must(&node, &["suspend", "a"]);
    // A new one does the job.
    kill(worker(&node).expect("it waits"), Signal::SIGKILL).expect("it lives");
    eventually("its end", || worker(&node).is_none());
    let away = used(&machine);
    let mut resume = command(&node, &["resume", "a"]).spawn().expect("it starts");
    eventually("the driver restores", || used(&machine) >= away + HELD);
    let first = worker(&node).expect("it waits for the driver");
    kill(first, Signal::SIGKILL).expect("it lives");
    assert!(resume.wait().expect("ours").success());
    assert_ne!(worker(&node), Some(first));
    a.gets(&machine, MORE);
}

/// A driver that exports the calls and has no checkpoints: nothing is moved, and the command says so.
#[test]
fn a_driver_without_checkpoints_moves_nothing() {
    let (node, machine) = super::with_slices(Node::start_with("devices=1,mem=16GiB,driver=12.4"));
    let a = Tenant::start(&node, &machine, "a", 500);
    let why = refused(&node, &["suspend", "a"]);
    assert!(why.contains("has no checkpoints; install release 570 or later"), "{why}");
    assert!(!is_suspended(&node, "a"));
    a.gets(&machine, MORE);
}

/// A checkpoint that ends half-way loses the process's memory: that is said.
#[test]
fn a_process_that_a_checkpoint_lost_is_named() {
    let (node, machine) = node();
    let [a, b] = ["a", "b"].map(|name| Tenant::start(&node, &machine, name, 500));
    faults(&machine, "half=checkpoint");
    let why = refused(&node, &["suspend", "a"]);
    let lost = format!("has lost the memory of process {}; end it; it is not suspended", a.pid());
    assert!(why.contains("refused cuCheckpointProcessCheckpoint") && why.contains(&lost), "{why}");
    b.gets(&machine, MORE);
}

/// The driver does not return from a call: others have their turns meanwhile, and once it returns the container goes
/// on.
#[test]
fn a_driver_that_hangs_holds_up_no_other() {
    let (node, machine) = node();
    let a = Tenant::start(&node, &machine, "a", 500);
    let b = Tenant::start(&node, &machine, "b", 500);
    faults(&machine, "hang=checkpoint");
    let mut suspend = command(&node, &["suspend", "a"]);
    let suspend = suspend.stderr(Stdio::piped()).spawn().expect("it starts");
    eventually("it is locked", || explained(&node, "a")["why"] == "suspended");
    b.gets(&machine, MORE);
    b.gets(&machine, MORE);
    let why = refusal(&suspend.wait_with_output().expect("ours"));
    assert!(why.contains("did not answer in time") && why.contains("it is not suspended"), "{why}");
    a.gets(&machine, MORE);
    faults(&machine, "none");
    must(&node, &["suspend", "a"]);
    must(&node, &["resume", "a"]);
    a.gets(&machine, MORE);
}
