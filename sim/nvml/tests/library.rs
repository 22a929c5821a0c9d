//! The library from outside, as a program sees it: loaded by file name, called by symbol.

#![allow(non_snake_case)]

use core::ffi::{c_char, c_void};
use gpuslice_nvabi::types::*;
use gpuslice_nvabi::{NVML, Sim, sig};
use gpuslice_sim_device::{Config, Kind, Machine, Role, Work, create, destroy};
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The library's own state is one per process: tests take turns.
static TURN: Mutex<()> = Mutex::new(());

struct Library {
    handle: usize,
    dir: PathBuf,
}

static LIBRARY: OnceLock<Library> = OnceLock::new();

impl Library {
    fn load() -> Self {
        let mut file = std::env::current_exe().unwrap();
        file.set_file_name("libgpuslice_sim_nvml.so");
        let name = CString::new(file.to_str().unwrap()).unwrap();
        let dir = PathBuf::from(format!("/dev/shm/gpuslice-sim-nvml-{}", std::process::id()));
        let config = "devices=2,mem=1GiB/2GiB,name=One/Two,driver=12.4,context=64MiB";
        create(&dir, &Config::parse(config).unwrap()).unwrap();
        // SAFETY: under the turn's lock, before the library that reads it is loaded.
        unsafe { std::env::set_var("GPUSLICE_SIM_DEVICE", &dir) };
        // SAFETY: a valid path; the library's constructors are those of any Rust library.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "cannot load {}", file.display());
        Self { handle: handle as usize, dir }
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the handle is a loaded library's.
        unsafe { libc::dlsym(self.handle as *mut c_void, name.as_ptr()) }
    }
}

/// Removes the device when the program ends (tests run in no order, so none of them is the last).
extern "C" fn remove_device() {
    if let Some(library) = LIBRARY.get() {
        let _ = destroy(&library.dir);
    }
}

fn library() -> (MutexGuard<'static, ()>, &'static Library) {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let library = LIBRARY.get_or_init(|| {
        // SAFETY: the function is good to be called at exit.
        unsafe { libc::atexit(remove_device) };
        Library::load()
    });
    (turn, library)
}

/// Calls a function of the library by its name, with its signature of the table.
macro_rules! call {
    ($library:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let symbol = $library.symbol(stringify!($name));
        assert!(!symbol.is_null(), concat!(stringify!($name), " is not exported"));
        // SAFETY: the symbol's type is the table's; the arguments are good for the call.
        unsafe { std::mem::transmute::<*mut c_void, sig::$name>(symbol)($($arg),*) }
    }};
}

macro_rules! ok {
    ($library:expr, $name:ident($($arg:expr),* $(,)?)) => {
        assert_eq!(call!($library, $name($($arg),*)), nvmlReturn_t::SUCCESS)
    };
}

/// Between nvmlInit and nvmlShutdown.
fn initialised(test: impl FnOnce(&Library)) {
    let (_turn, library) = library();
    ok!(library, nvmlInit_v2());
    test(library);
    ok!(library, nvmlShutdown());
}

fn device(library: &Library, index: u32) -> nvmlDevice_t {
    let mut device = nvmlDevice_t(std::ptr::null_mut());
    ok!(library, nvmlDeviceGetHandleByIndex_v2(index, &mut device));
    device
}

fn text(bytes: &[c_char]) -> String {
    bytes.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8 as char).collect()
}

fn memory(library: &Library, device: nvmlDevice_t) -> nvmlMemory_t {
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    ok!(library, nvmlDeviceGetMemoryInfo(device, &mut memory));
    memory
}

/// A function as something to be called with six nulls: harmless for all signatures of the ABI,
/// whose arguments are integers and pointers only.
type Blind = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> nvmlReturn_t;

fn blind(library: &Library, name: &str, first: usize) -> nvmlReturn_t {
    let symbol = library.symbol(name);
    assert!(!symbol.is_null(), "{name} is not exported");
    // SAFETY: see `Blind`.
    unsafe { std::mem::transmute::<*mut c_void, Blind>(symbol)(first, 0, 0, 0, 0, 0) }
}

fn is_session(name: &str) -> bool {
    name.starts_with("nvmlInit") || matches!(name, "nvmlShutdown" | "nvmlErrorString")
}

#[test]
fn every_row_is_exported_and_wants_initialisation() {
    let (_turn, library) = library();
    for function in NVML.iter().filter(|function| !is_session(function.name)) {
        let answer = blind(library, function.name, 0);
        assert_eq!(answer, nvmlReturn_t::ERROR_UNINITIALIZED, "{}", function.name);
    }
    assert_eq!(call!(library, nvmlShutdown()), nvmlReturn_t::ERROR_UNINITIALIZED);
}

#[test]
fn what_is_not_implemented_says_so_and_nulls_harm_nothing() {
    initialised(|library| {
        let handle = device(library, 0).0 as usize;
        for function in NVML.iter().filter(|function| !is_session(function.name)) {
            for first in [0, handle, 1, usize::MAX] {
                let answer = blind(library, function.name, first);
                match function.sim {
                    Sim::NotSupported => {
                        assert_eq!(answer, nvmlReturn_t::ERROR_NOT_SUPPORTED, "{}", function.name);
                    }
                    // An address made up is the caller's own death with any library.
                    Sim::Implemented if takes_pointer_first(function.name) => break,
                    Sim::Implemented => {
                        assert_ne!(answer, nvmlReturn_t::SUCCESS, "{}", function.name);
                        assert_ne!(answer, nvmlReturn_t::ERROR_UNKNOWN, "{}", function.name);
                    }
                }
            }
        }
    });
}

fn takes_pointer_first(name: &str) -> bool {
    name.starts_with("nvmlSystemGet")
        || name.starts_with("nvmlDeviceGetCount")
        || name.starts_with("nvmlDeviceGetHandleBy")
        || matches!(name, "nvmlUnitGetCount" | "nvmlEventSetCreate")
}

#[test]
fn devices_and_their_names() {
    initialised(|library| {
        let mut count = 0;
        ok!(library, nvmlDeviceGetCount_v2(&mut count));
        assert_eq!(count, 2);
        let second = device(library, 1);
        let mut name = [0; 96];
        ok!(library, nvmlDeviceGetName(second, name.as_mut_ptr(), 96));
        assert_eq!(text(&name), "Two");
        let small = call!(library, nvmlDeviceGetName(second, name.as_mut_ptr(), 3));
        assert_eq!(small, nvmlReturn_t::ERROR_INSUFFICIENT_SIZE);
        let mut uuid = [0; 96];
        ok!(library, nvmlDeviceGetUUID(second, uuid.as_mut_ptr(), 96));
        assert!(text(&uuid).starts_with("GPU-") && text(&uuid).len() == 40);
        let mut found = nvmlDevice_t(std::ptr::null_mut());
        ok!(library, nvmlDeviceGetHandleByUUID(uuid.as_ptr(), &mut found));
        assert_eq!(found, second);
        let mut pci = MaybeUninit::<nvmlPciInfo_t>::zeroed();
        ok!(library, nvmlDeviceGetPciInfo_v3(second, pci.as_mut_ptr()));
        // SAFETY: the call has succeeded, and zeros were a value before.
        let pci = unsafe { pci.assume_init() };
        ok!(library, nvmlDeviceGetHandleByPciBusId_v2(pci.bus_id.as_ptr(), &mut found));
        assert_eq!(found, second);
        let absent = call!(library, nvmlDeviceGetHandleByUUID(c"GPU-0".as_ptr(), &mut found));
        assert_eq!(absent, nvmlReturn_t::ERROR_NOT_FOUND);
        let absent = call!(library, nvmlDeviceGetHandleByIndex_v2(2, &mut found));
        assert_eq!(absent, nvmlReturn_t::ERROR_INVALID_ARGUMENT);
        let long = [b'x' as c_char; 200];
        let absent = call!(library, nvmlDeviceGetHandleByUUID(long.as_ptr(), &mut found));
        assert_eq!(absent, nvmlReturn_t::ERROR_NOT_FOUND);
        let mut cuda = 0;
        ok!(library, nvmlSystemGetCudaDriverVersion_v2(&mut cuda));
        assert_eq!(cuda, 12040);
    });
}

#[test]
fn structures_say_their_version() {
    initialised(|library| {
        let device = device(library, 0);
        let mut memory =
            nvmlMemory_v2_t { version: nvmlMemory_v2, total: 0, reserved: 0, free: 0, used: 0 };
        ok!(library, nvmlDeviceGetMemoryInfo_v2(device, &mut memory));
        assert_eq!((memory.total, memory.free + memory.used), (1 << 30, 1 << 30));
        for version in [0, 1, nvmlMemory_v2 + 8, 0x0300_0028] {
            memory.version = version;
            let answer = call!(library, nvmlDeviceGetMemoryInfo_v2(device, &mut memory));
            assert_eq!(answer, nvmlReturn_t::ERROR_ARGUMENT_VERSION_MISMATCH, "{version:#x}");
        }
    });
}

/// The driver of this same process is another library with a place of its own on the device.
#[test]
fn a_process_shows_from_its_first_context_on() {
    initialised(|library| {
        let device = device(library, 0);
        let driver = Machine::open(&library.dir, Role::Driver).unwrap();
        let list = |room: u32, entries: &mut [nvmlProcessInfo_t]| {
            let mut count = room;
            let pointer = entries.as_mut_ptr();
            let call = call!(
                library,
                nvmlDeviceGetComputeRunningProcesses_v3(device, &mut count, pointer)
            );
            (call, count)
        };
        let none = nvmlProcessInfo_t {
            pid: 0,
            used_gpu_memory: 0,
            gpu_instance_id: 0,
            compute_instance_id: 0,
        };
        let mut entries = [none; 4];
        assert_eq!(list(0, &mut entries), (nvmlReturn_t::SUCCESS, 0));
        let context = driver.context_create(0).unwrap();
        let memory_key = driver.mem_alloc(0, 100 << 20).unwrap().key;
        assert_eq!(list(0, &mut entries), (nvmlReturn_t::ERROR_INSUFFICIENT_SIZE, 1));
        assert_eq!(list(4, &mut entries), (nvmlReturn_t::SUCCESS, 1));
        assert_eq!(entries[0].pid, std::process::id());
        assert_eq!(entries[0].used_gpu_memory, 164 << 20);
        assert_eq!(memory(library, device).used, 164 << 20);
        let mut oldest = [nvmlProcessInfo_v1_t { pid: 0, used_gpu_memory: 0 }; 2];
        let mut count = 2;
        let pointer = oldest.as_mut_ptr();
        ok!(library, nvmlDeviceGetComputeRunningProcesses(device, &mut count, pointer));
        assert_eq!((count, oldest[0].used_gpu_memory), (1, 164 << 20));
        driver.mem_free(memory_key).unwrap();
        driver.context_destroy(context).unwrap();
        assert_eq!(list(4, &mut entries), (nvmlReturn_t::SUCCESS, 0));
        assert_eq!(memory(library, device).used, 0);
    });
}

#[test]
fn load_shows_in_utilisation_power_and_process_samples() {
    initialised(|library| {
        let device = device(library, 1);
        let driver = Machine::open(&library.dir, Role::Driver).unwrap();
        let context = driver.context_create(1).unwrap();
        driver.submit(context, Work::new(Kind::Kernel, u64::MAX)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let mut rates = nvmlUtilization_t { gpu: 0, memory: 0 };
        ok!(library, nvmlDeviceGetUtilizationRates(device, &mut rates));
        assert_eq!(rates.gpu, 100);
        let mut count = 0;
        let null = std::ptr::null_mut();
        let answer = call!(library, nvmlDeviceGetProcessUtilization(device, null, &mut count, 0));
        assert_eq!((answer, count), (nvmlReturn_t::ERROR_INSUFFICIENT_SIZE, 1));
        let mut sample = MaybeUninit::<nvmlProcessUtilizationSample_t>::zeroed();
        let pointer = sample.as_mut_ptr();
        ok!(library, nvmlDeviceGetProcessUtilization(device, pointer, &mut count, 0));
        // SAFETY: the call has succeeded, and zeros were a value before.
        let sample = unsafe { sample.assume_init() };
        assert_eq!((sample.pid, sample.sm_util), (std::process::id(), 100));
        driver.context_destroy(context).unwrap();
    });
}

#[test]
fn an_xid_reaches_its_listeners() {
    initialised(|library| {
        let driver = Machine::open(&library.dir, Role::Driver).unwrap();
        let context = driver.context_create(1).unwrap();
        let mut set = nvmlEventSet_t(std::ptr::null_mut());
        ok!(library, nvmlEventSetCreate(&mut set));
        let second = device(library, 1);
        ok!(library, nvmlDeviceRegisterEvents(second, nvmlEventTypeXidCriticalError, set));
        let other = call!(library, nvmlDeviceRegisterEvents(second, nvmlEventTypeClock, set));
        assert_eq!(other, nvmlReturn_t::ERROR_NOT_SUPPORTED);
        let mut data = MaybeUninit::<nvmlEventData_t>::zeroed();
        let nothing = call!(library, nvmlEventSetWait_v2(set, data.as_mut_ptr(), 20));
        assert_eq!(nothing, nvmlReturn_t::ERROR_TIMEOUT);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            driver.kill_context(context, 79).unwrap();
            driver.context_destroy(context).unwrap();
        });
        ok!(library, nvmlEventSetWait_v2(set, data.as_mut_ptr(), 10_000));
        // SAFETY: the call has succeeded, and zeros were a value before.
        let data = unsafe { data.assume_init() };
        assert_eq!((data.device, data.event_data), (second, 79));
        assert_eq!(data.event_type, nvmlEventTypeXidCriticalError);
        killer.join().unwrap();
        ok!(library, nvmlEventSetFree(set));
        let again = call!(library, nvmlEventSetFree(set));
        assert_eq!(again, nvmlReturn_t::ERROR_INVALID_ARGUMENT);
    });
}

#[test]
fn errors_have_texts() {
    let (_turn, library) = library();
    let text = |code| {
        let pointer = call!(library, nvmlErrorString(nvmlReturn_t(code)));
        // SAFETY: the answer is a text of the library's own.
        unsafe { core::ffi::CStr::from_ptr(pointer) }.to_str().unwrap()
    };
    assert_eq!((text(0), text(3)), ("The operation was successful", "Not Supported"));
    assert_eq!(text(12345), "Unknown Error");
}
