//! Graphs that allocate.

use super::{CAP, MIB, slice, steps};
use crate::suite::Injection;

fn left(mib: u64) -> String {
    format!("info 0 {} {CAP}", CAP - mib * MIB)
}

pub fn graph_memory_is_charged_at_launch(injection: Injection) {
    let lines = steps(
        &slice(injection),
        &[
            "graph:0x4000000",
            "info", // instantiated, and no memory taken yet
            "rungraph:0",
            "info",
            "rungraph:0",
            "info", // its memory is backed
            "graph:0x2000000",
            "upload:1",
            "info",
            "ungraph:0",
            "info", // the driver keeps it
            "trimgraphs:0",
            "info",
            "rungraph:1",
            "info",
        ],
    );
    let wanted = [(1, 0), (3, 64), (5, 64), (8, 96), (10, 96), (12, 0), (14, 32)];
    for (at, mib) in wanted {
        assert_eq!(lines[at], left(mib), "{at}: {lines:?}");
    }
}

pub fn a_graph_that_does_not_fit_does_not_run(injection: Injection) {
    let lines = steps(
        &slice(injection),
        &[
            "graph:0x8000000",
            "alloc:0x8000001",
            "rungraph:0",
            "upload:0",
            "info",
            "free:1",
            "rungraph:0",
            "info",
        ],
    );
    assert_eq!((lines[2].as_str(), lines[3].as_str()), ("rungraph 2 0 0", "upload 2 0 0"));
    assert_eq!(lines[4], format!("info 0 {} {CAP}", CAP - 128 * MIB - 512), "the allocation alone");
    assert_eq!(lines[6], "rungraph 0 0 0");
    assert_eq!(lines[7], left(128));
}

pub fn graph_memory_is_trimmed_when_short(injection: Injection) {
    let lines = steps(
        &slice(injection),
        &[
            "graph:0x8000000",
            "rungraph:0",
            "alloc:0x9000000", // together more than the cap
            "info",
            "rungraph:0",
        ],
    );
    assert_eq!(lines[2], "alloc 0 0 0");
    assert_eq!(lines[3], left(144));
    assert_eq!(lines[4], "rungraph 2 0 0");
}
