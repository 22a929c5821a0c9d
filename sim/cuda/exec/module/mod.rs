//! Modules and libraries: the sources of kernels and global variables.
//!
//! A module belongs to a context; a library to the process, and becomes a module in each context
//! in which one of its kernels is used. Neither is compiled: a module has the declarations of its
//! PTX ([`ptx`](super::ptx)). Of an image that is not PTX nothing is known, so it has every kernel
//! that a program asks for.

mod attributes;
mod image;
mod library;
mod link;
mod occupancy;
mod store;

pub use attributes::MAX_THREADS;
pub use occupancy::cooperative_limit;
pub use store::{Function, FunctionKey, context_ends, launchable, load_function};

use super::{cstr, key, working};
use crate::context::current;
use crate::driver::strict;
use crate::entry::{In, Out, Outcome, refuse_if};
use gpuslice_nvabi::types::*;
use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;

/// Entry points about modules.
pub mod imp {
    use super::*;

    pub use super::attributes::*;
    pub use super::library::*;
    pub use super::link::*;
    pub use super::occupancy::*;

    pub fn cuModuleLoad(module: Out<CUmodule>, fname: In<c_char>) -> Outcome {
        module.require()?;
        let decl = image::from_file(&cstr(fname)?)?;
        module.set(CUmodule(store::load(working()?, Arc::new(decl))?.to_pointer()))
    }

    pub fn cuModuleLoadData(module: Out<CUmodule>, image: In<c_void>) -> Outcome {
        module.require()?;
        let context = working()?;
        refuse_if(image.is_null())?;
        // SAFETY: not null, and an image by the program's promise.
        let decl = unsafe { image::from_memory(image.pointer()) }?;
        module.set(CUmodule(store::load(context, Arc::new(decl))?.to_pointer()))
    }
    pub use cuModuleLoadData as cuModuleLoadFatBinary;

    pub fn cuModuleLoadDataEx(
        module: Out<CUmodule>,
        image: In<c_void>,
        _num_options: u32,
        _options: *mut CUjit_option,
        _option_values: *mut *mut c_void,
    ) -> Outcome {
        cuModuleLoadData(module, image)
    }

    pub fn cuModuleUnload(hmod: CUmodule) -> Outcome {
        current()?;
        store::unload(key(hmod.0)?)
    }

    pub fn cuModuleGetLoadingMode(mode: Out<CUmoduleLoadingMode>) -> Outcome {
        let lazy = strict::lazy().is_some();
        mode.set(if lazy { CU_MODULE_LAZY_LOADING } else { CU_MODULE_EAGER_LOADING })
    }

    pub fn cuModuleGetFunction(
        hfunc: Out<CUfunction>,
        hmod: CUmodule,
        name: In<c_char>,
    ) -> Outcome {
        hfunc.require()?;
        let function = store::function(key(hmod.0)?, &cstr(name)?)?;
        hfunc.set(CUfunction(function.to_pointer()))
    }

    pub fn cuModuleGetFunctionCount(count: Out<u32>, module: CUmodule) -> Outcome {
        count.set(store::declared(key(module.0)?)?.entries.len() as u32)
    }

    pub fn cuModuleEnumerateFunctions(
        functions: Out<CUfunction>,
        num_functions: u32,
        module: CUmodule,
    ) -> Outcome {
        functions.require()?;
        let module_key = key(module.0)?;
        let decl = store::declared(module_key)?;
        for (at, entry) in decl.entries.iter().take(num_functions as usize).enumerate() {
            let name = CString::new(entry.name.as_str());
            let name = name.map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
            let function = store::function(module_key, &name)?;
            functions.set_at(at, CUfunction(function.to_pointer()))?;
        }
        Ok(())
    }

    pub fn cuModuleGetGlobal_v2(
        dptr: Out<CUdeviceptr>,
        bytes: Out<usize>,
        hmod: CUmodule,
        name: In<c_char>,
    ) -> Outcome {
        let (address, size) = store::global(key(hmod.0)?, &cstr(name)?)?;
        dptr.set_if_wanted(address);
        bytes.set_if_wanted(size);
        Ok(())
    }
}
