//! A daemon that finds no driver answers those that wait in the service manager's sockets before it ends.
//!
//! # Problem
//! The manager starts the daemon for each connection that waits in its sockets. A daemon that ends and leaves the
//! connection there is started again at once, without end, and a manager before systemd 255 then closes the socket for
//! good: with the driver loaded a minute later, no container would get a slice.
//!
//! # Idea
//! Each connection is accepted, and its request is refused with the reason. The next request starts a daemon that looks
//! for the driver again.

use crate::descriptors::own;
use crate::replies::plain;
use crate::service::ActivatedSockets;
use crate::sockets::{id_of, packet};
use gpuslice_host::seqpacket::send;
use gpuslice_wire::admin::{Answer, Denial};
use gpuslice_wire::limits::FRAME_BYTES_MAX;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, SockFlag, accept4, recv};
use std::iter;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long all connections together may take to send their requests.
const REQUESTS_WITHIN: Duration = Duration::from_secs(1);

/// Most connections of one socket that are answered: there are always more where a client connects without a pause.
const MOST: usize = 256;

/// Refuses the requests that wait in these sockets, and those that come meanwhile.
pub fn refuse_all(sockets: &ActivatedSockets, why: &str) {
    let until = Instant::now() + REQUESTS_WITHIN;
    for listener in [&sockets.admin, &sockets.observe].into_iter().flatten() {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let next = || accept4(listener.as_raw_fd(), flags).map(own).ok();
        iter::from_fn(next).take(MOST).for_each(|connection| refuse(&connection, why, until));
    }
}

fn refuse(connection: &OwnedFd, why: &str, until: Instant) {
    let left = until.saturating_duration_since(Instant::now());
    let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
    let _ = poll(&mut [PollFd::new(connection.as_fd(), PollFlags::POLLIN)], left);
    let mut buffer = [0; FRAME_BYTES_MAX];
    // Descriptors that come along are closed. That may take its sender's time, and no turn waits here.
    let Ok(bytes) = recv(connection.as_raw_fd(), &mut buffer, MsgFlags::empty()) else {
        return;
    };
    let id = id_of(&buffer[..bytes]);
    let bytes = packet(id, &Answer::Denied { why: Denial::Host, text: plain(why) }, &mut buffer);
    // A client that is gone needs no answer.
    let _ = send(connection, &buffer[..bytes], &[]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_host::seqpacket::{bound, connect};
    use gpuslice_wire::admin::Command;
    use gpuslice_wire::frame::{RequestId, decode, encode};
    use nix::sys::socket::{Backlog, listen};
    use std::fs::File;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn all_that_wait_are_told_why_and_none_is_left() {
        let dir = tempfile::tempdir().expect("a directory");
        let listening = |name| {
            let listener = bound(dir.path(), name, SockFlag::SOCK_NONBLOCK).expect("a socket");
            listen(&listener, Backlog::new(8).expect("few")).expect("it listens");
            Some(listener)
        };
        let sockets = ActivatedSockets { admin: listening("a"), observe: listening("o") };
        let place = File::open(dir.path()).expect("there");
        let mut buffer = [0; FRAME_BYTES_MAX];
        let asks: Vec<OwnedFd> = ["a", "o", "a"]
            .into_iter()
            .zip(7..)
            .map(|(name, id)| {
                let client = connect(&place, name).expect("it waits");
                let bytes = encode(RequestId(id), &Command::List {}, &mut buffer).expect("short");
                send(&client, &buffer[..bytes], &[]).expect("sent");
                client
            })
            .collect();
        let gone = connect(&place, "a").expect("it waits");
        drop(gone);
        let _silent = connect(&place, "o").expect("it waits");
        refuse_all(&sockets, "no driver\nis loaded");
        for (client, id) in asks.iter().zip(7..) {
            let bytes = recv(client.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT);
            let (to, answer) =
                decode::<Answer>(&buffer[..bytes.expect("an answer")]).expect("valid");
            assert_eq!(to, RequestId(id));
            let text = plain("no driver\nis loaded");
            assert_eq!(answer, Answer::Denied { why: Denial::Host, text });
        }
        for listener in [sockets.admin, sockets.observe].into_iter().flatten() {
            let next = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC);
            assert_eq!(next, Err(nix::Error::EAGAIN));
        }
    }
    /// A member of the observers' group may do so.
    #[test]
    fn a_client_that_connects_without_a_pause_is_not_answered_for_ever() {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = bound(dir.path(), "o", SockFlag::SOCK_NONBLOCK).expect("a socket");
        listen(&listener, Backlog::new(8).expect("few")).expect("it listens");
        let place = File::open(dir.path()).expect("there");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = connect(&place, "o"); // which closes it
                }
            });
            let observe = Some(listener);
            refuse_all(&ActivatedSockets { admin: None, observe }, "no driver is loaded");
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
