//! Launches: straight to the driver while the gate is open, otherwise through the gate. Copies and
//! fills (`moving.rs`) take the same path.
//!
//! The fast path is one load, one branch and the jump. It is outside the guard, since nothing in
//! it can panic.

use crate::guard::guard;
use crate::launch::{self, DefaultStream, Work};
use crate::slice;
use gpuslice_nvabi::types::*;

/// Takes a launch through the gate. Never inlined into the hooks: they must stay so small that their
/// arguments stay in the caller's registers and stack.
#[cold]
#[inline(never)]
pub(super) fn through_the_gate(
    work: impl FnOnce() -> Work,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    guard(|| match slice::get()? {
        Some(slice) => Ok(launch::launch(slice, work(), call)),
        None => Ok(call()),
    })
}

/// Defines hooks: straight to the driver while the gate is open; otherwise `$work`, built only then, goes
/// through the gate. Both paths end in a call with the hook's own arguments, which the compiler turns into a
/// jump.
macro_rules! launches {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),* $(,)?) as $work:expr;)*) => {
        $(
            $(#[$doc])*
            #[inline(always)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
                let real = $crate::resolve::slot::$name.known();
                if $crate::launch::open() && !real.is_null() {
                    // SAFETY: the real function of that name, with its row's signature.
                    let real: gpuslice_nvabi::sig::$name = unsafe { core::mem::transmute(real) };
                    // SAFETY: the application's own arguments.
                    return unsafe { real($($arg),*) };
                }
                // SAFETY: as above.
                unsafe { slowly::$name($($arg),*) }
            }
        )*

        /// The same hooks while the gate is closed.
        mod slowly {
            use super::*;
            $(
                #[cold]
                #[inline(never)]
                pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
                    let work = || $work;
                    $crate::hooks::launch::through_the_gate(work, || $crate::real!($name($($arg),*)))
                }
            )*
        }
    };
}
pub(super) use launches;

launches! {
    cuLaunchKernel(
        f: CUfunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared: u32, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void,
    ) as Work::kernel(
        f, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared, (stream, DefaultStream::Legacy),
    );
    cuLaunchKernel_ptsz(
        f: CUfunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared: u32, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void,
    ) as Work::kernel(
        f, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared, (stream, DefaultStream::PerThread),
    );
    cuLaunchCooperativeKernel(
        f: CUfunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared: u32, stream: CUstream, params: *mut *mut c_void,
    ) as Work::kernel(
        f, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared, (stream, DefaultStream::Legacy),
    );
    cuLaunchCooperativeKernel_ptsz(
        f: CUfunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
        block_z: u32, shared: u32, stream: CUstream, params: *mut *mut c_void,
    ) as Work::kernel(
        f, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared, (stream, DefaultStream::PerThread),
    );
    cuLaunchKernelEx(
        config: *const CUlaunchConfig, f: CUfunction, params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) as configured(config, f, DefaultStream::Legacy);
    cuLaunchKernelEx_ptsz(
        config: *const CUlaunchConfig, f: CUfunction, params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) as configured(config, f, DefaultStream::PerThread);
    /// One launch on several GPUs: waits for the turn on the current one.
    cuLaunchCooperativeKernelMultiDevice(
        list: *mut CUDA_LAUNCH_PARAMS, devices: u32, flags: u32,
    ) as first_of(list, devices);
    cuLaunch(f: CUfunction) as plain(f, 1, 1, CUstream::NULL);
    cuLaunchGrid(f: CUfunction, width: i32, height: i32) as plain(f, width, height, CUstream::NULL);
    cuLaunchGridAsync(
        f: CUfunction, width: i32, height: i32, stream: CUstream,
    ) as plain(f, width, height, stream);
}

/// The work of a launch described by a structure.
fn configured(config: *const CUlaunchConfig, f: CUfunction, default_stream: DefaultStream) -> Work {
    // SAFETY: null, or the application's own, which the driver is about to read.
    match unsafe { config.as_ref() } {
        Some(c) => {
            let grid = [c.grid_dim_x, c.grid_dim_y, c.grid_dim_z];
            let block = [c.block_dim_x, c.block_dim_y, c.block_dim_z];
            Work::kernel(f, grid, block, c.shared_mem_bytes, (c.h_stream, default_stream))
        }
        None => Work::kernel(f, [0; 3], [0; 3], 0, (CUstream::NULL, default_stream)),
    }
}

/// The first of launches on several GPUs.
fn first_of(list: *const CUDA_LAUNCH_PARAMS, devices: u32) -> Work {
    // SAFETY: null, or the application's own list, which the driver is about to read.
    match unsafe { list.as_ref() } {
        Some(p) if devices > 0 => {
            let grid = [p.grid_dim_x, p.grid_dim_y, p.grid_dim_z];
            let block = [p.block_dim_x, p.block_dim_y, p.block_dim_z];
            Work::kernel(
                p.function,
                grid,
                block,
                p.shared_mem_bytes,
                (p.h_stream, DefaultStream::Legacy),
            )
        }
        _ => plain(CUfunction::NULL, 0, 0, CUstream::NULL),
    }
}

/// The work of a launch of the API before CUDA 4, whose block was set on the function.
fn plain(f: CUfunction, width: i32, height: i32, stream: CUstream) -> Work {
    let grid = [width as u32, height as u32, 1];
    Work::kernel(f, grid, [1; 3], 0, (stream, DefaultStream::Legacy))
}

hooks! {
    guard cuStreamCreate(ph_stream: *mut CUstream, flags: u32) as |call|
        Ok(made(ph_stream, call()));

    guard cuStreamCreateWithPriority(
        ph_stream: *mut CUstream, flags: u32, priority: i32,
    ) as |call| {
        let result = call();
        Ok(made(ph_stream, result))
    };
}

fn made(stream: *const CUstream, result: CUresult) -> CUresult {
    if result == CUresult::SUCCESS
        && let Some(slice) = slice::attached()
    {
        // SAFETY: the driver has just written it there.
        launch::stream_made(slice, unsafe { stream.read() });
    }
    result
}

/// Before a stream is destroyed.
fn closing(stream: CUstream) {
    launch::stream_closing(stream);
    if let Some(slice) = slice::attached() {
        slice.pools.stream_closes(stream);
    }
}

hooks! {
    guard cuStreamDestroy(h_stream: CUstream) as |call| {
        closing(h_stream);
        Ok(call())
    };

    guard cuStreamDestroy_v2(h_stream: CUstream) as |call| {
        closing(h_stream);
        Ok(call())
    };
}
