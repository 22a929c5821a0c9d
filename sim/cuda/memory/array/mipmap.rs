//! Mipmapped arrays: the same picture in halves, quarters, eighths.

use super::requirements;
use crate::allocations::array::{Array, INVALID, destroy, enter, format, key, with};
use crate::driver::process;
use crate::entry::{In, Out, Outcome, refuse_if};
use crate::exec;
use crate::memory::device;
use gpuslice_nvabi::types::*;

/// Makes a mipmapped array with its levels.
fn create(shape: CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> Result<CUmipmappedArray, CUresult> {
    let context = exec::working()?;
    format::check(&shape)?;
    refuse_if(levels == 0)?;
    // More levels than there can be are as many as there can be.
    let levels = levels.min(format::most_levels(&shape));
    let shapes: Vec<_> = (0..levels).map(|level| format::level(&shape, level)).collect();
    let sizes: Vec<u64> = shapes.iter().map(format::bytes).collect::<Result<_, _>>()?;
    let bytes = sizes.iter().try_fold(0_u64, |sum, bytes| sum.checked_add(*bytes));
    let bytes = bytes.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let deferred = format::is_mapped_later(&shape);
    let (start, home) = if deferred {
        (0, None)
    } else {
        let (start, home) = device::take(context, bytes)?;
        (start, Some(home))
    };
    let mut address = start;
    let mut keys = Vec::new();
    for (shape, bytes) in shapes.into_iter().zip(sizes) {
        keys.push(enter(Array { address, ..Array::new(shape, context, bytes) })?);
        address += if deferred { 0 } else { bytes };
    }
    let whole = Array {
        address: start,
        home,
        levels: keys,
        mipmapped: true,
        ..Array::new(shape, context, bytes)
    };
    Ok(CUmipmappedArray(enter(whole)?.to_pointer()))
}

pub fn cuMipmappedArrayCreate(
    handle: Out<CUmipmappedArray>,
    shape: In<CUDA_ARRAY3D_DESCRIPTOR>,
    levels: u32,
) -> Outcome {
    handle.require()?;
    handle.set(create(shape.get()?, levels)?)
}

pub fn cuMipmappedArrayGetLevel(
    level_array: Out<CUarray>,
    mipmap: CUmipmappedArray,
    level: u32,
) -> Outcome {
    level_array.require()?;
    let key = with(mipmap.0, true, |array| array.levels.get(level as usize).copied())?;
    level_array.set(CUarray(key.ok_or(INVALID)?.to_pointer()))
}

pub fn cuMipmappedArrayDestroy(mipmap: CUmipmappedArray) -> Outcome {
    let context = with(mipmap.0, true, |array| array.context)?;
    let settled = exec::settle(context);
    destroy(key(mipmap.0)?, |array| array.mipmapped)?;
    settled
}

pub fn cuMipmappedArrayGetMemoryRequirements(
    need: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>,
    mipmap: CUmipmappedArray,
    device: CUdevice,
) -> Outcome {
    need.require()?;
    process()?.gpu(device)?;
    need.set(with(mipmap.0, true, requirements)??)
}
