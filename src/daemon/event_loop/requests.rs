//! The requests and the rings of processes, as far as their time is paid for.

use super::Daemon;
use crate::clients::{BURST, TimedRead};
use crate::executor::Duties;
use crate::slab::Key;
use gpuslice_engine::Event;
use gpuslice_host::clock::now;
use gpuslice_wire::units::{Duration, Instant};

/// Time after which no further request of the same process is read before other sources are served.
const BURST_WITHIN: Duration = Duration(100_000);

impl Daemon {
    /// A process's connection is readable, or has ended.
    pub(super) fn requests_ready(&mut self, key: Key) {
        let (now, duties) = (now(), &mut self.duties);
        if let Some(reading) = duties.clients.asks(key, now, &mut duties.tasks) {
            self.read_requests(&reading, now);
        }
    }

    /// Reads a process's requests.
    fn read_requests(&mut self, reading: &TimedRead, from: Instant) {
        let mut to = from;
        for _ in 0..BURST {
            let duties = &mut self.duties;
            let more = duties.clients.receive(reading.process, &mut duties.tasks);
            self.settle();
            to = now();
            if !more || to >= from.plus(BURST_WITHIN) {
                break;
            }
        }
        self.duties.clients.requests_read(reading, (from, to));
    }

    /// Reads the requests of the process whose turn it is. The next one's turn comes after other sources.
    pub(super) fn read_waiting_requests(&mut self, at: Instant) {
        let Duties { clients, tasks, .. } = &mut self.duties;
        if let Some(reading) = clients.requests_due(at, tasks) {
            self.read_requests(&reading, now());
        }
    }

    /// Reads the claims of a process that rang.
    pub(super) fn read_ring(&mut self, ring: TimedRead, from: Instant) {
        let Duties { clients, tasks, .. } = &mut self.duties;
        clients.read_claims(ring.process, tasks);
        self.settle();
        self.duties.clients.ring_read(ring, (from, now()));
    }

    /// A request that does not fit may be refused: what the container's processes have unused then is told from their
    /// claims of now. The end of one that exited before the request was sent may be read after it: epoll has first what
    /// was ready first, and the request's connection may have been ready with an earlier one.
    pub(super) fn read_before_refusal(&mut self, event: &Event) {
        let Event::Reserve { client, lane, need, .. } = *event else {
            return;
        };
        if !self.engine.is_short(client, lane, need) {
            return;
        }
        let clients = &mut self.duties.clients;
        let Some(container) = clients.connected(client).map(|(container, _)| container) else {
            return;
        };
        let keys: Vec<Key> = clients.attached_of(&container).map(|(key, _)| key).collect();
        clients.gone_of(&container).into_iter().for_each(|gone| self.step(gone));
        for key in keys {
            if let Some(claims) = self.duties.clients.claims_of(key, lane) {
                self.step(claims);
            }
        }
    }
}
