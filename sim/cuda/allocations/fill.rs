//! Fills: a value of one, two or four bytes into rows of memory.

use super::check;
use crate::entry::Outcome;
use crate::vram::{map, space};
use gpuslice_nvabi::types::{CUDA_MEMSET_NODE_PARAMS, CUresult};

const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;
const PAGE: u64 = 4096;
/// From here on zeros are made by giving the pages back.
const ZERO_FROM: u64 = 2 << 20;

/// A fill: `height` rows of `width` elements.
#[derive(Clone, Copy)]
pub struct Fill {
    pub address: u64,
    pitch: u64,
    value: u32,
    /// Bytes of an element: 1, 2 or 4.
    element: u64,
    width: u64,
    height: u64,
}

impl Fill {
    /// Looks a fill through.
    pub fn of(params: &CUDA_MEMSET_NODE_PARAMS) -> Result<Self, CUresult> {
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
        let bytes = rows.checked_mul(fill.pitch).and_then(|rows| rows.checked_add(row));
        if fill.bytes() > 0 {
            check(fill.address, bytes.ok_or(INVALID)?, true, false)?;
        }
        Ok(fill)
    }

    pub fn bytes(&self) -> u64 {
        (self.width * self.element).saturating_mul(self.height)
    }

    /// Does the fill.
    pub fn run(&self) -> Outcome {
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
