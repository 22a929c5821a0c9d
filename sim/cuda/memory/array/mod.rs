//! Arrays: made, described, destroyed. `mipmap` has arrays of levels, `sparse` the memory of tiles.

mod mipmap;
mod sparse;

use super::device;
use crate::allocations::array::{self, Array, destroy, enter, format, with};
use crate::entry::refuse_if;
use crate::exec;
use gpuslice_nvabi::types::*;

/// What an array begins at a multiple of; its size is a multiple of it as well.
const ALIGN: u64 = 64 << 10;

/// Makes an array; one whose memory is mapped later takes none.
fn create(shape: CUDA_ARRAY3D_DESCRIPTOR) -> Result<CUarray, CUresult> {
    let context = exec::working()?;
    format::check(&shape)?;
    let bytes = format::bytes(&shape)?;
    let mut array = Array::new(shape, context, bytes);
    if !format::is_mapped_later(&shape) {
        let (address, home) = device::take(context, bytes)?;
        (array.address, array.home) = (address, Some(home));
    }
    Ok(CUarray(enter(array)?.to_pointer()))
}

/// What an array whose memory is mapped later asks for; of others it cannot be asked.
fn requirements(array: &Array) -> Result<CUDA_ARRAY_MEMORY_REQUIREMENTS, CUresult> {
    refuse_if(array.shape.flags & CUDA_ARRAY3D_DEFERRED_MAPPING == 0)?;
    let size = array.bytes.next_multiple_of(ALIGN) as usize;
    Ok(CUDA_ARRAY_MEMORY_REQUIREMENTS { size, alignment: ALIGN as usize, reserved: [0; 4] })
}

/// Entry points.
pub mod imp {
    use super::*;
    use crate::driver::process;
    use crate::entry::{In, Out, Outcome};

    pub use super::mipmap::*;
    pub use super::sparse::*;

    pub fn cuArrayCreate_v2(handle: Out<CUarray>, shape: In<CUDA_ARRAY_DESCRIPTOR>) -> Outcome {
        handle.require()?;
        let CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels } = shape.get()?;
        let (depth, flags) = (0, 0);
        let shape = CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format, num_channels, flags };
        handle.set(create(shape)?)
    }

    pub fn cuArray3DCreate_v2(handle: Out<CUarray>, shape: In<CUDA_ARRAY3D_DESCRIPTOR>) -> Outcome {
        handle.require()?;
        handle.set(create(shape.get()?)?)
    }

    pub fn cuArrayDestroy(array: CUarray) -> Outcome {
        let (context, is_whole) = with(array.0, false, |array| (array.context, array.is_whole()))?;
        let settled = exec::settle(context);
        // A level of a mipmapped array has no memory of its own. A card's driver answers success for it; what becomes
        // of the level there is not known, and here it lives as long as its array.
        if is_whole {
            destroy(array::key(array.0)?, |array| !array.mipmapped && array.is_whole())?;
        }
        settled
    }

    pub fn cuArray3DGetDescriptor_v2(
        shape: Out<CUDA_ARRAY3D_DESCRIPTOR>,
        array: CUarray,
    ) -> Outcome {
        shape.require()?;
        shape.set(with(array.0, false, |array| array.shape)?)
    }

    pub fn cuArrayGetDescriptor_v2(shape: Out<CUDA_ARRAY_DESCRIPTOR>, array: CUarray) -> Outcome {
        shape.require()?;
        let CUDA_ARRAY3D_DESCRIPTOR { width, height, format, num_channels, .. } =
            with(array.0, false, |array| array.shape)?;
        shape.set(CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels })
    }

    pub fn cuArrayGetMemoryRequirements(
        need: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>,
        array: CUarray,
        device: CUdevice,
    ) -> Outcome {
        need.require()?;
        process()?.gpu(device)?;
        need.set(with(array.0, false, requirements)??)
    }
}
