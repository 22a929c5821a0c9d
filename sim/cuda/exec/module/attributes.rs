//! Attributes of kernels, read and set.

use super::super::key;
use super::store::{self, Function, NOT_SET};
use crate::driver::process;
use crate::entry::{Out, Outcome, refuse_if};
use gpuslice_nvabi::types::*;
use std::ffi::c_char;
use std::sync::atomic::Ordering;

/// Largest block of any kernel.
pub const MAX_THREADS: u32 = 1024;
/// Dynamic shared memory of a block unless the kernel was set to take more.
pub const SHARED_DEFAULT: usize = 48 << 10;
/// Shared memory of a block at most, static and dynamic together.
pub const SHARED_MOST: usize = 227 << 10;
/// Registers of a thread: what a compiler gives a plain kernel.
pub const REGISTERS: i32 = 32;
/// Compute capability 9.0, as versions are written here.
const VERSION: i32 = 90;

impl Function {
    /// Largest block it can be launched with.
    pub fn max_threads(&self) -> u32 {
        self.entry.max_threads.unwrap_or(MAX_THREADS).min(MAX_THREADS)
    }

    fn value(&self, attribute: u32) -> Option<i32> {
        let value = self.set.get(attribute as usize)?.load(Ordering::Relaxed);
        (value != NOT_SET).then_some(value)
    }

    /// Dynamic shared memory it can be launched with, in bytes.
    pub fn max_dynamic_shared(&self) -> usize {
        let default = SHARED_DEFAULT.saturating_sub(self.entry.shared_bytes);
        let set = self.value(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
        set.map_or(default, |value| value as usize)
    }

    /// The value of an attribute; `None` where there is no such attribute.
    pub fn attribute(&self, attribute: CUfunction_attribute) -> Option<i32> {
        if attribute as usize >= self.set.len() {
            return None;
        }
        if let Some(value) = self.value(attribute) {
            return Some(value);
        }
        Some(match attribute {
            CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => self.max_threads() as i32,
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => self.entry.shared_bytes as i32,
            CU_FUNC_ATTRIBUTE_NUM_REGS => REGISTERS,
            CU_FUNC_ATTRIBUTE_PTX_VERSION | CU_FUNC_ATTRIBUTE_BINARY_VERSION => VERSION,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => self.max_dynamic_shared() as i32,
            CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => -1,
            _ => 0,
        })
    }

    /// Sets one of the attributes that can be set.
    pub fn set_attribute(&self, attribute: CUfunction_attribute, value: i32) -> Outcome {
        let dynamic = (SHARED_MOST - self.entry.shared_bytes.min(SHARED_MOST)) as i32;
        let allowed = match attribute {
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => 0..=dynamic,
            CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => -1..=100,
            CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
            | CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT
            | CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH => 0..=16,
            CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED => 0..=1,
            CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => 0..=2,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        refuse_if(!allowed.contains(&value))?;
        self.set[attribute as usize].store(value, Ordering::Relaxed);
        Ok(())
    }

    fn param(&self, index: usize, offset: Out<usize>, size: Out<usize>) -> Outcome {
        let params = self.entry.params.as_deref().unwrap_or_default();
        let param = params.get(index).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        offset.require()?;
        size.set_if_wanted(param.size);
        offset.set(param.offset)
    }

    fn param_count(&self) -> usize {
        self.entry.params.as_ref().map_or(0, Vec::len)
    }
}

fn function(handle: CUfunction) -> Result<std::sync::Arc<Function>, CUresult> {
    store::launchable(handle.0).map(|(_, function)| function)
}

fn kernel(handle: CUkernel) -> Result<std::sync::Arc<Function>, CUresult> {
    store::kernel_of(key(handle.0)?).map(|(_, properties)| properties)
}

// Entry points about the properties of functions and kernels.
pub fn cuFuncGetAttribute(
    pi: Out<i32>,
    attrib: CUfunction_attribute,
    hfunc: CUfunction,
) -> Outcome {
    pi.require()?;
    pi.set(function(hfunc)?.attribute(attrib).ok_or(CUresult::ERROR_INVALID_VALUE)?)
}

pub fn cuFuncSetAttribute(hfunc: CUfunction, attrib: CUfunction_attribute, value: i32) -> Outcome {
    function(hfunc)?.set_attribute(attrib, value)
}

pub fn cuFuncSetCacheConfig(hfunc: CUfunction, config: CUfunc_cache) -> Outcome {
    function(hfunc)?;
    refuse_if(config > CU_FUNC_CACHE_PREFER_EQUAL)?;
    Ok(())
}

pub fn cuFuncSetSharedMemConfig(hfunc: CUfunction, config: CUsharedconfig) -> Outcome {
    function(hfunc)?;
    refuse_if(config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)?;
    Ok(())
}

pub fn cuFuncGetModule(hmod: Out<CUmodule>, hfunc: CUfunction) -> Outcome {
    hmod.set(CUmodule(function(hfunc)?.module.to_pointer()))
}

pub fn cuFuncGetName(name: Out<*const c_char>, hfunc: CUfunction) -> Outcome {
    // The text lives as long as the module, which is what a program may count on.
    name.set(function(hfunc)?.name.as_ptr())
}

pub fn cuFuncGetParamInfo(
    func: CUfunction,
    param_index: usize,
    param_offset: Out<usize>,
    param_size: Out<usize>,
) -> Outcome {
    function(func)?.param(param_index, param_offset, param_size)
}

pub fn cuFuncGetParamCount(func: CUfunction, param_count: Out<usize>) -> Outcome {
    param_count.set(function(func)?.param_count())
}

pub fn cuFuncIsLoaded(state: Out<CUfunctionLoadingState>, f: CUfunction) -> Outcome {
    let loaded = function(f)?.loaded.load(Ordering::Acquire);
    state.set(if loaded {
        CU_FUNCTION_LOADING_STATE_LOADED
    } else {
        CU_FUNCTION_LOADING_STATE_UNLOADED
    })
}

pub fn cuFuncLoad(f: CUfunction) -> Outcome {
    store::load_function(&*function(f)?)
}

pub fn cuKernelGetAttribute(
    pi: Out<i32>,
    attrib: CUfunction_attribute,
    handle: CUkernel,
    dev: CUdevice,
) -> Outcome {
    pi.require()?;
    process()?.gpu(dev)?;
    pi.set(kernel(handle)?.attribute(attrib).ok_or(CUresult::ERROR_INVALID_VALUE)?)
}

pub fn cuKernelSetAttribute(
    attrib: CUfunction_attribute,
    val: i32,
    handle: CUkernel,
    dev: CUdevice,
) -> Outcome {
    process()?.gpu(dev)?;
    kernel(handle)?.set_attribute(attrib, val)?;
    for made in store::functions_of_kernel(key(handle.0)?) {
        made.set_attribute(attrib, val)?;
    }
    Ok(())
}

pub fn cuKernelSetCacheConfig(handle: CUkernel, config: CUfunc_cache, dev: CUdevice) -> Outcome {
    process()?.gpu(dev)?;
    kernel(handle)?;
    refuse_if(config > CU_FUNC_CACHE_PREFER_EQUAL)?;
    Ok(())
}

pub fn cuKernelGetParamInfo(
    handle: CUkernel,
    param_index: usize,
    param_offset: Out<usize>,
    param_size: Out<usize>,
) -> Outcome {
    kernel(handle)?.param(param_index, param_offset, param_size)
}

pub fn cuKernelGetParamCount(handle: CUkernel, param_count: Out<usize>) -> Outcome {
    param_count.set(kernel(handle)?.param_count())
}
