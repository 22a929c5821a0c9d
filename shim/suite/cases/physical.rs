//! Physical memory and what refers to it.

use super::{CAP, slice, steps};
use crate::suite::Door;

pub fn physical_memory_is_charged_while_referenced(door: Door) {
    let slice = slice(door);
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
            "create:0x10000001:2",
        ],
    );
    let half = format!("info 0 {} {CAP}", CAP / 2);
    assert_eq!((&lines[3], &lines[6]), (&half, &half));
    assert_eq!(lines[8], format!("info 0 {CAP} {CAP}"));
    assert_eq!(lines[9], "create 2 0 0");
    assert_eq!(
        lines[10], "create 0 0 0",
        "the host's memory is not the slice's"
    );
}
