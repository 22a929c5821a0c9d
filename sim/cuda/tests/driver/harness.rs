//! A process and a device for each test, and calls by name.

use gpuslice_nvabi::types::*;
use gpuslice_sim_device::{Config, create, destroy};
use std::ffi::CString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub const MIB: usize = 1 << 20;
const SCENARIO: &str = "GPUSLICE_TEST_SCENARIO";

/// A device directory that is removed whatever happens.
struct Device(PathBuf);

impl Drop for Device {
    fn drop(&mut self) {
        let _ = destroy(&self.0);
    }
}

/// Runs `body` in a process of its own, on a device of its own. `name` is the test's full name.
pub fn isolated(name: &str, config: &str, environment: &[(&str, &str)], body: fn()) {
    if std::env::var(SCENARIO).is_ok_and(|scenario| scenario == name) {
        return body();
    }
    let file = format!("gpuslice-sim-cuda-{}-{}", std::process::id(), name.replace("::", "-"));
    let device = Device(Path::new("/dev/shm").join(file));
    create(&device.0, &Config::parse(config).unwrap()).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(SCENARIO, name)
        .env("GPUSLICE_SIM_DEVICE", &device.0)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    for skipped in said.lines().filter(|line| line.starts_with("SKIP ")) {
        // Written directly, because the harness captures `eprintln!`.
        let _ = std::io::stderr().write_all(format!("{skipped}\n").as_bytes());
    }
    assert!(output.status.success(), "{name}: {}\n{said}", output.status);
    assert!(said.contains("1 passed"), "{name} names no test:\n{said}");
}

/// Reports a test that cannot run here.
pub fn skip(why: &str) {
    let name = std::env::var(SCENARIO).unwrap_or_default();
    eprintln!("SKIP {name}: {why}");
}

/// Declares tests that run isolated: `name(config; VARIABLE = "value") { body }`.
macro_rules! scenarios {
    ($(
        $(#[$doc:meta])*
        $name:ident($config:literal $(; $key:ident = $value:literal)*) $body:block
    )*) => {
        $(
            $(#[$doc])*
            #[test]
            fn $name() {
                let name = concat!(module_path!(), "::", stringify!($name));
                let name = name.split_once("::").map_or(name, |(_, rest)| rest);
                let environment = [$((stringify!($key), $value)),*];
                crate::harness::isolated(name, $config, &environment, || $body);
            }
        )*
    };
}

/// The loaded library.
fn library() -> usize {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let mut file = std::env::current_exe().unwrap();
        file.set_file_name("libgpuslice_sim_cuda.so");
        let name = CString::new(file.to_str().unwrap()).unwrap();
        // SAFETY: a valid path; the library's constructors are those of any Rust library.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "cannot load {}", file.display());
        handle as usize
    })
}

/// The address of an exported symbol.
pub fn symbol(name: &str) -> *mut c_void {
    let name = CString::new(name).unwrap();
    // SAFETY: the handle is a loaded library's.
    unsafe { libc::dlsym(library() as *mut c_void, name.as_ptr()) }
}

/// Calls a function of the library by its name, with its signature of the table.
macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        let symbol = crate::harness::symbol(stringify!($name));
        assert!(!symbol.is_null(), concat!(stringify!($name), " is not exported"));
        // SAFETY: the symbol's type is the table's; the arguments are good for the call.
        unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, gpuslice_nvabi::sig::$name>(symbol)(
                $($arg),*
            )
        }
    }};
}

/// Calls, and it must succeed.
macro_rules! ok {
    ($name:ident($($arg:expr),* $(,)?)) => {
        assert_eq!(
            call!($name($($arg),*)),
            gpuslice_nvabi::types::CUresult::SUCCESS,
            stringify!($name)
        )
    };
}

/// Calls, and it must be refused with this code.
macro_rules! refused {
    ($code:ident, $name:ident($($arg:expr),* $(,)?)) => {
        assert_eq!(
            call!($name($($arg),*)),
            gpuslice_nvabi::types::CUresult::$code,
            stringify!($name($($arg),*))
        )
    };
}

/// Initialises, and makes a context on a device current.
pub fn context_on(device: CUdevice) -> CUcontext {
    let mut context = CUcontext::NULL;
    ok!(cuInit(0));
    ok!(cuCtxCreate_v2(&mut context, 0, device));
    context
}

/// Free bytes of the current context's device.
pub fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    assert!(free <= total);
    free
}

/// Allocates device memory.
pub fn alloc(bytes: usize) -> CUdeviceptr {
    let mut pointer = 0;
    ok!(cuMemAlloc_v2(&mut pointer, bytes));
    pointer
}

/// Bytes that differ from place to place.
pub fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
        .collect()
}

/// Copies to the device.
pub fn put(pointer: CUdeviceptr, bytes: &[u8]) {
    ok!(cuMemcpyHtoD_v2(pointer, bytes.as_ptr().cast(), bytes.len()));
}

/// Copies from the device.
pub fn get(pointer: CUdeviceptr, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    ok!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), pointer, len));
    bytes
}
