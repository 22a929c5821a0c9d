//! The part of NVML that the daemon needs: the GPUs, the memory of their processes, and the driver's own memory limits
//! on control groups.
//!
//! The library is opened from the driver directory at run time; each function has the type that the nvabi table gives
//! it. A function that an older library lacks is missing alone: without the limits of driver r615 everything else
//! works. Each call may be slow, and may never return on a GPU that fell off the bus; so only the child of
//! [`crate::accounting`] and the daemon's start make calls.

// For calls into the driver's library.
#![allow(unsafe_code)]

use gpuslice_nvabi::sig;
use gpuslice_nvabi::types::{
    nvmlDevice_t, nvmlGetMemoryLimits_v1_t, nvmlMemory_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t,
    nvmlReturn_t, nvmlSetMemoryLimits_v1_t,
};
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::units::Bytes;
use libloading::Library;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest process list; a longer one means that the library is broken.
const PROCESSES_MAX: u32 = 1 << 16;
/// Buffer size for UUIDs and versions (96 and 80 in nvml.h).
const TEXT_BYTES: usize = 96;
/// "No limit", `NVML_DEVICE_MEMORY_LIMIT_MAX`.
pub const NO_LIMIT: u64 = u64::MAX;

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
    library: ManuallyDrop<Library>,
}

/// The library before it is initialised.
struct Unstarted {
    library: ManuallyDrop<Library>,
}

/// Looks up a function by name, with its own type.
macro_rules! function {
    ($nvml:expr, $name:ident) => {{
        let name = concat!(stringify!($name), "\0").as_bytes();
        // SAFETY: the function of this name has the signature that the table gives the name.
        let found = unsafe { $nvml.library.get::<sig::$name>(name) };
        found.map_err(|_| NvmlError {
            call: stringify!($name).to_owned(),
            answer: nvmlReturn_t::ERROR_FUNCTION_NOT_FOUND,
        })
    }};
}

/// Makes a call whose pointers all point to live locals of the given lengths.
macro_rules! call {
    ($nvml:expr, $name:ident($($argument:expr),*)) => {
        function!($nvml, $name).and_then(|function| {
            // SAFETY: the pointers are to live locals, of the lengths given with them.
            match unsafe { function($($argument),*) } {
                nvmlReturn_t::SUCCESS => Ok(()),
                answer => Err(NvmlError { call: stringify!($name).to_owned(), answer }),
            }
        })
    };
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
    const EMPTY: Self = nvmlProcessInfo_v1_t {
        pid: 0,
        used_gpu_memory: 0,
    };
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
        let nvml = Unstarted {
            library: ManuallyDrop::new(library),
        };
        call!(nvml, nvmlInit_v2()).map_err(|why| why.to_string())?;
        Ok(Nvml {
            library: nvml.library,
        })
    }

    /// Number of GPUs.
    ///
    /// # Errors
    /// NVML's answer, as for all calls below.
    pub fn count(&self) -> Result<u32, NvmlError> {
        let mut count = 0;
        call!(self, nvmlDeviceGetCount_v2(&raw mut count)).map(|()| count)
    }

    /// A GPU by NVML's index.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn at(&self, index: u32) -> Result<Device<'_>, NvmlError> {
        let mut handle = nvmlDevice_t::NULL;
        call!(self, nvmlDeviceGetHandleByIndex_v2(index, &raw mut handle))?;
        Ok(Device { nvml: self, handle })
    }

    /// A GPU by UUID. Looked up each time, so that a GPU that fell off the bus is not found.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn of(&self, uuid: GpuUuid) -> Result<Device<'_>, NvmlError> {
        let text = CString::new(uuid.to_string()).unwrap_or_default();
        let mut handle = nvmlDevice_t::NULL;
        call!(
            self,
            nvmlDeviceGetHandleByUUID(text.as_ptr(), &raw mut handle)
        )?;
        Ok(Device { nvml: self, handle })
    }

    /// The driver's version.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn driver_version(&self) -> Result<String, NvmlError> {
        let mut text = [0; TEXT_BYTES];
        call!(
            self,
            nvmlSystemGetDriverVersion(text.as_mut_ptr(), TEXT_BYTES as u32)
        )?;
        Ok(plain(&text))
    }

    /// This library's version.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn version(&self) -> Result<String, NvmlError> {
        let mut text = [0; TEXT_BYTES];
        call!(
            self,
            nvmlSystemGetNVMLVersion(text.as_mut_ptr(), TEXT_BYTES as u32)
        )?;
        Ok(plain(&text))
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // A failure cannot be reported here.
        let _ = call!(self, nvmlShutdown());
    }
}

/// One GPU.
pub struct Device<'a> {
    nvml: &'a Nvml,
    handle: nvmlDevice_t,
}

impl Device<'_> {
    /// Its UUID as text; that of a MIG instance has another form.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn uuid(&self) -> Result<String, NvmlError> {
        let mut text = [0; TEXT_BYTES];
        call!(
            self.nvml,
            nvmlDeviceGetUUID(self.handle, text.as_mut_ptr(), TEXT_BYTES as u32)
        )?;
        Ok(plain(&text))
    }

    /// Its memory.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn total(&self) -> Result<Bytes, NvmlError> {
        let mut memory = nvmlMemory_t {
            total: 0,
            free: 0,
            used: 0,
        };
        call!(
            self.nvml,
            nvmlDeviceGetMemoryInfo(self.handle, &raw mut memory)
        )?;
        Ok(Bytes(memory.total))
    }

    /// Whether MIG is enabled; false on GPUs without MIG.
    ///
    /// # Errors
    /// See [`Nvml::count`].
    pub fn is_mig(&self) -> Result<bool, NvmlError> {
        let (mut now, mut later) = (0, 0);
        let asked = call!(
            self.nvml,
            nvmlDeviceGetMigMode(self.handle, &raw mut now, &raw mut later)
        );
        match asked {
            Err(why) if why.answer == nvmlReturn_t::ERROR_NOT_SUPPORTED => Ok(false),
            Err(why) if why.answer == nvmlReturn_t::ERROR_FUNCTION_NOT_FOUND => Ok(false),
            asked => asked.map(|()| now != 0),
        }
    }

    /// Its processes and the bytes each of them uses; `None` where the driver does not report them. A process can be
    /// in more than one list, each time with its whole use.
    ///
    /// # Errors
    /// See [`Nvml::count`]; a GPU without graphics or MPS is no error.
    pub fn processes(&self) -> Result<BTreeMap<u32, Option<u64>>, NvmlError> {
        let mut all = BTreeMap::new();
        let mut found = self.compute()?;
        found.extend(self.graphics().unwrap_or_default());
        found.extend(self.mps().unwrap_or_default());
        for (pid, used) in found {
            let used = (used != u64::MAX).then_some(used);
            let known = all.entry(pid).or_insert(used);
            *known = (*known).max(used);
        }
        Ok(all)
    }

    fn compute(&self) -> Result<Vec<(u32, u64)>, NvmlError> {
        listed::<nvmlProcessInfo_t>(|count, infos| {
            call!(
                self.nvml,
                nvmlDeviceGetComputeRunningProcesses_v3(self.handle, count, infos)
            )
        })
        .or_else(|why| match why.answer {
            nvmlReturn_t::ERROR_FUNCTION_NOT_FOUND => {
                listed::<nvmlProcessInfo_v1_t>(|count, infos| {
                    call!(
                        self.nvml,
                        nvmlDeviceGetComputeRunningProcesses(self.handle, count, infos)
                    )
                })
            }
            _ => Err(why),
        })
    }

    fn graphics(&self) -> Result<Vec<(u32, u64)>, NvmlError> {
        listed::<nvmlProcessInfo_t>(|count, infos| {
            call!(
                self.nvml,
                nvmlDeviceGetGraphicsRunningProcesses_v3(self.handle, count, infos)
            )
        })
    }

    fn mps(&self) -> Result<Vec<(u32, u64)>, NvmlError> {
        listed::<nvmlProcessInfo_t>(|count, infos| {
            call!(
                self.nvml,
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
        call!(
            self.nvml,
            nvmlDeviceGetMemoryLimits_v1(self.handle, &raw mut limits)
        )?;
        Ok(Limits {
            soft: limits.soft_limit,
            hard: limits.hard_limit,
            used: limits.current_used,
        })
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
        call!(
            self.nvml,
            nvmlDeviceSetMemoryLimits_v1(self.handle, &raw mut limits)
        )
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

fn plain(text: &[c_char]) -> String {
    let bytes = text.iter().map(|&byte| byte as u8);
    let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn short() -> NvmlError {
        NvmlError {
            call: "list".to_owned(),
            answer: nvmlReturn_t::ERROR_INSUFFICIENT_SIZE,
        }
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
        let refused = NvmlError {
            call: "list".to_owned(),
            answer: nvmlReturn_t::ERROR_GPU_IS_LOST,
        };
        assert_eq!(
            listed::<nvmlProcessInfo_t>(|_, _| Err(refused.clone())),
            Err(refused.clone())
        );
        assert_eq!(refused.to_string(), "list answered NVML_ERROR_GPU_IS_LOST");
    }

    #[test]
    fn a_file_that_is_no_library_is_an_error() {
        assert!(Nvml::open(Path::new("/proc/self/none")).is_err());
    }
}
