//! What these tests do again and again.

use crate::harness::context_on;
use gpuslice_nvabi::types::*;
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// `spin(ns, counter)`, as tenants carry it, and kernels without a meaning.
pub const PTX: &CStr = c".version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 counter;
.visible .entry spin(.param .u64 ns, .param .u64 .ptr .global .align 4 counter) { ret; }
.visible .entry spin_only(.param .u64 ns) { ret; }
.visible .entry plain() { ret; }
.visible .entry mixed(.param .u8 a, .param .f64 b, .param .align 16 .b8 c[20])
.maxntid 128, 1, 1
{ .shared .align 4 .b8 tile[1024]; ret; }
";

pub const MS: u64 = 1_000_000;

/// A context with the module loaded.
pub struct World {
    pub module: CUmodule,
    pub context: CUcontext,
}

impl World {
    pub fn new() -> Self {
        let context = context_on(0);
        let mut module = CUmodule::NULL;
        ok!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
        Self { module, context }
    }

    pub fn function(&self, name: &CStr) -> CUfunction {
        let mut function = CUfunction::NULL;
        ok!(cuModuleGetFunction(&mut function, self.module, name.as_ptr()));
        function
    }

    /// Launches a kernel of the given time; where `counter` is not null it counts itself there.
    pub fn spin(&self, stream: CUstream, mut ns: u64, mut counter: CUdeviceptr) {
        let name = if counter == 0 { c"spin_only" } else { c"spin" };
        let mut params: [*mut c_void; 2] = [(&raw mut ns).cast(), (&raw mut counter).cast()];
        let (one, params) = (1, params.as_mut_ptr());
        let function = self.function(name);
        ok!(cuLaunchKernel(function, one, one, one, one, one, one, 0, stream, params, null_mut()));
    }
}

pub fn stream(flags: u32) -> CUstream {
    let mut stream = CUstream::NULL;
    ok!(cuStreamCreate(&mut stream, flags));
    stream
}

pub fn event() -> CUevent {
    let mut event = CUevent::NULL;
    ok!(cuEventCreate(&mut event, 0));
    event
}

pub fn milliseconds(start: CUevent, end: CUevent) -> f32 {
    let mut time = 0.0;
    ok!(cuEventElapsedTime(&mut time, start, end));
    time
}

/// How long the kernel in front of the work of [`together`] runs, ms.
pub const LEAD_MS: u64 = 300;

/// Queues the work of `queue` behind a closed gate and a kernel of [`LEAD_MS`]. So the device has all of it
/// before the first part begins, unless the thread that then places it loses its processor for that long.
pub fn together(world: &World, stream: CUstream, queue: impl FnOnce()) {
    let gate = pinned();
    ok!(cuStreamWaitValue32_v2(stream, gate as u64, 1, 0));
    world.spin(stream, LEAD_MS * MS, 0);
    queue();
    // SAFETY: pinned memory; the driver reads the word atomically.
    unsafe { AtomicU32::from_ptr(gate) }.store(1, Ordering::SeqCst);
}

/// As [`together`]. Returns whether the device certainly had all of it before the first part began: a query places
/// everything that it can, or waits for the thread that does.
pub fn placed_together(world: &World, stream: CUstream, queue: impl FnOnce()) -> bool {
    let mut opens = None;
    together(world, stream, || {
        queue();
        // The kernel in front begins later.
        opens = Some(Instant::now());
    });
    let asked = call!(cuStreamQuery(stream));
    let in_time = opens.is_some_and(|it| it.elapsed() < Duration::from_millis(LEAD_MS));
    assert!(!in_time || asked == CUresult::ERROR_NOT_READY, "{asked:?}");
    in_time
}

/// A 32-bit word of device memory.
pub fn word(pointer: CUdeviceptr) -> u32 {
    u32::from_ne_bytes(crate::harness::get(pointer, 4).try_into().unwrap())
}

/// Pinned memory of 4096 zero bytes, which device and host both use under this address.
pub fn pinned() -> *mut u32 {
    let mut host = null_mut();
    ok!(cuMemHostAlloc(&mut host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    // SAFETY: just allocated, 4096 bytes.
    unsafe { host.cast::<u8>().write_bytes(0, 4096) };
    host.cast()
}
