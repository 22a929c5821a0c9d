//! The replacement door, from outside: the common suite, and what is its own.

#[path = "../../suite/mod.rs"]
mod suite;

use suite::{Door, Slice};

conformance!(Door::Replace);

/// Files of equal name: the hooks' code is in `lib`, the driver's in `d`.
#[test]
fn functions_nobody_knows_are_the_drivers_own() {
    let slice = Slice::new(Door::Replace, &[1 << 30]);
    let lines = slice.run(&[
        "init",
        "which:cuFromTheFuture",
        "which:cuStreamWriteValue32_v2",
        "write",
    ]);
    assert_eq!(
        lines[1..],
        ["which libcuda.so.1", "which libcuda.so.1", "write 77 0 0"]
    );
}

#[test]
fn other_namespaces_and_other_names_meet_the_door_too() {
    let slice = Slice::new(Door::Replace, &[1 << 30]);
    let lines = slice.run(&["init", "newplugin", "unversioned"]);
    assert_eq!(
        lines[1..],
        ["newplugin libcuda.so.1", "unversioned libcuda.so.1"]
    );
}
