//! What both doors promise, one function per promise; [`conformance`] makes tests of them.

use super::{Door, Slice};

const MIB: u64 = 1 << 20;
const CAP: u64 = 256 * MIB;

/// Makes a test of every case for one door.
#[macro_export]
macro_rules! conformance {
    ($door:expr; $($case:ident)*) => {$(
        #[test]
        fn $case() {
            suite::cases::$case($door);
        }
    )*};
}

fn slice(door: Door) -> Slice {
    Slice::new(door, &[CAP])
}

/// Lines of `run` after those of `init` and `ctx`, which must succeed.
fn steps(slice: &Slice, steps: &[&str]) -> Vec<String> {
    let all = [&["init", "ctx:0"], steps].concat();
    let mut lines = slice.run(&all);
    assert_eq!(lines[..2], ["init 0 0 0", "ctx 0 0 0"]);
    lines.split_off(2)
}

pub fn the_cap_is_exact(door: Door) {
    let slice = slice(door);
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
    assert_eq!(slice.daemon.books().peak, CAP);
    slice
        .daemon
        .until("the end of the process", |books| books.granted.is_empty());
}

pub fn most_allocations_ask_nobody(door: Door) {
    let slice = slice(door);
    assert_eq!(steps(&slice, &["churn:10000:0x10000"]), ["churn 0 10000 0"]);
    let asked = slice.daemon.books().reserves;
    assert!(asked <= 2, "asked {asked} times");
}

pub fn small_requests_cost_what_the_driver_hands_out(door: Door) {
    let slice = Slice::new(door, &[64 * 1024]);
    assert_eq!(steps(&slice, &["flood:1"]), ["flood 2 128 128"]);
}

pub fn a_failed_allocation_is_given_back(door: Door) {
    let slice = slice(door);
    let lines = steps(&slice, &["alloc:0xbad000", "alloc:0xbad000", "info"]);
    assert_eq!(lines[..2], ["alloc 999 0 0", "alloc 999 0 0"]);
    assert_eq!(lines[2], format!("info 0 {CAP} {CAP}"));
}

pub fn strange_sizes_get_the_drivers_answers(door: Door) {
    let slice = slice(door);
    let none = slice.run(&["init", "alloc:1", "async:1", "info"]);
    let codes = |lines: &[String]| -> Vec<String> {
        let code = |line: &String| line.split(' ').nth(1).map(str::to_owned);
        lines.iter().filter_map(code).collect()
    };
    assert_eq!(
        codes(&none),
        ["0", "201", "201", "201"],
        "without a context"
    );
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
    assert_eq!(
        codes(&lines),
        ["1", "2", "2", "2", "2", "2", "2", "2", "2", "0", "0"]
    );
    assert_eq!(lines[9], format!("info 0 {CAP} {CAP}"));
}

pub fn strange_pointers_are_the_drivers_business(door: Door) {
    let slice = slice(door);
    let lines = steps(
        &slice,
        &[
            "freeraw:0x1234",
            "freeraw:0",
            "alloc:4096",
            "free:0",
            "free:0",
        ],
    );
    let expect = [
        "freeraw 1 0 0",
        "freeraw 0 0 0",
        "alloc 0 0 0",
        "free 0 0 0",
        "free 1 0 0",
    ];
    assert_eq!(lines, expect);
}

pub fn memory_looks_like_the_slice(door: Door) {
    let mut slice = slice(door);
    let half = CAP / 2;
    let lines = steps(
        &slice,
        &[
            "total:0",
            "info",
            "alloc:0x8000000",
            "info",
            "free:0",
            "info",
        ],
    );
    assert_eq!(lines[0], format!("total 0 {CAP} 0"));
    assert_eq!(lines[1], format!("info 0 {CAP} {CAP}"));
    assert_eq!(lines[3], format!("info 0 {half} {CAP}"));
    assert_eq!(lines[5], format!("info 0 {CAP} {CAP}"));
    // Never more than the GPU has.
    slice.set("STUB_BYTES", 10 * MIB);
    let lines = steps(&slice, &["total:0", "info"]);
    assert_eq!(lines, ["total 0 10485760 0", "info 0 10485760 10485760"]);
}

pub fn a_driver_that_calls_itself_is_charged_once(door: Door) {
    every_way_is_charged(&Slice::with_driver(door, &[CAP], "-O2"));
}

pub fn every_way_to_memory_is_charged(door: Door) {
    every_way_is_charged(&slice(door));
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
    assert_eq!(
        lines[9],
        left(80),
        "16 Mi elements of 4 bytes take 80 MiB in this driver"
    );
    assert_eq!(lines[11], left(0));
    let lines = steps(
        slice,
        &[
            "narrow:0x8000001",
            "narrow:0x8000000",
            "info",
            "freenarrow:0",
            "info",
        ],
    );
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

pub fn a_context_takes_its_memory_with_it(door: Door) {
    let slice = slice(door);
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
    let (all, half) = (
        format!("info 0 {CAP} {CAP}"),
        format!("info 0 {} {CAP}", CAP / 2),
    );
    assert_eq!((&lines[3], &lines[8], &lines[11]), (&all, &half, &all));
}

pub fn a_context_that_is_not_destroyed_keeps_its_memory(door: Door) {
    let mut slice = slice(door);
    slice.set("STUB_KEEPS", 1);
    let lines = steps(
        &slice,
        &["alloc:0x8000000", "destroy", "info", "free:0", "info"],
    );
    assert_eq!(lines[1], "destroy 999 0 0");
    assert_eq!(lines[2], format!("info 0 {} {CAP}", CAP / 2));
    assert_eq!(lines[4], format!("info 0 {CAP} {CAP}"));
}

pub fn lanes_go_by_uuid(door: Door) {
    let mut slice = Slice::new(door, &[CAP, 16 * MIB]);
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
    assert_eq!(
        lines[1..4],
        ["alloc 0 0 0", "alloc 2 0 0", "total 0 16777216 0"]
    );
    assert_eq!(
        lines[4..6],
        ["ctx 46 0 0", "total 0 68719476736 0"],
        "not in the slice: no context, no pretence"
    );
    assert_eq!(
        lines[7..],
        ["alloc 0 0 0".into(), format!("total 0 {CAP} 0")]
    );
}

pub fn a_gpu_outside_the_slice_gives_nothing(door: Door) {
    let mut slice = slice(door);
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

pub fn processes_that_race_never_pass_the_cap(door: Door) {
    let slice = slice(door);
    let mut racers: Vec<_> = (0..4)
        .map(|_| slice.start(&["init", "ctx:0", "wait", "flood:0x90000", "wait"]))
        .collect();
    for racer in &mut racers {
        assert_eq!(racer.lines(), ["init 0 0 0", "ctx 0 0 0"]);
    }
    racers.iter_mut().for_each(super::Started::go_on);
    let taken: u64 = racers
        .iter_mut()
        .map(|racer| {
            let lines = racer.lines();
            let count = lines[0]
                .strip_prefix("flood 2 ")
                .and_then(|rest| rest.split(' ').next());
            count
                .and_then(|count| count.parse::<u64>().ok())
                .expect("a count")
                * 0x90000
        })
        .sum();
    let books = slice.daemon.books();
    assert!(books.peak <= CAP && books.reserved(0) <= CAP, "{books:?}");
    assert!(
        (CAP - 4 * 4 * MIB..=CAP).contains(&taken),
        "{taken} of {CAP} taken"
    );
    drop(books);
    for mut racer in racers {
        racer.child.kill().expect("running");
    }
    slice
        .daemon
        .until("the refund of the killed", |books| books.granted.is_empty());
    assert_eq!(steps(&slice, &["alloc:0x10000000"]), ["alloc 0 0 0"]);
}

pub fn names_lead_to_hooks_by_version_and_flavour(door: Door) {
    let slice = slice(door);
    let (ours, real) = (
        format!("whichby 0 {}", door.file()),
        "whichby 0 libcuda.so.1",
    );
    let lines = steps(
        &slice,
        &[
            "whichby:cuMemAlloc:2000",
            "whichby:cuMemAlloc:3020",
            "whichby:cuMemAlloc:12000:2",
            "whichby:cuMemAllocAsync:12000",
            "whichby:cuMemAllocAsync:12000:2",
            "whichby:cuMemFreeAsync:12000",
            "whichby:cuLaunchKernel:7000:2",
            "whichby:cuLaunchKernel:4000",
            "whichby:cuGetProcAddress:12000",
            "whichby:cuInit:2000",
        ],
    );
    assert!(lines.iter().all(|line| *line == ours), "{lines:?}");
    let lines = steps(
        &slice,
        &[
            "whichby:cuMemcpyHtoDAsync:12000",
            "whichby:cuFromTheFuture:12090",
            "whichby:cuMemAlloc:1000",
            "whichby:cuNothing:12000",
        ],
    );
    assert_eq!(
        lines,
        [real, real, "whichby 5002 nobody", "whichby 5001 nobody"]
    );
}

pub fn other_functions_pass_through(door: Door) {
    let slice = slice(door);
    let lines = steps(&slice, &["copy", "launch", "copy", "launch"]);
    assert_eq!(
        lines,
        ["copy 77 0 0", "launch 0 0 0", "copy 77 0 0", "launch 0 0 0"]
    );
}

pub fn usual_detours_are_no_way_around(door: Door) {
    let slice = slice(door);
    let ours = door.file();
    let lines = steps(
        &slice,
        &[
            "which:cuMemAlloc_v2",
            "deep",
            "dlvsym",
            "plugin",
            "deepplugin",
        ],
    );
    let verbs = ["which", "deep", "dlvsym", "plugin", "deepplugin"];
    let expect: Vec<String> = verbs.iter().map(|verb| format!("{verb} {ours}")).collect();
    assert_eq!(lines, expect);
}

pub fn a_daemon_that_comes_back_finds_its_books(door: Door) {
    let mut slice = slice(door);
    let mut probe = slice.start(&[
        "init",
        "ctx:0",
        "alloc:0x8000000",
        "wait",
        "alloc:0x4000000",
        "alloc:0x8000000",
        "info",
        "free:0",
        "info",
        "wait",
    ]);
    assert_eq!(probe.lines()[2], "alloc 0 0 0");
    slice.daemon.go_away();
    slice.daemon.come_back();
    probe.go_on();
    let lines = probe.lines();
    assert_eq!(lines[..2], ["alloc 0 0 0", "alloc 2 0 0"]);
    assert_eq!(lines[2], format!("info 0 {} {CAP}", CAP / 4));
    assert_eq!(lines[4], format!("info 0 {} {CAP}", CAP / 4 * 3));
    let books = slice.daemon.books();
    assert_eq!((books.attaches, books.returned), (2, 1));
    assert!(books.peak <= CAP);
}

pub fn a_process_that_only_holds_memory_comes_back_too(door: Door) {
    let mut slice = slice(door);
    let mut probe = slice.start(&["init", "ctx:0", "alloc:0x8000000", "wait", "wait"]);
    probe.lines();
    slice.daemon.go_away();
    slice.daemon.come_back();
    slice
        .daemon
        .until("the held memory", |books| books.reserved(0) >= CAP / 2);
}

pub fn growth_waits_for_an_absent_daemon(door: Door) {
    let mut slice = slice(door);
    let mut probe = slice.start(&["init", "ctx:0", "wait", "alloc:0x8000000", "wait"]);
    probe.lines();
    slice.daemon.go_away();
    probe.go_on();
    std::thread::sleep(std::time::Duration::from_millis(200));
    slice.daemon.come_back();
    assert_eq!(probe.lines(), ["alloc 0 0 0"]);
}

pub fn a_forked_child_has_a_slice_of_its_own(door: Door) {
    let slice = slice(door);
    let lines = slice.run(&[
        "init",
        "ctx:0",
        "alloc:0x4000000",
        "fork",
        "init",
        "ctx:0",
        "alloc:0x8000000",
        "alloc:0x8000000",
        "info",
    ]);
    let expect = [
        "init 0 0 0",
        "ctx 0 0 0",
        "alloc 0 0 0",
        "init 0 0 0",
        "ctx 0 0 0",
        "alloc 0 0 0",
        "alloc 2 0 0",
    ];
    assert_eq!(lines[..7], expect);
    assert_eq!(slice.daemon.books().attaches, 2);
    slice
        .daemon
        .until("the end of both", |books| books.granted.is_empty());
}

pub fn closed_descriptors_are_made_anew(door: Door) {
    let slice = slice(door);
    let lines = steps(
        &slice,
        &[
            "alloc:0x4000000",
            "closeall",
            "alloc:0x8000000",
            "alloc:0x8000000",
        ],
    );
    assert_eq!(
        lines,
        [
            "alloc 0 0 0",
            "closeall 0 0 0",
            "alloc 0 0 0",
            "alloc 2 0 0"
        ]
    );
    assert_eq!(slice.daemon.books().attaches, 2);
}

pub fn no_daemon_is_no_permission(door: Door) {
    let mut slice = slice(door);
    slice.daemon.go_away();
    if door == Door::Replace {
        // The socket's absence alone would mean "no slice"; the driver's mount says otherwise.
        assert!(!slice.daemon.socket.exists());
    }
    assert_eq!(slice.run(&["init"]), ["init 802 0 0"]);
}
