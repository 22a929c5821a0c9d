//! Memory of other processes, by legacy handles.

use super::{CAP, MIB, slice, steps};
use crate::suite::Injection;

fn left(mib: u64) -> String {
    format!("info 0 {} {CAP}", CAP - mib * MIB)
}

/// The handle that the probe's `ipcget` printed.
fn handle(line: &str) -> String {
    let word = line.strip_prefix("ipcget 0 ").and_then(|rest| rest.split(' ').next());
    word.expect("a handle").to_owned()
}

pub fn memory_of_the_own_container_is_charged_once(injection: Injection) {
    let slice = slice(injection);
    let steps = ["init", "ctx:0", "alloc:0x4000000", "ipcget:0", "ipcget:0", "wait"];
    let mut owner = slice.start(&steps);
    let handle = handle(&owner.lines()[3]);
    assert_eq!(slice.daemon.state().shared.len(), 1, "told once, and known when it is given out");
    let open = format!("ipcopen:{handle}:0x4000000");
    let lines = super::steps(&slice, &[&open, "info", "ipcclose:0", "ipcclose:0", "info"]);
    assert_eq!(lines[0], "ipcopen 0 0 0");
    assert_eq!((lines[2].as_str(), lines[3].as_str()), ("ipcclose 0 0 0", "ipcclose 1 0 0"));
    // Credit of the other process may count against the free memory here; its allocations do.
    assert_eq!(lines[1], lines[4]);
}

pub fn memory_of_another_container_is_refused(injection: Injection) {
    let slice = slice(injection);
    let lines = steps(&slice, &["ipcopen:0x77:0x8000000", "info", "ipcclose:0"]);
    assert_eq!(lines, ["ipcopen 400 0 0".into(), left(0), "ipcclose 1 0 0".into()]);
}

pub fn memory_of_another_container_may_be_charged(injection: Injection) {
    let slice = slice(injection);
    slice.daemon.state().foreign = true;
    slice.daemon.state().show();
    let lines = steps(
        &slice,
        &[
            "ipcopen:0x77:0x8000000",
            "ipcopen:0x77:0x8000000", // the same address, one more reference
            "info",
            "ipcopen:0x78:0x8000001", // does not fit, and is closed again
            "ipcclose:2",
            "ipcclose:0",
            "info",
            "ipcclose:1",
            "info",
            "ipcopen:0x77:0x8000000",
            "destroy",
            "ctx:0",
            "info",
        ],
    );
    assert_eq!((&lines[2], &lines[6]), (&left(128), &left(128)));
    assert_eq!(lines[3..5], ["ipcopen 2 0 0", "ipcclose 1 0 0"]);
    assert_eq!((&lines[8], &lines[12]), (&left(0), &left(0)), "{lines:?}");
}

pub fn shared_handles_are_reported_to_a_restarted_daemon(injection: Injection) {
    let mut slice = slice(injection);
    let mut owner = slice.start(&["init", "ctx:0", "alloc:0x4000000", "ipcget:0", "wait", "wait"]);
    let handle = handle(&owner.lines()[3]);
    slice.daemon.go_away();
    assert_eq!(slice.daemon.state().shared.len(), 0);
    slice.daemon.come_back();
    slice.daemon.until("the handle", |state| !state.shared.is_empty());
    let open = format!("ipcopen:{handle}:0x4000000");
    assert_eq!(steps(&slice, &[&open]), ["ipcopen 0 0 0"]);
}

/// A call that fails does not count, and what ends is not taken back.
pub fn exports_and_imports_are_counted(injection: Injection) {
    let slice = slice(injection);
    let mut owner = slice.start(&[
        "init",
        "ctx:0",
        "alloc:0x4000000",
        "ipcopen:0x77:0x8000000", // another container's: refused
        "wait",
        "ipcget:0",
        "create:0x8000000:1",
        "export:0",
        "export:0:8",
        "export:1", // there is none: the driver refuses it
        "importfd:55",
        "external:0x2000000",
        "external:0x10000001", // more than is left
        "free:0",
        "wait",
    ]);
    owner.lines();
    assert_eq!(slice.daemon.state().shared_claims(), 0);
    owner.go_on();
    let lines = owner.lines();
    assert_eq!(slice.daemon.state().shared_claims(), 5, "{lines:?}");
}
