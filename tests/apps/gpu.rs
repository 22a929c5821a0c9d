//! A GPU as the programs about launch order use it: a context, the kernel `spin`, and a word that streams
//! wait for.

use crate::api::{calls::*, check};
use crate::ok;
use crate::spin::{SPIN_NAME, SPIN_PTX};
use gpuslice_nvabi::types::*;
use std::ptr::null_mut;

/// A case ends early with what went wrong.
pub type Outcome<T = ()> = Result<T, String>;

/// A GPU's context, in which the calling thread is.
#[derive(Clone, Copy)]
pub struct Gpu {
    pub context: CUcontext,
    kernel: CUfunction,
    /// 2 MiB, zeroed; the kernels count in its first word.
    pub memory: CUdeviceptr,
}

// SAFETY: a driver's handles are good in every thread of the process.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

/// Place of the word in the memory, bytes.
const WORD: u64 = 4096;

impl Gpu {
    /// A new context on GPU `device`.
    ///
    /// # Errors
    /// The call that failed, and its code. So for all functions here.
    pub fn new(device: i32) -> Outcome<Gpu> {
        let (mut context, mut module) = (CUcontext::NULL, CUmodule::NULL);
        let (mut kernel, mut memory) = (CUfunction::NULL, 0);
        ok!(cuInit(0))?;
        ok!(cuCtxCreate_v2(&mut context, 0, device))?;
        ok!(cuModuleLoadData(&mut module, SPIN_PTX.as_ptr().cast()))?;
        ok!(cuModuleGetFunction(&mut kernel, module, SPIN_NAME.as_ptr()))?;
        ok!(cuMemAlloc_v2(&mut memory, 1 << 21))?;
        ok!(cuMemsetD8_v2(memory, 0, 1 << 21))?;
        Ok(Gpu { context, kernel, memory })
    }

    /// The address of the word.
    pub fn word(self) -> CUdeviceptr {
        self.memory + WORD
    }

    /// Launches a kernel of so many microseconds; `per_thread` by the call for programs with a default
    /// stream per thread.
    pub fn spin(self, stream: CUstream, us: u64, per_thread: bool) -> CUresult {
        let (mut ns, mut counter) = (us * 1_000, self.memory);
        let mut params = [(&raw mut ns).cast(), (&raw mut counter).cast()];
        let (f, params, none) = (self.kernel, params.as_mut_ptr(), null_mut());
        if per_thread {
            cuLaunchKernel_ptsz(f, 1, 1, 1, 1, 1, 1, 0, stream, params, none)
        } else {
            cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, params, none)
        }
    }

    /// Launches a kernel of so many microseconds.
    pub fn kernel(self, stream: CUstream, us: u64) -> Outcome {
        check("a launch", self.spin(stream, us, false))
    }

    /// Later work of `stream` waits until the word is `value`.
    pub fn wait(self, stream: CUstream, value: u32) -> Outcome {
        ok!(cuStreamWaitValue32_v2(stream, self.word(), value, CU_STREAM_WAIT_VALUE_EQ))
    }

    /// `stream` writes `value` to the word.
    pub fn write(self, stream: CUstream, value: u32) -> Outcome {
        ok!(cuStreamWriteValue32_v2(stream, self.word(), value, 0))
    }
}

/// A new stream of the current context; `flags` as of `cuStreamCreate`.
pub fn stream(flags: u32) -> Outcome<CUstream> {
    let mut stream = CUstream::NULL;
    ok!(cuStreamCreate(&mut stream, flags))?;
    Ok(stream)
}
