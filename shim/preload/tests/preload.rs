//! Preload injection, from outside: the common suite and its own cases.

#[path = "../../suite/mod.rs"]
mod suite;

use std::path::Path;
use suite::{Injection, Slice};

conformance!(Injection::Preload);

#[test]
fn a_name_the_driver_lacks_is_an_error_and_no_crash() {
    let slice = Slice::new(Injection::Preload, &[1 << 30]);
    assert_eq!(slice.run(&["init", "absent"])[1], "absent 801 0 0");
}

#[test]
fn outside_a_slice_every_call_passes_through() {
    let slice = Slice::new(Injection::Preload, &[1 << 20]);
    let mut command =
        slice.probe(&["init", "ctx:0", "alloc:0x40000000", "info", "launch", "free:0"]);
    let output = command.env_remove("GPUSLICE_SOCKET").output().expect("the probe runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[2..],
        ["alloc 0 0 0", "info 0 67645734912 68719476736", "launch 0 0 0", "free 0 0 0"]
    );
    assert_eq!(slice.daemon.state().attaches, 0);
}

#[test]
fn programs_without_cuda_are_unchanged() {
    let slice = Slice::new(Injection::Preload, &[1 << 20]);
    let output =
        slice.command(Path::new("/bin/sh")).args(["-c", "cat /proc/$$/maps; umask"]).output();
    let output = output.expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(text.contains("libgpuslice.so") && !text.contains("libcuda"), "{text}");
    assert_eq!(slice.daemon.state().attaches, 0);
}
