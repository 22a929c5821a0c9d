//! Graph memory: the memory behind allocation nodes, charged per GPU.
//!
//! A graph's allocation has its address from the start, and memory only from the first launch (or upload)
//! on; then the driver keeps it for the next launch, until it is trimmed. So nothing is charged when a
//! graph is created. The memory that an executable may need is determined once, at its instantiation, by
//! walking the graph's nodes and those of its child graphs. Before a launch that much is set aside, and
//! afterwards the driver's own number for the GPU (`CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`) is charged and
//! the rest released, as for a pool ([`super::pools`]).
//!
//! The driver gives allocations of a graph whose lifetimes cannot overlap the same addresses, and so the same memory
//! (CUDA programming guide, "Address Reuse within a Graph"). A graph needs the memory of its addresses, each counted
//! once, not the sum of its allocations.
//!
//! A graph launched before has its memory, except for what graph memory of the device was released since then.
//! The driver does not report whose memory it released, so up to that many bytes are set aside for the next launch.
//! The driver may still take more for such a launch, which cannot be rolled back. Growth that cannot be paid then
//! stays owed, and the next launch that needs memory is refused.
//!
//! Launches of executables without memory nodes must not pay for this. Only from the first executable
//! with such nodes on does the gate's word send graph launches through the longer path.

use super::devices::{Devices, device_at};
use super::followed;
use super::pools::{Pool, Source, Steps, reservation};
use crate::daemon::Session;
use crate::guard::Outcome;
use crate::real;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use gpuslice_nvabi::types::*;
use gpuslice_wire::units::MIB;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The granularity of graph memory, at least.
const GRANULARITY: u64 = 2 * MIB;
/// Depth to which nested child graphs are followed.
const DEPTH_MAX: u32 = 64;

/// The memory of one allocation node.
#[derive(Clone, Copy, Debug)]
struct Allocated {
    device: CUdevice,
    /// 0 if the driver does not report it.
    address: CUdeviceptr,
    bytes: u64,
}

/// Bytes by device.
type Bytes = HashMap<CUdevice, u64>;

#[derive(Debug)]
struct Exec {
    allocations: Vec<Allocated>,
    /// Memory that it may need.
    needs: Arc<Bytes>,
    /// [`Graphs::released`] before its last launch; `None` before the first.
    launched: Option<Bytes>,
}

impl Exec {
    fn new(allocations: Vec<Allocated>, launched: Option<Bytes>) -> Exec {
        Exec { needs: Arc::new(needs_of(&allocations)), allocations, launched }
    }
}

#[derive(Debug, Default)]
struct Known {
    execs: HashMap<CUgraphExec, Exec>,
    devices: HashMap<CUdevice, Arc<Pool>>,
}

/// The graphs of a process that need memory.
#[derive(Debug, Default)]
pub struct Graphs {
    known: Mutex<Known>,
    /// The growth steps of graph memory.
    steps: Steps,
}

/// The allocation nodes of `graph`; none if the driver does not report them.
fn allocations_of(graph: CUgraph) -> Vec<Allocated> {
    let mut all = Vec::new();
    walk(graph, DEPTH_MAX, &mut all);
    all
}

fn done(result: CUresult) -> bool {
    result == CUresult::SUCCESS
}

fn walk(graph: CUgraph, depth: u32, all: &mut Vec<Allocated>) {
    let mut count = 0;
    if depth == 0 || !done(real!(cuGraphGetNodes(graph, null_mut(), &raw mut count))) {
        return;
    }
    let mut nodes = vec![CUgraphNode::NULL; count];
    if count == 0 || !done(real!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count))) {
        return;
    }
    nodes.truncate(count);
    for node in nodes {
        let mut kind = 0;
        if !done(real!(cuGraphNodeGetType(node, &raw mut kind))) {
            continue;
        }
        if kind == CU_GRAPH_NODE_TYPE_MEM_ALLOC {
            all.extend(allocation_of(node));
        } else if kind == CU_GRAPH_NODE_TYPE_GRAPH {
            let mut child = CUgraph::NULL;
            if done(real!(cuGraphChildGraphNodeGetGraph(node, &raw mut child))) {
                walk(child, depth - 1, all);
            }
        }
    }
}

fn allocation_of(node: CUgraphNode) -> Option<Allocated> {
    let mut params = MaybeUninit::<CUDA_MEM_ALLOC_NODE_PARAMS>::zeroed();
    if !done(real!(cuGraphMemAllocNodeGetParams(node, params.as_mut_ptr()))) {
        return None;
    }
    // SAFETY: numbers and pointers, of which zeros are values too; the driver has written them.
    let params = unsafe { params.assume_init() };
    Some(Allocated {
        device: device_at(params.pool_props.location)?, // else it is the host's memory
        address: params.dptr,
        bytes: params.bytesize as u64,
    })
}

/// Bytes of the addresses of `allocations`, each address counted once.
fn needs_of(allocations: &[Allocated]) -> Bytes {
    let round_up = |to: u64| to.checked_next_multiple_of(GRANULARITY).unwrap_or(u64::MAX);
    let mut sums = Bytes::new();
    let mut ranges = Vec::with_capacity(allocations.len());
    for &Allocated { device, address, bytes } in allocations {
        let sum = sums.entry(device).or_default();
        if address == 0 {
            *sum = sum.saturating_add(round_up(bytes));
        } else {
            let start = address / GRANULARITY * GRANULARITY;
            ranges.push((device, start, round_up(address.saturating_add(bytes))));
        }
    }
    ranges.sort_unstable();
    let (mut on, mut counted) = (None, 0);
    for (device, start, end) in ranges {
        if on != Some(device) {
            (on, counted) = (Some(device), 0);
        }
        let sum = sums.entry(device).or_default();
        *sum = sum.saturating_add(end.saturating_sub(start.max(counted)));
        counted = counted.max(end);
    }
    sums
}

type Growing = Vec<(Arc<Pool>, reservation::PoolCall)>;

impl Graphs {
    fn open(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn device(
        &self,
        daemon: &Session,
        devices: &Devices,
        device: CUdevice,
    ) -> Result<Arc<Pool>, CUresult> {
        followed::follow();
        if let Some(pool) = self.open().devices.get(&device) {
            return Ok(Arc::clone(pool));
        }
        let lane = devices.limited(daemon, device)?;
        let fresh = || Arc::new(Pool::new(Source::Graphs(device), lane, false, &self.steps));
        Ok(Arc::clone(self.open().devices.entry(device).or_insert_with(fresh)))
    }

    /// Whether an executable may need memory.
    #[must_use]
    pub fn any(&self) -> bool {
        !self.open().execs.is_empty()
    }

    /// Bytes of graph memory that were seen to return to each device.
    fn released(&self) -> Bytes {
        let known = self.open();
        known.devices.iter().map(|(device, pool)| (*device, pool.reservation.released())).collect()
    }

    /// For each device of `needs` the most bytes that a launch may take there, if the last launch was at `launched`.
    fn limits(&self, needs: &Bytes, launched: Option<&Bytes>) -> Bytes {
        let now = self.released();
        let of = |all: &Bytes, device| all.get(device).copied().unwrap_or_default();
        let since = |device| match launched {
            Some(launched) => of(&now, device).saturating_sub(of(launched, device)),
            None => u64::MAX,
        };
        needs.keys().map(|device| (*device, since(device))).collect()
    }

    fn devices(&self) -> Vec<Arc<Pool>> {
        self.open().devices.values().map(Arc::clone).collect()
    }

    /// Sets aside the bytes of `needs` for a launch, or less if the last launch was at `launched`.
    fn begin(
        &self,
        daemon: &Session,
        devices: &Devices,
        needs: &Bytes,
        launched: Option<&Bytes>,
    ) -> Result<Growing, CUresult> {
        let mut limits = self.limits(needs, launched);
        loop {
            let growing = self.set_aside(daemon, devices, needs, &limits)?;
            // A request that was refused at first has trimmed graph memory, perhaps this executable's.
            let after = self.limits(needs, launched);
            if after == limits {
                return Ok(growing);
            }
            let _ = end(daemon, growing, CUresult::ERROR_OUT_OF_MEMORY);
            limits = after;
        }
    }

    /// Sets aside the bytes of `needs`, at most `limits` on each device, and nothing without a limit.
    fn set_aside(
        &self,
        daemon: &Session,
        devices: &Devices,
        needs: &Bytes,
        limits: &Bytes,
    ) -> Result<Growing, CUresult> {
        let mut growing = Growing::new();
        for (&device, &bytes) in needs {
            let limit = limits.get(&device).copied().unwrap_or_default();
            let begun = self
                .device(daemon, devices, device)
                .and_then(|pool| Ok((Arc::clone(&pool), pool.begin_growth(daemon, bytes, limit)?)));
            match begun {
                Ok(one) => growing.push(one),
                Err(refused) => {
                    let _ = end(daemon, growing, CUresult::ERROR_OUT_OF_MEMORY);
                    return Err(refused);
                }
            }
        }
        Ok(growing)
    }

    /// Launches or uploads `exec` by `call`, and charges the memory that it took.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`; then `call` did not run.
    pub fn launch(
        &self,
        daemon: &Session,
        devices: &Devices,
        exec: CUgraphExec,
        call: impl FnOnce() -> CUresult,
    ) -> Outcome {
        let known = self.open().execs.get(&exec).map(|exec| {
            let needs = Arc::clone(&exec.needs);
            (needs, exec.launched.clone())
        });
        let Some((needs, launched)) = known else {
            return Ok(call()); // It allocates nothing.
        };
        let growing = self.begin(daemon, devices, &needs, launched.as_ref())?;
        let released = self.released();
        let result = call();
        // A launch cannot be undone: growth that cannot be paid stays owed.
        let _ = end(daemon, growing, result);
        if done(result)
            && let Some(exec) = self.open().execs.get_mut(&exec)
        {
            exec.launched = Some(released);
        }
        Ok(result)
    }

    /// Instantiates `graph` by `call`; with `upload` its memory is allocated immediately.
    ///
    /// # Safety
    /// `call` writes the executable to `made` when it answers success.
    ///
    /// # Errors
    /// As [`Graphs::launch`], or `CUDA_ERROR_DEVICE_UNAVAILABLE` for memory outside of the slice; then
    /// there is no executable.
    pub unsafe fn instantiate(
        &self,
        daemon: &Session,
        devices: &Devices,
        graph: CUgraph,
        made: *const CUgraphExec,
        upload: bool,
        call: impl FnOnce() -> CUresult,
    ) -> Outcome {
        let allocations = allocations_of(graph);
        if allocations.is_empty() {
            return Ok(call());
        }
        let needs = needs_of(&allocations);
        let growing = if upload {
            self.begin(daemon, devices, &needs, None)?
        } else {
            self.set_aside(daemon, devices, &needs, &Bytes::new())? // Only learns each GPU's lane.
        };
        let released = self.released();
        let result = call();
        let paid = end(daemon, growing, result);
        if !done(result) {
            return Ok(result);
        }
        // SAFETY: the driver has just written there and answered success.
        let exec = unsafe { *made };
        if let Err(refused) = paid {
            let _ = real!(cuGraphExecDestroy(exec));
            self.settle_all(daemon);
            return Err(refused);
        }
        let known = Exec::new(allocations, upload.then_some(released));
        self.open().execs.insert(exec, known);
        Ok(result)
    }

    /// Notes a changed executable: it may need the memory of `graph`, in addition to its own if `beside`.
    pub fn changed(&self, exec: CUgraphExec, graph: CUgraph, beside: bool) {
        let mut allocations = allocations_of(graph);
        let mut known = self.open();
        if beside && let Some(exec) = known.execs.get(&exec) {
            allocations.extend(&exec.allocations);
        }
        if allocations.is_empty() {
            known.execs.remove(&exec);
            return;
        }
        known.execs.insert(exec, Exec::new(allocations, None));
    }

    /// Destroys an executable by `call`. It is removed first: its handle may be reused immediately
    /// afterwards.
    pub fn destroy(
        &self,
        daemon: &Session,
        exec: CUgraphExec,
        call: impl FnOnce() -> CUresult,
    ) -> CUresult {
        let known = self.open().execs.remove(&exec);
        let result = call();
        let Some(known) = known else {
            return result;
        };
        if done(result) {
            self.settle_all(daemon);
        } else {
            self.open().execs.insert(exec, known);
        }
        result
    }

    /// Updates the charges.
    pub fn settle_all(&self, daemon: &Session) {
        for pool in self.devices() {
            pool.settle(daemon);
        }
    }

    /// Makes the driver release unused graph memory.
    pub fn reclaim(&self, daemon: &Session) {
        for pool in self.devices() {
            pool.trim(daemon);
        }
    }
}

/// Ends the calls after the driver's `result`, charging the memory that was taken.
fn end(daemon: &Session, growing: Growing, result: CUresult) -> Result<(), CUresult> {
    let mut paid = Ok(());
    for (pool, call) in growing {
        if done(result) {
            paid = paid.and(pool.end(daemon, &call));
        } else {
            pool.cancel(daemon, &call);
        }
    }
    paid
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: CUdeviceptr = 1 << 40;

    /// Needs of allocations of device 0, in MiB: address after `FAR` and size.
    fn needs(ranges: &[(u64, u64)]) -> u64 {
        let allocated = |&(after, bytes): &(u64, u64)| Allocated {
            device: 0,
            address: FAR + after * MIB,
            bytes: bytes * MIB,
        };
        let allocations: Vec<_> = ranges.iter().map(allocated).collect();
        needs_of(&allocations)[&0] / MIB
    }

    #[test]
    fn addresses_are_counted_once() {
        assert_eq!(needs(&[(0, 4), (100, 6)]), 10, "disjoint");
        assert_eq!(needs(&[(0, 1024); 12]), 1024, "equal");
        assert_eq!(needs(&[(0, 8), (4, 8), (6, 2)]), 12, "overlapping");
        assert_eq!(needs(&[(4, 4), (0, 4), (8, 4)]), 12, "adjacent");
        assert_eq!(needs(&[(0, 20), (2, 2), (10, 4)]), 20, "one within another");
        assert_eq!(needs(&[(1, 2)]), 4, "a range across a boundary has both sides");
    }

    #[test]
    fn small_allocations_of_one_granule_need_one() {
        let small = |n: u64| Allocated { device: 0, address: FAR + n * 511, bytes: 500 };
        let allocations: Vec<_> = (0..4100).map(small).collect();
        assert_eq!(needs_of(&allocations), Bytes::from([(0, GRANULARITY)]));
    }

    #[test]
    fn unknown_addresses_and_other_devices_are_counted_in_full() {
        let one = |device, address, bytes| Allocated { device, address, bytes };
        let unknown = [one(0, 0, 1), one(0, 0, 4 * MIB), one(0, FAR, 2 * MIB)];
        assert_eq!(needs_of(&unknown), Bytes::from([(0, 8 * MIB)]));
        let devices = [one(1, FAR, MIB), one(0, FAR, MIB), one(1, FAR, MIB)];
        assert_eq!(needs_of(&devices), Bytes::from([(0, 2 * MIB), (1, 2 * MIB)]));
        let largest = [one(0, 0, u64::MAX), one(0, FAR, u64::MAX)];
        assert_eq!(needs_of(&largest), Bytes::from([(0, u64::MAX)]));
    }
}
