//! Descriptors that are sent to the daemon and whose close takes long: a TCP connection that lingers
//! because its peer does not read. Closing it takes ten minutes.
//!
//! Each test runs on this kernel as it is, and as on a kernel before Linux 6.16, whose sockets cannot
//! refuse descriptors. A system call filter makes the difference.

use super::old_kernel::as_on_an_old_kernel;
use crate::harness::node::{Node, id};
use crate::harness::wire::{AdminClient, Connection, TenantClient};
use crate::harness::{eventually, skip};
use gpuslice_wire::admin::{Answer, Command as AdminCommand};
use gpuslice_wire::frame::{RequestId, encode};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::FRAME_BYTES_MAX;
use gpuslice_wire::tenant::{Reply, Request};
use gpuslice_wire::units::{Bytes, GIB};
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{setsockopt, sockopt};
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// How long a close waits for the peer, s: longer than anything here waits.
const LINGER: i32 = 600;

fn linger(l_onoff: i32) -> libc::linger {
    libc::linger { l_onoff, l_linger: LINGER }
}

/// A connection that lingers, and its other end. Dropping the other end ends the lingering.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
    let mut stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("ours");
    let (unread, _) = listener.accept().expect("a connection");
    setsockopt(&stream, sockopt::Linger, &linger(1)).expect("it lingers");
    stream.set_nonblocking(true).expect("does not wait");
    loop {
        match stream.write(&[0; 1 << 16]) {
            Ok(_) => {}
            Err(why) if why.kind() == ErrorKind::WouldBlock => return (stream, unread),
            Err(why) => panic!("{why}"),
        }
    }
}

/// Two nodes with slices for the attacker `a` and the victim `b`. The second one has the old kernel.
fn nodes() -> [Node; 2] {
    [false, true].map(|old| {
        let mut node = Node::new();
        let mut command = node.daemon_command(&[]);
        if old {
            as_on_an_old_kernel(&mut command);
        }
        node.start_command(command);
        node.must_admit("a", Bytes(GIB));
        node.must_admit("b", Bytes(GIB));
        node
    })
}

/// Does something while the daemon is stopped, so that the daemon does not close a descriptor first.
pub fn meanwhile<T>(node: &Node, does: impl FnOnce() -> T) -> T {
    kill(node.pid(), Signal::SIGSTOP).expect("it lives");
    let done = does();
    kill(node.pid(), Signal::SIGCONT).expect("it lives");
    done
}

/// Sends a lingering connection and closes its own copy. The kernel may refuse to send it.
pub fn send_lingering(to: &Connection) -> TcpStream {
    let (stream, unread) = lingering();
    let sent = to.send_raw(b"x", &[stream.as_raw_fd()]);
    if sent == Err(Errno::EPERM) {
        // It is still ours to close.
        setsockopt(&stream, sockopt::Linger, &linger(0)).expect("it closes at once");
        return unread;
    }
    sent.expect("sent");
    unread
}

/// How many sockets the daemon has open.
fn sockets(node: &Node) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", node.pid())).expect("readable");
    let of = |fd: std::fs::DirEntry| std::fs::read_link(fd.path()).ok();
    let targets = open.flatten().filter_map(of);
    let is_socket = |target: &PathBuf| target.to_string_lossy().starts_with("socket:");
    targets.filter(is_socket).count()
}

/// The victim, new processes of `b` and administrators are served.
fn assert_serves(node: &Node, victim: &TenantClient) {
    assert!(matches!(victim.reserve(0, 1, 1), Reply::Reserved { .. }));
    node.tenant("b").attach(Bytes::ZERO);
    assert!(node.containers().contains("b"));
}

#[test]
fn sent_in_a_packet_that_is_read() {
    for node in nodes() {
        let victim = node.tenant("b");
        victim.attach(Bytes::ZERO);
        let (before, mut kept) = (sockets(&node), Vec::new());
        // More than the daemon has helpers.
        for round in 0..12 {
            let attacker = node.tenant("a");
            if round % 2 == 1 {
                attacker.attach(Bytes::ZERO);
            }
            let unread = meanwhile(&node, || send_lingering(&attacker.0));
            kept.push((unread, attacker));
            assert_serves(&node, &victim);
        }
        // A helper that is stuck is replaced, so at most eight connections stay open.
        kept.iter().for_each(|(_, attacker)| attacker.0.hang_up());
        eventually("no connection is left", || sockets(&node) <= before + 8);
        drop(kept);
        node.wait_refunded("a");
        node.tenant("a").attach(Bytes::ZERO);
    }
}

#[test]
fn sent_and_never_read() {
    for node in nodes() {
        let victim = node.tenant("b");
        victim.attach(Bytes::ZERO);
        let mut kept = Vec::new();
        for _ in 0..3 {
            let attacker = node.tenant("a");
            attacker.attach(Bytes::ZERO);
            // The first packet ends the connection, and the second one is closed with it.
            let twice = || [send_lingering(&attacker.0), send_lingering(&attacker.0)];
            kept.push((meanwhile(&node, twice), attacker));
            assert_serves(&node, &victim);
        }
    }
}

/// The slice ends while connections to its socket wait to be accepted.
#[test]
fn sent_and_never_accepted() {
    for node in nodes() {
        let victim = node.tenant("b");
        victim.attach(Bytes::ZERO);
        let admin: AdminClient = node.admin();
        assert!(!admin.list().is_empty());
        let container = id("a");
        let dismiss = AdminCommand::Dismiss { container };
        let kept = meanwhile(&node, || {
            // Sent before the attackers connect, so it is done before they are accepted.
            admin.0.send(7, &dismiss).expect("it waits");
            let attackers = (0..4).map(|_| node.tenant("a"));
            let sent = attackers.map(|attacker| (send_lingering(&attacker.0), attacker));
            sent.collect::<Vec<_>>()
        });
        let (_, answer, _) = admin.0.message::<Answer>().expect("an answer");
        assert_eq!(answer, Answer::Dismissed {});
        assert_serves(&node, &victim);
        node.must_admit("a", Bytes(GIB));
        node.tenant("a").attach(Bytes::ZERO);
        drop(kept);
    }
}

/// Whether a socket of this kernel can refuse descriptors.
fn can_refuse() -> bool {
    // linux/socket.h, since 6.16.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let (socket, _other) = UnixStream::pair().expect("a pair");
    let (takes, size) = (0_i32, size_of::<i32>() as libc::socklen_t);
    let (fd, value) = (socket.as_raw_fd(), (&raw const takes).cast());
    // SAFETY: `takes` lives through the call, `size` is its size.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, value, size) == 0 }
}

/// The kernel refuses a descriptor where it can; elsewhere the descriptor ends the connection, in whatever packet.
#[test]
fn a_sender_is_told() {
    for (node, old) in nodes().into_iter().zip([false, true]) {
        let attacker = node.tenant("a");
        attacker.attach(Bytes::ZERO);
        let null = std::fs::File::open("/dev/null").expect("null");
        let (one, lane) = (Bytes(1), Lane(0));
        let request = Request::Reserve { lane, need: one, wish: one };
        let mut packet = [0; FRAME_BYTES_MAX];
        let len = encode(RequestId(7), &request, &mut packet).expect("fits");
        let sent = attacker.0.send_raw(&packet[..len], &[null.as_raw_fd()]);
        if !can_refuse() && !old {
            skip("a_sender_is_told", "sockets of this kernel cannot refuse descriptors");
        }
        if can_refuse() && !old {
            assert_eq!(sent, Err(Errno::EPERM));
            assert!(matches!(attacker.reserve(0, 1, 1), Reply::Reserved { .. }));
        } else {
            sent.expect("sent");
            let told = std::iter::from_fn(|| attacker.0.message::<Reply>());
            let granted = told.filter(|it| matches!(it.1, Reply::Reserved { .. })).count();
            assert_eq!(granted, 0);
            node.wait_refunded("a");
        }
    }
}
