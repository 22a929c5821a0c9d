//! Mount injection, from outside: the common suite and its own cases.

#[path = "../../suite/mod.rs"]
mod suite;

use suite::{Injection, Slice};

conformance!(Injection::Mount);

/// Files of equal name: the hooks' code is in `lib`, the driver's in `d`.
#[test]
fn unknown_functions_are_resolved_in_the_driver() {
    let slice = Slice::new(Injection::Mount, &[1 << 30]);
    let lines =
        slice.run(&["init", "which:cuFromTheFuture", "which:cuStreamWriteValue32_v2", "write"]);
    assert_eq!(lines[1..], ["which libcuda.so.1", "which libcuda.so.1", "write 77 0 0"]);
}

#[test]
fn other_namespaces_and_other_names_reach_the_shim_too() {
    let slice = Slice::new(Injection::Mount, &[1 << 30]);
    let lines = slice.run(&["init", "newplugin", "unversioned"]);
    assert_eq!(lines[1..], ["newplugin libcuda.so.1", "unversioned libcuda.so.1"]);
}
