//! `cuGetProcAddress`: another way to the same functions, which refuse alike.

use crate::child::refused_or_crashes;
use crate::words::*;
use gpuslice_apps::api::address;
use gpuslice_nvabi::types::*;
use gpuslice_nvabi::{lookup, sig};
use std::ffi::{CStr, CString};

family!("lookup":
    same_as_by_name, every_hookable_name_answers, itself, alloc_refuses, managed_refuses,
    create_refuses, array_refuses, ordered_refuses, info_agrees, null_name, null_out;
    bare: before_initialisation, same_each_time, old_versions, per_thread_twins, unknown_name,
    exact_names_are_unknown, too_new, instantiate_as_of_cuda_12, bad_flags, no_version, status_is_written,
);

const VERSION: i32 = 12000;

/// A function's address; 0 if there is none.
fn find(name: &CStr, version: i32, flags: u64) -> Outcome<usize> {
    let mut entry = std::ptr::null_mut();
    let code = says!(
        [SUCCESS, CUresult::ERROR_NOT_FOUND],
        cuGetProcAddress(name.as_ptr(), &mut entry, version, flags)
    );
    that!((code == SUCCESS) != entry.is_null(), "{name:?}: {code:?} and {entry:?}");
    Ok(entry as usize)
}

fn must(name: &CStr) -> Outcome<usize> {
    match find(name, VERSION, 0)? {
        0 => skip(format_args!("the driver has no {name:?}")),
        at => Ok(at),
    }
}

fn before_initialisation() -> Outcome {
    must(c"cuInit")?;
    must(c"cuMemAlloc")?;
    gpu().map(drop)
}

fn same_each_time() -> Outcome {
    let before = must(c"cuMemAlloc")?;
    gpu()?;
    let after = must(c"cuMemAlloc")?;
    that!(before == after, "{before:#x}, then {after:#x}");
    Ok(())
}

/// Not the same address, perhaps; the same function.
fn same_as_by_name(gpu: Gpu) -> Outcome {
    for at in [must(c"cuMemAlloc")?, address(c"cuMemAlloc_v2")] {
        // SAFETY: both are the driver's function of that name and version.
        let call: sig::cuMemAlloc_v2 = unsafe { std::mem::transmute(at) };
        let (gpu, mut memory) = (gpu.measured()?, 0);
        // SAFETY: the pointer is to a live local.
        let code = unsafe { call(&mut memory, gpu.part(8)?) };
        that!(code == SUCCESS, "it answered {code:?}");
        gpu.took(gpu.part(8)?, GRAIN)?;
        gpu.release(memory)?;
    }
    Ok(())
}

fn old_versions() -> Outcome {
    let (old, new) = (find(c"cuMemAlloc", 2000, 0)?, find(c"cuMemAlloc", 3020, 0)?);
    that!(new != 0 && old != new, "the 32-bit form is the new one");
    that!(new == must(c"cuMemAlloc")?, "versions 3.2 and 12 of cuMemAlloc differ");
    Ok(())
}

fn per_thread_twins() -> Outcome {
    for name in [c"cuMemAllocAsync", c"cuMemFreeAsync", c"cuLaunchKernel", c"cuGraphLaunch"] {
        let (legacy, twin) = (find(name, VERSION, 1)?, find(name, VERSION, 2)?);
        that!(legacy != 0 && twin != 0 && legacy != twin, "{name:?}: {legacy:#x} and {twin:#x}");
        that!(legacy == must(name)?, "{name:?}: without a flag it is not the legacy stream's");
    }
    Ok(())
}

fn unknown_name() -> Outcome {
    for name in [c"cuNoSuchFunction", c"", c"malloc", c"nvmlInit"] {
        that!(find(name, VERSION, 0)? == 0, "{name:?} is found");
    }
    Ok(())
}

fn exact_names_are_unknown() -> Outcome {
    for name in [c"cuMemAlloc_v2", c"cuMemAllocAsync_ptsz", c"cuCtxCreate_v2"] {
        that!(find(name, VERSION, 0)? == 0, "{name:?} is found");
    }
    Ok(())
}

fn too_new() -> Outcome {
    that!(find(c"cuMemAllocAsync", 11010, 0)? == 0, "a function of 11.2 is found for 11.1");
    Ok(())
}

/// An H200's driver (580.159.04) answers for CUDA 12 with the form of CUDA 11, which has five arguments. `cuda.h` says
/// that the name means another function there, with three.
fn instantiate_as_of_cuda_12() -> Outcome {
    let [old, new] = [11040, 12000].map(|version| find(c"cuGraphInstantiate", version, 0));
    let (old, new, other) = (old?, new?, must(c"cuGraphInstantiateWithFlags")?);
    that!(old == new && new != other, "{old:#x}, then {new:#x}; {other:#x} is another function");
    gpu()?;
    let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
    ok!(cuGraphCreate(&mut graph, 0));
    let mut wrong = CUgraphNode::NULL;
    let code = instantiate(&mut exec, graph, &mut wrong);
    that!(code == SUCCESS, "it answered {code:?}");
    Ok(())
}

/// Instantiates a graph by the function that `cuGraphInstantiate` is as of CUDA 12.
pub fn instantiate(exec: &mut CUgraphExec, graph: CUgraph, wrong: *mut CUgraphNode) -> CUresult {
    let Ok(at) = must(c"cuGraphInstantiate") else {
        return CUresult::ERROR_NOT_FOUND;
    };
    // SAFETY: the driver's function of that name and version. The one of `cuda.h` reads the first three arguments only.
    let call: sig::cuGraphInstantiate_v2 = unsafe { std::mem::transmute(at) };
    // SAFETY: pointers to live locals, or null.
    unsafe { call(exec, graph, wrong, std::ptr::null_mut(), 0) }
}

/// A card's driver ignores flags that it does not know.
fn bad_flags() -> Outcome {
    let mut entry = std::ptr::null_mut();
    let name = c"cuMemAlloc".as_ptr();
    for flags in [3, 4, u64::MAX] {
        says!([SUCCESS, INVALID], cuGetProcAddress(name, &mut entry, VERSION, flags));
    }
    Ok(())
}

fn null_name(gpu: Gpu) -> Outcome {
    refused_or_crashes(gpu, "null-name")
}

/// The helper of that case.
pub fn null_name_asked(_: &[String]) -> Outcome {
    let mut entry = std::ptr::null_mut();
    says!(INVALID, cuGetProcAddress(std::ptr::null(), &mut entry, VERSION, 0));
    Ok(())
}

fn null_out(gpu: Gpu) -> Outcome {
    refused_or_crashes(gpu, "null-out")
}

/// The helper of that case.
pub fn null_out_asked(_: &[String]) -> Outcome {
    says!(INVALID, cuGetProcAddress(c"cuMemAlloc".as_ptr(), std::ptr::null_mut(), VERSION, 0));
    Ok(())
}

/// A card's driver answers success for version -1.
fn no_version() -> Outcome {
    let mut entry = std::ptr::null_mut();
    let (name, not_found) = (c"cuMemAlloc".as_ptr(), CUresult::ERROR_NOT_FOUND);
    for version in [-1, 0] {
        says!([SUCCESS, INVALID, not_found], cuGetProcAddress(name, &mut entry, version, 0));
    }
    Ok(())
}

fn status_is_written() -> Outcome {
    for (name, version, want) in [
        (c"cuMemAlloc", VERSION, CU_GET_PROC_ADDRESS_SUCCESS),
        (c"cuNoSuchFunction", VERSION, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
        (c"cuMemAllocAsync", 11010, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT),
    ] {
        let (mut entry, mut status) = (std::ptr::null_mut(), 99);
        let name = name.as_ptr();
        says!(
            [SUCCESS, CUresult::ERROR_NOT_FOUND],
            cuGetProcAddress_v2(name, &mut entry, version, 0, &mut status)
        );
        that!(status == want, "status {status}, not {want}");
    }
    Ok(())
}

/// The lookup found by itself finds functions that refuse.
fn itself(gpu: Gpu) -> Outcome {
    let (mut entry, mut status) = (std::ptr::null_mut(), 99);
    // SAFETY: since CUDA 12 this name is the second version's.
    let look: sig::cuGetProcAddress_v2 = unsafe { std::mem::transmute(must(c"cuGetProcAddress")?) };
    // SAFETY: pointers to live locals and a name that ends in NUL.
    let code = unsafe { look(c"cuMemAlloc".as_ptr(), &mut entry, VERSION, 0, &mut status) };
    that!(code == SUCCESS && entry as usize == must(c"cuMemAlloc")?, "{code:?}, {entry:?}");
    // SAFETY: as the driver says.
    let alloc: sig::cuMemAlloc_v2 = unsafe { std::mem::transmute(entry) };
    let mut at = 0;
    // SAFETY: the pointer is to a live local.
    let code = unsafe { alloc(&mut at, gpu.total()? + GRAIN) };
    that!(code == OOM, "it answered {code:?}");
    Ok(())
}

fn alloc_refuses(gpu: Gpu) -> Outcome {
    let mut at = 0;
    // SAFETY: the driver's function of that name and version.
    let call: sig::cuMemAlloc_v2 = unsafe { std::mem::transmute(must(c"cuMemAlloc")?) };
    // SAFETY: the pointer is to a live local.
    let code = unsafe { call(&mut at, gpu.total()? + GRAIN) };
    that!(code == OOM, "it answered {code:?}");
    gpu.back()
}

fn managed_refuses(gpu: Gpu) -> Outcome {
    let mut at = 0;
    // SAFETY: the driver's function of that name and version.
    let call: sig::cuMemAllocManaged = unsafe { std::mem::transmute(must(c"cuMemAllocManaged")?) };
    // SAFETY: the pointer is to a live local.
    let code = unsafe { call(&mut at, usize::MAX / 2, CU_MEM_ATTACH_GLOBAL) };
    that!(code == OOM, "it answered {code:?}");
    gpu.back()
}

fn create_refuses(gpu: Gpu) -> Outcome {
    let mut handle = 0;
    let total = gpu.total()?;
    // SAFETY: the driver's function of that name and version.
    let call: sig::cuMemCreate = unsafe { std::mem::transmute(must(c"cuMemCreate")?) };
    let bytes = total.next_multiple_of(GRAIN) + GRAIN;
    // SAFETY: pointers to live locals.
    let code = unsafe { call(&mut handle, bytes, &crate::vmm::wanted(gpu), 0) };
    that!(code == OOM, "it answered {code:?}");
    gpu.back()
}

fn array_refuses(gpu: Gpu) -> Outcome {
    let mut array = CUarray::NULL;
    // SAFETY: the driver's function of that name and version.
    let call: sig::cuArray3DCreate_v2 = unsafe { std::mem::transmute(must(c"cuArray3DCreate")?) };
    let depth = gpu.total()? / (16384 * 16384 * 16) + 1;
    let (format, num_channels, flags) = (CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_LAYERED);
    let (width, height) = (16384, 16384);
    let shape = CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format, num_channels, flags };
    // SAFETY: pointers to live locals.
    let code = unsafe { call(&mut array, &shape) };
    that!(code == OOM, "it answered {code:?}");
    gpu.back()
}

fn ordered_refuses(gpu: Gpu) -> Outcome {
    let mut at = 0;
    let total = gpu.total()?;
    for flags in [0, 1, 2] {
        // SAFETY: the driver's function of that name and version.
        let call: sig::cuMemAllocAsync =
            unsafe { std::mem::transmute(find(c"cuMemAllocAsync", VERSION, flags)?) };
        // SAFETY: the pointer is to a live local.
        let code = unsafe { call(&mut at, total + GRAIN, CUstream::NULL) };
        that!(code == OOM, "with flags {flags} it answered {code:?}");
    }
    gpu.back()
}

fn info_agrees(gpu: Gpu) -> Outcome {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the driver's function of that name and version.
    let call: sig::cuMemGetInfo_v2 = unsafe { std::mem::transmute(must(c"cuMemGetInfo")?) };
    // SAFETY: pointers to live locals.
    let code = unsafe { call(&mut free, &mut total) };
    that!(code == SUCCESS && (free, total) == gpu.info()?, "{code:?}: {free} of {total}");
    Ok(())
}

/// Every name of the table has the same answer each time, and a status that fits it.
fn every_hookable_name_answers(_: Gpu) -> Outcome {
    let mut version = 0;
    ok!(cuDriverGetVersion(&mut version));
    for function in gpuslice_nvabi::DRIVER.iter() {
        let base = function.name.split("_v").next().unwrap_or(function.name);
        let base = base.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        let name = CString::new(base).or_else(fail)?;
        if lookup::symbol(base, version as u32, 0).is_err() {
            continue;
        }
        let (one, other) = (find(&name, version, 0)?, find(&name, version, 0)?);
        that!(one == other, "{base}: {one:#x}, then {other:#x}");
    }
    Ok(())
}
