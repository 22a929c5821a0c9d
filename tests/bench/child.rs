//! The measured program: loads `libcuda.so.1` as any program does, proves who answers, then times.
//!
//! A shim that silently did not load looks wonderfully fast, so nothing is timed before the child
//! has seen that the shim owns the symbols and that an allocation over the cap is refused.

use crate::daemon::CAP;
use gpuslice_nvabi::sig;
use gpuslice_nvabi::types::*;
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;
use std::sync::Barrier;
use std::time::Instant;

/// What is timed; the order of the report.
pub const ROWS: [&str; 5] = [
    "launch",
    "alloc+free",
    "MemGetInfo",
    "HtoDAsync",
    "GetProcAddress",
];

/// Batches per row and thread, and calls per batch: short enough that most batches run undisturbed.
const BATCHES: usize = 200;
const CALLS: usize = 1_000;

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
    cuMemGetInfo_v2,
    cuMemcpyHtoDAsync_v2,
    cuGetProcAddress_v2
);

fn dlerror() -> String {
    // SAFETY: the loader's message, NUL-terminated, or null.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            String::new()
        } else {
            CStr::from_ptr(text).to_string_lossy().into()
        }
    }
}

/// File name of the library that holds `address`.
fn owner(address: *const c_void) -> String {
    // SAFETY: dladdr fills the live structure, whose name then lives as long as the library.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address, &raw mut info) == 0 || info.dli_fname.is_null() {
            return String::from("nobody");
        }
        let path = CStr::from_ptr(info.dli_fname)
            .to_string_lossy()
            .into_owned();
        std::fs::canonicalize(&path).map_or(path, |real| real.to_string_lossy().into_owned())
    }
}

/// Runs as the child: `library` is the file that must own the symbols, `capped` whether a cap
/// holds.
pub fn run(library: &str, capped: bool, threads: usize) {
    let driver = Driver::load();
    for address in [
        driver.cuLaunchKernel as *const c_void,
        driver.cuMemAlloc_v2 as _,
    ] {
        let owner = owner(address);
        assert!(
            owner.ends_with(library),
            "{library} should own the symbols, but {owner} does"
        );
    }
    let mut context = CUcontext::NULL;
    let (mut device, mut module, mut function) = (0, CUmodule::NULL, CUfunction::NULL);
    // SAFETY: the driver API, called as its header says.
    unsafe {
        ok((driver.cuInit)(0), "cuInit");
        ok((driver.cuDeviceGet)(&raw mut device, 0), "cuDeviceGet");
        ok(
            (driver.cuCtxCreate_v2)(&raw mut context, 0, device),
            "cuCtxCreate",
        );
        ok(
            (driver.cuModuleLoadData)(&raw mut module, c"".as_ptr().cast()),
            "cuModuleLoadData",
        );
        let get = (driver.cuModuleGetFunction)(&raw mut function, module, c"f".as_ptr());
        ok(get, "cuModuleGetFunction");
        let mut pointer = 0;
        let over = (driver.cuMemAlloc_v2)(&raw mut pointer, 2 * CAP as usize);
        let wanted = if capped {
            CUresult::ERROR_OUT_OF_MEMORY
        } else {
            CUresult::SUCCESS
        };
        assert_eq!(over, wanted, "an allocation of twice the cap");
    }
    for row in ROWS {
        println!(
            "{row} {threads} {}",
            measure(&driver, row, context, function, threads)
        );
    }
}

fn ok(result: CUresult, call: &str) {
    assert_eq!(result, CUresult::SUCCESS, "{call}");
}

/// Median over batches and threads, ns per call (per pair for alloc+free).
fn measure(driver: &Driver, row: &str, context: CUcontext, f: CUfunction, threads: usize) -> f64 {
    let barrier = Barrier::new(threads);
    let mut all: Vec<f64> = std::thread::scope(|scope| {
        let work = || {
            // SAFETY: the context lives as long as the process.
            ok(
                unsafe { (driver.cuCtxSetCurrent)(context) },
                "cuCtxSetCurrent",
            );
            barrier.wait();
            let batch = |_| {
                let start = Instant::now();
                calls(driver, row, f);
                start.elapsed().as_nanos() as f64 / CALLS as f64
            };
            (0..BATCHES + BATCHES / 10)
                .map(batch)
                .skip(BATCHES / 10)
                .collect::<Vec<_>>()
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running
            .into_iter()
            .flat_map(|t| t.join().expect("a measuring thread"))
            .collect()
    });
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

#[inline(never)]
fn calls(driver: &Driver, row: &str, f: CUfunction) {
    let mut bad = 0;
    let (mut pointer, mut free, mut total) = (0, 0, 0);
    let (host, mut address) = (0_u64, null_mut());
    let name = c"cuMemGetInfo";
    // SAFETY: the driver API, called as its header says, with locals as out-parameters.
    unsafe {
        match row {
            "launch" => {
                for _ in 0..CALLS {
                    let launch = (driver.cuLaunchKernel)(
                        f,
                        1,
                        1,
                        1,
                        32,
                        1,
                        1,
                        0,
                        CUstream::NULL,
                        null_mut(),
                        null_mut(),
                    );
                    bad |= launch.0;
                }
            }
            "alloc+free" => {
                for _ in 0..CALLS {
                    bad |= (driver.cuMemAlloc_v2)(&raw mut pointer, 4096).0;
                    bad |= (driver.cuMemFree_v2)(pointer).0;
                }
            }
            "MemGetInfo" => {
                for _ in 0..CALLS {
                    bad |= (driver.cuMemGetInfo_v2)(&raw mut free, &raw mut total).0;
                }
            }
            "HtoDAsync" => {
                for _ in 0..CALLS {
                    let from = (&raw const host).cast();
                    bad |= (driver.cuMemcpyHtoDAsync_v2)(4096, from, 8, CUstream::NULL).0;
                }
            }
            _ => {
                for _ in 0..CALLS {
                    let to = &raw mut address;
                    let found = null_mut();
                    bad |= (driver.cuGetProcAddress_v2)(name.as_ptr(), to, 12040, 0, found).0;
                }
            }
        }
    }
    assert_eq!(bad, 0, "{row}: a call failed");
}
