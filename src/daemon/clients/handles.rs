//! Memory handles that the processes of a container share with each other.
//!
//! A process that exports memory reports a digest of the handle; a sibling that receives the handle asks whether it is
//! one of the container's own. If so, the memory is charged already. A false digest does no harm: it affects only
//! the reporting process's own container, whose memory is in the ledger or is found by the accounting.
//!
//! A restarted daemon knows no handle before its process has attached again and reported it. Until all processes of
//! the container have attached again or their time for it is over, a question about an unknown handle waits.

use crate::slab::Key;
use gpuslice_wire::frame::RequestId;
use gpuslice_wire::ids::{ClientId, ContainerId};
use gpuslice_wire::limits::HANDLES_PER_CLIENT_MAX;
use gpuslice_wire::tenant::HandleKey;
use std::collections::{BTreeMap, VecDeque};

/// A process's question whether a handle is one of its container's own.
#[derive(Clone, Copy, Debug)]
pub struct Lookup {
    /// The process's connection.
    pub key: Key,
    /// The engine's id of the client.
    pub client: ClientId,
    /// The request to answer.
    pub request: RequestId,
    /// The process's container.
    pub container: ContainerId,
    /// Digest of the handle.
    pub handle: HandleKey,
}

/// Handles that one process shared, the oldest first.
#[derive(Debug, Default)]
pub struct SharedHandles(VecDeque<HandleKey>);

/// Handles shared in a container, each with the number of processes that share it.
#[derive(Debug, Default)]
pub struct Handles(BTreeMap<HandleKey, u16>);

impl Handles {
    /// Adds a handle of a process. Above the limit the process's oldest handle is dropped.
    pub fn share(&mut self, mine: &mut SharedHandles, key: HandleKey) {
        if mine.0.contains(&key) {
            return;
        }
        if mine.0.len() >= HANDLES_PER_CLIENT_MAX
            && let Some(oldest) = mine.0.pop_front()
        {
            self.forget(oldest);
        }
        mine.0.push_back(key);
        *self.0.entry(key).or_default() += 1;
    }

    /// Whether a connected process shares this handle.
    pub fn knows(&self, key: HandleKey) -> bool {
        self.0.contains_key(&key)
    }

    /// Drops all handles of a process.
    pub fn drop_all(&mut self, mine: SharedHandles) {
        mine.0.into_iter().for_each(|key| self.forget(key));
    }

    fn forget(&mut self, key: HandleKey) {
        if let Some(count) = self.0.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_known_while_a_process_shares_it() {
        let (mut all, mut one, mut two) =
            (Handles::default(), SharedHandles::default(), SharedHandles::default());
        let key = HandleKey(7);
        assert!(!all.knows(key));
        all.share(&mut one, key);
        all.share(&mut one, key);
        all.share(&mut two, key);
        all.drop_all(one);
        assert!(all.knows(key), "the other process shares it too");
        all.drop_all(two);
        assert!(!all.knows(key) && all.0.is_empty());
    }

    #[test]
    fn above_the_limit_the_oldest_handle_of_the_same_process_is_dropped() {
        let (mut all, mut one, mut two) =
            (Handles::default(), SharedHandles::default(), SharedHandles::default());
        all.share(&mut two, HandleKey(0));
        let flood = 3 * HANDLES_PER_CLIENT_MAX as u64;
        (0..flood).for_each(|n| all.share(&mut one, HandleKey(n)));
        assert!(all.knows(HandleKey(0)) && !all.knows(HandleKey(1)));
        assert!(all.knows(HandleKey(flood - 1)));
        assert_eq!(all.0.len(), HANDLES_PER_CLIENT_MAX + 1);
        all.drop_all(one);
        assert_eq!(all.0.len(), 1);
    }
}
