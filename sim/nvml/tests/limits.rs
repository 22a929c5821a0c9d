//! Memory limits per control group, and the list of processes, through the library's C interface:
//! every answer the header names.

#![allow(non_snake_case)]

use core::ffi::{c_char, c_void};
use gpuslice_nvabi::sig;
use gpuslice_nvabi::types::*;
use gpuslice_sim_device::{Config, Machine, Role, create, destroy};
use std::ffi::CString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

struct Library {
    handle: *mut c_void,
    dir: PathBuf,
}

impl Library {
    /// The library's state and its device are the process's, so this program has one test.
    fn load(config: &str) -> Self {
        let dir = format!("/dev/shm/gpuslice-sim-nvml-limits-{}", std::process::id());
        let dir = PathBuf::from(dir);
        create(&dir, &Config::parse(config).unwrap()).unwrap();
        // SAFETY: nothing else runs in this program yet.
        unsafe { std::env::set_var("GPUSLICE_SIM_DEVICE", &dir) };
        let mut file = std::env::current_exe().unwrap();
        file.set_file_name("libgpuslice_sim_nvml.so");
        let name = CString::new(file.to_str().unwrap()).unwrap();
        // SAFETY: a valid path; the library's constructors are those of any Rust library.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "cannot load {}", file.display());
        Self { handle, dir }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = destroy(&self.dir);
    }
}

/// Calls a function of the library by its name, with its signature of the table.
macro_rules! call {
    ($library:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let name = concat!(stringify!($name), "\0");
        // SAFETY: the handle is a loaded library's, the name ends in a zero.
        let symbol = unsafe { libc::dlsym($library.handle, name.as_ptr().cast()) };
        assert!(!symbol.is_null(), concat!(stringify!($name), " is not exported"));
        // SAFETY: the symbol's type is the table's; the arguments are good for the call.
        unsafe { std::mem::transmute::<*mut c_void, sig::$name>(symbol)($($arg),*) }
    }};
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

struct Gpu<'a>(&'a Library, nvmlDevice_t);

impl Gpu<'_> {
    fn set(&self, group: &Path, soft: u64, hard: u64) -> nvmlReturn_t {
        let group = text(group);
        let mut limits = nvmlSetMemoryLimits_v1_t {
            name_space: group.as_ptr(),
            soft_limit: soft,
            hard_limit: hard,
        };
        call!(self.0, nvmlDeviceSetMemoryLimits_v1(self.1, &mut limits))
    }

    /// Soft and hard limit, and use.
    fn get(&self, group: &Path) -> Result<(u64, u64, u64), nvmlReturn_t> {
        let group = text(group);
        let mut limits = nvmlGetMemoryLimits_v1_t {
            name_space: group.as_ptr(),
            soft_limit: 7,
            hard_limit: 7,
            current_used: 7,
        };
        let answer = call!(self.0, nvmlDeviceGetMemoryLimits_v1(self.1, &mut limits));
        assert_eq!(limits.name_space, group.as_ptr());
        let limits = (limits.soft_limit, limits.hard_limit, limits.current_used);
        if answer == nvmlReturn_t::SUCCESS {
            return Ok(limits);
        }
        assert_eq!(limits, (7, 7, 7), "an error writes nothing");
        Err(answer)
    }

    /// Total and used, which both versions of the call agree on.
    fn memory(&self) -> (u64, u64) {
        let mut one = nvmlMemory_t { total: 0, free: 0, used: 0 };
        let mut two =
            nvmlMemory_v2_t { version: nvmlMemory_v2, total: 0, reserved: 0, free: 0, used: 0 };
        let answers = [
            call!(self.0, nvmlDeviceGetMemoryInfo(self.1, &mut one)),
            call!(self.0, nvmlDeviceGetMemoryInfo_v2(self.1, &mut two)),
        ];
        assert_eq!(answers, [nvmlReturn_t::SUCCESS; 2]);
        let (one, two) = ((one.total, one.free, one.used), (two.total, two.free, two.used));
        assert_eq!(one, two);
        assert_eq!(one.0, one.1 + one.2);
        (one.0, one.2)
    }

    /// What this process is shown to use, which all versions of the list agree on.
    fn own(&self) -> u64 {
        let (mut ones, mut twos, mut threes) = ([OLD; 4], [NEW; 4], [NEW; 4]);
        let mut counts = [4_u32; 3];
        let [one, two, three] = &mut counts;
        let old = ones.as_mut_ptr();
        let new = [twos.as_mut_ptr(), threes.as_mut_ptr()];
        let answers = [
            call!(self.0, nvmlDeviceGetComputeRunningProcesses(self.1, one, old)),
            call!(self.0, nvmlDeviceGetComputeRunningProcesses_v2(self.1, two, new[0].cast())),
            call!(self.0, nvmlDeviceGetComputeRunningProcesses_v3(self.1, three, new[1])),
        ];
        assert_eq!(answers, [nvmlReturn_t::SUCCESS; 3]);
        assert_eq!(counts, [1; 3]);
        let shown = [
            (ones[0].pid, ones[0].used_gpu_memory),
            (twos[0].pid, twos[0].used_gpu_memory),
            (threes[0].pid, threes[0].used_gpu_memory),
        ];
        assert_eq!(shown, [(std::process::id(), shown[0].1); 3]);
        shown[0].1
    }
}

const OLD: nvmlProcessInfo_v1_t = nvmlProcessInfo_v1_t { pid: 0, used_gpu_memory: 0 };
const NEW: nvmlProcessInfo_t =
    nvmlProcessInfo_t { pid: 0, used_gpu_memory: 0, gpu_instance_id: 0, compute_instance_id: 0 };

/// A control group this process enters and leaves; removed at the end.
struct Group {
    root: PathBuf,
    dir: PathBuf,
}

impl Group {
    fn new() -> Option<Self> {
        let Some(root) = gpuslice_host::cgroup::mount() else {
            skip("there is no unified hierarchy of control groups here");
            return None;
        };
        let dir = root.join(format!("gpuslice-sim-nvml-{}", std::process::id()));
        match std::fs::create_dir(&dir) {
            Ok(()) => Some(Self { root, dir }),
            Err(error) => {
                skip(&format!("no control group can be made: {error}"));
                None
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        enter(&self.root);
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// Reports a test that cannot run here; written directly, because the harness captures `println!`.
fn skip(why: &str) {
    let thread = std::thread::current();
    let line = format!("SKIP {}: {why}\n", thread.name().unwrap_or("a test"));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn enter(group: &Path) {
    std::fs::write(group.join("cgroup.procs"), std::process::id().to_string()).unwrap();
}

fn refusals(gpu: &Gpu, group: &Group) {
    let (library, device) = (gpu.0, gpu.1);
    let null = std::ptr::null_mut();
    for device in [device, nvmlDevice_t(std::ptr::null_mut())] {
        let set = call!(library, nvmlDeviceSetMemoryLimits_v1(device, null));
        assert_eq!(set, nvmlReturn_t::ERROR_INVALID_ARGUMENT);
        let null = std::ptr::null_mut();
        let get = call!(library, nvmlDeviceGetMemoryLimits_v1(device, null));
        assert_eq!(get, nvmlReturn_t::ERROR_INVALID_ARGUMENT);
    }
    let mut nameless = nvmlSetMemoryLimits_v1_t {
        name_space: std::ptr::null::<c_char>(),
        soft_limit: 0,
        hard_limit: u64::MAX,
    };
    let set = call!(library, nvmlDeviceSetMemoryLimits_v1(device, &mut nameless));
    assert_eq!(set, nvmlReturn_t::ERROR_INVALID_ARGUMENT);
    let invalid = nvmlReturn_t::ERROR_INVALID_ARGUMENT;
    assert_eq!(gpu.set(&group.dir, 2, 1), invalid);
    assert_eq!(gpu.set(&group.dir, 0, (1 << 30) + 1), invalid);
    assert_eq!(gpu.set(&group.dir, (1 << 30) + 1, u64::MAX), invalid);
    let long = PathBuf::from(format!("/{}", "x".repeat(5000)));
    for path in [Path::new("/proc"), Path::new(""), Path::new("/no/such"), &long] {
        assert_eq!(gpu.set(path, 0, 1), nvmlReturn_t::ERROR_OPERATING_SYSTEM);
        assert_eq!(gpu.get(path), Err(nvmlReturn_t::ERROR_OPERATING_SYSTEM));
    }
    assert_eq!(gpu.get(&group.dir), Err(nvmlReturn_t::ERROR_NOT_FOUND));
    assert_eq!(gpu.set(&group.root, 0, 1), nvmlReturn_t::ERROR_NOT_FOUND);
}

#[test]
fn limits_and_the_truth_about_processes() {
    let library = Library::load("mem=1GiB,context=64MiB,limits=dmem");
    assert_eq!(call!(library, nvmlInit_v2()), nvmlReturn_t::SUCCESS);
    let mut device = nvmlDevice_t(std::ptr::null_mut());
    let answer = call!(library, nvmlDeviceGetHandleByIndex_v2(0, &mut device));
    assert_eq!(answer, nvmlReturn_t::SUCCESS);
    let gpu = Gpu(&library, device);
    let driver = Machine::open(&library.dir, Role::Driver).unwrap();
    driver.context_create(0).unwrap();
    let memory = driver.mem_alloc(0, 100 * MIB).unwrap();
    driver.mem_alloc_managed(0, 30 * MIB).unwrap();
    assert_eq!((gpu.own(), gpu.memory()), (164 * MIB, (1 << 30, 194 * MIB)));

    let Some(group) = Group::new() else { return };
    refusals(&gpu, &group);
    assert_eq!(gpu.set(&group.dir, 50 * MIB, 200 * MIB), nvmlReturn_t::SUCCESS);
    assert_eq!(gpu.get(&group.dir), Ok((50 * MIB, 200 * MIB, 0)));
    assert_eq!(gpu.memory(), (1 << 30, 194 * MIB), "seen from outside");
    enter(&group.dir);
    assert_eq!(gpu.memory(), (200 * MIB, 164 * MIB), "seen from inside");
    assert!(driver.mem_alloc(0, 50 * MIB).is_err());
    assert_eq!(gpu.get(&group.dir), Ok((50 * MIB, 200 * MIB, 164 * MIB)));
    driver.mem_alloc(0, 36 * MIB).unwrap();
    driver.mem_free(memory.key).unwrap();
    assert_eq!(gpu.get(&group.dir), Ok((50 * MIB, 200 * MIB, 100 * MIB)));
    assert_eq!((gpu.own(), gpu.memory()), (100 * MIB, (200 * MIB, 100 * MIB)));
    assert_eq!(gpu.set(&group.dir, 0, u64::MAX), nvmlReturn_t::SUCCESS);
    assert_eq!(gpu.get(&group.dir), Err(nvmlReturn_t::ERROR_NOT_FOUND));
    assert_eq!(gpu.memory(), (1 << 30, 130 * MIB));
}
