//! The measured program: loads `libcuda.so.1` as any program does, verifies which library answers, then
//! measures.
//!
//! A shim that silently failed to load would look fast. So the child first checks that the shim owns the
//! symbols and that an allocation over the cap is refused.

use crate::daemon::CAP;
use crate::stats;
use gpuslice_nvabi::sig;
use gpuslice_nvabi::types::*;
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;
use std::sync::Barrier;
use std::time::Instant;

/// A kind of call.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    Launch,
    /// An allocation of this many bytes, and its release.
    Pair(usize),
    /// The same with 512 bytes while this many others live: one of them is freed and allocated again.
    Among(usize),
    /// A stream-ordered allocation of this many bytes, and its release.
    PoolPair(usize),
    MemGetInfo,
    HtoDAsync,
    GetProcAddress,
}

/// A measurement: name, call, and the overhead allowed with one thread and with eight, ns.
pub struct Row {
    pub name: &'static str,
    call: Call,
    pub promised: (Option<f64>, Option<f64>),
}

const fn row(name: &'static str, call: Call, one: f64, eight: f64) -> Row {
    Row { name, call, promised: (Some(one), if eight > 0.0 { Some(eight) } else { None }) }
}

/// Credit covers small allocations; large ones are a round trip to the daemon each.
pub const ROWS: [Row; 12] = [
    row("launch", Call::Launch, 5.0, 0.0),
    row("alloc+free:512B", Call::Pair(512), 60.0, 150.0),
    row("alloc+free:64KiB", Call::Pair(64 << 10), 60.0, 150.0),
    row("alloc+free:2MiB", Call::Pair(2 << 20), 60.0, 150.0),
    row("alloc+free:256MiB", Call::Pair(256 << 20), 60.0, 150.0),
    row("alloc+free:8GiB", Call::Pair(8 << 30), 60.0, 150.0),
    row("of-100,000-live", Call::Among(100_000), 120.0, 0.0),
    row("MemGetInfo", Call::MemGetInfo, 15.0, 0.0),
    row("HtoDAsync", Call::HtoDAsync, 3.0, 0.0),
    row("GetProcAddress", Call::GetProcAddress, 40.0, 0.0),
    // Last, because the first pool adds work to other calls.
    row("async+free:512B", Call::PoolPair(512), 250.0, 0.0),
    row("async+free:2MiB", Call::PoolPair(2 << 20), 250.0, 0.0),
];

impl Call {
    /// Batches per thread, and calls per batch: short enough that most batches run undisturbed.
    fn plan(self) -> (usize, usize) {
        match self {
            Call::Pair(bytes) if bytes > 2 << 20 => (stats::rounds(40), 20),
            _ => (stats::rounds(200), 1_000),
        }
    }
}

macro_rules! driver {
    ($($name:ident),*) => {
        #[allow(non_snake_case)]
        #[derive(Clone, Copy)]
        struct Driver { $($name: sig::$name),* }
        impl Driver {
            fn load() -> Driver {
                // SAFETY: the driver, stub or shim; each symbol has the table's type.
                unsafe {
                    let handle = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
                    assert!(!handle.is_null(), "libcuda.so.1 cannot be loaded: {}", dlerror());
                    Driver { $($name: {
                        let name = CString::new(stringify!($name)).expect("no NUL");
                        let address = libc::dlsym(handle, name.as_ptr());
                        assert!(!address.is_null(), "no {} in libcuda.so.1", stringify!($name));
                        std::mem::transmute::<*mut c_void, sig::$name>(address)
                    }),* }
                }
            }
        }
    };
}

driver!(
    cuInit,
    cuDeviceGet,
    cuCtxCreate_v2,
    cuCtxSetCurrent,
    cuModuleLoadData,
    cuModuleGetFunction,
    cuLaunchKernel,
    cuMemAlloc_v2,
    cuMemFree_v2,
    cuMemAllocAsync,
    cuMemFreeAsync,
    cuMemGetInfo_v2,
    cuMemcpyHtoDAsync_v2,
    cuGetProcAddress_v2
);

fn dlerror() -> String {
    // SAFETY: the loader's message, NUL-terminated, or null.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into() }
    }
}

/// File name of the library that holds `address`.
fn owner(address: *const c_void) -> String {
    // SAFETY: dladdr fills the live structure, whose name then lives as long as the library.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address, &raw mut info) == 0 || info.dli_fname.is_null() {
            return String::from("no library");
        }
        let path = CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned();
        std::fs::canonicalize(&path).map_or(path, |real| real.to_string_lossy().into_owned())
    }
}

/// Runs as the child: `library` is the file that must own the symbols, `capped` whether a cap must
/// hold.
pub fn run(library: &str, capped: bool, threads: usize) {
    let driver = Driver::load();
    for address in [driver.cuLaunchKernel as *const c_void, driver.cuMemAlloc_v2 as _] {
        let owner = owner(address);
        assert!(owner.ends_with(library), "{library} should own the symbols, but {owner} does");
    }
    let mut context = CUcontext::NULL;
    let (mut device, mut module, mut function) = (0, CUmodule::NULL, CUfunction::NULL);
    // SAFETY: the driver API, called as its header says.
    unsafe {
        ok((driver.cuInit)(0), "cuInit");
        ok((driver.cuDeviceGet)(&raw mut device, 0), "cuDeviceGet");
        ok((driver.cuCtxCreate_v2)(&raw mut context, 0, device), "cuCtxCreate");
        ok((driver.cuModuleLoadData)(&raw mut module, c"".as_ptr().cast()), "cuModuleLoadData");
        let get = (driver.cuModuleGetFunction)(&raw mut function, module, c"f".as_ptr());
        ok(get, "cuModuleGetFunction");
        let mut pointer = 0;
        let over = (driver.cuMemAlloc_v2)(&raw mut pointer, 2 * CAP as usize);
        let wanted = if capped { CUresult::ERROR_OUT_OF_MEMORY } else { CUresult::SUCCESS };
        assert_eq!(over, wanted, "an allocation of twice the cap");
    }
    for Row { name, call, .. } in ROWS {
        let figure = measure(&driver, call, context, function, threads);
        println!("{name} {threads} {figure}");
    }
}

fn ok(result: CUresult, call: &str) {
    assert_eq!(result, CUresult::SUCCESS, "{call}");
}

/// Median over batches and threads, ns per call (per pair for allocations).
fn measure(driver: &Driver, call: Call, context: CUcontext, f: CUfunction, threads: usize) -> f64 {
    let barrier = Barrier::new(threads);
    let (batches, count) = call.plan();
    let mut all: Vec<f64> = std::thread::scope(|scope| {
        let work = || {
            // SAFETY: the context lives as long as the process.
            ok(unsafe { (driver.cuCtxSetCurrent)(context) }, "cuCtxSetCurrent");
            let mut live = Live::take(driver, call, threads);
            barrier.wait();
            let batch = |_| {
                let start = Instant::now();
                calls(driver, call, count, f, &mut live);
                start.elapsed().as_nanos() as f64 / count as f64
            };
            let figures: Vec<f64> = (0..batches + batches / 10).map(batch).collect();
            live.give_back(driver);
            figures.into_iter().skip(batches / 10).collect::<Vec<_>>()
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().flat_map(|t| t.join().expect("a measuring thread")).collect()
    });
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Allocations that live while others are timed; one thread's share of them.
struct Live {
    pointers: Vec<CUdeviceptr>,
    next: usize,
}

impl Live {
    fn take(driver: &Driver, call: Call, threads: usize) -> Live {
        let count = match call {
            Call::Among(count) => count / threads,
            _ => 0,
        };
        let one = |_| {
            let mut pointer = 0;
            // SAFETY: a local out-parameter.
            let taken = unsafe { (driver.cuMemAlloc_v2)(&raw mut pointer, 512) };
            ok(taken, "cuMemAlloc");
            pointer
        };
        Live { pointers: (0..count).map(one).collect(), next: 0 }
    }

    /// The next index, far from the last one, so that no cache helps.
    fn some(&mut self) -> &mut CUdeviceptr {
        self.next = (self.next + 7_919) % self.pointers.len();
        &mut self.pointers[self.next]
    }

    fn give_back(self, driver: &Driver) {
        for pointer in self.pointers {
            // SAFETY: allocated in `take`, or again in its place.
            ok(unsafe { (driver.cuMemFree_v2)(pointer) }, "cuMemFree");
        }
    }
}

#[inline(never)]
fn calls(driver: &Driver, call: Call, count: usize, f: CUfunction, live: &mut Live) {
    let mut bad = 0;
    let (mut pointer, mut free, mut total) = (0, 0, 0);
    let (host, mut address) = (0_u64, null_mut());
    let name = c"cuMemGetInfo";
    // SAFETY: the driver API, called as its header says, with locals as out-parameters.
    unsafe {
        match call {
            Call::Launch => {
                let (stream, none) = (CUstream::NULL, null_mut());
                for _ in 0..count {
                    let launch =
                        (driver.cuLaunchKernel)(f, 1, 1, 1, 32, 1, 1, 0, stream, none, none);
                    bad |= launch.0;
                }
            }
            Call::Pair(bytes) => {
                for _ in 0..count {
                    bad |= (driver.cuMemAlloc_v2)(&raw mut pointer, bytes).0;
                    bad |= (driver.cuMemFree_v2)(pointer).0;
                }
            }
            Call::PoolPair(bytes) => {
                let stream = CUstream::NULL;
                for _ in 0..count {
                    bad |= (driver.cuMemAllocAsync)(&raw mut pointer, bytes, stream).0;
                    bad |= (driver.cuMemFreeAsync)(pointer, stream).0;
                }
            }
            Call::Among(_) => {
                for _ in 0..count {
                    let pointer = live.some();
                    bad |= (driver.cuMemFree_v2)(*pointer).0;
                    bad |= (driver.cuMemAlloc_v2)(pointer, 512).0;
                }
            }
            Call::MemGetInfo => {
                for _ in 0..count {
                    bad |= (driver.cuMemGetInfo_v2)(&raw mut free, &raw mut total).0;
                }
            }
            Call::HtoDAsync => {
                for _ in 0..count {
                    let from = (&raw const host).cast();
                    bad |= (driver.cuMemcpyHtoDAsync_v2)(4096, from, 8, CUstream::NULL).0;
                }
            }
            Call::GetProcAddress => {
                for _ in 0..count {
                    let to = &raw mut address;
                    let found = null_mut();
                    bad |= (driver.cuGetProcAddress_v2)(name.as_ptr(), to, 12040, 0, found).0;
                }
            }
        }
    }
    assert_eq!(bad, 0, "{call:?}: a call failed");
}
