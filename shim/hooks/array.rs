//! Arrays and mipmapped arrays.
//!
//! The driver does not document their layout, and reports the size only of an array whose memory is mapped
//! later (`CUDA_ARRAY3D_DEFERRED_MAPPING`, CUDA 11.6), which itself takes none. So a probe of that kind is
//! created, queried and destroyed first, and its size is reserved before the array itself is created.
//! If the driver creates no such probe, [`crate::memory::arrays`] gives an upper estimate.
//!
//! Sparse arrays and arrays with deferred mapping cost nothing until memory is mapped
//! ([`crate::memory::physical::tiles`]). A plane or a level of an array is a part of it, and costs nothing either.

use crate::guard::Outcome;
use crate::memory::allocations;
use crate::memory::arrays as shape;
use crate::memory::physical::tiles;
use crate::real;
use crate::slice::{self, Charging, freed};
use gpuslice_nvabi::types::*;

fn flat(shape: &CUDA_ARRAY_DESCRIPTOR) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        width: shape.width,
        height: shape.height,
        depth: 0,
        format: shape.format,
        num_channels: shape.num_channels,
        flags: 0,
    }
}

/// The differences between the two kinds of arrays.
struct Kind {
    create: fn(&mut *mut c_void, &CUDA_ARRAY3D_DESCRIPTOR, u32) -> CUresult,
    measure: fn(*mut c_void, &mut CUDA_ARRAY_MEMORY_REQUIREMENTS, CUdevice) -> CUresult,
    destroy: fn(*mut c_void) -> CUresult,
}

const ARRAY: Kind = Kind {
    create: |array, shape, _levels| {
        let handle = std::ptr::from_mut(array).cast::<CUarray>();
        real!(cuArray3DCreate_v2(handle, std::ptr::from_ref(shape)))
    },
    measure: |array, need, device| {
        real!(cuArrayGetMemoryRequirements(need, CUarray(array), device))
    },
    destroy: |array| real!(cuArrayDestroy(CUarray(array))),
};

const MIPMAPPED: Kind = Kind {
    create: |array, shape, levels| {
        let handle = std::ptr::from_mut(array).cast::<CUmipmappedArray>();
        real!(cuMipmappedArrayCreate(handle, std::ptr::from_ref(shape), levels))
    },
    measure: |array, need, device| {
        real!(cuMipmappedArrayGetMemoryRequirements(need, CUmipmappedArray(array), device))
    },
    destroy: |array| real!(cuMipmappedArrayDestroy(CUmipmappedArray(array))),
};

/// The memory of an array of this shape, as the driver reports it for a probe; `None` if it does not.
fn asked(kind: &Kind, shape: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> Option<usize> {
    let mut need = CUDA_ARRAY_MEMORY_REQUIREMENTS { size: 0, alignment: 0, reserved: [0; 4] };
    let probe =
        CUDA_ARRAY3D_DESCRIPTOR { flags: shape.flags | CUDA_ARRAY3D_DEFERRED_MAPPING, ..*shape };
    let (mut array, mut device) = (std::ptr::null_mut(), 0);
    if real!(cuCtxGetDevice(&raw mut device)) != CUresult::SUCCESS
        || (kind.create)(&mut array, &probe, levels) != CUresult::SUCCESS
    {
        return None;
    }
    let known = (kind.measure)(array, &mut need, device) == CUresult::SUCCESS;
    let _ = (kind.destroy)(array);
    (known && need.size > 0).then_some(need.size)
}

/// Reserves the memory of an array and creates it.
///
/// # Safety
/// `create` gives the new array's handle with success.
fn created(
    shape: Option<CUDA_ARRAY3D_DESCRIPTOR>,
    levels: u32,
    kind: &Kind,
    create: impl FnOnce() -> CUresult,
    handle: impl FnOnce() -> *mut c_void,
) -> Outcome {
    let shape = shape.filter(shape::takes_memory);
    let (Some(_), Some(shape)) = (slice::get()?, shape) else {
        return Ok(create());
    };
    let bytes = asked(kind, &shape, levels).unwrap_or_else(|| shape::bytes(&shape, levels));
    let mut charging = Charging::here(bytes)?;
    if let Some(charging) = &mut charging {
        charging.kind = allocations::Kind::Array;
    }
    let result = create();
    if let (CUresult::SUCCESS, Some(charging)) = (result, charging) {
        charging.commit(handle() as u64);
    }
    Ok(result)
}

/// Destroys an array by `call`, and with it its tiles.
fn destroyed(array: u64, call: impl FnOnce() -> CUresult) -> Outcome {
    let Some(slice) = slice::attached() else {
        return Ok(call());
    };
    let tiles = slice.physical().take_tiles(array);
    let result = freed(array, call)?;
    if result == CUresult::SUCCESS {
        slice.drop_references(tiles::allocations(tiles));
    } else {
        slice.physical().restore_tiles(tiles);
    }
    Ok(result)
}

hooks! {
    guard cuArrayCreate_v2(
        p_handle: *mut CUarray, p_allocate_array: *const CUDA_ARRAY_DESCRIPTOR,
    ) as |call| {
        // SAFETY: null, or the application's own, which the driver is about to read.
        let shape = unsafe { p_allocate_array.as_ref() }.map(flat);
        let create = call;
        // SAFETY: read after the driver wrote it and answered success.
        created(shape, 1, &ARRAY, create, || unsafe { (*p_handle).0 })
    };

    guard cuArray3DCreate_v2(
        p_handle: *mut CUarray, p_allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR,
    ) as |call| {
        // SAFETY: null, or the application's own, which the driver is about to read.
        let shape = unsafe { p_allocate_array.as_ref() }.copied();
        let create = call;
        // SAFETY: read after the driver wrote it and answered success.
        created(shape, 1, &ARRAY, create, || unsafe { (*p_handle).0 })
    };
}

/// The first `N` words of a description of CUDA before 3.2: all its fields have 32 bits.
///
/// # Safety
/// `shape` is null or such a description.
unsafe fn narrow<const N: usize>(shape: *const c_void) -> Option<[u32; N]> {
    // SAFETY: as above; the driver is about to read it too.
    (!shape.is_null()).then(|| unsafe { shape.cast::<[u32; N]>().read_unaligned() })
}

hooks! {
    guard cuArrayCreate(p_handle: *mut CUarray, p_allocate_array: *const c_void) as |call| {
        let wide = |[width, height, format, num_channels]: [u32; 4]| {
            flat(&CUDA_ARRAY_DESCRIPTOR {
                width: width as usize,
                height: height as usize,
                format: format as CUarray_format,
                num_channels,
            })
        };
        // SAFETY: the application's own description.
        let shape = unsafe { narrow(p_allocate_array) }.map(wide);
        let create = call;
        // SAFETY: read after the driver wrote it and answered success.
        created(shape, 1, &ARRAY, create, || unsafe { (*p_handle).0 })
    };

    guard cuArray3DCreate(p_handle: *mut CUarray, p_allocate_array: *const c_void) as |call| {
        let wide = |[width, height, depth, format, num_channels, flags]: [u32; 6]| {
            CUDA_ARRAY3D_DESCRIPTOR {
                width: width as usize,
                height: height as usize,
                depth: depth as usize,
                format: format as CUarray_format,
                num_channels,
                flags,
            }
        };
        // SAFETY: the application's own description.
        let shape = unsafe { narrow(p_allocate_array) }.map(wide);
        let create = call;
        // SAFETY: read after the driver wrote it and answered success.
        created(shape, 1, &ARRAY, create, || unsafe { (*p_handle).0 })
    };

    guard cuMipmappedArrayCreate(
        p_handle: *mut CUmipmappedArray, p_mipmapped_array_desc: *const CUDA_ARRAY3D_DESCRIPTOR,
        num_mipmap_levels: u32,
    ) as |call| {
        // SAFETY: null, or the application's own, which the driver is about to read.
        let shape = unsafe { p_mipmapped_array_desc.as_ref() }.copied();
        let create = call;
        // SAFETY: read after the driver wrote it and answered success.
        created(shape, num_mipmap_levels, &MIPMAPPED, create, || unsafe {
            (*p_handle).0
        })
    };

    guard cuArrayDestroy(h_array: CUarray) as |call| destroyed(h_array.0 as u64, call);

    guard cuMipmappedArrayDestroy(h_mipmapped_array: CUmipmappedArray) as |call| {
        destroyed(h_mipmapped_array.0 as u64, call)
    };
}
