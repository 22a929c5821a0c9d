//! Arrays: made, described, destroyed.

use super::{Array, INVALID, Tiles, destroy, enter, format, with};
use crate::context;
use crate::exec;
use crate::memory::device;
use gpuslice_nvabi::types::*;

/// What an array begins at a multiple of; its size is a multiple of it as well.
pub const ALIGN: u64 = 64 << 10;

/// Makes an array; one whose memory is mapped later takes none.
fn create(shape: CUDA_ARRAY3D_DESCRIPTOR) -> Result<CUarray, CUresult> {
    let context = context::working()?;
    format::check(&shape)?;
    let bytes = format::bytes(&shape)?;
    let mut array = Array {
        shape,
        context,
        address: 0,
        bytes,
        home: None,
        levels: Vec::new(),
        mipmapped: false,
        tiles: Tiles::new(),
    };
    if !format::is_mapped_later(&shape) {
        let (address, home) = device::take(context, bytes)?;
        (array.address, array.home) = (address, Some(home));
    }
    Ok(CUarray(enter(array)?.to_pointer()))
}

/// What an array whose memory is mapped later asks for; of others it cannot be asked.
pub fn requirements(array: &Array) -> Result<CUDA_ARRAY_MEMORY_REQUIREMENTS, CUresult> {
    if array.shape.flags & CUDA_ARRAY3D_DEFERRED_MAPPING == 0 {
        return Err(INVALID);
    }
    let size = array.bytes.next_multiple_of(ALIGN) as usize;
    Ok(CUDA_ARRAY_MEMORY_REQUIREMENTS {
        size,
        alignment: ALIGN as usize,
        reserved: [0; 4],
    })
}

/// Entry points.
#[allow(non_snake_case)]
pub mod imp {
    use super::*;
    use crate::driver::process;
    use crate::entry::{In, Out, Outcome};

    pub fn cuArrayCreate_v2(handle: Out<CUarray>, shape: In<CUDA_ARRAY_DESCRIPTOR>) -> Outcome {
        handle.require()?;
        let CUDA_ARRAY_DESCRIPTOR {
            width,
            height,
            format,
            num_channels,
        } = shape.get()?;
        let (depth, flags) = (0, 0);
        let shape = CUDA_ARRAY3D_DESCRIPTOR {
            width,
            height,
            depth,
            format,
            num_channels,
            flags,
        };
        handle.set(create(shape)?)
    }

    pub fn cuArray3DCreate_v2(handle: Out<CUarray>, shape: In<CUDA_ARRAY3D_DESCRIPTOR>) -> Outcome {
        handle.require()?;
        handle.set(create(shape.get()?)?)
    }

    pub fn cuArrayDestroy(array: CUarray) -> Outcome {
        let context = with(array.0, false, |array| array.context)?;
        let settled = exec::settle(context);
        // A level of a mipmapped array has no memory of its own and is not destroyed by itself.
        destroy(super::super::key(array.0)?, |array| {
            !array.mipmapped && array.is_whole()
        })?;
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
        let CUDA_ARRAY3D_DESCRIPTOR {
            width,
            height,
            format,
            num_channels,
            ..
        } = with(array.0, false, |array| array.shape)?;
        shape.set(CUDA_ARRAY_DESCRIPTOR {
            width,
            height,
            format,
            num_channels,
        })
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
