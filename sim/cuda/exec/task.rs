//! Tasks of streams and graph nodes, as data.
//!
//! The same call either queues its task at once or, in a stream that is being captured, becomes a
//! node; so every call first makes a [`Task`] and hands it to [`submit`](super::submit). A task
//! knows how long it takes ([`Task::time`]) and what a stream must do for it
//! ([`Task::requests`]).

use super::cost::{self, Nanos};
use super::graph::{GraphKey, Memory, Queued};
use super::module::{Function, FunctionKey};
use super::pool::{self, Pool};
use super::stream::{Body, Effect, EventKey, Request};
use crate::allocations::copy::Plan;
use crate::allocations::fill::Fill;
use crate::allocations::{self, Allocation, residency, word};
use crate::driver::strict;
use crate::entry::Outcome;
use crate::handles::Key;
use gpuslice_nvabi::types::{
    CU_STREAM_WAIT_VALUE_AND, CU_STREAM_WAIT_VALUE_EQ, CU_STREAM_WAIT_VALUE_GEQ, CUDA_MEMCPY3D,
    CUDA_MEMSET_NODE_PARAMS, CUhostFn, CUresult, CUstream, CUstreamCallback,
    CUstreamWaitValue_flags,
};
use gpuslice_sim_device::Kind;
use std::ffi::c_void;
use std::sync::Arc;

/// A kernel launch.
#[derive(Clone)]
pub struct Launch {
    pub key: FunctionKey,
    pub function: Arc<Function>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub params: Arc<Params>,
}

/// The arguments of a launch, copied when it was made.
#[derive(Default)]
pub struct Params {
    pub bytes: Vec<u8>,
    /// Address of each argument in `bytes`, for programs that ask a node for its parameters.
    pub addresses: Vec<usize>,
}

impl Launch {
    fn blocks(&self) -> u64 {
        self.grid.iter().map(|side| u64::from(*side)).product()
    }

    fn threads(&self) -> u64 {
        self.block.iter().map(|side| u64::from(*side)).product::<u64>().wrapping_mul(self.blocks())
    }

    /// The eight bytes at `offset` of the arguments.
    fn word(&self, offset: usize) -> Option<u64> {
        let bytes = self.params.bytes.get(offset..offset + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }

    /// What may be pointers among the arguments. That is taken for used by the kernel.
    fn pointers(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.params.bytes.len()).step_by(8).filter_map(|at| self.word(at))
    }

    fn time(&self) -> Nanos {
        let asked = if self.function.spins { self.word(0) } else { None };
        // A kernel that takes no time at all would not be seen by the device.
        asked.map_or_else(|| cost::kernel(self.blocks()), |ns| ns.max(1))
    }

    /// Where the launch counts itself: the last argument of a `spin` that has more than one.
    fn counter(&self) -> Option<u64> {
        let params = self.function.entry.params.as_deref()?;
        let last = params.last().filter(|_| self.function.spins && params.len() > 1)?;
        if last.size == 8 { self.word(last.offset) } else { None }
    }
}

/// A stream memory operation.
#[derive(Clone, Copy, Debug)]
pub enum Memop {
    Write {
        address: u64,
        value: u64,
        wide: bool,
    },
    Wait {
        address: u64,
        value: u64,
        wide: bool,
        flags: CUstreamWaitValue_flags,
    },
    /// Barriers and flushes: everything is visible at once on the simulated GPU.
    Barrier,
}

/// A function of the program's.
#[derive(Clone, Copy)]
pub enum HostCall {
    Function(CUhostFn, usize),
    Callback(CUstreamCallback, CUstream, usize),
}

impl HostCall {
    fn call(self) {
        match self {
            Self::Function(function, data) => {
                if let Some(function) = function {
                    // SAFETY: the program gave this function to be called with this pointer.
                    unsafe { function(data as *mut c_void) }
                }
            }
            Self::Callback(callback, stream, data) => {
                if let Some(callback) = callback {
                    // SAFETY: as above.
                    unsafe { callback(stream, CUresult::SUCCESS, data as *mut c_void) }
                }
            }
        }
    }
}

/// The kind of an operation, for a graph node made of it.
#[derive(Clone, Copy)]
pub enum OperationKind {
    Copy(CUDA_MEMCPY3D),
    Fill(CUDA_MEMSET_NODE_PARAMS),
    /// Of managed memory; has no form of its own in a graph.
    Prefetch {
        address: u64,
        to_host: bool,
    },
}

// SAFETY: the pointers in it are given back to the program, or looked up in the table of
// allocations before use; memory of the host stays valid until then by the driver API's contract.
unsafe impl Send for OperationKind {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for OperationKind {}

impl OperationKind {
    /// Does it at once; `Err` is what the context is to be told.
    fn run(&self) -> Outcome {
        let illegal = |_| CUresult::ERROR_ILLEGAL_ADDRESS;
        match self {
            Self::Copy(copy) => Plan::of(copy).map_err(illegal)?.run(),
            Self::Fill(fill) => Fill::of(fill).map_err(illegal)?.run(),
            Self::Prefetch { .. } => Ok(()),
        }
    }
}

/// A copy or a fill: its duration and its effect. A captured one runs at each launch of its graph.
#[derive(Clone)]
pub struct Operation {
    pub kind: OperationKind,
    pub ns: Nanos,
    /// The effect; its error is an error of the context.
    pub run: Arc<dyn Fn() -> Outcome + Send + Sync>,
}

impl Operation {
    /// One that is looked through again when it is its turn: what it names may be gone by then.
    pub fn later(kind: OperationKind, ns: Nanos) -> Self {
        let run = Arc::new(move || kind.run());
        Self { kind, ns, run }
    }

    /// Of a graph node.
    pub fn of(kind: OperationKind) -> Result<Self, CUresult> {
        let ns = match &kind {
            OperationKind::Copy(copy) => {
                let over_bus = Plan::of(copy)?.crosses_bus();
                let rows = copy.height.max(1).saturating_mul(copy.depth.max(1));
                let bytes = copy.width_in_bytes.saturating_mul(rows);
                cost::copy(bytes as u64, over_bus)
            }
            OperationKind::Fill(fill) => {
                Fill::of(fill)?;
                let row = fill.width.saturating_mul(fill.element_size as usize);
                cost::copy(row.saturating_mul(fill.height.max(1)) as u64, false)
            }
            OperationKind::Prefetch { .. } => 0,
        };
        Ok(Self::later(kind, ns))
    }
}

/// Something to do.
#[derive(Clone)]
pub enum Task {
    Empty,
    Kernel(Launch),
    Move(Operation),
    Host(HostCall),
    Record(EventKey),
    Await(EventKey),
    Memops(Arc<[Memop]>),
    Child(GraphKey),
    Alloc(Arc<Memory>),
    Free(u64),
    /// Gives back memory allocated by another call once the stream is there.
    Release(u64),
    /// Gives a part of a pool back to it.
    Retire {
        pool: Key<Pool>,
        address: u64,
        ticket: u64,
    },
}

impl Task {
    /// How long the device works on it.
    pub fn time(&self) -> Nanos {
        match self {
            Self::Kernel(launch) => launch.time(),
            Self::Move(one) => one.ns,
            Self::Record(_) => strict::draw(strict::properties().event),
            _ => 0,
        }
    }

    /// Blocks of a kernel, of which the device holds all at once or as many as it can.
    fn blocks(&self) -> u16 {
        match self {
            Self::Kernel(launch) => launch.blocks().min(cost::WAVE_BLOCKS) as u16,
            _ => 0,
        }
    }

    /// Moves the managed memory that it uses, as it is queued. How long the device takes for that on top of its time.
    pub fn moves(&self) -> Nanos {
        if strict::properties().managed == 0 {
            return 0;
        }
        match self {
            Self::Kernel(launch) => return launch.pointers().map(come).sum(),
            Self::Move(one) => match one.kind {
                OperationKind::Fill(fill) => return come(fill.dst),
                // Its own time is that of the copy.
                OperationKind::Prefetch { address, to_host: true } => residency::leave(address),
                OperationKind::Prefetch { address, to_host: false } => drop(come(address)),
                OperationKind::Copy(_) => {}
            },
            _ => {}
        }
        0
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Kernel(_) => Kind::Kernel,
            Self::Move(_) => Kind::Copy,
            _ => Kind::Marker,
        }
    }

    /// Its effect.
    fn effect(&self) -> Option<Effect> {
        Some(match self {
            Self::Kernel(launch) => {
                // Every thread of the kernel adds one, as its PTX says.
                let (address, threads) = (launch.counter()?, launch.threads() as u32);
                Box::new(move || word::add(address, threads))
            }
            Self::Move(one) => {
                let run = Arc::clone(&one.run);
                Box::new(move || run())
            }
            Self::Alloc(memory) => {
                let queued = Queued::new(memory);
                Box::new(move || {
                    queued.begin_use();
                    Ok(())
                })
            }
            Self::Free(address) => {
                let address = *address;
                Box::new(move || super::graph::end_use(address))
            }
            Self::Release(address) => {
                let address = *address;
                Box::new(move || release(address))
            }
            Self::Retire { pool, address, ticket } => {
                let (pool, address, ticket) = (*pool, *address, *ticket);
                Box::new(move || {
                    pool::retire(pool, address, ticket);
                    Ok(())
                })
            }
            _ => return None,
        })
    }

    /// What a stream must do for it, when the device's part takes `ns`.
    pub fn requests(&self, ns: Nanos) -> Vec<Request> {
        let kind = self.kind();
        let blocks = self.blocks();
        let work = |effect| Request::Body(Body::Work { kind, ns, blocks, effect });
        let mut requests = match self {
            Self::Host(call) => {
                let call = *call;
                vec![Request::Body(Body::Host(Box::new(move || call.call())))]
            }
            Self::Record(event) => vec![Request::Record(*event)],
            Self::Await(event) => vec![Request::Await(*event)],
            Self::Memops(list) => list.iter().map(|op| Request::Body(op.body())).collect(),
            _ => return vec![work(self.effect())],
        };
        if ns > 0 {
            requests.insert(0, work(None));
        }
        requests
    }
}

/// Managed memory comes to the device where an address lies in some; how long that takes.
fn come(address: u64) -> Nanos {
    match residency::come(address) {
        0 => 0,
        bytes => cost::copy(bytes, true),
    }
}

/// Frees what `cuMemAlloc` or `cuMemAllocManaged` gave.
fn release(address: u64) -> Outcome {
    use allocations::Kind;
    let freeable = |one: &Allocation| matches!(one.kind, Kind::Device | Kind::Managed { .. });
    let gone = allocations::remove(address, freeable).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    gone.release(address);
    Ok(())
}

impl Memop {
    fn body(self) -> Body {
        match self {
            Self::Barrier => Body::nothing(),
            Self::Write { address, value, wide } => {
                Body::effect(Box::new(move || word::store(address, value, wide)))
            }
            Self::Wait { address, value, wide, flags } => Body::Wait(Box::new(move || {
                // Memory that is gone can never satisfy a wait; the stream goes on rather than
                // being stuck for ever, and its next access is the one that fails.
                word::load(address, wide).is_none_or(|found| holds(found, value, wide, flags))
            })),
        }
    }
}

/// Whether a word satisfies a wait.
fn holds(found: u64, value: u64, wide: bool, flags: CUstreamWaitValue_flags) -> bool {
    match flags & 3 {
        // Cyclic: the difference as a signed number, so that counters may wrap.
        CU_STREAM_WAIT_VALUE_GEQ if wide => found.wrapping_sub(value) as i64 >= 0,
        CU_STREAM_WAIT_VALUE_GEQ => (found as u32).wrapping_sub(value as u32) as i32 >= 0,
        CU_STREAM_WAIT_VALUE_EQ => found == value,
        CU_STREAM_WAIT_VALUE_AND => found & value != 0,
        _ => {
            let all = if wide { u64::MAX } else { u64::from(u32::MAX) };
            !(found | value) & all != 0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_nvabi::types::CU_STREAM_WAIT_VALUE_NOR;

    #[test]
    fn comparisons_of_waits() {
        let check = |flags, found, value, wide, expect| {
            assert_eq!(holds(found, value, wide, flags), expect, "{flags} {found} {value} {wide}");
        };
        check(CU_STREAM_WAIT_VALUE_GEQ, 5, 5, false, true);
        check(CU_STREAM_WAIT_VALUE_GEQ, 4, 5, false, false);
        check(CU_STREAM_WAIT_VALUE_GEQ, 2, u64::from(u32::MAX), false, true);
        check(CU_STREAM_WAIT_VALUE_GEQ, 2, u64::from(u32::MAX), true, false);
        check(CU_STREAM_WAIT_VALUE_EQ, 7, 7, true, true);
        check(CU_STREAM_WAIT_VALUE_AND, 6, 3, false, true);
        check(CU_STREAM_WAIT_VALUE_AND, 4, 3, false, false);
        check(CU_STREAM_WAIT_VALUE_NOR, 0xffff_fff0, 0xf, false, false);
        check(CU_STREAM_WAIT_VALUE_NOR, 0xffff_fff0, 0x7, false, true);
    }
}
