//! A process that breaks a rule of the protocol is told which and loses its connection; nobody
//! else notices.

use crate::harness::node::Node;
use crate::harness::wire::{Connection, TenantClient};
use gpuslice_wire::frame::{RequestId, encode};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::{CLIENTS_PER_CONTAINER_MAX, FRAME_BYTES_MAX, LANES_MAX, WIRE_VERSION};
use gpuslice_wire::tenant::{Rejection, Reply, Request};
use gpuslice_wire::units::{Bytes, GIB, MIB};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

fn node() -> Node {
    let node = Node::start();
    node.must_admit("a", Bytes(GIB));
    node
}

fn frame(request: &Request) -> Vec<u8> {
    let mut buffer = [0; FRAME_BYTES_MAX];
    let len = encode(RequestId(1), request, &mut buffer).expect("fits");
    buffer[..len].to_vec()
}

fn attach() -> Vec<u8> {
    frame(&Request::Attach {
        held: [Bytes::ZERO; LANES_MAX],
    })
}

/// Sends one packet as a first word and expects to be rejected with `rule`; then a good process
/// of the same container is served.
fn first_word(node: &Node, packet: &[u8], rule: Rejection) {
    let bad = node.tenant("a");
    bad.0.send_raw(packet, &[]).expect("sent");
    bad.0.expect_rejected(rule);
    let good = node.tenant("a");
    assert_eq!(good.attach(Bytes::ZERO).lanes, 1);
}

#[test]
fn a_silent_process_is_dropped_after_a_second() {
    let node = node();
    let start = Instant::now();
    let silent = node.tenant("a");
    silent.0.expect_end();
    let after = start.elapsed();
    assert!(after >= Duration::from_millis(900), "too soon: {after:?}");
    let quiet = node.tenant("a");
    quiet.attach(Bytes::ZERO);
    std::thread::sleep(Duration::from_millis(1_200));
    assert!(
        matches!(quiet.reserve(0, 1, 1), Reply::Reserved { .. }),
        "once attached, all the time"
    );
}

#[test]
fn unreadable_first_words_are_rejected() {
    let node = node();
    let good = attach();
    first_word(&node, &good[..good.len() / 2], Rejection::Protocol);
    first_word(&node, b"x", Rejection::Protocol);
    let mut wrong = good.clone();
    wrong[4..6].copy_from_slice(&(WIRE_VERSION + 1).to_le_bytes());
    first_word(&node, &wrong, Rejection::Version);
    let mut wrong = good.clone();
    wrong[6..8].copy_from_slice(&301u16.to_le_bytes());
    first_word(&node, &wrong, Rejection::Protocol);
    let mut wrong = good;
    wrong[12] = 1;
    first_word(&node, &wrong, Rejection::Protocol);
    let early = frame(&Request::Reserve {
        lane: Lane(0),
        need: Bytes(1),
        wish: Bytes(1),
    });
    first_word(&node, &early, Rejection::Protocol);
}

#[test]
fn too_long_packets_and_descriptors_are_rejected() {
    let node = node();
    let long = node.tenant("a");
    long.0.allow_long_packets();
    let mut packet = attach();
    packet.resize(FRAME_BYTES_MAX + 1, 0);
    long.0.send_raw(&packet, &[]).expect("sent");
    long.0.expect_rejected(Rejection::Protocol);

    let generous = node.tenant("a");
    let own = std::fs::File::open("/dev/null").expect("null");
    generous
        .0
        .send_raw(&attach(), &[own.as_raw_fd(); 8])
        .expect("sent");
    generous.0.expect_rejected(Rejection::Protocol);
    let null = |fd: &std::fs::DirEntry| {
        std::fs::read_link(fd.path()).is_ok_and(|target| target.ends_with("null"))
    };
    let open = std::fs::read_dir(format!("/proc/{}/fd", node.pid())).expect("readable");
    let nulls = open.flatten().filter(null).count();
    assert!(nulls <= 3, "stdin, stdout and the spare one, but {nulls}");
}

#[test]
fn an_empty_packet_is_an_end() {
    let node = node();
    let empty = node.tenant("a");
    empty.0.send_raw(&[], &[]).expect("sent");
    empty.0.expect_end();
}

#[test]
fn attaching_twice_is_rejected_and_refunds() {
    let node = node();
    let twice = node.tenant("a");
    twice.attach(Bytes::ZERO);
    assert!(matches!(twice.reserve(0, MIB, MIB), Reply::Reserved { .. }));
    twice.0.send_raw(&attach(), &[]).expect("sent");
    twice.0.expect_rejected(Rejection::Protocol);
    node.wait_refunded("a");
}

#[test]
fn releasing_more_than_granted_is_rejected_and_refunds() {
    let node = node();
    let greedy = node.tenant("a");
    greedy.attach(Bytes::ZERO);
    assert_eq!(
        greedy.reserve(0, MIB, 2 * MIB),
        Reply::Reserved {
            lane: Lane(0),
            bytes: Bytes(2 * MIB)
        }
    );
    greedy.release(0, MIB);
    greedy.release(0, MIB + 1);
    greedy.0.expect_rejected(Rejection::Overdrawn);
    node.wait_refunded("a");
}

#[test]
fn a_lane_the_slice_does_not_have_is_rejected() {
    let node = node();
    let lost = node.tenant("a");
    lost.attach(Bytes::ZERO);
    assert_eq!(
        lost.reserve(1, 1, 1),
        Reply::Rejected {
            why: Rejection::NoSuchLane
        }
    );
    lost.0.expect_end();
}

#[test]
fn a_death_refunds_everything() {
    let node = node();
    let first = node.tenant("a");
    first.attach(Bytes::ZERO);
    let all = Reply::Reserved {
        lane: Lane(0),
        bytes: Bytes(GIB),
    };
    assert_eq!(first.reserve(0, GIB, GIB), all);
    let second = node.tenant("a");
    second.attach(Bytes::ZERO);
    assert_eq!(
        second.reserve(0, 1, GIB),
        Reply::Refused {
            lane: Lane(0),
            need: Bytes(1),
            left: Bytes::ZERO
        }
    );
    assert_eq!(node.slice("a"), Some((Bytes(GIB), 2)));
    drop(first);
    crate::harness::eventually("the refund", || node.slice("a") == Some((Bytes::ZERO, 1)));
    assert_eq!(second.reserve(0, GIB, GIB), all);
}

/// A flood of connections that say nothing: at most so many are kept, the rest is told; others are
/// served meanwhile; a second later all are gone.
#[test]
fn a_flood_of_one_container_does_not_touch_another() {
    let node = node();
    node.must_admit("b", Bytes(GIB));
    let victim = node.tenant("b");
    victim.attach(Bytes::ZERO);
    let mut flood: Vec<TenantClient> = Vec::new();
    for n in 0..3 * CLIENTS_PER_CONTAINER_MAX {
        flood.push(node.tenant("a"));
        if n % 64 == 0 {
            assert!(matches!(victim.reserve(0, 1, 1), Reply::Reserved { .. }));
        }
    }
    let newcomer = node.tenant("b");
    newcomer.attach(Bytes::ZERO);
    let last = flood.last().expect("some");
    last.0.expect_rejected(Rejection::TooManyClients);
    flood.iter().rev().skip(1).for_each(drop_heard);
    node.tenant("a").attach(Bytes::ZERO);
    assert_eq!(node.slice("b").map(|(_, clients)| clients), Some(2));
}

/// Hears a flooding connection out: it was told, or it timed out; both end it.
fn drop_heard(client: &TenantClient) {
    let connection: &Connection = &client.0;
    if let Some((_, reply, _)) = connection.message::<Reply>() {
        assert_eq!(
            reply,
            Reply::Rejected {
                why: Rejection::TooManyClients
            }
        );
        connection.expect_end();
    }
}

/// Whoever asks without reading the answers fills its own socket and is disconnected.
#[test]
fn not_reading_answers_ends_the_connection() {
    let node = node();
    let deaf = node.tenant("a");
    deaf.attach(Bytes::ZERO);
    let request = Request::Reserve {
        lane: Lane(0),
        need: Bytes(1),
        wish: Bytes(1),
    };
    let sent = (0..1_000_000)
        .take_while(|_| deaf.0.send(2, &request).is_ok())
        .count();
    assert!(sent < 1_000_000, "never disconnected");
    node.wait_refunded("a");
}
