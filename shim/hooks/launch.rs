//! Launches: straight to the driver while the gate is open, through the gate while it is not.
//!
//! The fast path is one load, one branch and the jump; it is outside of the guard, since nothing in
//! it can panic.

use crate::gate::{self, Flavour, Work};
use crate::guard::guard;
use crate::link;
use crate::real;
use gpuslice_nvabi::types::*;
use gpuslice_nvabi::types::{CUDA_LAUNCH_PARAMS, CUlaunchConfig};

/// Runs `call` at once if the gate is open, else when it lets the work through. `work` is made up only
/// in the latter case.
#[inline(always)]
fn launch(work: impl FnOnce() -> Work, call: impl FnOnce() -> CUresult) -> CUresult {
    if gate::open() {
        return call();
    }
    through_the_gate(work, call)
}

#[cold]
#[inline(never)]
fn through_the_gate(work: impl FnOnce() -> Work, call: impl FnOnce() -> CUresult) -> CUresult {
    guard(|| match link::session()? {
        Some(_) => Ok(gate::launch(work(), call)),
        None => Ok(call()),
    })
}

/// The five launches that name grid, block, shared memory and stream one by one.
macro_rules! kernels {
    ($($name:ident $flavour:ident ($($last:ident),*);)*) => {$(
        #[inline]
        pub unsafe extern "C" fn $name(
            f: CUfunction,
            grid_dim_x: u32,
            grid_dim_y: u32,
            grid_dim_z: u32,
            block_dim_x: u32,
            block_dim_y: u32,
            block_dim_z: u32,
            shared_mem_bytes: u32,
            h_stream: CUstream,
            $($last: *mut *mut c_void,)*
        ) -> CUresult {
            let grid = [grid_dim_x, grid_dim_y, grid_dim_z];
            let block = [block_dim_x, block_dim_y, block_dim_z];
            launch(
                || Work::kernel(f, grid, block, h_stream, Flavour::$flavour),
                || real!($name(
                    f, grid_dim_x, grid_dim_y, grid_dim_z, block_dim_x, block_dim_y, block_dim_z,
                    shared_mem_bytes, h_stream, $($last),*
                )),
            )
        }
    )*};
}
kernels! {
    cuLaunchKernel Legacy (kernel_params, extra);
    cuLaunchKernel_ptsz PerThread (kernel_params, extra);
    cuLaunchCooperativeKernel Legacy (kernel_params);
    cuLaunchCooperativeKernel_ptsz PerThread (kernel_params);
}

/// The work of a launch that is described in a structure.
///
/// # Safety
/// `config` is null or readable.
unsafe fn configured(config: *const CUlaunchConfig, f: CUfunction, flavour: Flavour) -> Work {
    // SAFETY: as the function's head says.
    match unsafe { config.as_ref() } {
        Some(c) => {
            let grid = [c.grid_dim_x, c.grid_dim_y, c.grid_dim_z];
            let block = [c.block_dim_x, c.block_dim_y, c.block_dim_z];
            Work::kernel(f, grid, block, c.h_stream, flavour)
        }
        None => Work::kernel(f, [0; 3], [0; 3], CUstream::NULL, flavour),
    }
}

#[inline]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const CUlaunchConfig,
    f: CUfunction,
    kernel_params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    launch(
        // SAFETY: the application's own, which the driver is about to read.
        || unsafe { configured(config, f, Flavour::Legacy) },
        || real!(cuLaunchKernelEx(config, f, kernel_params, extra)),
    )
}

#[inline]
pub unsafe extern "C" fn cuLaunchKernelEx_ptsz(
    config: *const CUlaunchConfig,
    f: CUfunction,
    kernel_params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    launch(
        // SAFETY: the application's own, which the driver is about to read.
        || unsafe { configured(config, f, Flavour::PerThread) },
        || real!(cuLaunchKernelEx_ptsz(config, f, kernel_params, extra)),
    )
}

/// One launch on several GPUs: it waits for the turn on the current one.
pub unsafe extern "C" fn cuLaunchCooperativeKernelMultiDevice(
    launch_params_list: *mut CUDA_LAUNCH_PARAMS,
    num_devices: u32,
    flags: u32,
) -> CUresult {
    let first = || {
        // SAFETY: null, or the application's own list, which the driver is about to read.
        match unsafe { launch_params_list.as_ref() } {
            Some(p) if num_devices > 0 => {
                let grid = [p.grid_dim_x, p.grid_dim_y, p.grid_dim_z];
                let block = [p.block_dim_x, p.block_dim_y, p.block_dim_z];
                Work::kernel(p.function, grid, block, p.h_stream, Flavour::Legacy)
            }
            _ => plain(CUfunction::NULL, 0, 0, CUstream::NULL),
        }
    };
    let call = || {
        real!(cuLaunchCooperativeKernelMultiDevice(
            launch_params_list,
            num_devices,
            flags
        ))
    };
    launch(first, call)
}

/// The work of a launch from before CUDA 4, whose block was set on the function.
fn plain(f: CUfunction, width: i32, height: i32, stream: CUstream) -> Work {
    Work::kernel(
        f,
        [width as u32, height as u32, 1],
        [1; 3],
        stream,
        Flavour::Legacy,
    )
}

pub unsafe extern "C" fn cuLaunch(f: CUfunction) -> CUresult {
    launch(|| plain(f, 1, 1, CUstream::NULL), || real!(cuLaunch(f)))
}

pub unsafe extern "C" fn cuLaunchGrid(
    f: CUfunction,
    grid_width: i32,
    grid_height: i32,
) -> CUresult {
    launch(
        || plain(f, grid_width, grid_height, CUstream::NULL),
        || real!(cuLaunchGrid(f, grid_width, grid_height)),
    )
}

pub unsafe extern "C" fn cuLaunchGridAsync(
    f: CUfunction,
    grid_width: i32,
    grid_height: i32,
    h_stream: CUstream,
) -> CUresult {
    launch(
        || plain(f, grid_width, grid_height, h_stream),
        || real!(cuLaunchGridAsync(f, grid_width, grid_height, h_stream)),
    )
}

#[inline]
pub unsafe extern "C" fn cuGraphLaunch(h_graph: CUgraphExec, h_stream: CUstream) -> CUresult {
    launch(
        || Work::graph(h_graph, h_stream, Flavour::Legacy),
        || real!(cuGraphLaunch(h_graph, h_stream)),
    )
}

#[inline]
pub unsafe extern "C" fn cuGraphLaunch_ptsz(
    h_graph_exec: CUgraphExec,
    h_stream: CUstream,
) -> CUresult {
    launch(
        || Work::graph(h_graph_exec, h_stream, Flavour::PerThread),
        || real!(cuGraphLaunch_ptsz(h_graph_exec, h_stream)),
    )
}

pub unsafe extern "C" fn cuStreamDestroy(h_stream: CUstream) -> CUresult {
    guard(|| {
        gate::stream_closing(h_stream);
        Ok(real!(cuStreamDestroy(h_stream)))
    })
}

pub unsafe extern "C" fn cuStreamDestroy_v2(h_stream: CUstream) -> CUresult {
    guard(|| {
        gate::stream_closing(h_stream);
        Ok(real!(cuStreamDestroy_v2(h_stream)))
    })
}
