//! The part of NVML that the daemon needs: the GPUs, the memory of their processes, and the driver's own memory limits
//! on control groups.
//!
//! The crate nvml-wrapper opens the library at a path, starts it, and finds its GPUs. What it lacks are calls of this
//! file, with the types of the nvabi table, through a second handle of the same library:
//!
//! * lists of processes. The wrapper has none of MPS and none of drivers before r510, and it gives up when a list
//!   grows by more than five processes between two of its calls;
//! * the size of a GPU's memory, for which the wrapper needs r510;
//! * the limits of r615.
//!
//! A function that an older library lacks is missing alone: without the limits everything else works. Each call may be
//! slow, and may never return on a GPU that fell off the bus; so only processes make calls that are started for it.

// For calls into the driver's library.
#![allow(unsafe_code)]

use crate::modes::Modes;
use crate::mps::{self, MpsProcess};
use gpuslice_nvabi::sig;
use gpuslice_nvabi::types::{
    NVML_COMPUTEMODE_DEFAULT, NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK,
    NVML_P2P_STATUS_UNKNOWN, nvmlDevice_t, nvmlGetMemoryLimits_v1_t, nvmlMemory_t,
    nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlReturn_t, nvmlSetMemoryLimits_v1_t,
};
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::units::Bytes;
use libloading::Library;
use nvml_wrapper::error::{NvmlError as WrapperError, nvml_try};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt;
use std::mem::{ManuallyDrop, discriminant};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest process list; a longer one means that the library is broken.
const PROCESSES_MAX: u32 = 1 << 16;
/// More than the number of NVML's codes that the wrapper knows by name; 999 is "unknown".
const CODES_MAX: u32 = 1000;
/// Links of one GPU, at most: `NVML_NVLINK_MAX_LINKS`.
const NVLINKS_MAX: u32 = 18;
/// "No limit", `NVML_DEVICE_MEMORY_LIMIT_MAX`.
pub const NO_LIMIT: u64 = u64::MAX;

/// Processes by pid, and the bytes that each uses; `None` where the driver does not report them.
pub type ProcessBytes = BTreeMap<u32, Option<u64>>;

/// A failed call and NVML's answer.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(into = "(String, u32)", from = "(String, u32)")]
pub struct NvmlError {
    /// The function.
    pub call: String,
    /// Its answer; `ERROR_FUNCTION_NOT_FOUND` if this library does not have it.
    pub answer: nvmlReturn_t,
}

impl fmt::Display for NvmlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} answered {:?}", self.call, self.answer)
    }
}

impl std::error::Error for NvmlError {}

impl From<NvmlError> for (String, u32) {
    fn from(error: NvmlError) -> (String, u32) {
        (error.call, error.answer.0)
    }
}

impl From<(String, u32)> for NvmlError {
    fn from((call, answer): (String, u32)) -> NvmlError {
        let answer = nvmlReturn_t(answer);
        NvmlError { call, answer }
    }
}

/// The wrapper's error as the answer of a call. Codes that it does not know are in its error; the others are found
/// among them.
fn failed(call: &str) -> impl FnOnce(WrapperError) -> NvmlError {
    move |why| {
        let same = |code: &u32| {
            nvml_try(*code).is_err_and(|known| discriminant(&known) == discriminant(&why))
        };
        let answer = match why {
            WrapperError::UnexpectedVariant(code) => code,
            WrapperError::FailedToLoadSymbol(_) => nvmlReturn_t::ERROR_FUNCTION_NOT_FOUND.0,
            _ => (0..CODES_MAX).find(same).unwrap_or(nvmlReturn_t::ERROR_UNKNOWN.0),
        };
        NvmlError { call: call.to_owned(), answer: nvmlReturn_t(answer) }
    }
}

/// The driver's limits of a control group on one GPU, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The guarantee.
    pub soft: u64,
    /// The limit; [`NO_LIMIT`] for none.
    pub hard: u64,
    /// The present use of its processes.
    pub used: u64,
}

/// NVML, initialised until dropped. The library stays loaded: it may have threads, and unloading it under them would
/// crash the process.
pub struct Nvml {
    wrapper: nvml_wrapper::Nvml,
    library: ManuallyDrop<Library>,
}

/// Makes a call whose pointers all point to live locals of the given lengths.
macro_rules! call {
    ($library:expr, $name:ident($($argument:expr),*)) => {{
        let name = concat!(stringify!($name), "\0").as_bytes();
        // SAFETY: the function of this name has the signature that the table gives the name.
        let answer = match unsafe { $library.get::<sig::$name>(name) } {
            // SAFETY: the pointers are to live locals, of the lengths given with them.
            Ok(function) => unsafe { function($($argument),*) },
            Err(_) => nvmlReturn_t::ERROR_FUNCTION_NOT_FOUND,
        };
        match answer {
            nvmlReturn_t::SUCCESS => Ok(()),
            answer => Err(NvmlError { call: stringify!($name).to_owned(), answer }),
        }
    }};
}

/// The two shapes of an entry in a list of processes.
trait Entry: Clone {
    const EMPTY: Self;
    fn seen(&self) -> (u32, u64);
}

impl Entry for nvmlProcessInfo_t {
    const EMPTY: Self = nvmlProcessInfo_t {
        pid: 0,
        used_gpu_memory: 0,
        gpu_instance_id: 0,
        compute_instance_id: 0,
    };
    fn seen(&self) -> (u32, u64) {
        (self.pid, self.used_gpu_memory)
    }
}

impl Entry for nvmlProcessInfo_v1_t {
    const EMPTY: Self = nvmlProcessInfo_v1_t { pid: 0, used_gpu_memory: 0 };
    fn seen(&self) -> (u32, u64) {
        (self.pid, self.used_gpu_memory)
    }
}

impl Nvml {
    /// Opens and initialises the library.
    ///
    /// # Errors
    /// It cannot be loaded or initialised.
    pub fn open(path: &Path) -> Result<Nvml, String> {
        // SAFETY: loading NVML runs its constructors, as intended.
        let library = unsafe { Library::new(path) }.map_err(|why| why.to_string())?;
        let library = ManuallyDrop::new(library);
        let wrapper = nvml_wrapper::Nvml::builder().lib_path(path.as_os_str()).init();
        let wrapper = wrapper.map_err(|why| failed("nvmlInit_v2")(why).to_string())?;
        Ok(Nvml { wrapper, library })
    }

    /// The wrapper, for its events.
    pub fn wrapper(&self) -> &nvml_wrapper::Nvml {
        &self.wrapper
    }

    /// Number of GPUs.
    ///
    /// # Errors
    /// NVML's answer, as for all calls below.
    pub fn count(&self) -> Result<u32, NvmlError> {
        let count = self.wrapper.device_count();
        count.map_err(failed("nvmlDeviceGetCount_v2"))
    }

    /// A GPU by NVML's index.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn at(&self, index: u32) -> Result<Device<'_>, NvmlError> {
        let found = self.wrapper.device_by_index(index);
        let found = found.map_err(failed("nvmlDeviceGetHandleByIndex_v2"));
        found.map(|it| self.device(it))
    }

    /// A GPU by UUID. Looked up each time, so that a GPU that fell off the bus is not found.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn of(&self, uuid: GpuUuid) -> Result<Device<'_>, NvmlError> {
        let found = self.wrapper.device_by_uuid(uuid.to_string());
        let found = found.map_err(failed("nvmlDeviceGetHandleByUUID"));
        found.map(|it| self.device(it))
    }

    fn device<'a>(&'a self, it: nvml_wrapper::Device<'a>) -> Device<'a> {
        Device {
            // SAFETY: the handle is used with this library alone, while it is initialised.
            handle: nvmlDevice_t(unsafe { it.handle() }.cast()),
            library: &self.library,
            it,
        }
    }

    /// The driver's version.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn driver_version(&self) -> Result<String, NvmlError> {
        let version = self.wrapper.sys_driver_version();
        version.map_err(failed("nvmlSystemGetDriverVersion"))
    }

    /// This library's version.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn version(&self) -> Result<String, NvmlError> {
        let version = self.wrapper.sys_nvml_version();
        version.map_err(failed("nvmlSystemGetNVMLVersion"))
    }
}

/// One GPU.
pub struct Device<'a> {
    it: nvml_wrapper::Device<'a>,
    handle: nvmlDevice_t,
    library: &'a Library,
}

impl Device<'_> {
    /// Its UUID as text; that of a MIG instance has another form.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn uuid(&self) -> Result<String, NvmlError> {
        self.it.uuid().map_err(failed("nvmlDeviceGetUUID"))
    }

    /// Its memory.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn total(&self) -> Result<Bytes, NvmlError> {
        self.memory().map(|memory| Bytes(memory.total))
    }

    /// Its memory in use, by all processes and the driver.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn used(&self) -> Result<Bytes, NvmlError> {
        self.memory().map(|memory| Bytes(memory.used))
    }

    /// Its memory that is free.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn free(&self) -> Result<Bytes, NvmlError> {
        self.memory().map(|memory| Bytes(memory.free))
    }

    fn memory(&self) -> Result<nvmlMemory_t, NvmlError> {
        let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
        call!(self.library, nvmlDeviceGetMemoryInfo(self.handle, &raw mut memory))?;
        Ok(memory)
    }

    /// Percent of the last second, or less, in which a kernel ran on it.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn load(&self) -> Result<u32, NvmlError> {
        let rates = self.it.utilization_rates();
        rates.map(|rates| rates.gpu).map_err(failed("nvmlDeviceGetUtilizationRates"))
    }

    /// The product's name.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn product(&self) -> Result<String, NvmlError> {
        self.it.name().map_err(failed("nvmlDeviceGetName"))
    }

    /// Its address on the PCI bus, in NVML's form: `00000000:3B:00.0`.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn pci(&self) -> Result<String, NvmlError> {
        let info = self.it.pci_info().map_err(failed("nvmlDeviceGetPciInfo_v3"));
        info.map(|info| info.bus_id)
    }

    /// Its compute capability, major and minor.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn capability(&self) -> Result<(i32, i32), NvmlError> {
        let both = self.it.cuda_compute_capability();
        let both = both.map_err(failed("nvmlDeviceGetCudaComputeCapability"));
        both.map(|both| (both.major, both.minor))
    }

    /// The number of its device node: `/dev/nvidia<minor>`.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn minor(&self) -> Result<u32, NvmlError> {
        self.it.minor_number().map_err(failed("nvmlDeviceGetMinorNumber"))
    }

    /// The PCI addresses at the other ends of its active NVLinks, in NVML's form: GPUs', switches', or empty where the
    /// driver does not tell them.
    pub fn nvlinks(&self) -> Vec<String> {
        let links = (0..NVLINKS_MAX).map(|link| self.it.link_wrapper_for(link));
        let active = links.filter(|link| link.is_active().unwrap_or(false));
        active
            .map(|link| link.remote_pci_info().map_or_else(|_| String::new(), |info| info.bus_id))
            .collect()
    }

    /// Whether it reaches another GPU's memory over NVLink, directly or through a switch.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn has_nvlink_to(&self, other: &Device<'_>) -> Result<bool, NvmlError> {
        let mut status = NVML_P2P_STATUS_UNKNOWN;
        let what = NVML_P2P_CAPS_INDEX_NVLINK;
        call!(
            self.library,
            nvmlDeviceGetP2PStatus(self.handle, other.handle, what, &raw mut status)
        )?;
        Ok(status == NVML_P2P_STATUS_OK)
    }

    /// What the way to another GPU passes, as one of NVML's levels from 0 (the same board) to 50.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn ancestor_with(&self, other: &Device<'_>) -> Result<u32, NvmlError> {
        let mut level = 0;
        call!(
            self.library,
            nvmlDeviceGetTopologyCommonAncestor(self.handle, other.handle, &raw mut level)
        )?;
        Ok(level)
    }

    /// Whether MIG is enabled; false on GPUs without MIG.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn is_mig(&self) -> Result<bool, NvmlError> {
        match self.it.mig_mode() {
            Ok(mode) => Ok(mode.current != 0),
            Err(WrapperError::NotSupported | WrapperError::FunctionNotFound) => Ok(false),
            Err(WrapperError::FailedToLoadSymbol(_)) => Ok(false),
            Err(why) => Err(failed("nvmlDeviceGetMigMode")(why)),
        }
    }

    /// The processes by which MPS shows: servers that use it, and their clients.
    fn mps_processes(&self) -> Vec<MpsProcess> {
        let clients = self.mps().unwrap_or_default();
        // Without a process of that name NVML is not asked for more: its answer can take memory, which stays.
        let listed = match mps::processes(|_| false).is_empty() {
            true => Vec::new(),
            false => self.compute().unwrap_or_default(),
        };
        let pids = |all: Vec<(u32, u64)>| all.into_iter().map(|(pid, _)| pid);
        mps::among(pids(listed), pids(clients))
    }

    /// Whether its compute mode admits one process at a time, or none.
    pub fn is_exclusive(&self) -> bool {
        let mut mode = NVML_COMPUTEMODE_DEFAULT;
        let asked = call!(self.library, nvmlDeviceGetComputeMode(self.handle, &raw mut mode));
        asked.is_ok() && mode != NVML_COMPUTEMODE_DEFAULT
    }

    /// The modes in which it may have no slices.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn modes(&self) -> Result<Modes, NvmlError> {
        let (mig, mps) = (self.is_mig()?, self.mps_processes());
        Ok(Modes { mig, mps, exclusive: self.is_exclusive() })
    }

    /// Its processes and the bytes each of them uses; `None` where the driver does not report them. A process can be
    /// in more than one list, each time with its whole use.
    ///
    /// # Errors
    /// See [`Nvml::count`]; a GPU without graphics or MPS is no error.
    pub fn processes(&self) -> Result<ProcessBytes, NvmlError> {
        self.processes_and_clients().map(|(processes, _)| processes)
    }

    /// The same, and those of them that are clients of MPS.
    ///
    /// # Errors
    /// As above.
    pub fn processes_and_clients(&self) -> Result<(ProcessBytes, Vec<u32>), NvmlError> {
        let mut all = BTreeMap::new();
        let mut found = self.compute()?;
        found.extend(self.graphics().unwrap_or_default());
        let clients = self.mps().unwrap_or_default();
        found.extend(&clients);
        for (pid, used) in found {
            let used = (used != u64::MAX).then_some(used);
            let known = all.entry(pid).or_insert(used);
            *known = (*known).max(used);
        }
        Ok((all, clients.into_iter().map(|(pid, _)| pid).collect()))
    }

    /// Those of its processes that compute, again with their bytes.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn computing(&self) -> Result<BTreeMap<u32, u64>, NvmlError> {
        Ok(self.compute()?.into_iter().filter(|(_, used)| *used != u64::MAX).collect())
    }

    fn compute(&self) -> Result<Vec<(u32, u64)>, NvmlError> {
        listed::<nvmlProcessInfo_t>(|count, infos| {
            call!(self.library, nvmlDeviceGetComputeRunningProcesses_v3(self.handle, count, infos))
        })
        .or_else(|why| match why.answer {
            nvmlReturn_t::ERROR_FUNCTION_NOT_FOUND => {
                listed::<nvmlProcessInfo_v1_t>(|count, infos| {
                    call!(
                        self.library,
                        nvmlDeviceGetComputeRunningProcesses(self.handle, count, infos)
                    )
                })
            }
            _ => Err(why),
        })
    }

    fn graphics(&self) -> Result<Vec<(u32, u64)>, NvmlError> {
        listed::<nvmlProcessInfo_t>(|count, infos| {
            call!(self.library, nvmlDeviceGetGraphicsRunningProcesses_v3(self.handle, count, infos))
        })
    }

    fn mps(&self) -> Result<Vec<(u32, u64)>, NvmlError> {
        listed::<nvmlProcessInfo_t>(|count, infos| {
            call!(
                self.library,
                nvmlDeviceGetMPSComputeRunningProcesses_v3(self.handle, count, infos)
            )
        })
    }

    /// The driver's limits of a control group, named by its directory.
    ///
    /// # Errors
    /// See [`Nvml::count`]; `ERROR_NOT_FOUND` where none was set.
    pub fn limits(&self, cgroup: &Path) -> Result<Limits, NvmlError> {
        let name = named(cgroup);
        let mut limits = nvmlGetMemoryLimits_v1_t {
            name_space: name.as_ptr(),
            soft_limit: 0,
            hard_limit: NO_LIMIT,
            current_used: 0,
        };
        call!(self.library, nvmlDeviceGetMemoryLimits_v1(self.handle, &raw mut limits))?;
        Ok(Limits { soft: limits.soft_limit, hard: limits.hard_limit, used: limits.current_used })
    }

    /// Sets the driver's limits of a control group. Zero and [`NO_LIMIT`] clear them.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn set_limits(&self, cgroup: &Path, soft: u64, hard: u64) -> Result<(), NvmlError> {
        let name = named(cgroup);
        let mut limits = nvmlSetMemoryLimits_v1_t {
            name_space: name.as_ptr(),
            soft_limit: soft,
            hard_limit: hard,
        };
        call!(self.library, nvmlDeviceSetMemoryLimits_v1(self.handle, &raw mut limits))
    }
}

/// A directory as a C string.
fn named(directory: &Path) -> CString {
    CString::new(directory.as_os_str().as_bytes()).unwrap_or_default()
}

/// Asks for the number of processes, then for the list; it may have grown meanwhile.
fn listed<E: Entry>(
    ask: impl Fn(*mut u32, *mut E) -> Result<(), NvmlError>,
) -> Result<Vec<(u32, u64)>, NvmlError> {
    let mut entries: Vec<E> = Vec::new();
    loop {
        let mut count = entries.len() as u32;
        match ask(&raw mut count, entries.as_mut_ptr()) {
            Ok(()) => {
                entries.truncate(count as usize);
                return Ok(entries.iter().map(E::seen).collect());
            }
            Err(why) if why.answer != nvmlReturn_t::ERROR_INSUFFICIENT_SIZE => return Err(why),
            Err(why) if count > PROCESSES_MAX || entries.len() as u32 > PROCESSES_MAX => {
                return Err(why);
            }
            // Some spare room, so that this terminates while processes come and go.
            Err(_) => entries.resize((count as usize).max(entries.len()) + 8, E::EMPTY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn short() -> NvmlError {
        NvmlError { call: "list".to_owned(), answer: nvmlReturn_t::ERROR_INSUFFICIENT_SIZE }
    }

    #[test]
    fn a_process_list_that_grew_is_read_again() {
        let (asked, there) = (Cell::new(0), Cell::new(3u32));
        let list = listed::<nvmlProcessInfo_t>(|count, infos| {
            asked.set(asked.get() + 1);
            // SAFETY: the caller above passes a live buffer with room for `count`.
            unsafe {
                let room = *count;
                *count = there.get();
                if room < there.get() {
                    there.set(there.get() + 4);
                    return Err(short());
                }
                for at in 0..*count {
                    (*infos.add(at as usize)).pid = 10 + at;
                }
            }
            Ok(())
        });
        let pids: Vec<u32> = list.expect("a list").iter().map(|seen| seen.0).collect();
        assert_eq!((asked.get(), pids), (2, (10..17).collect()));
    }

    #[test]
    fn an_endless_process_list_is_an_error() {
        let endless = listed::<nvmlProcessInfo_v1_t>(|count, _| {
            // SAFETY: as above.
            unsafe { *count += 1 << 14 };
            Err(short())
        });
        assert_eq!(endless, Err(short()));
        let refused =
            NvmlError { call: "list".to_owned(), answer: nvmlReturn_t::ERROR_GPU_IS_LOST };
        assert_eq!(listed::<nvmlProcessInfo_t>(|_, _| Err(refused.clone())), Err(refused.clone()));
        assert_eq!(refused.to_string(), "list answered NVML_ERROR_GPU_IS_LOST");
    }

    #[test]
    fn the_wrappers_errors_keep_nvmls_answers() {
        for code in (1..=30).chain([999, 4711]) {
            let why = nvml_try(code).expect_err("an error");
            let error = failed("call")(why);
            assert_eq!((error.call.as_str(), error.answer.0), ("call", code));
        }
        let missing = failed("call")(WrapperError::FailedToLoadSymbol(String::new()));
        assert_eq!(missing.answer, nvmlReturn_t::ERROR_FUNCTION_NOT_FOUND);
    }

    #[test]
    fn a_file_that_is_no_library_is_an_error() {
        assert!(Nvml::open(Path::new("/proc/self/none")).is_err());
    }
}
