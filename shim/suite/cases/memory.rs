//! Plain allocations: the cap, memory queries, every allocation function, unusual arguments.

use super::{CAP, MIB, slice, steps};
use crate::suite::{Injection, Slice, Started};
use std::time::{Duration, Instant};

pub fn the_cap_is_exact(injection: Injection) {
    let slice = slice(injection);
    let lines = steps(
        &slice,
        &[
            "alloc:0x8000000",
            "alloc:0x8000000",
            "alloc:1",
            "free:0",
            "alloc:0x8000001",
            "alloc:0x8000000",
            "alloc:1",
        ],
    );
    let results = ["0", "0", "2", "0", "2", "0", "2"];
    for (line, result) in lines.iter().zip(results) {
        assert_eq!(line.split(' ').nth(1), Some(result), "{lines:?}");
    }
    assert_eq!(slice.daemon.state().peak, CAP);
    slice.daemon.until("the end of the process", |state| state.is_empty());
}

/// A request, and one more for each time in which the process may have stood still for so long that its credit was
/// idle.
pub fn most_allocations_need_no_request(injection: Injection) {
    const IDLE: Duration = Duration::from_millis(200);
    let slice = slice(injection);
    let begin = Instant::now();
    assert_eq!(steps(&slice, &["churn:10000:0x10000"]), ["churn 0 10000 0"]);
    let idle = begin.elapsed().as_nanos().div_ceil(IDLE.as_nanos());
    let asked = u128::from(slice.daemon.state().reserves);
    assert!(asked <= 1 + idle.min(100), "asked {asked} times in {:?}", begin.elapsed());
}

pub fn small_allocations_are_charged_the_driver_s_granularity(injection: Injection) {
    let slice = Slice::new(injection, &[64 * 1024]);
    assert_eq!(steps(&slice, &["flood:1"]), ["flood 2 128 128"]);
}

pub fn a_failed_allocation_is_not_charged(injection: Injection) {
    let slice = slice(injection);
    let lines = steps(&slice, &["alloc:0xbad000", "alloc:0xbad000", "info"]);
    assert_eq!(lines[..2], ["alloc 999 0 0", "alloc 999 0 0"]);
    assert_eq!(lines[2], format!("info 0 {CAP} {CAP}"));
}

pub fn unusual_sizes_return_the_driver_s_errors(injection: Injection) {
    let slice = slice(injection);
    let none = slice.run(&["init", "alloc:1", "async:1", "info"]);
    let codes = |lines: &[String]| -> Vec<String> {
        let code = |line: &String| line.split(' ').nth(1).map(str::to_owned);
        lines.iter().filter_map(code).collect()
    };
    assert_eq!(codes(&none), ["0", "201", "201", "201"], "without a context");
    let lines = steps(
        &slice,
        &[
            "alloc:0",
            "alloc:0xffffffffffffffff",
            "alloc:0xfffffffffffffe01",
            "async:0xffffffffffffffff",
            "managed:0xffffffffffffffff",
            "pitch:0xffffffffffffffff:2",
            "pitch:0x100000000:0x100000001",
            "create:0xffffffffffffffff:1",
            "array:0xffffffffffffffff:0xffffffffffffffff",
            "info",
            "alloc:0x10000000",
        ],
    );
    assert_eq!(codes(&lines), ["1", "2", "2", "2", "2", "2", "2", "2", "2", "0", "0"]);
    assert_eq!(lines[9], format!("info 0 {CAP} {CAP}"));
}

pub fn unknown_pointers_are_passed_to_the_driver(injection: Injection) {
    let slice = slice(injection);
    let lines = steps(&slice, &["freeraw:0x1234", "freeraw:0", "alloc:4096", "free:0", "free:0"]);
    let expect = ["freeraw 1 0 0", "freeraw 0 0 0", "alloc 0 0 0", "free 0 0 0", "free 1 0 0"];
    assert_eq!(lines, expect);
}

pub fn memory_queries_show_the_slice(injection: Injection) {
    let mut slice = slice(injection);
    let half = CAP / 2;
    let lines = steps(&slice, &["total:0", "info", "alloc:0x8000000", "info", "free:0", "info"]);
    assert_eq!(lines[0], format!("total 0 {CAP} 0"));
    assert_eq!(lines[1], format!("info 0 {CAP} {CAP}"));
    assert_eq!(lines[3], format!("info 0 {half} {CAP}"));
    assert_eq!(lines[5], format!("info 0 {CAP} {CAP}"));
    // Never more than the GPU has.
    slice.set("STUB_BYTES", 10 * MIB);
    let lines = steps(&slice, &["total:0", "info"]);
    assert_eq!(lines, ["total 0 10485760 0", "info 0 10485760 10485760"]);
}

pub fn internal_calls_of_the_driver_are_charged_once(injection: Injection) {
    every_way_is_charged(&Slice::with_driver(injection, &[CAP], "-O2"));
}

pub fn every_allocation_function_is_charged(injection: Injection) {
    every_way_is_charged(&slice(injection));
}

fn every_way_is_charged(slice: &Slice) {
    // 600 bytes a row become 768 in this driver; 0x40000 rows of them are 192 MiB.
    let lines = steps(
        slice,
        &[
            "pitch:600:0x40000",
            "info",
            "free:0",
            "managed:0x8000000",
            "async:0x4000000",
            "info",
            "free:1",
            "freeasync:2",
            "array:0x1000000:1",
            "info",
            "unarray:3",
            "info",
        ],
    );
    let left = |mib: u64| format!("info 0 {} {CAP}", CAP - mib * MIB);
    assert_eq!(lines[0], "pitch 0 768 0");
    assert_eq!(lines[1], left(192));
    assert_eq!(lines[5], left(192));
    assert_eq!(lines[9], left(80), "16 Mi elements of 4 bytes take 80 MiB in this driver");
    assert_eq!(lines[11], left(0));
    let lines =
        steps(slice, &["narrow:0x8000001", "narrow:0x8000000", "info", "freenarrow:0", "info"]);
    assert_eq!(lines[..2], ["narrow 0 0 0", "narrow 2 0 0"]);
    assert_eq!(lines[2], format!("info 0 {} {CAP}", CAP / 2 - 512));
    assert_eq!(lines[4], left(0));
    let lines = steps(
        slice,
        &[
            "pitch:600:0x60000",
            "managed:0x10000001",
            "async:0x10000001",
            "array:0x3800000:1",
            "info",
        ],
    );
    for line in &lines[..4] {
        assert_eq!(line.split(' ').nth(1), Some("2"), "{lines:?}");
    }
    assert_eq!(lines[4], left(0), "what was refused costs nothing");
}

pub fn racing_processes_never_exceed_the_cap(injection: Injection) {
    let slice = slice(injection);
    let mut racers: Vec<_> =
        (0..4).map(|_| slice.start(&["init", "ctx:0", "wait", "flood:0x90000", "wait"])).collect();
    for racer in &mut racers {
        assert_eq!(racer.lines(), ["init 0 0 0", "ctx 0 0 0"]);
    }
    racers.iter_mut().for_each(Started::go_on);
    let taken: u64 = racers
        .iter_mut()
        .map(|racer| {
            let lines = racer.lines();
            let count = lines[0].strip_prefix("flood 2 ").and_then(|rest| rest.split(' ').next());
            count.and_then(|count| count.parse::<u64>().ok()).expect("a count") * 0x90000
        })
        .sum();
    let state = slice.daemon.state();
    assert!(state.peak <= CAP && state.reserved(0) <= CAP, "{}", state.peak);
    assert!((CAP - 4 * 4 * MIB..=CAP).contains(&taken), "{taken} of {CAP} taken");
    drop(state);
    for mut racer in racers {
        racer.child.kill().expect("running");
    }
    slice.daemon.until("the refund of the killed", |state| state.is_empty());
    assert_eq!(steps(&slice, &["alloc:0x10000000"]), ["alloc 0 0 0"]);
}
