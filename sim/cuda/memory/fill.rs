//! Fills: a value of one, two or four bytes into rows of memory.

use super::registry;
use crate::context;
use crate::entry::Outcome;
use crate::exec;
use crate::vram::{map, space};
use crate::work::{Operation, OperationKind};
use gpuslice_nvabi::types::{CUDA_MEMSET_NODE_PARAMS_v2, CUcontext, CUresult, CUstream};
use std::sync::Arc;

const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;
const PAGE: u64 = 4096;
/// From here on zeros are made by giving the pages back.
const ZERO_FROM: u64 = 2 << 20;

/// A fill: `height` rows of `width` elements.
#[derive(Clone, Copy)]
struct Fill {
    address: u64,
    pitch: u64,
    value: u32,
    /// Bytes of an element: 1, 2 or 4.
    element: u64,
    width: u64,
    height: u64,
}

impl Fill {
    /// Looks a fill through.
    fn of(params: &CUDA_MEMSET_NODE_PARAMS_v2) -> Result<Self, CUresult> {
        let fill = Self {
            address: params.dst,
            pitch: params.pitch as u64,
            value: params.value,
            element: u64::from(params.element_size),
            width: params.width as u64,
            height: params.height as u64,
        };
        if !matches!(fill.element, 1 | 2 | 4) || !fill.address.is_multiple_of(fill.element) {
            return Err(INVALID);
        }
        let row = fill.width.checked_mul(fill.element).ok_or(INVALID)?;
        let rows = fill.height.saturating_sub(1);
        if rows > 0 && (fill.pitch < row || !fill.pitch.is_multiple_of(fill.element)) {
            return Err(INVALID);
        }
        let bytes = rows
            .checked_mul(fill.pitch)
            .and_then(|rows| rows.checked_add(row));
        if fill.bytes() > 0 {
            registry::check(fill.address, bytes.ok_or(INVALID)?, true, false)?;
        }
        Ok(fill)
    }

    fn bytes(&self) -> u64 {
        (self.width * self.element).saturating_mul(self.height)
    }

    fn run(&self) -> Outcome {
        let row = self.width * self.element;
        if self.height > 1 && self.pitch == row {
            // Rows that lie side by side are one.
            return self.row(self.address, row * self.height);
        }
        (0..self.height).try_for_each(|y| self.row(self.address + y * self.pitch, row))
    }

    fn row(&self, mut address: u64, mut bytes: u64) -> Outcome {
        if self.value == 0 && bytes >= ZERO_FROM && space::contains(address) {
            let first = address.next_multiple_of(PAGE);
            let whole = (address + bytes - first) / PAGE * PAGE;
            // SAFETY: whole pages of a range `of` has found writable; in the range of device
            // addresses everything mapped is a mapping of a memory file.
            if unsafe { map::zero(first, whole) } {
                self.write(address, first - address);
                (address, bytes) = (first + whole, address + bytes - first - whole);
            }
        }
        if space::contains(address) {
            map::back(address, bytes)?;
        }
        self.write(address, bytes);
        Ok(())
    }

    fn write(&self, address: u64, bytes: u64) {
        let count = (bytes / self.element) as usize;
        // SAFETY (of all three): `of` has found the range writable, and it is aligned to the
        // element; as on a real device others may write there meanwhile.
        match self.element {
            // SAFETY: see above.
            1 => unsafe { std::ptr::write_bytes(address as *mut u8, self.value as u8, count) },
            2 => {
                let at = address as *mut u16;
                // SAFETY: see above.
                (0..count).for_each(|n| unsafe { at.add(n).write(self.value as u16) });
            }
            _ => {
                let at = address as *mut u32;
                // SAFETY: see above.
                (0..count).for_each(|n| unsafe { at.add(n).write(self.value) });
            }
        }
    }
}

/// Does a fill at once; `Err` is what the context is to be told.
pub fn fill_now(params: &CUDA_MEMSET_NODE_PARAMS_v2) -> Outcome {
    Fill::of(params)
        .map_err(|_| CUresult::ERROR_ILLEGAL_ADDRESS)?
        .run()
}

/// Whether a fill is one that could be done.
pub fn check_fill(params: &CUDA_MEMSET_NODE_PARAMS_v2) -> Outcome {
    Fill::of(params).map(drop)
}

/// Queues a fill; with no stream given it is done when the call returns.
fn submit(params: CUDA_MEMSET_NODE_PARAMS_v2, stream: Option<CUstream>) -> Outcome {
    context::working()?;
    let fill = Fill::of(&params)?;
    if fill.bytes() == 0 {
        return Ok(());
    }
    let ns = exec::cost::copy(fill.bytes(), false);
    let again = Again(params);
    let run = Arc::new(move || again.run());
    exec::queue(
        stream.unwrap_or(CUstream::NULL),
        Operation {
            kind: OperationKind::Fill(params),
            ns,
            run,
        },
    )?;
    // A fill of device memory lets the program go on; of the host's memory it does not.
    if stream.is_none() && !space::contains(fill.address) {
        return exec::wait(CUstream::NULL);
    }
    Ok(())
}

/// A fill to be done by another thread.
struct Again(CUDA_MEMSET_NODE_PARAMS_v2);

impl Again {
    fn run(&self) -> Outcome {
        fill_now(&self.0)
    }
}

fn params(
    dst: u64,
    pitch: usize,
    value: u32,
    element: u32,
    size: [usize; 2],
) -> CUDA_MEMSET_NODE_PARAMS_v2 {
    let [width, height] = size;
    let element_size = element;
    CUDA_MEMSET_NODE_PARAMS_v2 {
        dst,
        pitch,
        value,
        element_size,
        width,
        height,
        ctx: CUcontext::NULL,
    }
}

/// Entry points.
#[allow(non_snake_case)]
pub mod imp {
    use super::*;
    use gpuslice_nvabi::types::CUdeviceptr;

    /// The six forms of a fill with elements of one type.
    macro_rules! fills {
        ($ty:ty, $line:ident $line_ptds:ident, $line_async:ident $line_ptsz:ident,
         $rect:ident $rect_ptds:ident, $rect_async:ident $rect_ptsz:ident) => {
            pub fn $line(dst: CUdeviceptr, value: $ty, n: usize) -> Outcome {
                submit(
                    params(dst, 0, value.into(), size_of::<$ty>() as u32, [n, 1]),
                    None,
                )
            }
            pub use $line as $line_ptds;

            pub fn $line_async(
                dst: CUdeviceptr,
                value: $ty,
                n: usize,
                stream: CUstream,
            ) -> Outcome {
                submit(
                    params(dst, 0, value.into(), size_of::<$ty>() as u32, [n, 1]),
                    Some(stream),
                )
            }
            pub use $line_async as $line_ptsz;

            pub fn $rect(
                dst: CUdeviceptr,
                pitch: usize,
                value: $ty,
                width: usize,
                height: usize,
            ) -> Outcome {
                let size = [width, height];
                submit(
                    params(dst, pitch, value.into(), size_of::<$ty>() as u32, size),
                    None,
                )
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
                let element = size_of::<$ty>() as u32;
                let size = [width, height];
                submit(
                    params(dst, pitch, value.into(), element, size),
                    Some(stream),
                )
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
}
