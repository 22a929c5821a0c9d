//! A program whose work waits for its own work ends, although turns end in the middle.
//!
//! The program is `tests/apps/deadlocks`. Each case first runs without the shim: a case that deadlocks on the
//! driver alone tests nothing here.

use super::{Tenant, strict_node};
use crate::harness::node::Node;
use crate::harness::process::{KillOnDrop, put_in_slice, put_on_device};
use crate::harness::{PATIENCE, target_dir, within};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Enough for one launch in each round that is let go only after a while.
const LIMIT: Duration = Duration::from_secs(3 * PATIENCE.as_secs());

/// A program with these arguments on the node's device, in the slice `a` or outside of it.
pub fn program(node: &Node, words: &[&str], slice: bool) -> Command {
    let mut command = Command::new(target_dir().join(words[0]));
    put_on_device(command.args(&words[1..]), node);
    if slice {
        put_in_slice(&mut command, node, "a");
    }
    command
}

/// The program with `case`, in the slice `a` or outside of it.
pub fn start(node: &Node, case: &str, rounds: u32, slice: bool) -> Child {
    let mut command = program(node, &["deadlocks", case, &rounds.to_string()], slice);
    command.stdout(Stdio::null()).spawn().expect("deadlocks is staged")
}

pub fn expect_no_deadlock(case: &str, program: Child) {
    let mut program = KillOnDrop(program);
    within(LIMIT, case, || program.try_wait().expect("ours").is_some());
    let status = program.wait().expect("ours");
    assert!(status.success(), "{case}: {status}");
}

fn try_case(case: &str, rounds: u32) {
    let (node, machine) = strict_node("time::deadlocks");
    expect_no_deadlock(&format!("bare {case}"), start(&node, case, 1, false));
    let other = Tenant::start(&node, &machine, "b", 500);
    expect_no_deadlock(case, start(&node, case, rounds, true));
    other.gets(&machine, Duration::from_millis(100));
}

#[test]
fn a_stream_that_waits_for_a_word_of_another() {
    try_case("word", 10);
}

#[test]
fn a_stream_that_waits_for_what_a_copy_brings() {
    try_case("copy", 10);
}

#[test]
fn a_host_function_that_launches() {
    try_case("callback", 10);
}

#[test]
fn a_host_function_that_launches_into_its_own_stream() {
    try_case("own-stream", 2);
}

#[test]
fn streams_of_both_flavours_in_many_threads() {
    try_case("flavours", 4);
}

#[test]
fn streams_and_memory_that_go_with_work_queued() {
    try_case("deep", 4);
}

#[test]
fn a_context_that_goes_with_work_queued() {
    try_case("context", 2);
}

#[test]
fn launches_while_another_thread_captures() {
    try_case("capture", 2);
}
