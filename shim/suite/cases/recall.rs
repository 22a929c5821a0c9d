//! Unused credit: available to siblings immediately, and returned when idle.

use super::{CAP, slice};
use crate::suite::Injection;

pub fn unused_credit_of_a_sibling_is_available(injection: Injection) {
    let slice = slice(injection);
    let mut holder = slice.start(&["init", "ctx:0", "wait", "alloc:1", "pin:1", "wait", "free:0"]);
    let mut asker = slice.start(&["init", "ctx:0", "wait", "alloc:0xffffe00", "alloc:1", "wait"]);
    holder.lines();
    asker.lines();
    holder.go_on();
    assert_eq!(holder.lines(), ["alloc 0 0 0", "pin 0 0 0"]);
    asker.go_on();
    assert_eq!(asker.lines(), ["alloc 0 0 0", "alloc 2 0 0"], "to the last byte");
    assert_eq!(slice.daemon.state().reserved(0), CAP);
    holder.go_on();
    assert_eq!(holder.lines(), ["free 0 0 0"]);
}

/// Many small allocations of both, so that thread caches and common credit of each fill repeatedly.
pub fn two_churning_processes_share_the_cap(injection: Injection) {
    let slice = slice(injection);
    let half = "alloc:0x7f00000";
    let churn = ["churn:2000:0x2000"; 8];
    let steps = [&["init", "ctx:0", half, "wait"][..], &churn[..]].concat();
    let mut both = [slice.start(&steps), slice.start(&steps)];
    for one in &mut both {
        assert_eq!(one.lines()[2], "alloc 0 0 0");
    }
    both.iter_mut().for_each(crate::suite::Started::go_on);
    for one in &mut both {
        assert_eq!(one.lines(), ["churn 0 2000 0"; 8]);
    }
    assert!(slice.daemon.state().peak <= CAP);
}

pub fn idle_credit_is_returned(injection: Injection) {
    let slice = slice(injection);
    let mut probe = slice.start(&["init", "ctx:0", "alloc:4096", "pin:1", "wait", "info", "wait"]);
    probe.lines();
    slice
        .daemon
        .until("no unused credit", |state| state.reserved(0) == 4096 && state.reserved(16) == 4096);
    slice.daemon.state().show();
    probe.go_on();
    assert_eq!(probe.lines(), [format!("info 0 {} {CAP}", CAP - 4096)]);
}

/// A child has a gate thread of its own, which returns its credit.
pub fn idle_credit_of_a_forked_child_is_returned(injection: Injection) {
    let slice = slice(injection);
    let steps = ["init", "ctx:0", "alloc:4096", "fork", "init", "ctx:0", "alloc:8192", "wait"];
    let mut probe = slice.start(&steps);
    assert_eq!(probe.lines().last().map(String::as_str), Some("alloc 0 0 0"));
    slice.daemon.until("no unused credit of both", |state| state.reserved(0) == 4096 + 8192);
}

pub fn before_initialisation_the_driver_answers(injection: Injection) {
    let slice = slice(injection);
    let lines = slice.run(&["alloc:1", "pin:1", "free:0", "freeraw:0x1234", "info", "async:1"]);
    let codes: Vec<_> = lines.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(codes, ["3", "3", "3", "3", "201", "3"]);
    assert_eq!(slice.daemon.state().attaches, 0);
}
