//! Physical memory and the references to it.

use super::{CAP, MIB, slice, steps};
use crate::suite::daemon::state::HOST;
use crate::suite::{Injection, Slice};

/// The free memory with so many MiB held.
fn left(mib: u64) -> String {
    format!("info 0 {} {CAP}", CAP - mib * MIB)
}

/// The result of every step.
fn results(lines: &[String]) -> Vec<&str> {
    lines.iter().filter_map(|line| line.split(' ').nth(1)).collect()
}

pub fn physical_memory_is_charged_while_referenced(injection: Injection) {
    let slice = slice(injection);
    let lines = steps(
        &slice,
        &[
            "create:0x8000000:1",
            "map:0:0x5000",
            "release:0",
            "info",
            "retainat:0x5000",
            "unmap:0x5000",
            "info",
            "release:1",
            "info",
            "create:0x10000001:1",
        ],
    );
    assert_eq!((&lines[3], &lines[6]), (&left(128), &left(128)));
    assert_eq!(lines[8], left(0));
    assert_eq!(lines[9], "create 2 0 0");
}

pub fn unmatched_releases_change_no_charge(injection: Injection) {
    let slice = slice(injection);
    let lines = steps(
        &slice,
        &[
            "create:0x4000000:1",
            "release:0",
            "release:0", // more references than there are
            "unmap:0x5000",
            "map:0:0x5000",
            "retainat:0x5000",
            "info",
        ],
    );
    assert_eq!(results(&lines), ["0", "0", "1", "1", "1", "1", "0"]);
    assert_eq!(lines[6], left(0));
    let lines = steps(
        &slice,
        &[
            "create:0x4000000:1",
            "map:0:0x5000",
            "map:0:0x6000",
            "release:0",
            "unmap:0x7000",
            "unmap:0x5000",
            "info",
            "unmap:0x6000",
            "info",
        ],
    );
    assert_eq!(results(&lines), ["0", "0", "0", "0", "1", "0", "0", "0", "0"]);
    assert_eq!((&lines[6], &lines[8]), (&left(64), &left(0)));
}

pub fn the_host_s_memory_has_a_cap_of_its_own(injection: Injection) {
    let slice = slice(injection);
    // Memory of the host, of one of its nodes, of the nearest node.
    for kind in 2..=4 {
        let (whole, more) = (format!("create:{HOST}:{kind}"), format!("create:1:{kind}"));
        let lines = steps(&slice, &[&whole, &more, "info", "release:0", &whole, "info"]);
        assert_eq!(results(&lines), ["0", "2", "0", "0", "0", "0"], "{lines:?}");
        assert_eq!((&lines[2], &lines[5]), (&left(0), &left(0)));
    }
}

pub fn memory_is_charged_to_the_gpu_it_is_on(injection: Injection) {
    let mut slice = Slice::new(injection, &[CAP, 16 * MIB]);
    slice.set("STUB_DEVICES", 3);
    let lines = steps(
        &slice,
        &["create:0x1000000:1:1", "create:1:1:1", "create:1:1:2", "create:1:1:9", "info"],
    );
    assert_eq!(results(&lines), ["0", "2", "46", "101", "0"], "{lines:?}");
    assert_eq!(lines[4], left(0));
}

pub fn an_open_descriptor_holds_memory(injection: Injection) {
    let slice = slice(injection);
    let lines = steps(
        &slice,
        &[
            "create:0x8000000:1",
            "export:0",
            "release:0",
            "info",
            "create:0x8000001:1", // exceeds the cap with it
            "close:1",
            "create:0x10000000:1", // descriptors are checked before the refusal
            "release:3",
            "info",
        ],
    );
    let expect = ["0", "0", "0", "0", "2", "0", "0", "0", "0"];
    assert_eq!(results(&lines), expect, "{lines:?}");
    assert_eq!((&lines[3], &lines[8]), (&left(128), &left(0)));
    // Closed before the last reference goes.
    let lines = steps(&slice, &["create:0x8000000:1", "export:0", "close:1", "release:0", "info"]);
    assert_eq!(lines[4], left(0));
    // Fabric handles cannot be closed.
    let lines =
        steps(&slice, &["create:0x8000000:1", "export:0:8", "export:0:8", "release:0", "info"]);
    assert_eq!((results(&lines)[2], &lines[4]), ("0", &left(128)));
}

pub fn imports_are_not_charged(injection: Injection) {
    let slice = slice(injection);
    let lines = steps(
        &slice,
        &[
            "create:0x8000000:1",
            "export:0",
            "import:1", // exported by this process: one more handle of it
            "release:0",
            "close:1",
            "info",
            "map:2:0x5000",
            "release:2",
            "info",
            "unmap:0x5000",
            "info",
        ],
    );
    assert_eq!(results(&lines), ["0"; 11], "{lines:?}");
    assert_eq!((&lines[5], &lines[8]), (&left(128), &left(128)));
    assert_eq!(lines[10], left(0));
    let slice = super::slice(injection);
    let lines = steps(
        &slice,
        &[
            "importfd:55", // another process's
            "map:0:0x5000",
            "retainat:0x5000",
            "release:0",
            "release:1",
            "unmap:0x5000",
            "info",
        ],
    );
    assert_eq!(results(&lines)[..6], ["0"; 6], "{lines:?}");
    assert_eq!(lines[6], left(0));
}

pub fn a_tile_of_a_sparse_array_holds_memory(injection: Injection) {
    let slice = slice(injection);
    let lines = steps(
        &slice,
        &[
            "array3:0x100000:0x40", // sparse: nothing yet
            "info",
            "create:0x8000000:1",
            "tile:0:0:1",
            "tile:0:1:1",
            "release:1",
            "untile:0:0",
            "info",
            "untile:0:2", // nothing mapped there
            "info",
            "untile:0:1",
            "info",
            "create:0x8000000:1",
            "tile:0:0:2",
            "release:2",
            "info",
            "unarray:0",
            "info",
        ],
    );
    assert_eq!(results(&lines), ["0"; 18], "{lines:?}");
    assert_eq!((&lines[1], &lines[11], &lines[17]), (&left(0), &left(0), &left(0)));
    for at in [7, 9, 15] {
        assert_eq!(lines[at], left(128), "{at}: {lines:?}");
    }
}

pub fn a_multicast_object_holds_bound_memory(injection: Injection) {
    let slice = slice(injection);
    let lines = steps(
        &slice,
        &[
            "multicast",
            "create:0x8000000:1",
            "bind:0:1:0",
            "bind:0:1:0x1000",
            "release:1",
            "unbind:0:0:0",
            "info",
            "map:0:0x5000",
            "release:0",
            "info",
            "unmap:0x5000",
            "info",
            "bind:0:1:0", // both are gone
        ],
    );
    assert_eq!(results(&lines)[..12], ["0"; 12], "{lines:?}");
    assert_eq!((&lines[6], &lines[9]), (&left(128), &left(128)));
    assert_eq!(lines[11], left(0));
}

pub fn arrays_are_charged_the_driver_s_size(injection: Injection) {
    let mut slice = slice(injection);
    let array = [
        "array3:0x1000000:0", // 64 MiB of elements, 80 in this driver
        "info",
        "unarray:0",
        "unarray:0",
        "info",
    ];
    let lines = steps(&slice, &array);
    assert_eq!(results(&lines), ["0", "0", "0", "1", "0"], "{lines:?}");
    assert_eq!((&lines[1], &lines[4]), (&left(80), &left(0)));
    // A driver that does not report the size: an image has at least eight rows, and the estimate is an upper
    // bound.
    slice.set("STUB_OLD", 1);
    let lines = steps(&slice, &["array:0x40000:8", "info", "unarray:0", "info"]);
    assert_eq!((&lines[1], &lines[3]), (&left(8), &left(0)));
}
