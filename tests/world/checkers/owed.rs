//! Figures of first contexts that NVML is late with: growth may wait for them, and they count at once.

use std::collections::{BTreeMap, BTreeSet};

use gpuslice_engine::OWED;
use gpuslice_wire::ids::{ClientId, ContainerId, Lane};

use crate::observer::LaneKey;

/// What is owed, and what is known of the cost of contexts.
#[derive(Debug, Default)]
pub struct Owed {
    /// To which process, and since when.
    since: BTreeMap<(ClientId, Lane), u64>,
    /// Processes that were told a figure.
    told: BTreeSet<(ClientId, Lane)>,
    /// Accounts with a context of known cost.
    known: BTreeSet<LaneKey>,
}

impl Owed {
    /// NVML is late with a figure, or owes none any more.
    pub fn owes(
        &mut self,
        now: u64,
        (client, home): (ClientId, ContainerId),
        lane: Lane,
        owes: bool,
    ) {
        match owes {
            true if self.known.contains(&(home, lane)) => {}
            true => drop(self.since.entry((client, lane)).or_insert(now)),
            false => drop(self.since.remove(&(client, lane))),
        }
    }

    /// Whether growth may wait for this process's figure.
    pub fn is_owed(&self, client: ClientId, lane: Lane) -> bool {
        self.since.contains_key(&(client, lane))
    }

    /// NVML shows memory of a process that has asked, and claims to hold so much.
    pub fn tells(&mut self, (client, home): (ClientId, ContainerId), lane: Lane, held: u64) {
        let first = self.told.insert((client, lane)) && held == 0;
        if first || self.is_owed(client, lane) {
            self.known.insert((home, lane));
        }
    }

    /// The processes for whose figures an account's growth may wait.
    pub fn awaited(&self, lane: Lane) -> impl Iterator<Item = ClientId> {
        self.since.keys().filter(move |(_, at)| *at == lane).map(|(client, _)| *client)
    }

    /// Waits that are over.
    pub fn ticked(&mut self, now: u64) {
        self.since.retain(|_, since| now < *since + OWED.0);
    }

    /// A process has ended.
    pub fn part(&mut self, client: ClientId) {
        self.since.retain(|(of, _), _| *of != client);
        self.told.retain(|(of, _)| *of != client);
    }

    /// A container has ended.
    pub fn forget(&mut self, container: &ContainerId) {
        self.known.retain(|(of, _)| of != container);
    }
}
