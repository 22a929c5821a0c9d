//! Divides the descriptor limit at the start, so that a flood of one kind of connection cannot use up the
//! descriptors of another. While a container floods its own socket, the admin socket still answers and the
//! next container still starts.

use crate::shared_files::SharedFiles;
use crate::socket_closer;
use gpuslice_engine::Quota;
use gpuslice_wire::limits::{CLIENTS_MAX, CONTAINERS_MAX};

/// The daemon's own: epoll, timer, signals, admin socket, lock, log, spare, files being written, the channels to the
/// processes that close sockets, and the libraries that containers see.
const OWN: u64 = 32 + socket_closer::DESCRIPTORS + SharedFiles::MOST;
/// Connections of agents.
const AGENTS_MAX: u64 = 32;
/// Admin connections; this many containers can start at once.
const ADMINS_MAX: u64 = 256;
/// Per container: its socket, its page, its usage table, its first process's pidfd, its file of grants and its memory
/// file. A claim's slice has no first process, and a container that lives in it has nothing else; so these share what
/// containers leave.
const PER_CONTAINER: u64 = 6;
/// Per process: its connection, its doorbell and its pidfd; and one more from the end of a connection until
/// the next connection takes over its memory.
const PER_CLIENT: u64 = 4;

/// The most of each that can exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Admin connections.
    pub admins: u16,
    /// Connections of agents.
    pub agents: u16,
    /// Containers with a slice.
    pub containers: u16,
    /// Connections of processes.
    pub clients: u16,
}

impl Budget {
    /// Divides `fds` descriptors; logs a warning if they are fewer than needed.
    pub fn told(fds: u64, wanted: u64) -> Budget {
        let budget = Budget::new(fds, wanted);
        if budget.is_short(wanted) {
            let (containers, clients) = (budget.containers, budget.clients);
            tracing::warn!(fds, containers, clients, "fewer fit; raise the descriptor limit");
        }
        budget
    }

    /// Divides `fds` descriptors for up to `wanted` containers.
    pub fn new(fds: u64, wanted: u64) -> Budget {
        let fds = fds.saturating_sub(OWN);
        let admins = (fds / 8).clamp(1, ADMINS_MAX);
        let agents = (fds / 32).clamp(1, AGENTS_MAX);
        let fds = fds.saturating_sub(admins + agents);
        // With room for two processes in each, so that each has at least one.
        let containers = fds / (PER_CONTAINER + 2 * PER_CLIENT);
        let containers = containers.clamp(1, wanted.min(CONTAINERS_MAX as u64));
        let fds = fds.saturating_sub(containers * PER_CONTAINER);
        let clients = (fds / PER_CLIENT).clamp(1, CLIENTS_MAX as u64);
        Budget {
            admins: admins as u16,
            agents: agents as u16,
            containers: containers as u16,
            clients: clients as u16,
        }
    }

    /// Whether there are descriptors for these slices of containers and of claims, and containers in claims.
    pub fn has_descriptors(
        &self,
        of_containers: usize,
        of_claims: usize,
        in_claims: usize,
    ) -> bool {
        let each = PER_CONTAINER as usize;
        let used = each * of_containers + (each - 1) * of_claims + in_claims;
        used <= each * usize::from(self.containers)
    }

    /// How connections are divided among this number of containers.
    pub fn quota(&self, containers: usize) -> Quota {
        // More slices than the limit are restored if the limit was higher before a restart.
        Quota::new(self.clients.into(), containers.max(self.containers.into()))
    }

    /// Whether the descriptor limit makes the budget smaller than wanted.
    pub fn is_short(&self, containers: u64) -> bool {
        usize::from(self.clients) < CLIENTS_MAX || u64::from(self.containers) < containers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_descriptors_give_the_full_budget() {
        let budget = Budget::new(1 << 20, 256);
        let clients = CLIENTS_MAX as u16;
        assert_eq!(budget, Budget { admins: 256, agents: 32, containers: 256, clients });
        assert!(!budget.is_short(256));
        let quota = budget.quota(4);
        assert_eq!((quota.guaranteed(), quota.most()), (4, 256));
        assert_eq!(Budget::new(1 << 20, 32).quota(4).guaranteed(), 32);
    }

    #[test]
    fn containers_in_claims_share_what_others_leave() {
        let budget = Budget::new(1 << 20, 256);
        assert!(budget.has_descriptors(256, 0, 0) && !budget.has_descriptors(256, 0, 1));
        assert!(budget.has_descriptors(0, 256, 256) && !budget.has_descriptors(0, 256, 257));
        assert!(budget.has_descriptors(0, 100, 1036) && !budget.has_descriptors(1, 100, 1036));
    }

    #[test]
    fn the_budget_fits_the_descriptor_limit() {
        for fds in 80..8192 {
            for containers in [1, 7, 256] {
                let budget = Budget::new(fds, containers);
                let used = OWN
                    + u64::from(budget.admins)
                    + u64::from(budget.agents)
                    + u64::from(budget.containers) * PER_CONTAINER
                    + u64::from(budget.clients) * PER_CLIENT;
                assert!(used <= fds, "{fds}: {budget:?}");
                assert!(u64::from(budget.containers) <= containers && budget.clients >= 1);
                let (quota, containers) = (budget.quota(0), usize::from(budget.containers));
                assert!(quota.guaranteed() * containers <= usize::from(budget.clients));
            }
        }
        assert!(Budget::new(1024, 256).is_short(256));
    }
}
