//! The clients of a server: a bounded number, each with a thread. A new client takes the place of the one that has been
//! silent for longest; where all have asked for something, the server's rule decides ([`WhenFull`]).

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a new client does to the others when all places are taken, and each has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The client that has been there for longest ends: each is served once, in a bounded time.
    EndOldest,
    /// The new client is turned away: others are served for as long as they stay.
    TurnAway,
}

/// A lock whose holder panicked: what it protects is whole between any two statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Silent,
    Asked,
    Streams,
}

struct Client {
    number: u64,
    connection: TcpStream,
    stage: Stage,
}

/// See the file's head.
pub struct Clients {
    most: usize,
    when_full: WhenFull,
    /// The last number, and the clients, the oldest first.
    all: Mutex<(u64, VecDeque<Client>)>,
}

impl Clients {
    /// None yet, at most `most`.
    pub fn new(most: usize, when_full: WhenFull) -> Clients {
        Clients { most, when_full, all: Mutex::default() }
    }

    /// Counts a client; returns its number. `None` if it is turned away.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn enter(&self, connection: &TcpStream) -> io::Result<Option<u64>> {
        let connection = connection.try_clone()?;
        let mut all = lock(&self.all);
        if all.1.len() >= self.most {
            let silent = all.1.iter().position(|client| client.stage == Stage::Silent);
            let ends = silent.or((self.when_full == WhenFull::EndOldest).then_some(0));
            let Some(oldest) = ends.and_then(|at| all.1.remove(at)) else {
                return Ok(None);
            };
            let _closed_already = oldest.connection.shutdown(Shutdown::Both);
        }
        all.0 += 1;
        let number = all.0;
        all.1.push_back(Client { number, connection, stage: Stage::Silent });
        Ok(Some(number))
    }

    /// The client's request has arrived.
    pub fn asked(&self, number: u64) {
        let mut all = lock(&self.all);
        let client = all.1.iter_mut().find(|client| client.number == number);
        client.into_iter().for_each(|client| client.stage = Stage::Asked);
    }

    /// The client asks for a stream, of which there are `most`; returns whether it may have one.
    pub fn streams(&self, number: u64, most: usize) -> bool {
        let mut all = lock(&self.all);
        let may = all.1.iter().filter(|client| client.stage == Stage::Streams).count() < most;
        let client = all.1.iter_mut().find(|client| client.number == number);
        client.into_iter().filter(|_| may).for_each(|client| client.stage = Stage::Streams);
        may
    }

    /// The number of streams.
    pub fn count(&self) -> usize {
        lock(&self.all).1.iter().filter(|client| client.stage == Stage::Streams).count()
    }

    /// The client is served.
    pub fn leave(&self, number: u64) {
        lock(&self.all).1.retain(|client| client.number != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use std::time::Duration;

    /// A client's end and the server's.
    fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let ours =
            TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
        ours.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        (ours, listener.accept().expect("a client").0)
    }

    #[test]
    fn a_new_client_takes_the_place_of_a_silent_one() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        for (when_full, is_taken) in [(WhenFull::EndOldest, true), (WhenFull::TurnAway, false)] {
            let clients = Clients::new(2, when_full);
            let mut all: Vec<_> = (0..4).map(|_| pair(&listener)).collect();
            let enter = |at: usize| clients.enter(&all[at].1).expect("a descriptor");
            let (first, second) = (enter(0).expect("room"), enter(1).expect("room"));
            clients.asked(first);
            let third = enter(2).expect("the place of the second, which is silent");
            clients.asked(third);
            assert_eq!(enter(3).is_some(), is_taken, "{when_full:?}");
            assert_eq!(all[1].0.read(&mut [0]).expect("its end"), 0);
            clients.leave(second);
            assert!(
                clients.streams(third, 1) && !clients.streams(first, 1) && clients.count() == 1
            );
        }
    }
}
