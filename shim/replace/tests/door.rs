//! The replacement door, from outside: the common suite, and what is its own.

#[path = "../../suite/mod.rs"]
mod suite;

use suite::{Door, Slice};

conformance! { Door::Replace;
    the_cap_is_exact most_allocations_ask_nobody small_requests_cost_what_the_driver_hands_out
    a_failed_allocation_is_given_back strange_pointers_are_the_drivers_business
        strange_sizes_get_the_drivers_answers
    memory_looks_like_the_slice every_way_to_memory_is_charged
    a_driver_that_calls_itself_is_charged_once
    physical_memory_is_charged_while_referenced a_context_takes_its_memory_with_it
        a_context_that_is_not_destroyed_keeps_its_memory lanes_go_by_uuid
        a_gpu_outside_the_slice_gives_nothing
    processes_that_race_never_pass_the_cap names_lead_to_hooks_by_version_and_flavour
    other_functions_pass_through usual_detours_are_no_way_around
    a_daemon_that_comes_back_finds_its_books growth_waits_for_an_absent_daemon
    a_process_that_only_holds_memory_comes_back_too
    a_forked_child_has_a_slice_of_its_own closed_descriptors_are_made_anew
    no_daemon_is_no_permission
}

/// Files of equal name: the hooks' code is in `lib`, the driver's in `d`.
#[test]
fn functions_nobody_knows_are_the_drivers_own() {
    let slice = Slice::new(Door::Replace, &[1 << 30]);
    let lines = slice.run(&[
        "init",
        "which:cuFromTheFuture",
        "which:cuMemcpyHtoDAsync_v2",
        "copy",
    ]);
    assert_eq!(
        lines[1..],
        ["which libcuda.so.1", "which libcuda.so.1", "copy 77 0 0"]
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
