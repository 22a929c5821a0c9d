//! The preload door, from outside: the common suite, and what is its own.

#[path = "../../suite/mod.rs"]
mod suite;

use std::path::Path;
use suite::{Door, Slice};

conformance! { Door::Preload;
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

#[test]
fn a_name_the_driver_lacks_is_an_error_and_no_crash() {
    let slice = Slice::new(Door::Preload, &[1 << 30]);
    assert_eq!(slice.run(&["init", "absent"])[1], "absent 801 0 0");
}

#[test]
fn outside_of_a_slice_everything_passes() {
    let slice = Slice::new(Door::Preload, &[1 << 20]);
    let mut command = slice.probe(&[
        "init",
        "ctx:0",
        "alloc:0x40000000",
        "info",
        "launch",
        "free:0",
    ]);
    let output = command
        .env_remove("GPUSLICE_SOCKET")
        .output()
        .expect("the probe runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[2..],
        [
            "alloc 0 0 0",
            "info 0 67645734912 68719476736",
            "launch 0 0 0",
            "free 0 0 0"
        ]
    );
    assert_eq!(slice.daemon.books().attaches, 0);
}

#[test]
fn programs_without_cuda_notice_nothing() {
    let slice = Slice::new(Door::Preload, &[1 << 20]);
    let output = slice
        .command(Path::new("/bin/sh"))
        .args(["-c", "cat /proc/$$/maps; umask"])
        .output();
    let output = output.expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(
        text.contains("libgpuslice.so") && !text.contains("libcuda"),
        "{text}"
    );
    assert_eq!(slice.daemon.books().attaches, 0);
}
