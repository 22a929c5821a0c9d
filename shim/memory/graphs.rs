//! Graph memory: the memory behind allocation nodes, charged per GPU.
//!
//! A graph's allocation has its address from the start, and memory only from the first launch (or upload)
//! on; then the driver keeps it for the next launch, until it is trimmed. So nothing is charged when a
//! graph is created. The memory that an executable may need is determined once, at its instantiation, by
//! walking the graph's nodes and those of its child graphs. Before a launch that much is set aside, and
//! afterwards the driver's own number for the GPU (`CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`) is charged and
//! the rest released, as for a pool ([`super::pools`]).
//!
//! A graph launched before has its memory, except for what graph memory of the device was released since then.
//! The driver does not report whose memory it released, so up to that many bytes are set aside for the next launch.
//! The driver may still take more for such a launch, which cannot be rolled back. Growth that cannot be paid then
//! stays owed, and the next launch that needs memory is refused.
//!
//! Launches of executables without memory nodes must not pay for this. Only from the first executable
//! with such nodes on does the gate's word send graph launches through the longer path.

use super::devices::Devices;
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

/// Memory that an executable may need, by device.
pub type Needs = Vec<(CUdevice, u64)>;

#[derive(Debug)]
struct Exec {
    needs: Arc<Needs>,
    /// [`Graphs::released`] before its last launch; `None` before the first.
    launched: Option<Released>,
}

/// Bytes of graph memory returned to each device, in total.
type Released = HashMap<CUdevice, u64>;

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

/// Total of the allocation nodes of `graph`, by device; empty if the driver does not report them.
#[must_use]
pub fn needs_of(graph: CUgraph) -> Needs {
    let mut needs = Needs::new();
    walk(graph, DEPTH_MAX, &mut needs);
    needs
}

fn done(result: CUresult) -> bool {
    result == CUresult::SUCCESS
}

fn walk(graph: CUgraph, depth: u32, needs: &mut Needs) {
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
            needs.extend(need_of(node));
        } else if kind == CU_GRAPH_NODE_TYPE_GRAPH {
            let mut child = CUgraph::NULL;
            if done(real!(cuGraphChildGraphNodeGetGraph(node, &raw mut child))) {
                walk(child, depth - 1, needs);
            }
        }
    }
}

fn need_of(node: CUgraphNode) -> Option<(CUdevice, u64)> {
    let mut params = MaybeUninit::<CUDA_MEM_ALLOC_NODE_PARAMS>::zeroed();
    if !done(real!(cuGraphMemAllocNodeGetParams(node, params.as_mut_ptr()))) {
        return None;
    }
    // SAFETY: numbers and pointers, of which zeros are values too; the driver has written them.
    let params = unsafe { params.assume_init() };
    let bytes = (params.bytesize as u64).checked_next_multiple_of(GRANULARITY);
    Some((params.pool_props.location.id, bytes.unwrap_or(u64::MAX)))
}

fn by_device(needs: &Needs) -> HashMap<CUdevice, u64> {
    let mut sums = HashMap::new();
    for (device, bytes) in needs {
        let sum: &mut u64 = sums.entry(*device).or_default();
        *sum = sum.saturating_add(*bytes);
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
    fn released(&self) -> Released {
        let known = self.open();
        known.devices.iter().map(|(device, pool)| (*device, pool.reservation.released())).collect()
    }

    /// For each device of `needs` the most bytes that a launch may take there, if the last launch was at `launched`.
    fn limits(&self, needs: &Needs, launched: Option<&Released>) -> Released {
        let now = self.released();
        let of = |all: &Released, device| all.get(&device).copied().unwrap_or_default();
        let since = |device| match launched {
            Some(launched) => of(&now, device).saturating_sub(of(launched, device)),
            None => u64::MAX,
        };
        by_device(needs).into_keys().map(|device| (device, since(device))).collect()
    }

    fn devices(&self) -> Vec<Arc<Pool>> {
        self.open().devices.values().map(Arc::clone).collect()
    }

    /// Sets aside the bytes of `needs` for a launch, or less if the last launch was at `launched`.
    fn begin(
        &self,
        daemon: &Session,
        devices: &Devices,
        needs: &Needs,
        launched: Option<&Released>,
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
        needs: &Needs,
        limits: &Released,
    ) -> Result<Growing, CUresult> {
        let mut growing = Growing::new();
        for (device, bytes) in by_device(needs) {
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
        let needs = needs_of(graph);
        if needs.is_empty() {
            return Ok(call());
        }
        let growing = if upload {
            self.begin(daemon, devices, &needs, None)?
        } else {
            self.set_aside(daemon, devices, &needs, &Released::new())? // Only learns each GPU's lane.
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
        let exec_known = Exec { needs: Arc::new(needs), launched: upload.then_some(released) };
        self.open().execs.insert(exec, exec_known);
        Ok(result)
    }

    /// Notes a changed executable: it may need the memory of `graph`, in addition to its own if `beside`.
    pub fn changed(&self, exec: CUgraphExec, graph: CUgraph, beside: bool) {
        let mut needs = needs_of(graph);
        let mut known = self.open();
        if beside && let Some(exec) = known.execs.get(&exec) {
            needs.extend(exec.needs.iter());
        }
        if needs.is_empty() {
            known.execs.remove(&exec);
            return;
        }
        let needs = Arc::new(needs);
        known.execs.insert(exec, Exec { needs, launched: None });
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
