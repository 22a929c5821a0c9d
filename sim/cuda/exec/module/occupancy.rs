//! How many blocks fit on a multiprocessor, by the limits of compute capability 9.0.

use super::attributes::{MAX_THREADS, REGISTERS, SHARED_MOST};
use super::store::{self, Function};
use crate::entry::{In, Out, Outcome, refuse_if};
use gpuslice_nvabi::types::{CUfunction, CUlaunchConfig, CUoccupancyB2DSize, CUresult};

const THREADS_PER_SM: u32 = 2048;
const BLOCKS_PER_SM: u32 = 32;
const REGISTERS_PER_SM: u32 = 65_536;
const SHARED_PER_SM: usize = 228 << 10;
/// Shared memory the system takes from every block.
const SHARED_RESERVED: usize = 1 << 10;
/// Blocks of a cluster, unless the kernel allows sizes that are not portable.
const CLUSTER: i32 = 8;
const MULTIPROCESSORS: i32 = 132;

/// Blocks of `threads` threads and `dynamic` bytes of shared memory on one multiprocessor.
pub fn blocks_per_sm(function: &Function, threads: u32, dynamic: usize) -> u32 {
    let shared = function.entry.shared_bytes + dynamic;
    if threads == 0 || threads > function.max_threads() || shared > SHARED_MOST {
        return 0;
    }
    // Warps are whole.
    let threads = threads.next_multiple_of(32);
    let by_registers = REGISTERS_PER_SM / (threads * REGISTERS as u32);
    let by_shared = (SHARED_PER_SM / (shared + SHARED_RESERVED)) as u32;
    BLOCKS_PER_SM.min(THREADS_PER_SM / threads).min(by_registers).min(by_shared)
}

/// Blocks a cooperative launch can have on the device.
pub fn cooperative_limit(function: &Function, threads: u32, dynamic: usize) -> u64 {
    u64::from(blocks_per_sm(function, threads, dynamic)) * MULTIPROCESSORS as u64
}

// Entry points about occupancy.
fn function(handle: CUfunction) -> Result<std::sync::Arc<Function>, CUresult> {
    store::launchable(handle.0).map(|(_, function)| function)
}

pub fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    num_blocks: Out<i32>,
    func: CUfunction,
    block_size: i32,
    dynamic_s_mem_size: usize,
) -> Outcome {
    num_blocks.require()?;
    let threads = u32::try_from(block_size).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    refuse_if(threads == 0)?;
    num_blocks.set(blocks_per_sm(&*function(func)?, threads, dynamic_s_mem_size) as i32)
}

pub fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    num_blocks: Out<i32>,
    func: CUfunction,
    block_size: i32,
    dynamic_s_mem_size: usize,
    flags: u32,
) -> Outcome {
    refuse_if(flags > 1)?;
    cuOccupancyMaxActiveBlocksPerMultiprocessor(num_blocks, func, block_size, dynamic_s_mem_size)
}

pub fn cuOccupancyMaxPotentialBlockSize(
    min_grid_size: Out<i32>,
    block_size: Out<i32>,
    func: CUfunction,
    block_size_to_dynamic_s_mem_size: CUoccupancyB2DSize,
    dynamic_s_mem_size: usize,
    block_size_limit: i32,
) -> Outcome {
    block_size.require()?;
    let function = function(func)?;
    let most = match u32::try_from(block_size_limit) {
        Ok(limit) if limit > 0 => limit.min(function.max_threads()),
        _ => function.max_threads(),
    };
    let (mut best, mut threads_best) = (0, most.max(1));
    for threads in (1..=most.div_ceil(32)).rev().map(|warps| (warps * 32).min(most)) {
        let dynamic = match block_size_to_dynamic_s_mem_size {
            // SAFETY: the program's own function, which it gave to be called with block sizes.
            Some(size) => unsafe { size(threads as i32) },
            None => dynamic_s_mem_size,
        };
        let active = blocks_per_sm(&function, threads, dynamic) * threads;
        if active > best {
            (best, threads_best) = (active, threads);
        }
    }
    block_size.set(threads_best as i32)?;
    min_grid_size.set((best / threads_best) as i32 * MULTIPROCESSORS)
}

pub fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    min_grid_size: Out<i32>,
    block_size: Out<i32>,
    func: CUfunction,
    block_size_to_dynamic_s_mem_size: CUoccupancyB2DSize,
    dynamic_s_mem_size: usize,
    block_size_limit: i32,
    flags: u32,
) -> Outcome {
    refuse_if(flags > 1)?;
    cuOccupancyMaxPotentialBlockSize(
        min_grid_size,
        block_size,
        func,
        block_size_to_dynamic_s_mem_size,
        dynamic_s_mem_size,
        block_size_limit,
    )
}

pub fn cuOccupancyAvailableDynamicSMemPerBlock(
    dynamic_smem_size: Out<usize>,
    func: CUfunction,
    num_blocks: i32,
    block_size: i32,
) -> Outcome {
    dynamic_smem_size.require()?;
    let function = function(func)?;
    if num_blocks <= 0 || block_size <= 0 || block_size as u32 > MAX_THREADS {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let each = (SHARED_PER_SM / num_blocks as usize).saturating_sub(SHARED_RESERVED);
    let left = each.min(SHARED_MOST).saturating_sub(function.entry.shared_bytes);
    dynamic_smem_size.set(left)
}

pub fn cuOccupancyMaxPotentialClusterSize(
    cluster_size: Out<i32>,
    func: CUfunction,
    config: In<CUlaunchConfig>,
) -> Outcome {
    function(func)?;
    config.get()?;
    cluster_size.set(CLUSTER)
}

pub fn cuOccupancyMaxActiveClusters(
    num_clusters: Out<i32>,
    func: CUfunction,
    config: In<CUlaunchConfig>,
) -> Outcome {
    num_clusters.require()?;
    let (function, config) = (function(func)?, config.get()?);
    let threads = config.block_dim_x.saturating_mul(config.block_dim_y);
    let threads = threads.saturating_mul(config.block_dim_z);
    let dynamic = config.shared_mem_bytes as usize;
    let blocks = blocks_per_sm(&function, threads, dynamic) as i32 * MULTIPROCESSORS;
    num_clusters.set(blocks / CLUSTER)
}
