//! Which processes' rings and requests are read now, and which wait: [`time_queue`](super::time_queue) has the rules.

use super::time_queue::{Payer, TimedRead};
use super::{Clients, Siblings};
use crate::poll::Source;
use crate::slab::Key;
use crate::tasks::Tasks;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::units::Instant;

impl Clients {
    /// A process rang. Its ring is read now if a bucket pays for it, and waits otherwise. One that waits already counts
    /// as one.
    pub fn rang(&mut self, process: Key, now: Instant) -> Option<TimedRead> {
        let tenant = self.tenants.get_mut(process).filter(|it| !it.rung)?;
        let container = tenant.container;
        let own = || self.siblings.get(&container).map(|it| &it.rings);
        let payer = self.rings.payer(own, now);
        if payer.is_none() {
            let own = &mut self.siblings.get_mut(&container)?.rings;
            tenant.rung = true;
            self.rings.wait(container, own, process);
        }
        Some(TimedRead { process, container, payer: payer? })
    }

    /// Takes the time that a ring took from its payer.
    pub fn ring_read(&mut self, ring: TimedRead, took: (Instant, Instant)) {
        let containers = self.siblings.len();
        match (ring.payer, self.siblings.get_mut(&ring.container)) {
            (Payer::Node, _) => self.rings.spend(took),
            (Payer::Container, own) => {
                own.into_iter().for_each(|it| it.rings.spend(containers, took));
            }
        }
    }

    /// When the next ring that waits may be read.
    pub fn ring_deadline(&self) -> Option<Instant> {
        self.rings.deadline()
    }

    /// The ring whose turn it is.
    pub fn ring_due(&mut self, now: Instant) -> Option<TimedRead> {
        while let Some(container) = self.rings.due(now) {
            // Its processes may be gone.
            let siblings = self.siblings.get_mut(&container);
            let process = siblings.and_then(|it| self.rings.next_of(container, &mut it.rings));
            if let Some(process) = process
                && let Some(tenant) = self.tenants.get_mut(process)
            {
                tenant.rung = false;
                return Some(TimedRead { process, container, payer: Payer::Node });
            }
        }
        None
    }

    /// A process's connection is readable, or has ended. Its requests are read now if a bucket pays for them. Otherwise
    /// they wait in the kernel, and of that connection nothing but its end is looked for until its turn has come.
    ///
    /// The end then drops the unread requests: without a connection no request can be answered, and the process reports
    /// its held bytes when it connects again. Otherwise ended connections would wait, and count against the container's
    /// number.
    /// What comes before the answer to the attach is at most two packets, and bounded as connections are.
    pub fn asks(&mut self, process: Key, now: Instant, out: &mut Tasks) -> Option<TimedRead> {
        let tenant = self.tenants.get_mut(process)?;
        let container = tenant.container;
        if tenant.paused {
            self.disconnect(process, out);
            return None;
        }
        let is_new = tenant.attached.is_none();
        let own = || self.siblings.get(&container).map(|it| &it.requests);
        let payer = match is_new {
            true => Some(Payer::Node),
            false => self.requests.payer(own, now),
        };
        let source = Source::Tenant(process);
        // Where it cannot be left out, it is read: its event would come again at once.
        if payer.is_none() && self.watch.watch_on(&tenant.fd, source, false).is_ok() {
            tenant.paused = true;
            let own = &mut self.siblings.get_mut(&container)?.requests;
            self.requests.wait(container, own, process);
            return None;
        }
        Some(TimedRead { process, container, payer: payer.unwrap_or(Payer::Node) })
    }

    /// Takes the time that a process's requests took from their payer.
    pub fn requests_read(&mut self, reading: &TimedRead, took: (Instant, Instant)) {
        match reading.payer {
            Payer::Node => self.requests.spend(took),
            Payer::Container => self.spend_own(&reading.container, took),
        }
    }

    /// Takes the time that something took which a process of a container asked for before, also from the container's
    /// own bucket: others that wait for the node's should not wait for this alone.
    pub fn spent_on_requests(&mut self, container: &ContainerId, took: (Instant, Instant)) {
        self.requests.spend(took);
        self.spend_own(container, took);
    }

    fn spend_own(&mut self, container: &ContainerId, took: (Instant, Instant)) {
        let containers = self.siblings.len();
        let own = self.siblings.get_mut(container);
        own.into_iter().for_each(|it| it.requests.spend(containers, took));
    }

    /// When the next requests that wait may be read.
    pub fn request_deadline(&self) -> Option<Instant> {
        self.requests.deadline()
    }

    /// The process whose requests' turn it is.
    pub fn requests_due(&mut self, now: Instant, out: &mut Tasks) -> Option<TimedRead> {
        while let Some(container) = self.requests.due(now) {
            let siblings = self.siblings.get_mut(&container);
            let process =
                siblings.and_then(|it| self.requests.next_of(container, &mut it.requests));
            // It may be gone.
            if let Some(process) = process
                && let Some(tenant) = self.tenants.get_mut(process)
            {
                tenant.paused = false;
                match self.watch.watch_on(&tenant.fd, Source::Tenant(process), true) {
                    Ok(()) => return Some(TimedRead { process, container, payer: Payer::Node }),
                    Err(_) => self.disconnect(process, out),
                }
            }
        }
        None
    }

    /// The connections of a container's processes. They are kept until its slice ends, so that no container has new
    /// buckets by closing its last connection.
    pub(super) fn siblings_of(&mut self, container: ContainerId) -> &mut Siblings {
        self.siblings.entry(container).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::Tenant;
    use crate::peer::Peer;
    use crate::poll::Poll;
    use crate::socket_closer::{SocketCloser, SocketOwner};
    use crate::sockets::Socket;
    use gpuslice_host::seqpacket::pair;
    use gpuslice_wire::ids::ClientId;
    use gpuslice_wire::units::Duration;
    use std::os::fd::{AsFd, OwnedFd};

    const SECOND: u64 = 1_000_000_000;

    fn id(name: &str) -> ContainerId {
        ContainerId::new(name).expect("an id")
    }

    /// An attached process of a container, and its end of the connection.
    fn connect(clients: &mut Clients, container: &str) -> (Key, OwnedFd) {
        let closer = SocketCloser::new(clients.watch.clone());
        let (theirs, ours) = pair().expect("a pair");
        let peer = Peer::of(ours.as_fd()).expect("this process");
        let socket = Socket::listening(ours, SocketOwner::Container(id(container)), &closer);
        let tenant = Tenant::new(socket, id(container), peer);
        let Ok(key) = clients.tenants.insert(tenant) else { panic!("no room") };
        clients.welcome(key, id(container), &mut Tasks::default());
        let client = ClientId { slot: key.slot, generation: 0 };
        clients.tenants.get_mut(key).expect("it is there").attach_alone(client);
        (key, theirs)
    }

    fn clients() -> Clients {
        Clients::new(Poll::new().expect("a poll").watch(), 8)
    }

    /// The process has rung and asked until neither the node nor its container pays.
    fn exhaust(clients: &mut Clients, process: Key, now: Instant) {
        let took = (Instant(now.0 - SECOND / 2), now);
        while let Some(reading) = clients.asks(process, now, &mut Tasks::default()) {
            clients.requests_read(&reading, took);
        }
        while let Some(reading) = clients.rang(process, now) {
            clients.ring_read(reading, took);
        }
    }

    #[test]
    fn a_container_that_connects_again_has_no_new_time() {
        let (mut clients, now, tasks) = (clients(), Instant(SECOND), &mut Tasks::default());
        let (first, _theirs) = connect(&mut clients, "a");
        exhaust(&mut clients, first, now);
        clients.remove(first, tasks);
        let (next, _theirs) = connect(&mut clients, "a");
        assert!(clients.asks(next, now, tasks).is_none() && clients.rang(next, now).is_none());
        let (other, _theirs) = connect(&mut clients, "b");
        assert!(clients.asks(other, now, tasks).is_some() && clients.rang(other, now).is_some());
        clients.close_all(&id("a"), tasks);
        let (again, _theirs) = connect(&mut clients, "a");
        assert!(clients.asks(again, now, tasks).is_some(), "another slice of that name");
    }

    #[test]
    fn requests_that_wait_are_read_in_turn() {
        let (mut clients, now, tasks) = (clients(), Instant(SECOND), &mut Tasks::default());
        let all = ["a", "a", "b"].map(|container| connect(&mut clients, container));
        let [first, second, other] = all.each_ref().map(|(key, _)| *key);
        exhaust(&mut clients, first, now);
        exhaust(&mut clients, other, now);
        assert!(clients.asks(second, now, tasks).is_none(), "its container waits");
        assert!(clients.requests_due(now, tasks).is_none());
        let mut at = clients.request_deadline().expect("some wait");
        for next in [first, other, second] {
            let reading = clients.requests_due(at, tasks).expect("its turn");
            assert_eq!(reading.process, next);
            clients.requests_read(&reading, (at, at.plus(Duration(SECOND))));
            assert!(clients.requests_due(at, tasks).is_none(), "it was dear");
            at = clients.request_deadline().unwrap_or(at);
        }
        assert!(clients.requests_due(at.plus(Duration(SECOND)), tasks).is_none());
    }

    #[test]
    fn what_a_container_asked_for_before_is_paid_by_its_own_bucket_too() {
        let (mut clients, now, tasks) = (clients(), Instant(SECOND), &mut Tasks::default());
        let [(first, _one), (other, _two)] = ["a", "b"].map(|name| connect(&mut clients, name));
        (0..100).for_each(|_| clients.spent_on_requests(&id("a"), (Instant(0), now)));
        assert!(clients.asks(other, now, tasks).is_some());
        assert!(clients.asks(first, now, tasks).is_none());
        let at = clients.request_deadline().expect("it waits");
        assert!(at < now.plus(Duration(3 * SECOND)), "and not for what 100 of them took: {at:?}");
    }

    /// Otherwise ended connections would count against the number that a container may have.
    #[test]
    fn a_connection_that_ends_while_it_waits_is_removed() {
        let (mut clients, now, tasks) = (clients(), Instant(SECOND), &mut Tasks::default());
        let (first, theirs) = connect(&mut clients, "a");
        exhaust(&mut clients, first, now);
        drop(theirs);
        assert!(clients.asks(first, now, tasks).is_none() && clients.tenants.get(first).is_none());
        let at = clients.request_deadline().expect("its place is not looked for");
        assert!(clients.requests_due(at, tasks).is_none() && clients.request_deadline().is_none());
        let (new, _theirs) = connect(&mut clients, "a");
        clients.tenants.get_mut(new).expect("it is there").attached = None;
        assert!(clients.asks(new, now, tasks).is_some(), "the attach does not wait");
    }
}
