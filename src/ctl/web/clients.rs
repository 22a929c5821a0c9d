//! The clients of a server: a bounded number, each with a thread. A new client takes the place of the one that has been
//! silent for longest; where all have asked for something, it is turned away.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Clients at a time.
pub const CLIENTS_MAX: usize = 48;
/// Clients that may have a stream of figures at a time.
pub const STREAMS_MAX: usize = 16;

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
#[derive(Default)]
pub struct Clients(Mutex<(u64, VecDeque<Client>)>);

impl Clients {
    /// Counts a client; returns its number. `None` if it is to be turned away.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn enter(&self, connection: &TcpStream) -> io::Result<Option<u64>> {
        let connection = connection.try_clone()?;
        let mut all = lock(&self.0);
        if all.1.len() >= CLIENTS_MAX {
            let silent = all.1.iter().position(|client| client.stage == Stage::Silent);
            let Some(oldest) = silent.and_then(|at| all.1.remove(at)) else {
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
        self.set(number, Stage::Asked);
    }

    /// The client asks for a stream; returns whether it may have one.
    pub fn streams(&self, number: u64) -> bool {
        let may = self.count() < STREAMS_MAX;
        if may {
            self.set(number, Stage::Streams);
        }
        may
    }

    /// The number of streams.
    pub fn count(&self) -> usize {
        lock(&self.0).1.iter().filter(|client| client.stage == Stage::Streams).count()
    }

    fn set(&self, number: u64, stage: Stage) {
        let mut all = lock(&self.0);
        let client = all.1.iter_mut().find(|client| client.number == number);
        client.into_iter().for_each(|client| client.stage = stage);
    }

    /// The client is served.
    pub fn leave(&self, number: u64) {
        lock(&self.0).1.retain(|client| client.number != number);
    }
}
