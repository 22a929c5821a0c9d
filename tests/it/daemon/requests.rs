//! Requests that cost the daemon more than they cost the process that sends them.
//!
//! A request that does not fit has the claims of all of its container's processes read, and one process may have as
//! many connections as the container. What is counted is how many of such requests the daemon answers before that of
//! a neighbour: time would tell of the machine.

use super::granted;
use crate::harness::node::Node;
use crate::harness::wire::{Connection, TenantClient};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::tenant::Request;
use gpuslice_wire::units::{Bytes, GIB};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;

const CONNECTIONS: usize = 64;
/// On each connection, as many as the daemon reads in a row.
const PIPELINED: usize = 16;

fn has_answer(connection: &Connection) -> bool {
    let mut fds = [PollFd::new(connection.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).expect("polled") > 0
}

/// Answers that wait on these connections.
fn answered(all: &[TenantClient]) -> usize {
    let of = |it: &TenantClient| {
        let next = || has_answer(&it.0).then(|| it.0.hear());
        std::iter::from_fn(next).count()
    };
    all.iter().map(of).sum()
}

/// How many of such requests were answered before a neighbour's, which was sent after them.
fn before_a_neighbour() -> usize {
    let node = Node::start();
    ["a", "b"].iter().for_each(|name| node.must_admit(name, Bytes(GIB)));
    let neighbour = node.tenant("b");
    neighbour.attach(Bytes::ZERO);
    // Asked at once: the daemon closes a connection that has sent nothing for a second.
    let ask = |it: TenantClient| {
        it.ask_to_attach(Bytes::ZERO);
        it
    };
    let all: Vec<TenantClient> = (0..CONNECTIONS).map(|_| ask(node.tenant("a"))).collect();
    all.iter().for_each(|it| drop(it.attached()));
    let request = Request::Reserve { lane: Lane(0), need: Bytes(u64::MAX), wish: Bytes::ZERO };
    for it in &all {
        (0..PIPELINED).for_each(|_| it.0.send(2, &request).expect("the daemon reads"));
    }
    assert!(granted(&neighbour.reserve(0, 1, 1)));
    answered(&all)
}

/// Where this thread is late, more are answered before it counts; a daemon that answers all of them does so each time.
#[test]
fn requests_beyond_the_cap_do_not_delay_a_neighbour() {
    let counts: Vec<usize> = (0..5).map(|_| before_a_neighbour()).collect();
    eprintln!("{counts:?} of {} were answered before the neighbour", CONNECTIONS * PIPELINED);
    let least = counts.iter().min().expect("five");
    assert!(*least < CONNECTIONS * PIPELINED / 2, "{counts:?}");
}
