//! Arrays and mipmapped arrays.
//!
//! Their layout is the driver's secret, so the size is known only afterwards, and only where
//! `cuArrayGetMemoryRequirements` (CUDA 11.6) or its like tells it. What the elements take is reserved
//! first, and made right once the driver has answered; an array that then does not fit is destroyed.

use super::{Charging, freed};
use crate::guard::{Outcome, guard};
use crate::real;
use gpuslice_nvabi::types::*;

/// Bytes of one channel, at least: compressed and packed formats come out larger than they are, and are
/// made right afterwards.
fn channel_bytes(format: CUarray_format) -> usize {
    match format {
        CU_AD_FORMAT_UNSIGNED_INT8 | CU_AD_FORMAT_SIGNED_INT8 => 1,
        CU_AD_FORMAT_UNSIGNED_INT16 | CU_AD_FORMAT_SIGNED_INT16 | CU_AD_FORMAT_HALF => 2,
        CU_AD_FORMAT_UNSIGNED_INT32 | CU_AD_FORMAT_SIGNED_INT32 | CU_AD_FORMAT_FLOAT => 4,
        _ => 4,
    }
}

/// What the elements of an array take, bytes; nothing for one that gets its memory mapped later.
fn element_bytes(shape: &CUDA_ARRAY3D_DESCRIPTOR) -> usize {
    if shape.flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) != 0 {
        return 0;
    }
    shape
        .width
        .saturating_mul(shape.height.max(1))
        .saturating_mul(shape.depth.max(1))
        .saturating_mul(shape.num_channels as usize)
        .saturating_mul(channel_bytes(shape.format))
}

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

/// How the two kinds of arrays differ.
struct Kind {
    measure: fn(*mut c_void, &mut CUDA_ARRAY_MEMORY_REQUIREMENTS, CUdevice) -> CUresult,
    destroy: fn(*mut c_void) -> CUresult,
}

const ARRAY: Kind = Kind {
    measure: |array, need, device| {
        real!(cuArrayGetMemoryRequirements(need, CUarray(array), device))
    },
    destroy: |array| real!(cuArrayDestroy(CUarray(array))),
};

const MIPMAPPED: Kind = Kind {
    measure: |array, need, device| {
        real!(cuMipmappedArrayGetMemoryRequirements(
            need,
            CUmipmappedArray(array),
            device
        ))
    },
    destroy: |array| real!(cuMipmappedArrayDestroy(CUmipmappedArray(array))),
};

/// Reserves `guess` bytes, creates, corrects to what was really taken.
///
/// # Safety
/// `create` gives the new array's handle with success.
fn created(
    guess: usize,
    kind: &Kind,
    create: impl FnOnce() -> CUresult,
    handle: impl FnOnce() -> *mut c_void,
) -> Outcome {
    if guess == 0 {
        return Ok(create());
    }
    let charging = Charging::here(guess)?;
    let result = create();
    let (CUresult::SUCCESS, Some(mut charging)) = (result, charging) else {
        return Ok(result);
    };
    let handle = handle();
    if let Some(bytes) = measured(kind, handle)
        && let Err(refused) = charging.reservation.adjust(bytes)
    {
        let _ = (kind.destroy)(handle);
        return Err(refused);
    }
    charging.commit(handle as u64);
    Ok(result)
}

/// What an array takes, as the driver says; `None` when it does not say.
fn measured(kind: &Kind, handle: *mut c_void) -> Option<u64> {
    let mut need = CUDA_ARRAY_MEMORY_REQUIREMENTS {
        size: 0,
        alignment: 0,
        reserved: [0; 4],
    };
    let mut device = 0;
    let known = real!(cuCtxGetDevice(&raw mut device)) == CUresult::SUCCESS
        && (kind.measure)(handle, &mut need, device) == CUresult::SUCCESS;
    (known && need.size > 0).then_some(need.size as u64)
}

pub unsafe extern "C" fn cuArrayCreate_v2(
    p_handle: *mut CUarray,
    p_allocate_array: *const CUDA_ARRAY_DESCRIPTOR,
) -> CUresult {
    guard(|| {
        // SAFETY: null, or the application's own, which the driver is about to read.
        let guess =
            unsafe { p_allocate_array.as_ref() }.map_or(0, |shape| element_bytes(&flat(shape)));
        let create = || real!(cuArrayCreate_v2(p_handle, p_allocate_array));
        // SAFETY: read after the driver wrote it and answered success.
        created(guess, &ARRAY, create, || unsafe { (*p_handle).0 })
    })
}

pub unsafe extern "C" fn cuArray3DCreate_v2(
    p_handle: *mut CUarray,
    p_allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR,
) -> CUresult {
    guard(|| {
        // SAFETY: null, or the application's own, which the driver is about to read.
        let guess = unsafe { p_allocate_array.as_ref() }.map_or(0, element_bytes);
        let create = || real!(cuArray3DCreate_v2(p_handle, p_allocate_array));
        // SAFETY: read after the driver wrote it and answered success.
        created(guess, &ARRAY, create, || unsafe { (*p_handle).0 })
    })
}

/// The first `N` words of a description of CUDA before 3.2: all its fields have 32 bits.
///
/// # Safety
/// `shape` is null or such a description.
unsafe fn narrow<const N: usize>(shape: *const c_void) -> Option<[u32; N]> {
    // SAFETY: as above; the driver is about to read it too.
    (!shape.is_null()).then(|| unsafe { shape.cast::<[u32; N]>().read_unaligned() })
}

pub unsafe extern "C" fn cuArrayCreate(
    p_handle: *mut CUarray,
    p_allocate_array: *const c_void,
) -> CUresult {
    guard(|| {
        let guess = |[width, height, format, num_channels]: [u32; 4]| {
            element_bytes(&flat(&CUDA_ARRAY_DESCRIPTOR {
                width: width as usize,
                height: height as usize,
                format: format as CUarray_format,
                num_channels,
            }))
        };
        // SAFETY: the application's own description.
        let guess = unsafe { narrow(p_allocate_array) }.map_or(0, guess);
        let create = || real!(cuArrayCreate(p_handle, p_allocate_array));
        // SAFETY: read after the driver wrote it and answered success.
        created(guess, &ARRAY, create, || unsafe { (*p_handle).0 })
    })
}

pub unsafe extern "C" fn cuArray3DCreate(
    p_handle: *mut CUarray,
    p_allocate_array: *const c_void,
) -> CUresult {
    guard(|| {
        let guess = |[width, height, depth, format, num_channels, flags]: [u32; 6]| {
            element_bytes(&CUDA_ARRAY3D_DESCRIPTOR {
                width: width as usize,
                height: height as usize,
                depth: depth as usize,
                format: format as CUarray_format,
                num_channels,
                flags,
            })
        };
        // SAFETY: the application's own description.
        let guess = unsafe { narrow(p_allocate_array) }.map_or(0, guess);
        let create = || real!(cuArray3DCreate(p_handle, p_allocate_array));
        // SAFETY: read after the driver wrote it and answered success.
        created(guess, &ARRAY, create, || unsafe { (*p_handle).0 })
    })
}

pub unsafe extern "C" fn cuMipmappedArrayCreate(
    p_handle: *mut CUmipmappedArray,
    p_mipmapped_array_desc: *const CUDA_ARRAY3D_DESCRIPTOR,
    num_mipmap_levels: u32,
) -> CUresult {
    guard(|| {
        // SAFETY: null, or the application's own, which the driver is about to read.
        let base = unsafe { p_mipmapped_array_desc.as_ref() }.map_or(0, element_bytes);
        // Each level has at most half the elements of the one before.
        let guess = if num_mipmap_levels > 1 {
            base.saturating_mul(2)
        } else {
            base
        };
        let create = || {
            real!(cuMipmappedArrayCreate(
                p_handle,
                p_mipmapped_array_desc,
                num_mipmap_levels
            ))
        };
        // SAFETY: read after the driver wrote it and answered success.
        created(guess, &MIPMAPPED, create, || unsafe { (*p_handle).0 })
    })
}

pub unsafe extern "C" fn cuArrayDestroy(h_array: CUarray) -> CUresult {
    guard(|| freed(h_array.0 as u64, || real!(cuArrayDestroy(h_array))))
}

pub unsafe extern "C" fn cuMipmappedArrayDestroy(h_mipmapped_array: CUmipmappedArray) -> CUresult {
    guard(|| {
        freed(h_mipmapped_array.0 as u64, || {
            real!(cuMipmappedArrayDestroy(h_mipmapped_array))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_count_bytes_and_do_not_overflow() {
        let mut shape = CUDA_ARRAY3D_DESCRIPTOR {
            width: 100,
            height: 0,
            depth: 0,
            format: CU_AD_FORMAT_HALF,
            num_channels: 4,
            flags: 0,
        };
        assert_eq!(element_bytes(&shape), 800);
        (shape.height, shape.depth) = (10, 3);
        assert_eq!(element_bytes(&shape), 24_000);
        shape.width = usize::MAX;
        assert_eq!(element_bytes(&shape), usize::MAX);
        shape.flags = CUDA_ARRAY3D_SPARSE;
        assert_eq!(element_bytes(&shape), 0);
    }
}
