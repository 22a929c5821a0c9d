//! The connection: a daemon that is away or comes back, forks, closed descriptors.

use super::{CAP, slice, steps};
use crate::suite::Injection;
use gpuslice_wire::limits::WIRE_VERSION;

pub fn a_restarted_daemon_recovers_its_ledger(injection: Injection) {
    let mut slice = slice(injection);
    let mut probe = slice.start(&[
        "init",
        "ctx:0",
        "alloc:0x8000000",
        "wait",
        "alloc:0x4000000",
        "alloc:0x8000000",
        "info",
        "free:0",
        "info",
        "wait",
    ]);
    assert_eq!(probe.lines()[2], "alloc 0 0 0");
    slice.daemon.go_away();
    slice.daemon.come_back();
    probe.go_on();
    let lines = probe.lines();
    assert_eq!(lines[..2], ["alloc 0 0 0", "alloc 2 0 0"]);
    assert_eq!(lines[2], format!("info 0 {} {CAP}", CAP / 4));
    assert_eq!(lines[4], format!("info 0 {} {CAP}", CAP / 4 * 3));
    let state = slice.daemon.state();
    assert_eq!((state.attaches, state.returned), (2, 1));
    assert!(state.peak <= CAP);
}

pub fn a_process_that_only_holds_memory_reattaches_too(injection: Injection) {
    let mut slice = slice(injection);
    let mut probe = slice.start(&["init", "ctx:0", "alloc:0x8000000", "wait", "wait"]);
    probe.lines();
    slice.daemon.go_away();
    slice.daemon.come_back();
    slice.daemon.until("the held memory", |state| state.reserved(0) >= CAP / 2);
}

pub fn growth_waits_for_an_absent_daemon(injection: Injection) {
    let mut slice = slice(injection);
    let mut probe = slice.start(&["init", "ctx:0", "wait", "alloc:0x8000000", "wait"]);
    probe.lines();
    slice.daemon.go_away();
    probe.go_on();
    probe.waits_for_no_input();
    std::thread::sleep(std::time::Duration::from_millis(200));
    slice.daemon.come_back();
    assert_eq!(probe.lines(), ["alloc 0 0 0"]);
}

/// After a downgrade of the node the library of a container may be newer than the daemon. The program gets an error
/// of the driver's at once.
pub fn an_older_daemon_refuses_a_newer_process(injection: Injection) {
    let slice = slice(injection);
    slice.daemon.state().newest = WIRE_VERSION - 1;
    assert_eq!(slice.run(&["init"]), ["init 802 0 0"], "CUDA_ERROR_SYSTEM_NOT_READY");
    assert_eq!(slice.daemon.state().rejected, 1, "a retry would change nothing");
}

/// A process that was attached keeps its memory, and its growth waits for a daemon that supports it.
pub fn growth_waits_for_a_daemon_of_its_version(injection: Injection) {
    let mut slice = slice(injection);
    let steps = ["init", "ctx:0", "alloc:0x8000000", "wait", "alloc:0x4000000", "wait"];
    let mut probe = slice.start(&steps);
    probe.lines();
    slice.daemon.go_away();
    slice.daemon.state().newest = WIRE_VERSION - 1;
    slice.daemon.come_back();
    probe.go_on();
    slice.daemon.until("a rejected process", |state| state.rejected > 0);
    slice.daemon.go_away();
    slice.daemon.state().newest = WIRE_VERSION;
    slice.daemon.come_back();
    assert_eq!(probe.lines(), ["alloc 0 0 0"]);
    assert!(slice.daemon.state().reserved(0) >= CAP / 4 * 3);
}

/// A thread cancelled while it waits for the daemon gets its memory, and ends after the call.
pub fn a_cancelled_thread_ends_after_its_call(injection: Injection) {
    let mut slice = slice(injection);
    let steps = ["init", "ctx:0", "wait", "cancel:0x8000000", "free:0", "alloc:0x8000000", "info"];
    let mut probe = slice.start(&steps);
    probe.lines();
    slice.daemon.go_away();
    probe.go_on();
    assert_eq!(probe.line(), "cancelling 0");
    slice.daemon.come_back();
    let lines = probe.lines();
    assert_eq!(lines[..3], ["cancel 0 1 0", "free 0 0 0", "alloc 0 0 0"]);
    assert_eq!(lines[3], format!("info 0 {} {CAP}", CAP / 2));
}

/// The same for a thread that waits for its turn to launch.
pub fn a_thread_cancelled_at_the_gate_ends_after_its_launch(injection: Injection) {
    let slice = slice(injection);
    slice.daemon.turn(6);
    let mut probe = slice.start(&["init", "ctx:0", "cancel:0", "wait"]);
    assert_eq!([probe.line(), probe.line()], ["init 0 0 0", "ctx 0 0 0"]);
    assert_eq!(probe.line(), "cancelling 0");
    slice.daemon.turn(7);
    let line = probe.line();
    assert!(line.starts_with("cancel ") && line.ends_with(" 1 0"), "{line}");
}

pub fn a_forked_child_has_a_slice_of_its_own(injection: Injection) {
    let slice = slice(injection);
    let lines = slice.run(&[
        "init",
        "ctx:0",
        "alloc:0x4000000",
        "fork",
        "init",
        "ctx:0",
        "alloc:0x8000000",
        "alloc:0x8000000",
        "info",
    ]);
    let expect = [
        "init 0 0 0",
        "ctx 0 0 0",
        "alloc 0 0 0",
        "init 0 0 0",
        "ctx 0 0 0",
        "alloc 0 0 0",
        "alloc 2 0 0",
    ];
    assert_eq!(lines[..7], expect);
    assert_eq!(slice.daemon.state().attaches, 2);
    slice.daemon.until("the end of both", |state| state.is_empty());
}

pub fn closed_descriptors_are_recreated(injection: Injection) {
    let slice = slice(injection);
    let lines =
        steps(&slice, &["alloc:0x4000000", "closeall", "alloc:0x8000000", "alloc:0x8000000"]);
    assert_eq!(lines, ["alloc 0 0 0", "closeall 0 0 0", "alloc 0 0 0", "alloc 2 0 0"]);
    assert_eq!(slice.daemon.state().attaches, 2);
}

/// A program closes unknown descriptors, and reuses their numbers for eventfds of its own. No launch,
/// restarted daemon or child writes to, replaces or closes them.
pub fn reused_descriptor_numbers_belong_to_the_program(injection: Injection) {
    let mut slice = slice(injection);
    slice.daemon.turn(7);
    let steps = [
        "init",
        "ctx:0",
        "alloc:0x4000000",
        "launch",
        "wait",
        "reuse:40",
        "launch",
        "wait",
        "reused",
        "alloc:0x8000000",
        "launch",
        "reused",
        "fork",
        "reused",
    ];
    let mut probe = slice.start(&steps);
    assert_eq!(probe.lines().len(), 4);
    probe.go_on();
    assert_eq!(probe.lines()[0], "reuse 0 0 0");
    // The end of the turn is reported to the daemon.
    slice.daemon.turn(8);
    std::thread::sleep(std::time::Duration::from_millis(200));
    slice.daemon.go_away();
    let again = slice.daemon.state().attaches + 1;
    slice.daemon.come_back();
    slice.daemon.until("the process", |state| state.attaches >= again);
    probe.go_on();
    let lines = probe.lines();
    let mine: Vec<&String> = lines.iter().filter(|line| line.starts_with("reused")).collect();
    assert_eq!(mine, ["reused 40 40 0"; 3], "{lines:?}");
    assert!(lines.contains(&"alloc 0 0 0".into()), "{lines:?}");
}

/// A process without further requests also notices a restarted daemon, and reattaches with the memory it
/// holds.
pub fn a_lost_connection_is_noticed_without_a_request(injection: Injection) {
    let slice = slice(injection);
    let mut probe = slice.start(&["init", "ctx:0", "alloc:0x8000000", "closeall", "wait"]);
    probe.lines();
    slice
        .daemon
        .until("a new connection", |state| state.attaches == 2 && state.reserved(0) >= CAP / 2);
}

pub fn without_a_daemon_initialisation_fails(injection: Injection) {
    let mut slice = slice(injection);
    slice.daemon.go_away();
    if injection == Injection::Mount {
        // The socket's absence alone would mean "no slice"; the driver's mount shows the slice.
        assert!(!slice.daemon.socket.exists());
    }
    assert_eq!(slice.run(&["init"]), ["init 802 0 0"]);
}
