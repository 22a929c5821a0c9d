//! Pools: their memory on the device, and the memory they keep.

use super::{CAP, MIB, slice, steps};
use crate::suite::daemon::state::State;
use crate::suite::{Injection, Slice};
use gpuslice_wire::ids::Lane;

/// A slice whose driver's pools grow by 32 MiB.
fn coarse(injection: Injection) -> Slice {
    let mut slice = slice(injection);
    slice.set("STUB_PIECE", 32 * MIB);
    slice
}

fn left(mib: u64) -> String {
    format!("info 0 {} {CAP}", CAP - mib * MIB)
}

pub fn a_pool_is_charged_its_reserved_memory(injection: Injection) {
    let lines = steps(
        &coarse(injection),
        &[
            "async:0x100000",
            "info", // one growth for one MiB
            "async:0x1e00000",
            "info", // it had room
            "async:0x200000",
            "info", // it had no room
            "freeasync:2",
            "free:0",
            "info", // the last allocation keeps the first growth
            "freeasync:1",
            "info",
            "pool:1:0x10000000", // keeps all its memory
            "pooled:3:0x2000000",
            "freeasync:4",
            "info",
            "trim:3:0",
            "info",
        ],
    );
    for (at, mib) in [(1, 32), (3, 32), (5, 64), (8, 32), (10, 0), (14, 32), (16, 0)] {
        assert_eq!(lines[at], left(mib), "{at}: {lines:?}");
    }
}

pub fn growth_that_does_not_fit_is_rolled_back(injection: Injection) {
    let lines = steps(
        &coarse(injection),
        &[
            "alloc:0xf000000", // 240 of 256 MiB
            "async:0x100000",  // would be 32
            "info",
            "pool:1:0x10000000", // a pool that keeps its memory
            "pooled:2:0x100000",
            "info",
            "alloc:0x1000000", // no memory is left over
            "info",
        ],
    );
    assert_eq!([&lines[1], &lines[4]], ["async 2 0 0", "pooled 2 0 0"]);
    assert_eq!([&lines[2], &lines[5]], [&left(240), &left(240)]);
    assert_eq!(lines[6], "alloc 0 0 0");
    assert_eq!(lines[7], left(256));
}

pub fn a_destroyed_pool_is_charged_until_its_last_allocation(injection: Injection) {
    let lines = steps(
        &coarse(injection),
        &[
            "pool:1:0",
            "pooled:0:0x100000",
            "pooled:0:0x2000000",
            "unpool:0",
            "info",
            "freeasync:1",
            "info", // the driver cannot be asked
            "free:2",
            "info",
            "pool:1:0",
            "pooled:3:0x100000",
            "destroy", // ends neither the pool nor its memory
            "ctx:0",
            "info",
            "unpool:3",
            "info",
            "free:4",
            "info",
        ],
    );
    for (at, mib) in [(4, 64), (6, 64), (8, 0), (13, 32), (15, 32), (17, 0)] {
        assert_eq!(lines[at], left(mib), "{at}: {lines:?}");
    }
}

pub fn unused_pool_memory_is_reclaimed_when_short(injection: Injection) {
    let lines = steps(
        &coarse(injection),
        &[
            "pool:1:0x10000000",
            "pooled:0:0xc000000", // 192 MiB
            "freeasync:1",
            "info",
            "alloc:0xe000000", // 224 MiB: the pool must release its unused memory
            "info",
            "pooled:0:0x2000000",
            "pooled:0:0x100000",
            "info",
        ],
    );
    assert_eq!(lines[3], left(192), "{lines:?}");
    assert_eq!(lines[4], "alloc 0 0 0");
    assert_eq!(lines[5], left(224));
    assert_eq!((lines[6].as_str(), lines[7].as_str()), ("pooled 0 0 0", "pooled 2 0 0"));
    assert_eq!(lines[8], left(256));
}

pub fn a_pool_on_the_host_has_the_host_s_account(injection: Injection) {
    let slice = coarse(injection);
    let mut program = slice.start(&[
        "init",
        "ctx:0",
        "pool:2:0",
        "pooled:0:0x6000000", // 96 of 128 MiB
        "pooled:0:0x2000001", // would be 64 more
        "info",
        "wait",
        "freeasync:1",
        "wait",
    ]);
    let lines = program.lines();
    assert_eq!(lines[3..5], ["pooled 0 0 0", "pooled 2 0 0"]);
    assert_eq!(lines[5], left(0), "nothing of it is the GPU's");
    let host = usize::from(Lane::HOST.0);
    let reserved = |bytes| move |state: &State| state.reserved(host) == bytes;
    slice.daemon.until("96 MiB", reserved(96 * MIB));
    program.go_on();
    assert_eq!(program.lines(), ["freeasync 0 0 0"]);
    slice.daemon.until("nothing", reserved(0));
    program.go_on();
}
