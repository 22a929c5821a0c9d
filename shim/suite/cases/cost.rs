//! Memory that the driver takes for itself: contexts and their limits; and pinned host memory.

use super::{CAP, MIB, slice};
use crate::suite::{Injection, Slice};
use gpuslice_wire::ids::Lane;

const HOST: usize = Lane::HOST.0 as usize;

/// A slice whose daemon answers the next measurements with these MiB.
fn measuring(injection: Injection, mib: &[u64]) -> Slice {
    let slice = slice(injection);
    slice.daemon.state().measured = mib.iter().map(|mib| mib * MIB).collect();
    slice
}

fn free(mib: u64) -> String {
    format!("info 0 {} {CAP}", CAP - mib * MIB)
}

pub fn a_context_is_charged_its_measured_cost(injection: Injection) {
    // The second context is measured while 16 MiB and the first one's 40 are accounted.
    let slice = measuring(injection, &[40, 86]);
    let lines = slice.run(&[
        "init",
        "ctx:0",
        "info",
        "alloc:0x1000000",
        "ctx:0",
        "info",
        "destroy",
        "retain:0",
        "info",
    ]);
    assert_eq!(lines[1..3], ["ctx 0 0 0".to_owned(), free(40)]);
    assert_eq!(lines[4..6], ["ctx 0 0 0".to_owned(), free(86)]);
    assert_eq!(lines[8], free(56), "unknown prices cost nothing");
    assert_eq!(slice.daemon.state().measures, 3);
}

/// A process may be killed before the charge: the daemon knows by the claim that there may be a context.
pub fn a_context_is_claimed_before_it_is_charged(injection: Injection) {
    let slice = measuring(injection, &[40, 80, CAP]);
    let mut probe = slice.start(&["init", "ctx:0", "retain:0", "ctx:0", "wait"]);
    let lines = probe.lines();
    assert_eq!(lines[3], "ctx 2 0 0", "the third does not fit");
    assert_eq!(slice.daemon.state().contexts_at_measures, [1, 2, 3]);
    assert_eq!(slice.daemon.state().families(0).1, 2);
    probe.go_on();
    probe.lines();
}

/// NVML's figures may be older than the context: no context costs nothing, a green one may.
pub fn a_context_that_seems_to_cost_nothing_is_measured_again(injection: Injection) {
    let late = measuring(injection, &[0, 0, 40]);
    assert_eq!(late.run(&["init", "ctx:0", "info"])[2], free(40));
    assert_eq!(late.daemon.state().measures, 3);
    let primary = measuring(injection, &[0, 40]);
    assert_eq!(primary.run(&["init", "retain:0", "info"])[2], free(40));
    // Not for ever: where there are no figures, the process goes on.
    let never = measuring(injection, &[0; 20]);
    assert_eq!(never.run(&["init", "ctx:0", "info"])[2], free(0));
    assert_eq!(never.daemon.state().measures, 6);
    let green = measuring(injection, &[40, 40, 40]);
    assert_eq!(green.run(&["init", "retain:0", "green:0", "info"])[3], free(40));
    assert_eq!(green.daemon.state().measures, 2);
}

/// A driver that has no figure for the process, or too late: what a context costs there is known from others.
pub fn a_context_that_cannot_be_measured_is_charged_the_smallest_cost(injection: Injection) {
    for figures in [&[40][..], &[40, 40, 40, 40, 40, 40, 40]] {
        let slice = measuring(injection, figures);
        slice.daemon.state().context_kib = 32 << 10;
        let lines = slice.run(&["init", "ctx:0", "ctx:0", "info"]);
        assert_eq!(lines[3], free(40 + 32), "{figures:?}");
    }
}

pub fn a_primary_context_is_charged_once(injection: Injection) {
    let slice = measuring(injection, &[40, 40]);
    let lines = slice.run(&[
        "init", "retain:0", "retain:0", "info", "drop:0", "info", "drop:0", "retain:0", "info",
        "reset:0", "info", "drop:0", "drop:0",
    ]);
    assert_eq!((&lines[3], &lines[5]), (&free(40), &free(40)));
    assert_eq!((&lines[8], &lines[10]), (&free(40), &free(0)));
    assert_eq!(slice.daemon.state().measures, 2);
    assert_eq!(lines[12], "drop 201 0 0");
}

pub fn a_context_that_does_not_fit_is_not_created(injection: Injection) {
    let slice = measuring(injection, &[257, 300]);
    let lines = slice.run(&["init", "ctx:0", "alloc:1", "retain:0", "drop:0", "ctx:0", "info"]);
    assert_eq!(lines[1..5], ["ctx 2 0 0", "alloc 201 0 0", "retain 2 0 0", "drop 201 0 0"]);
    assert_eq!(lines[5..], ["ctx 0 0 0".to_owned(), free(0)]);
}

/// The memory that is promised to the container may be lent: then the driver refuses a first context. All that a
/// context can take is asked of the daemon, which has borrowers give it back, and then the driver is asked again.
pub fn a_first_context_is_created_once_there_is_room(injection: Injection) {
    for known_kib in [0, 30 << 10, 200 << 10] {
        let mut slice = measuring(injection, &[40]);
        slice.daemon.state().context_kib = known_kib;
        slice.daemon.state().show();
        slice.set("STUB_LENT", 1);
        assert_eq!(slice.run(&["init", "ctx:0", "info"])[1..], ["ctx 0 0 0".to_owned(), free(40)]);
        assert_eq!(slice.daemon.state().peak, CAP);
    }
    // It is asked once again, and nothing stays charged where it refuses that as well.
    let mut slice = measuring(injection, &[40]);
    slice.set("STUB_LENT", 2);
    let lines = slice.run(&["init", "ctx:0", "ctx:0", "info"]);
    assert_eq!(lines[1..], ["ctx 2 0 0".to_owned(), "ctx 0 0 0".to_owned(), free(40)]);
    let slice = measuring(injection, &[40]);
    slice.run(&["init", "ctx:0"]);
    assert!(slice.daemon.state().peak < 64 * MIB, "little more than it takes where there is room");
}

pub fn a_first_context_of_known_cost_is_refused_in_advance(injection: Injection) {
    let slice = slice(injection);
    slice.daemon.state().context_kib = 100 << 10;
    slice.daemon.state().show();
    let lines = slice.run(&["init", "ctx:0", "info", "alloc:0xa000000", "ctx:0", "info"]);
    assert_eq!(lines[2], free(100), "without a measurement the estimate stays");
    assert_eq!(lines[3..5], ["alloc 2 0 0", "ctx 0 0 0"], "not for a second one");
    slice.daemon.state().context_kib = 257 << 10;
    slice.daemon.state().measures = 0;
    slice.daemon.state().show();
    let lines = slice.run(&["init", "ctx:0", "green:0", "alloc:1"]);
    assert_eq!(lines[1..], ["ctx 2 0 0", "green 2 0 0", "alloc 201 0 0"]);
    assert_eq!(slice.daemon.state().measures, 0, "the driver was not asked");
}

pub fn a_raised_limit_is_charged(injection: Injection) {
    let slice = slice(injection);
    let lines = slice.run(&[
        "init",
        "ctx:0",
        "limit:2:0x4800000",
        "info",
        "limit:2:0x20000000",
        "limited:2",
        "limit:2:0x50000000",
        "limit:1:1",
        "info",
        "limit:2:0x2800000",
        "info",
        "limit:2:0",
        "info",
    ]);
    assert_eq!((lines[2].as_str(), &lines[3]), ("limit 0 0 0", &free(64)));
    assert_eq!(lines[4..6], ["limit 2 0 0", "limited 0 75497472 0"]);
    assert_eq!(lines[6..8], ["limit 2 0 0", "limit 1 0 0"]);
    assert_eq!((&lines[8], &lines[10]), (&free(64), &free(32)));
    assert_eq!(lines[12], free(0), "what it had from the start is the context's");
}

/// The measurements of NVML may be older than the call. What the driver keeps stays charged.
pub fn a_smaller_stack_releases_what_the_driver_gives_back(injection: Injection) {
    let (larger, smaller) = ("limit:0:0x4400", "limit:0:0x400"); // 2048 threads, 32 MiB
    let steps = ["init", "ctx:0", larger, "info", smaller, "info", larger, smaller, "info"];
    let figures = [&[40, 72, 72, 72, 40, 99, 72][..], &[60; 6]].concat();
    let slice = measuring(injection, &figures);
    let lines = slice.run(&steps);
    assert_eq!((lines[2].as_str(), &lines[3], &lines[5]), ("limit 0 0 0", &free(72), &free(40)));
    assert_eq!(lines[8], free(60), "a part of it");
    assert_eq!(slice.daemon.state().measures, 13);
    let kept = measuring(injection, &[&[40, 72, 72, 40, 72][..], &[72; 7]].concat());
    assert_eq!(kept.run(&steps)[8], free(72));
    assert_eq!(kept.daemon.state().measures, 12, "not for ever");
    let unseen = measuring(injection, &[40, 72, 72, 40, 72]);
    assert_eq!(unseen.run(&steps)[8], free(72), "it cannot be measured");
    assert_eq!(unseen.daemon.state().measures, 11, "not for ever either");
}

pub fn a_limit_that_does_not_fit_is_reset(injection: Injection) {
    let slice = measuring(injection, &[8, 300]);
    let lines = slice.run(&["init", "ctx:0", "limit:2:0x4800000", "limited:2", "info"]);
    assert_eq!(lines[2..4], ["limit 2 0 0", "limited 0 8388608 0"]);
    assert_eq!(lines[4], free(8));
}

pub fn pinned_memory_has_an_account_of_its_own(injection: Injection) {
    let slice = slice(injection);
    let steps = [
        "init",
        "pin:1",
        "ctx:0",
        "pin:1",
        "pinflags:4097:1",
        "register:0x10fff:2",
        "register:0x10fff:2",
        "register:0x20000:4096:4",
        "pin:0",
        "pin:0xffffffffffffffff",
        "info",
        "wait",
        "unpin:1",
        "unpin:1",
        "unregister:0x10fff",
        "unregister:0x10fff",
        "wait",
        "destroy",
        "wait",
    ];
    let mut probe = slice.start(&steps);
    let lines = probe.lines();
    let codes: Vec<_> = lines.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(codes, ["0", "201", "0", "0", "0", "0", "712", "0", "1", "2", "0"]);
    assert_eq!(lines[10], free(0));
    slice.daemon.until("five pages", |state| state.reserved(HOST) == 5 << 12);
    probe.go_on();
    let lines = probe.lines();
    assert_eq!(lines, ["unpin 0 0 0", "unpin 1 0 0", "unregister 0 0 0", "unregister 1 0 0"]);
    slice.daemon.until("two pages", |state| state.reserved(HOST) == 2 << 12);
    probe.go_on();
    probe.lines();
    slice.daemon.until("none, as the context ended", |state| state.reserved(HOST) == 0);
}

pub fn pinned_memory_is_refused_above_its_cap_alone(injection: Injection) {
    let slice = slice(injection);
    slice.daemon.state().set_cap(Lane::HOST, 8192);
    let lines = slice.run(&[
        "init",
        "ctx:0",
        "pin:8193",
        "pin:8192",
        "pin:1",
        "unpin:1",
        "register:1:4096",
    ]);
    let codes: Vec<_> = lines.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(codes, ["0", "0", "2", "0", "2", "0", "0"]);
}

pub fn managed_memory_is_claimed_as_unseen(injection: Injection) {
    let slice = slice(injection);
    let mut probe = slice.start(&[
        "init",
        "ctx:0",
        "managed:0x1000000",
        "alloc:4096",
        "wait",
        "free:0",
        "wait",
    ]);
    probe.lines();
    let held = 16 * MIB + 4096;
    slice.daemon.until("the claims", |state| state.claimed(0) == (held, 16 * MIB));
    probe.go_on();
    probe.lines();
    slice.daemon.until("the end of it", |state| state.claimed(0) == (4096, 0));
}

pub fn what_memory_is_used_for_is_claimed(injection: Injection) {
    let slice = measuring(injection, &[40]);
    let mut probe = slice.start(&[
        "init",
        "ctx:0",
        "managed:0x100000",
        "create:0x400000:1",
        "array:0x200000:1", // 8 MiB of elements, 10 in this driver
        "async:0x100000",
        "alloc:0x800000",
        "wait",
        "free:0",
        "release:1",
        "unarray:2",
        "freeasync:3",
        "destroy",
        "wait",
    ]);
    probe.lines();
    // managed, arrays, pools, physical, contexts; and their number
    let held = ([1, 10, 1, 4, 40].map(|mib| mib * MIB), 1);
    slice.daemon.until("the families", |state| state.families(0) == held);
    slice.daemon.until("their sum", |state| state.claimed(0) == (64 * MIB, MIB));
    probe.go_on();
    probe.lines();
    slice.daemon.until("the end of them", |state| state.families(0) == ([0; 5], 0));
}
