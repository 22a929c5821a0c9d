//! Descriptors are shared out before anybody comes, so that a flood of one kind of connection can
//! never leave none for another: whoever floods its own socket, the admin socket still answers and
//! the next container still starts.

use crate::socket_closer;
use gpuslice_engine::Quota;
use gpuslice_wire::limits::{CLIENTS_MAX, CONTAINERS_MAX};

/// The daemon's own: epoll, timer, signals, admin socket, lock, log, spare, files being written, and the
/// lines to processes that close sockets.
const OWN: u64 = 32 + socket_closer::DESCRIPTORS;
/// As many containers can start at once as there are admin connections.
const ADMINS_MAX: u64 = 256;
/// A container has its socket, its page, its first process's pidfd and the record of what was granted.
const PER_CONTAINER: u64 = 4;
/// A process has its connection, its doorbell and its pidfd; and one that lost a connection has one more until
/// what it holds is taken over.
const PER_CLIENT: u64 = 4;

/// How many of each there can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Admin connections.
    pub admins: u16,
    /// Containers with a slice.
    pub containers: u16,
    /// Connections of processes.
    pub clients: u16,
}

impl Budget {
    /// Shares out `fds` descriptors, and says so if that is less than what is wanted.
    pub fn told(fds: u64, wanted: u64) -> Budget {
        let budget = Budget::new(fds, wanted);
        if budget.is_short(wanted) {
            let (containers, clients) = (budget.containers, budget.clients);
            tracing::warn!(
                fds,
                containers,
                clients,
                "fewer fit; raise the descriptor limit"
            );
        }
        budget
    }

    /// Shares out `fds` descriptors where the administrator wants up to `wanted` containers.
    pub fn new(fds: u64, wanted: u64) -> Budget {
        let fds = fds.saturating_sub(OWN);
        let admins = (fds / 8).clamp(1, ADMINS_MAX);
        let fds = fds.saturating_sub(admins);
        // With room for two processes of each, so that each has one in any case.
        let containers = fds / (PER_CONTAINER + 2 * PER_CLIENT);
        let containers = containers.clamp(1, wanted.min(CONTAINERS_MAX as u64));
        let fds = fds.saturating_sub(containers * PER_CONTAINER);
        let clients = (fds / PER_CLIENT).clamp(1, CLIENTS_MAX as u64);
        Budget {
            admins: admins as u16,
            containers: containers as u16,
            clients: clients as u16,
        }
    }

    /// How connections are shared among containers, of which there are so many.
    pub fn quota(&self, containers: usize) -> Quota {
        // More than can be made are taken up when the limit was higher in an earlier life.
        Quota::new(self.clients.into(), containers.max(self.containers.into()))
    }

    /// Whether the descriptor limit makes it smaller than it could be.
    pub fn is_short(&self, containers: u64) -> bool {
        usize::from(self.clients) < CLIENTS_MAX || u64::from(self.containers) < containers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plenty_gives_everything() {
        let budget = Budget::new(1 << 20, 256);
        assert_eq!(
            budget,
            Budget {
                admins: 256,
                containers: 256,
                clients: CLIENTS_MAX as u16
            }
        );
        assert!(!budget.is_short(256));
        let quota = budget.quota(4);
        assert_eq!((quota.guaranteed(), quota.most()), (4, 256));
        assert_eq!(Budget::new(1 << 20, 32).quota(4).guaranteed(), 32);
    }

    #[test]
    fn what_is_promised_fits() {
        for fds in 64..8192 {
            for containers in [1, 7, 256] {
                let budget = Budget::new(fds, containers);
                let used = OWN
                    + u64::from(budget.admins)
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
