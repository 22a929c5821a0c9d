//! Deadlines for the first message of a connection.
//!
//! A connection that sends nothing takes a place, so it is closed after 1 s. Where the machine was busy for that
//! second, what it sent may still be unread. Such a connection stays, since its message is read soon, and is looked at
//! again after another second.

use crate::slab::Key;
use crate::sockets::Socket;
use gpuslice_wire::limits::HELLO_DEADLINE_NS;
use gpuslice_wire::units::{Duration, Instant};
use std::collections::VecDeque;

/// Connections that must send their first message, the earliest deadline first.
#[derive(Debug, Default)]
pub struct FirstMessages(VecDeque<(Instant, Key)>);

impl FirstMessages {
    /// A connection was accepted.
    pub fn expect(&mut self, key: Key, now: Instant) {
        self.0.push_back((now.plus(Duration(HELLO_DEADLINE_NS)), key));
    }

    /// The earliest deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.front().map(|(by, _)| *by)
    }

    /// The connections that have sent nothing by `now`. `waiting` gives the socket of a connection whose first message
    /// was not read yet.
    pub fn missing<'a>(
        &mut self,
        now: Instant,
        waiting: impl Fn(Key) -> Option<&'a Socket>,
    ) -> Vec<Key> {
        let mut missing = Vec::new();
        while let Some((_, key)) = self.0.pop_front_if(|(by, _)| *by <= now) {
            match waiting(key) {
                Some(socket) if socket.has_packet() => self.expect(key, now),
                Some(_) => missing.push(key),
                None => {}
            }
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::Poll;
    use crate::slab::Slab;
    use crate::socket_closer::{SocketCloser, SocketOwner};
    use gpuslice_host::seqpacket::{pair, send};

    const SECOND: u64 = HELLO_DEADLINE_NS;

    #[test]
    fn a_connection_whose_message_is_unread_is_not_closed() {
        let mut all = Slab::new(3);
        let mut expected = FirstMessages::default();
        let closer = SocketCloser::new(Poll::new().expect("a poll").watch());
        let peers = [0, 1, 2].map(|_| {
            let (peer, ours) = pair().expect("a pair");
            let socket = Socket::listening(ours, SocketOwner::Admins, &closer);
            expected.expect(all.insert(socket).expect("room"), Instant(0));
            peer
        });
        let keys: Vec<Key> = all.iter().map(|(key, _)| key).collect();
        send(&peers[1], b"unread", &[]).expect("sent");
        let read = |key: Key| all.get(key).filter(|_| key != keys[2]);
        assert_eq!(expected.missing(Instant(SECOND - 1), read), []);
        assert_eq!(expected.missing(Instant(SECOND), read), [keys[0]]);
        assert_eq!(expected.deadline(), Some(Instant(2 * SECOND)));
        all.get(keys[1]).expect("there").receive(&mut [0; _]);
        assert_eq!(expected.missing(Instant(2 * SECOND), read), [keys[1]]);
        assert_eq!(expected.deadline(), None);
    }
}
