//! Contexts, the memory that ends with them, and lanes of GPUs.

use super::{CAP, MIB, slice, steps};
use crate::suite::{Injection, Slice};

pub fn the_end_of_a_context_releases_its_memory(injection: Injection) {
    let slice = slice(injection);
    let lines = steps(
        &slice,
        &[
            "alloc:0x8000000",
            "destroy",
            "ctx:0",
            "info",
            "retain:0",
            "alloc:0x8000000",
            "retain:0",
            "drop:0",
            "info",
            "drop:0",
            "retain:0",
            "info",
        ],
    );
    let (all, half) = (format!("info 0 {CAP} {CAP}"), format!("info 0 {} {CAP}", CAP / 2));
    assert_eq!((&lines[3], &lines[8], &lines[11]), (&all, &half, &all));
}

pub fn a_context_that_is_not_destroyed_keeps_its_memory(injection: Injection) {
    let mut slice = slice(injection);
    slice.set("STUB_KEEPS", 1);
    let lines = steps(&slice, &["alloc:0x8000000", "destroy", "info", "free:0", "info"]);
    assert_eq!(lines[1], "destroy 999 0 0");
    assert_eq!(lines[2], format!("info 0 {} {CAP}", CAP / 2));
    assert_eq!(lines[4], format!("info 0 {CAP} {CAP}"));
}

pub fn lanes_are_identified_by_uuid(injection: Injection) {
    let mut slice = Slice::new(injection, &[CAP, 16 * MIB]);
    slice.set("STUB_DEVICES", 3);
    let lines = steps(
        &slice,
        &[
            "ctx:1",
            "alloc:0x1000000",
            "alloc:1",
            "total:1",
            "ctx:2",
            "total:2",
            "ctx:0",
            "alloc:0x10000000",
            "total:0",
        ],
    );
    assert_eq!(lines[1..4], ["alloc 0 0 0", "alloc 2 0 0", "total 0 16777216 0"]);
    assert_eq!(
        lines[4..6],
        ["ctx 46 0 0", "total 0 68719476736 0"],
        "not in the slice: no context, no pretence"
    );
    assert_eq!(lines[7..], ["alloc 0 0 0".into(), format!("total 0 {CAP} 0")]);
}

pub fn a_gpu_outside_the_slice_is_unavailable(injection: Injection) {
    let mut slice = slice(injection);
    slice.set("STUB_DEVICES", 2);
    let lines = steps(
        &slice,
        &[
            "green:1",
            "retain:1",
            "green:0",
            "alloc:1",
            "attach:1",
            "alloc:1",
            "async:1",
            "managed:1",
            "narrow:1",
            "array:1:1",
            "info",
        ],
    );
    let results = lines.iter().filter_map(|line| line.split(' ').nth(1));
    let expect = ["46", "46", "0", "0", "0", "46", "46", "46", "46", "46", "0"];
    assert_eq!(results.collect::<Vec<_>>(), expect, "{lines:?}");
}
