//! Libraries: modules that belong to no context.

use super::super::{cstr, key};
use super::{image, store};
use crate::entry::{In, Out, Outcome, refuse_if};
use gpuslice_nvabi::types::{
    CUdeviceptr, CUfunction, CUjit_option, CUkernel, CUlibrary, CUlibraryOption, CUmodule, CUresult,
};
use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;

// Entry points about libraries and their kernels.
pub fn cuLibraryLoadData(
    library: Out<CUlibrary>,
    code: In<c_void>,
    _jit_options: *mut CUjit_option,
    _jit_options_values: *mut *mut c_void,
    _num_jit_options: u32,
    _library_options: *mut CUlibraryOption,
    _library_option_values: *mut *mut c_void,
    _num_library_options: u32,
) -> Outcome {
    library.require()?;
    refuse_if(code.is_null())?;
    // SAFETY: not null, and an image by the program's promise.
    let decl = unsafe { image::from_memory(code.pointer()) }?;
    library.set(CUlibrary(store::load_library(Arc::new(decl))?.to_pointer()))
}

pub fn cuLibraryLoadFromFile(
    library: Out<CUlibrary>,
    file_name: In<c_char>,
    _jit_options: *mut CUjit_option,
    _jit_options_values: *mut *mut c_void,
    _num_jit_options: u32,
    _library_options: *mut CUlibraryOption,
    _library_option_values: *mut *mut c_void,
    _num_library_options: u32,
) -> Outcome {
    library.require()?;
    let decl = image::from_file(&cstr(file_name)?)?;
    library.set(CUlibrary(store::load_library(Arc::new(decl))?.to_pointer()))
}

pub fn cuLibraryUnload(library: CUlibrary) -> Outcome {
    store::unload_library(key(library.0)?)
}

pub fn cuLibraryGetKernel(
    p_kernel: Out<CUkernel>,
    library: CUlibrary,
    name: In<c_char>,
) -> Outcome {
    p_kernel.require()?;
    let kernel = store::kernel(key(library.0)?, &cstr(name)?)?;
    p_kernel.set(CUkernel(kernel.to_pointer()))
}

pub fn cuLibraryGetKernelCount(count: Out<u32>, lib: CUlibrary) -> Outcome {
    count.set(store::kernels(key(lib.0)?)?.entries.len() as u32)
}

pub fn cuLibraryEnumerateKernels(
    kernels: Out<CUkernel>,
    num_kernels: u32,
    lib: CUlibrary,
) -> Outcome {
    kernels.require()?;
    let library = key(lib.0)?;
    let decl = store::kernels(library)?;
    for (at, entry) in decl.entries.iter().take(num_kernels as usize).enumerate() {
        let name = CString::new(entry.name.as_str());
        let name = name.map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        kernels.set_at(at, CUkernel(store::kernel(library, &name)?.to_pointer()))?;
    }
    Ok(())
}

pub fn cuLibraryGetModule(p_mod: Out<CUmodule>, library: CUlibrary) -> Outcome {
    p_mod.require()?;
    p_mod.set(CUmodule(store::module_of(key(library.0)?)?.to_pointer()))
}

pub fn cuKernelGetFunction(p_func: Out<CUfunction>, kernel: CUkernel) -> Outcome {
    p_func.require()?;
    p_func.set(CUfunction(store::function_of_kernel(key(kernel.0)?)?.to_pointer()))
}

pub fn cuKernelGetLibrary(p_lib: Out<CUlibrary>, kernel: CUkernel) -> Outcome {
    p_lib.set(CUlibrary(store::kernel_of(key(kernel.0)?)?.0.to_pointer()))
}

pub fn cuKernelGetName(name: Out<*const c_char>, hfunc: CUkernel) -> Outcome {
    name.set(store::kernel_of(key(hfunc.0)?)?.1.name.as_ptr())
}

pub fn cuLibraryGetGlobal(
    dptr: Out<CUdeviceptr>,
    bytes: Out<usize>,
    library: CUlibrary,
    name: In<c_char>,
) -> Outcome {
    let (address, size) = store::global(store::module_of(key(library.0)?)?, &cstr(name)?)?;
    dptr.set_if_wanted(address);
    bytes.set_if_wanted(size);
    Ok(())
}

pub fn cuLibraryGetManaged(
    _dptr: Out<CUdeviceptr>,
    _bytes: Out<usize>,
    library: CUlibrary,
    name: In<c_char>,
) -> Outcome {
    store::kernels(key(library.0)?)?;
    cstr(name)?;
    // PTX of a simulated module declares no managed variables that we would know of.
    Err(CUresult::ERROR_NOT_FOUND)
}
