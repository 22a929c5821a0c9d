//! A log that no program reads, on a pipe and on a stopped terminal, and one whose reader has ended.

use crate::harness::node::Node;
use crate::harness::process::KillOnDrop;
use gpuslice_wire::admin::Answer;
use gpuslice_wire::units::{Bytes, GIB};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Slices that begin and end while the log is not read, and the most with those that follow.
const UNREAD: usize = 100;
const MOST: usize = 300;

/// A small pipe. Programs that other tests start must not keep its ends open.
fn pipe() -> (OwnedFd, OwnedFd) {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).expect("a pipe");
    fcntl(&write, FcntlArg::F_SETPIPE_SZ(8192)).expect("a small pipe");
    (read, write)
}

/// The two ends of a pseudo-terminal.
fn terminal() -> (OwnedFd, OwnedFd) {
    let (mut screen, mut end) = (0, 0);
    let (name, none) = (std::ptr::null_mut(), std::ptr::null());
    // SAFETY: both numbers are ours; the descriptors are fresh.
    let ends = unsafe {
        let done = libc::openpty(&raw mut screen, &raw mut end, name, none, none.cast());
        Errno::result(done).expect("a terminal");
        [screen, end].map(|fd| OwnedFd::from_raw_fd(fd))
    };
    for fd in &ends {
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("ours");
    }
    ends.into()
}

/// A daemon whose log is at this end, once it is ready; and the lines that follow.
fn start(
    node: &Node,
    args: &[&str],
    (read, write): (OwnedFd, OwnedFd),
) -> (KillOnDrop, impl Iterator<Item = String> + Send + 'static) {
    let daemon = node.daemon_command(args).stderr(write).spawn().expect("gpusliced starts");
    let daemon = KillOnDrop(daemon);
    let mut log = BufReader::new(File::from(read)).lines().map_while(Result::ok);
    assert!(log.any(|line| line.contains("gpusliced ready: ")), "it does not start");
    (daemon, log)
}

/// The container of a round.
fn name(round: usize) -> String {
    format!("web-{round:03}")
}

/// The begin and the end of a slice, of which the same lines tell in each round.
fn begin_and_end(node: &Node, round: usize) {
    node.must_admit(&name(round), Bytes(GIB));
    assert_eq!(node.dismiss(&name(round)), Answer::Dismissed {});
}

/// What a line tells of a round's container, without the time.
fn told(line: &str, round: usize) -> String {
    let (_time, text) = line.trim_end().split_once(' ').unwrap_or_default();
    text.replace(&name(round), "it")
}

/// The number in a line about dropped ones.
fn dropped_in(line: &str) -> Option<usize> {
    let (before, _) = line.split_once(" log lines were dropped")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// Has slices begin and end while nothing reads the log, between `stop` and `go_on`. The lines that follow are those
/// that are due, in their order, and each number of dropped lines stands for as many of them.
fn counts_what_it_drops(
    node: &Node,
    mut log: impl Iterator<Item = String> + Send + 'static,
    stop: impl FnOnce(),
    go_on: impl FnOnce(),
) {
    begin_and_end(node, 0);
    let mut each = Vec::new();
    while !each.last().is_some_and(|it: &String| it.contains("slice ended")) {
        let line = log.next().expect("a line");
        each.extend(line.contains(&name(0)).then(|| told(&line, 0)));
    }
    stop();
    (1..UNREAD).for_each(|round| begin_and_end(node, round));
    go_on();
    let (lines, read) = channel();
    std::thread::spawn(move || log.all(|line| lines.send(line).is_ok()));
    let (mut rounds, mut at, mut dropped) = (UNREAD, each.len(), 0);
    while dropped == 0 || at < rounds * each.len() {
        let Ok(line) = read.recv_timeout(Duration::from_millis(200)) else {
            // Dropped lines are told of before the next one.
            begin_and_end(node, rounds);
            rounds += 1;
            assert!(rounds < MOST, "{dropped} lines were dropped, {at} of all are accounted for");
            continue;
        };
        if let Some(count) = dropped_in(&line) {
            (at, dropped) = (at + count, dropped + count);
        } else if line.contains("web-") {
            let round = at / each.len();
            assert_eq!(told(&line, round), each[at % each.len()], "line {at}, {dropped} dropped");
            at += 1;
        }
    }
    assert_eq!(at, rounds * each.len(), "{dropped} lines were dropped");
}

/// The daemon stood as soon as the pipe was full: no turns, no heartbeat, no answers.
#[test]
fn a_log_that_is_not_read_stops_nothing() {
    let node = Node::new();
    let (_daemon, log) = start(&node, &[], pipe());
    counts_what_it_drops(&node, log, || (), || ());
}

#[test]
fn a_stopped_terminal_stops_nothing() {
    let node = Node::new();
    let (screen, end) = terminal();
    let kept = end.try_clone().expect("a descriptor");
    let (_daemon, log) = start(&node, &[], (screen, end));
    let flow = |action| {
        // SAFETY: plain numbers, one of them a descriptor of ours.
        let done = unsafe { libc::tcflow(kept.as_raw_fd(), action) };
        Errno::result(done).expect("a terminal");
    };
    counts_what_it_drops(&node, log, || flow(libc::TCOOFF), || flow(libc::TCOON));
}

/// The logging library told of the error on standard error, and that panicked.
#[test]
fn a_log_whose_reader_has_ended_stops_nothing() {
    for format in ["text", "json"] {
        let node = Node::new();
        let (mut daemon, log) = start(&node, &["--log-format", format], pipe());
        drop(log);
        (0..10).for_each(|round| begin_and_end(&node, round));
        assert_eq!(daemon.try_wait().expect("ours"), None, "{format}: it ended");
    }
}
