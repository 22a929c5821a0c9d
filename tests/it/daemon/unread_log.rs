//! A log that no program reads, and one whose reader has ended.

use crate::harness::eventually;
use crate::harness::node::Node;
use crate::harness::process::KillOnDrop;
use gpuslice_wire::admin::Answer;
use gpuslice_wire::units::{Bytes, GIB};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::mpsc::channel;

/// A daemon whose log is a small pipe, once it is ready; and the lines that follow.
fn start(
    node: &Node,
    args: &[&str],
) -> (KillOnDrop, impl Iterator<Item = String> + Send + 'static) {
    // Programs that other tests start must not keep its ends open.
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).expect("a pipe");
    fcntl(&write, FcntlArg::F_SETPIPE_SZ(8192)).expect("a small pipe");
    let daemon = node.daemon_command(args).stderr(write).spawn().expect("gpusliced starts");
    let daemon = KillOnDrop(daemon);
    let mut log = BufReader::new(File::from(read)).lines().map_while(Result::ok);
    assert!(log.any(|line| line.contains("gpusliced ready: ")), "it does not start");
    (daemon, log)
}

/// Each begin and each end of a slice is a line.
fn begin_and_end(node: &Node) {
    node.must_admit("a", Bytes(GIB));
    assert_eq!(node.dismiss("a"), Answer::Dismissed {});
}

/// The daemon stood as soon as the pipe was full: no turns, no heartbeat, no answers.
#[test]
fn a_log_that_is_not_read_stops_nothing() {
    let node = Node::new();
    let (_daemon, mut log) = start(&node, &[]);
    (0..100).for_each(|_| begin_and_end(&node));
    let (lines, read) = channel();
    std::thread::spawn(move || log.all(|line| lines.send(line).is_ok()));
    eventually("the number of dropped lines", || {
        begin_and_end(&node);
        read.try_iter().any(|line| line.contains("log lines were dropped"))
    });
}

/// The logging library told of the error on standard error, and that panicked.
#[test]
fn a_log_whose_reader_has_ended_stops_nothing() {
    for format in ["text", "json"] {
        let node = Node::new();
        let (mut daemon, log) = start(&node, &["--log-format", format]);
        drop(log);
        (0..10).for_each(|_| begin_and_end(&node));
        assert_eq!(daemon.try_wait().expect("ours"), None, "{format}: it ended");
    }
}
