//! The state of a process in its slice, one value of each room.

use super::groups::ReportedGroups;
use super::handles::SharedHandles;
use crate::daemon::Session;
use crate::daemon::credit_return::CreditReturn;
use crate::memory::allocations::AllocationTable;
use crate::memory::contexts::Contexts;
use crate::memory::devices::Devices;
use crate::memory::graphs::Graphs;
use crate::memory::physical::PhysicalTable;
use crate::memory::pools::Pools;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module's head.
#[derive(Debug)]
pub struct Slice {
    /// The connection, the pages and the accounts.
    pub daemon: Session,
    /// Recalls and idle credit.
    pub credit_return: CreditReturn,
    /// Exported memory handles.
    pub handles: SharedHandles,
    /// Channel groups reported to the daemon.
    pub groups: ReportedGroups,
    /// Charged pointers.
    pub allocations: AllocationTable,
    /// Charged physical memory of the virtual-memory API.
    physical: Mutex<PhysicalTable>,
    /// Lanes by device ordinal.
    pub devices: Devices,
    /// Devices and costs of contexts.
    pub contexts: Contexts,
    /// Memory pools.
    pub pools: Pools,
    /// Memory of graphs.
    pub graphs: Graphs,
}

impl Slice {
    /// The state of a process that has just attached.
    #[must_use]
    pub fn new(daemon: Session) -> Slice {
        Slice {
            credit_return: CreditReturn::new(&daemon),
            daemon,
            handles: SharedHandles::default(),
            groups: ReportedGroups::default(),
            allocations: AllocationTable::default(),
            physical: Mutex::default(),
            devices: Devices::default(),
            contexts: Contexts::default(),
            pools: Pools::default(),
            graphs: Graphs::default(),
        }
    }

    /// Whether the container is suspended, or on the way to or from it.
    #[inline(always)]
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.daemon.container().suspended.load(SeqCst) != 0
    }

    /// The physical memory, locked.
    pub fn physical(&self) -> MutexGuard<'_, PhysicalTable> {
        self.physical.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
