//! Copies of bytes: the plan of one is addresses of rows, known to be allowed.

use super::{Found, array, check};
use crate::entry::{Outcome, refuse_if};
use crate::vram::{map, space};
use gpuslice_nvabi::types::*;

/// One side: where the first row begins, and how far apart rows and planes are.
#[derive(Clone, Copy)]
struct Side {
    address: u64,
    pitch: u64,
    plane: u64,
    /// Whether the bytes are the host's.
    host: bool,
    /// Memory of the host the driver knows nothing of.
    pageable: bool,
    sync_memops: bool,
}

/// One side as the call describes it.
struct Asked {
    kind: CUmemorytype,
    host: u64,
    device: u64,
    array: CUarray,
    pitch: u64,
    height: u64,
    x: u64,
    y: u64,
    z: u64,
    write: bool,
}

/// A copy that may be done.
#[derive(Clone, Copy)]
pub struct Plan {
    src: Side,
    dst: Side,
    width: u64,
    height: u64,
    depth: u64,
}

const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;

impl Plan {
    /// Looks a copy through.
    pub fn of(copy: &CUDA_MEMCPY3D) -> Result<Self, CUresult> {
        refuse_if(copy.src_lod != 0 || copy.dst_lod != 0)?;
        let [width, height, depth] =
            [copy.width_in_bytes, copy.height, copy.depth].map(|side| side as u64);
        let asked = Asked {
            kind: copy.src_memory_type,
            host: copy.src_host as u64,
            device: copy.src_device,
            array: copy.src_array,
            pitch: copy.src_pitch as u64,
            height: copy.src_height as u64,
            x: copy.src_x_in_bytes as u64,
            y: copy.src_y as u64,
            z: copy.src_z as u64,
            write: false,
        };
        let src = asked.side(width, height, depth)?;
        let asked = Asked {
            kind: copy.dst_memory_type,
            host: copy.dst_host as u64,
            device: copy.dst_device,
            array: copy.dst_array,
            pitch: copy.dst_pitch as u64,
            height: copy.dst_height as u64,
            x: copy.dst_x_in_bytes as u64,
            y: copy.dst_y as u64,
            z: copy.dst_z as u64,
            write: true,
        };
        let dst = asked.side(width, height, depth)?;
        Ok(Self { src, dst, width, height, depth })
    }

    pub fn bytes(&self) -> u64 {
        self.width.saturating_mul(self.height).saturating_mul(self.depth)
    }

    pub fn crosses_bus(&self) -> bool {
        self.src.host != self.dst.host
    }

    pub fn source_is_pageable(&self) -> bool {
        self.src.pageable
    }

    pub fn target_is_pageable(&self) -> bool {
        self.dst.pageable
    }

    /// Whether a pointer of it was set to have its copies waited for.
    pub fn syncs(&self) -> bool {
        self.src.sync_memops || self.dst.sync_memops
    }

    /// The bytes of the source as they are now, and the plan of copying them from there.
    pub fn set_aside(&self) -> (Self, Vec<u8>) {
        let mut bytes = vec![0; self.bytes() as usize];
        let address = bytes.as_mut_ptr() as u64;
        let packed = Side {
            address,
            pitch: self.width,
            plane: self.width * self.height,
            host: true,
            pageable: false,
            sync_memops: false,
        };
        Self { dst: packed, ..*self }.move_rows();
        (Self { src: packed, ..*self }, bytes)
    }

    /// Does a plan of [`Plan::set_aside`] with its bytes; the target is looked at again.
    pub fn run_from(&self, bytes: &[u8]) -> Outcome {
        let end = extent(self.width, self.height, self.depth, self.dst.pitch, self.dst.plane)?;
        let illegal = CUresult::ERROR_ILLEGAL_ADDRESS;
        check(self.dst.address, end, true, true).map_err(|_| illegal)?;
        let src = Side { address: bytes.as_ptr() as u64, ..self.src };
        Self { src, ..*self }.run()
    }

    /// Does the copy.
    pub fn run(&self) -> Outcome {
        if !self.dst.host {
            let (pitch, plane) = (self.dst.pitch, self.dst.plane);
            map::back(
                self.dst.address,
                extent(self.width, self.height, self.depth, pitch, plane)?,
            )?;
        }
        self.move_rows();
        Ok(())
    }

    fn move_rows(&self) {
        let width = self.width as usize;
        for z in 0..self.depth {
            for y in 0..self.height {
                let from =
                    (self.src.address + z * self.src.plane + y * self.src.pitch) as *const u8;
                let to = (self.dst.address + z * self.dst.plane + y * self.dst.pitch) as *mut u8;
                // SAFETY: `of` has found both rows in allocations that are mapped with the access
                // needed, or in memory of the host that the program vouches for. Other threads and
                // processes may write the same bytes meanwhile, as on a real device; nothing here
                // depends on what is read.
                unsafe { std::ptr::copy(from, to, width) };
            }
        }
    }
}

/// Bytes from the first byte of the first row to the last of the last.
fn extent(width: u64, height: u64, depth: u64, pitch: u64, plane: u64) -> Result<u64, CUresult> {
    let rows = height.saturating_sub(1).checked_mul(pitch);
    let planes = depth.saturating_sub(1).checked_mul(plane);
    let sum = rows.zip(planes).and_then(|(rows, planes)| rows.checked_add(planes));
    sum.and_then(|sum| sum.checked_add(width)).ok_or(INVALID)
}

impl Asked {
    fn side(&self, width: u64, height: u64, depth: u64) -> Result<Side, CUresult> {
        match self.kind {
            CU_MEMORYTYPE_HOST => self.pitched(self.host, true, width, height, depth),
            CU_MEMORYTYPE_DEVICE => self.pitched(self.device, false, width, height, depth),
            CU_MEMORYTYPE_UNIFIED => self.pitched(self.device, true, width, height, depth),
            CU_MEMORYTYPE_ARRAY => {
                let place = array::place(self.array, [self.x, self.y, self.z])?;
                let fits =
                    place.room[0] >= width && place.room[1] >= height && place.room[2] >= depth;
                refuse_if(!fits)?;
                let (address, pitch, plane) = (place.address, place.pitch, place.plane);
                let (host, pageable, sync_memops) = (false, false, false);
                Ok(Side { address, pitch, plane, host, pageable, sync_memops })
            }
            _ => Err(INVALID),
        }
    }

    fn pitched(
        &self,
        base: u64,
        pageable: bool,
        width: u64,
        height: u64,
        depth: u64,
    ) -> Result<Side, CUresult> {
        let pitch = if self.pitch == 0 { width.saturating_add(self.x) } else { self.pitch };
        let rows = if self.height == 0 { height } else { self.height };
        let short = pitch < width.saturating_add(self.x) || rows < height;
        refuse_if((height > 1 || depth > 1) && short)?;
        let plane = pitch.checked_mul(rows).ok_or(INVALID)?;
        let before = extent(self.x, self.y + 1, self.z + 1, pitch, plane)?;
        let address = base.checked_add(before).ok_or(INVALID)?;
        let found = if width == 0 || height == 0 || depth == 0 {
            None
        } else {
            let bytes = extent(width, height, depth, pitch, plane)?;
            check(address, bytes, self.write, pageable)?
        };
        let host = found.map_or(!space::contains(address), |found| found.is_host());
        Ok(Side {
            address,
            pitch,
            plane,
            host,
            pageable: host && found.is_none(),
            sync_memops: found.is_some_and(|found: Found| found.sync_memops),
        })
    }
}
