//! An NVML that is slow, and does not tell of single processes what a kind one does.

#![allow(non_snake_case)]

use core::ffi::c_void;
use gpuslice_nvabi::sig;
use gpuslice_nvabi::types::*;
use gpuslice_sim_device::{Config, Machine, Role, create, destroy};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const MODE: &str = "GPUSLICE_SIM_TEST_LISTED";
const NOT_AVAILABLE: u64 = u64::MAX;

/// A device directory that is removed whatever happens.
struct Device(PathBuf);

impl Drop for Device {
    fn drop(&mut self) {
        let _ = destroy(&self.0);
    }
}

/// Calls a function of the library by its name, with its signature of the table.
macro_rules! call {
    ($library:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let name = concat!(stringify!($name), "\0");
        // SAFETY: the handle is a loaded library's, the name ends in a zero.
        let symbol = unsafe { libc::dlsym($library, name.as_ptr().cast()) };
        assert!(!symbol.is_null(), concat!(stringify!($name), " is not exported"));
        // SAFETY: the symbol's type is the table's; the arguments are good for the call.
        unsafe { std::mem::transmute::<*mut c_void, sig::$name>(symbol)($($arg),*) }
    }};
}

fn load() -> *mut c_void {
    let mut file = std::env::current_exe().unwrap();
    file.set_file_name("libgpuslice_sim_nvml.so");
    let name = CString::new(file.to_str().unwrap()).unwrap();
    // SAFETY: a valid path; the library's constructors are those of any Rust library.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "cannot load {}", file.display());
    library
}

/// The result of a list of processes, and the memory it tells of the only one.
fn listed(library: *mut c_void, device: nvmlDevice_t) -> (nvmlReturn_t, u64) {
    // SAFETY: plain numbers, for which zero is a value.
    let mut infos: [nvmlProcessInfo_t; 4] = unsafe { std::mem::zeroed() };
    let mut count = 4;
    let result = call!(
        library,
        nvmlDeviceGetComputeRunningProcesses_v3(device, &mut count, infos.as_mut_ptr())
    );
    if result == nvmlReturn_t::SUCCESS {
        assert_eq!((count, infos[0].pid), (1, std::process::id()));
    }
    (result, infos[0].used_gpu_memory)
}

/// Not a test but what the processes of the tests below run: the library's device is the process's.
#[test]
fn lists() {
    let Ok(mode) = std::env::var(MODE) else { return };
    let dir = std::env::var("GPUSLICE_SIM_DEVICE").unwrap();
    let driver = Machine::open(Path::new(&dir), Role::Driver).unwrap();
    driver.context_create(0).unwrap();
    let library = load();
    assert_eq!(call!(library, nvmlInit_v2()), nvmlReturn_t::SUCCESS);
    let mut device = nvmlDevice_t(std::ptr::null_mut());
    let start = Instant::now();
    assert_eq!(
        call!(library, nvmlDeviceGetHandleByIndex_v2(0, &mut device)),
        nvmlReturn_t::SUCCESS
    );
    let all: Vec<_> = (0..40).map(|_| listed(library, device)).collect();
    let took = start.elapsed();
    let told = |bytes: u64| all.iter().filter(|it| **it == (nvmlReturn_t::SUCCESS, bytes)).count();
    let (with, without) = (told(64 << 20), told(NOT_AVAILABLE));
    let refused = all.iter().filter(|it| it.0 == nvmlReturn_t::ERROR_NOT_SUPPORTED).count();
    match mode.as_str() {
        "always" => assert_eq!((with, without, refused), (40, 0, 0)),
        "sometimes" => {
            assert_eq!((with + without, refused), (40, 0));
            assert!((1..=20).contains(&without), "{without}");
        }
        "pids" => assert_eq!((with, without, refused), (0, 40, 0)),
        "never" => assert_eq!((with, without, refused), (0, 0, 40)),
        other => panic!("no mode {other}"),
    }
    // 41 calls, each of 1 ms or more.
    assert!(took >= Duration::from_millis(41), "{took:?}");
}

fn run(mode: &str) {
    let dir = format!("/dev/shm/gpuslice-sim-nvml-strict-{}-{mode}", std::process::id());
    let device = Device(PathBuf::from(dir));
    let config = format!("mem=1GiB,listed={mode},nvml=1ms..2ms");
    create(&device.0, &Config::parse(&config).unwrap()).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lists", "--nocapture", "--test-threads=1"])
        .env(MODE, mode)
        .env("GPUSLICE_SIM_DEVICE", &device.0)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{mode}: {said}");
}

#[test]
fn lists_with_memory_in_all_in_some_and_in_no_answers() {
    ["always", "sometimes", "pids", "never"].into_iter().for_each(run);
}
