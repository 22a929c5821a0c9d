//! Launches: the driver's checks, and its copy of their arguments.

use super::super::module::{Function, MAX_THREADS, cooperative_limit, launchable, load_function};
use super::super::stream::{StreamKey, shared};
use super::super::task::{Launch, Params, Task};
use super::super::{resolve, submit};
use crate::entry::{In, Outcome, refuse_if};
use gpuslice_nvabi::types::*;
use std::ffi::c_void;
use std::sync::Arc;

/// Largest grid and block in each direction.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// Longest block of arguments a kernel can have, in bytes.
const MAX_PARAMS: usize = 32_764;

/// Grid, block and dynamic shared memory of a launch.
#[derive(Clone, Copy)]
pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
}

fn check(function: &Function, shape: &Shape, cooperative: bool) -> Outcome {
    let fits = |sides: [u32; 3], most: [u32; 3]| {
        sides.iter().zip(most).all(|(side, most)| (1..=most).contains(side))
    };
    refuse_if(!fits(shape.grid, MAX_GRID) || !fits(shape.block, MAX_BLOCK))?;
    let threads: u32 = shape.block.iter().product();
    refuse_if(threads > MAX_THREADS)?;
    if threads > function.max_threads() {
        return Err(CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES);
    }
    refuse_if(shape.shared_bytes as usize > function.max_dynamic_shared())?;
    let blocks: u64 = shape.grid.iter().map(|side| u64::from(*side)).product();
    if cooperative && blocks > cooperative_limit(function, threads, shape.shared_bytes as usize) {
        return Err(CUresult::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    Ok(())
}

/// Copies the arguments of a launch: one pointer for each, or all in one buffer.
fn params(
    function: &Function,
    each: In<*mut c_void>,
    extra: In<*mut c_void>,
) -> Result<Params, CUresult> {
    refuse_if(!each.is_null() && !extra.is_null())?;
    let bytes = match (each.is_null(), function.entry.params.as_deref()) {
        (true, _) if !extra.is_null() => buffer(extra)?,
        (true, Some(wanted)) if !wanted.is_empty() => return Err(CUresult::ERROR_INVALID_VALUE),
        (true, _) => Vec::new(),
        // How many arguments there are is not known; of a `spin` the first is needed.
        (false, None) if function.spins => bytes_at(each.at(0)?, 8)?,
        (false, None) => Vec::new(),
        (false, Some(wanted)) => {
            let mut bytes = vec![0; function.entry.param_bytes()];
            for (index, param) in wanted.iter().enumerate() {
                let from = bytes_at(each.at(index)?, param.size)?;
                bytes[param.offset..param.offset + param.size].copy_from_slice(&from);
            }
            bytes
        }
    };
    let start = bytes.as_ptr() as usize;
    let wanted = function.entry.params.as_deref().unwrap_or_default();
    let addresses = wanted.iter().map(|param| start + param.offset).collect();
    Ok(Params { bytes, addresses })
}

fn bytes_at(from: *mut c_void, size: usize) -> Result<Vec<u8>, CUresult> {
    refuse_if(from.is_null() || size > MAX_PARAMS)?;
    // SAFETY: not null; by the API's contract it points to an argument of the kernel's size.
    Ok(unsafe { std::slice::from_raw_parts(from.cast::<u8>(), size) }.to_vec())
}

/// Reads the list of `extra`: pairs of a name and a pointer, closed by the end's name.
fn buffer(extra: In<*mut c_void>) -> Result<Vec<u8>, CUresult> {
    let (mut from, mut size) = (std::ptr::null_mut(), 0);
    let mut at = 0;
    loop {
        match extra.at(at)? {
            CU_LAUNCH_PARAM_END => return bytes_at(from, size),
            CU_LAUNCH_PARAM_BUFFER_POINTER => from = extra.at(at + 1)?,
            CU_LAUNCH_PARAM_BUFFER_SIZE => {
                let place = extra.at(at + 1)? as *const usize;
                refuse_if(place.is_null())?;
                // SAFETY: not null, and the address of a size by the API's contract.
                size = unsafe { place.read_unaligned() };
            }
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
        at += 2;
    }
}

/// A launch that has passed the driver's checks.
pub fn launch_of(
    function: CUfunction,
    shape: Shape,
    each: In<*mut c_void>,
    extra: In<*mut c_void>,
    cooperative: bool,
) -> Result<Launch, CUresult> {
    let (key, function) = launchable(function.0)?;
    check(&function, &shape, cooperative)?;
    let params = Arc::new(params(&function, each, extra)?);
    load_function(&function)?;
    let Shape { grid, block, shared_bytes } = shape;
    Ok(Launch { key, function, grid, block, shared_bytes, params })
}

fn queue(stream: StreamKey, launch: Launch) -> Outcome {
    let context = shared()?.with(|model| model.stream(stream).map(|stream| stream.context));
    if context != Some(launch.function.context) {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    submit(stream, Task::Kernel(launch))
}

pub fn cuLaunchKernel(
    f: CUfunction,
    grid_dim_x: u32,
    grid_dim_y: u32,
    grid_dim_z: u32,
    block_dim_x: u32,
    block_dim_y: u32,
    block_dim_z: u32,
    shared_mem_bytes: u32,
    h_stream: CUstream,
    kernel_params: In<*mut c_void>,
    extra: In<*mut c_void>,
) -> Outcome {
    let grid = [grid_dim_x, grid_dim_y, grid_dim_z];
    let block = [block_dim_x, block_dim_y, block_dim_z];
    let shape = Shape { grid, block, shared_bytes: shared_mem_bytes };
    queue(resolve(h_stream)?, launch_of(f, shape, kernel_params, extra, false)?)
}
pub use cuLaunchKernel as cuLaunchKernel_ptsz;

pub fn cuLaunchKernelEx(
    config: In<CUlaunchConfig>,
    f: CUfunction,
    kernel_params: In<*mut c_void>,
    extra: In<*mut c_void>,
) -> Outcome {
    let config = config.get()?;
    let attributes = config.attrs.cast_const();
    let attributes: In<CUlaunchAttribute> = In::vouched(attributes);
    let mut cooperative = false;
    for attribute in attributes.list(config.num_attrs as usize)? {
        match attribute.id {
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE => cooperative = attribute.value.word(0) != 0,
            // A grid is made of whole clusters.
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                let grid = [config.grid_dim_x, config.grid_dim_y, config.grid_dim_z];
                for (at, side) in grid.into_iter().enumerate() {
                    let cluster = attribute.value.word(at).max(1);
                    if !side.is_multiple_of(cluster) {
                        return Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);
                    }
                }
            }
            _ => {}
        }
    }
    let shape = Shape {
        grid: [config.grid_dim_x, config.grid_dim_y, config.grid_dim_z],
        block: [config.block_dim_x, config.block_dim_y, config.block_dim_z],
        shared_bytes: config.shared_mem_bytes,
    };
    let launch = launch_of(f, shape, kernel_params, extra, cooperative)?;
    queue(resolve(config.h_stream)?, launch)
}
pub use cuLaunchKernelEx as cuLaunchKernelEx_ptsz;

pub fn cuLaunchCooperativeKernel(
    f: CUfunction,
    grid_dim_x: u32,
    grid_dim_y: u32,
    grid_dim_z: u32,
    block_dim_x: u32,
    block_dim_y: u32,
    block_dim_z: u32,
    shared_mem_bytes: u32,
    h_stream: CUstream,
    kernel_params: In<*mut c_void>,
) -> Outcome {
    let grid = [grid_dim_x, grid_dim_y, grid_dim_z];
    let block = [block_dim_x, block_dim_y, block_dim_z];
    let shape = Shape { grid, block, shared_bytes: shared_mem_bytes };
    let launch = launch_of(f, shape, kernel_params, In::vouched(std::ptr::null()), true)?;
    queue(resolve(h_stream)?, launch)
}
pub use cuLaunchCooperativeKernel as cuLaunchCooperativeKernel_ptsz;

pub fn cuLaunchCooperativeKernelMultiDevice(
    launch_params_list: In<CUDA_LAUNCH_PARAMS>,
    num_devices: u32,
    flags: u32,
) -> Outcome {
    refuse_if(num_devices == 0 || flags > 3)?;
    let mut ready = Vec::new();
    for one in launch_params_list.list(num_devices as usize)? {
        // Default streams cannot be told apart by device here, so they are not allowed.
        refuse_if(one.h_stream.is_null())?;
        let shape = Shape {
            grid: [one.grid_dim_x, one.grid_dim_y, one.grid_dim_z],
            block: [one.block_dim_x, one.block_dim_y, one.block_dim_z],
            shared_bytes: one.shared_mem_bytes,
        };
        let params = In::vouched(one.kernel_params.cast_const());
        let launch = launch_of(one.function, shape, params, In::vouched(std::ptr::null()), true)?;
        ready.push((resolve(one.h_stream)?, launch));
    }
    ready.into_iter().try_for_each(|(stream, launch)| queue(stream, launch))
}
