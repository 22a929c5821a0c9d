//! Fills, in the order of streams.

use crate::allocations::fill::Fill;
use crate::entry::Outcome;
use crate::exec::{self, Operation, OperationKind};
use crate::vram::space;
use gpuslice_nvabi::types::{CUDA_MEMSET_NODE_PARAMS, CUdeviceptr, CUstream};

/// Queues a fill; with no stream given it is done when the call returns.
fn submit<T: Into<u32>>(
    dst: u64,
    pitch: usize,
    value: T,
    [width, height]: [usize; 2],
    stream: Option<CUstream>,
) -> Outcome {
    let params = CUDA_MEMSET_NODE_PARAMS {
        dst,
        pitch,
        value: value.into(),
        element_size: size_of::<T>() as u32,
        width,
        height,
    };
    exec::working()?;
    let fill = Fill::of(&params)?;
    if fill.bytes() == 0 {
        return Ok(());
    }
    let ns = exec::cost::copy(fill.bytes(), false);
    let operation = Operation::later(OperationKind::Fill(params), ns);
    exec::queue(stream.unwrap_or(CUstream::NULL), operation)?;
    // A fill of device memory lets the program go on; of the host's memory it does not.
    if stream.is_none() && !space::contains(fill.address) {
        return exec::wait(CUstream::NULL);
    }
    Ok(())
}

/// The six forms of a fill with elements of one type.
macro_rules! fills {
    ($ty:ty, $line:ident $line_ptds:ident, $line_async:ident $line_ptsz:ident,
     $rect:ident $rect_ptds:ident, $rect_async:ident $rect_ptsz:ident) => {
        pub fn $line(dst: CUdeviceptr, value: $ty, n: usize) -> Outcome {
            submit(dst, 0, value, [n, 1], None)
        }
        pub use $line as $line_ptds;

        pub fn $line_async(dst: CUdeviceptr, value: $ty, n: usize, stream: CUstream) -> Outcome {
            submit(dst, 0, value, [n, 1], Some(stream))
        }
        pub use $line_async as $line_ptsz;

        pub fn $rect(
            dst: CUdeviceptr,
            pitch: usize,
            value: $ty,
            width: usize,
            height: usize,
        ) -> Outcome {
            submit(dst, pitch, value, [width, height], None)
        }
        pub use $rect as $rect_ptds;

        pub fn $rect_async(
            dst: CUdeviceptr,
            pitch: usize,
            value: $ty,
            width: usize,
            height: usize,
            stream: CUstream,
        ) -> Outcome {
            submit(dst, pitch, value, [width, height], Some(stream))
        }
        pub use $rect_async as $rect_ptsz;
    };
}

fills!(
    u8, cuMemsetD8_v2 cuMemsetD8_v2_ptds, cuMemsetD8Async cuMemsetD8Async_ptsz,
    cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds, cuMemsetD2D8Async cuMemsetD2D8Async_ptsz
);
fills!(
    u16, cuMemsetD16_v2 cuMemsetD16_v2_ptds, cuMemsetD16Async cuMemsetD16Async_ptsz,
    cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds, cuMemsetD2D16Async cuMemsetD2D16Async_ptsz
);
fills!(
    u32, cuMemsetD32_v2 cuMemsetD32_v2_ptds, cuMemsetD32Async cuMemsetD32Async_ptsz,
    cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds, cuMemsetD2D32Async cuMemsetD2D32Async_ptsz
);
