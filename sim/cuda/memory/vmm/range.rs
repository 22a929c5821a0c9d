//! Addresses: reserved, mapped, given access, unmapped.

use super::handle::{hand_out, physical};
use super::{INVALID, Physical, STEP, whole};
use crate::allocations::{self, Allocation, Found, Home, Kind};
use crate::driver::process;
use crate::entry::{In, Out, Outcome, refuse_if};
use crate::exec;
use crate::vram::{map, space, unmap};
use gpuslice_nvabi::types::*;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Reserved ranges by address, and the mappings in them by address.
struct Ranges {
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, (u64, Physical)>,
}

fn ranges() -> MutexGuard<'static, Ranges> {
    static RANGES: Mutex<Ranges> =
        Mutex::new(Ranges { reserved: BTreeMap::new(), mapped: BTreeMap::new() });
    RANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ranges {
    fn is_reserved(&self, address: u64, len: u64) -> bool {
        let before = self.reserved.range(..=address).next_back();
        before.is_some_and(|(&start, &size)| {
            address.checked_add(len).is_some_and(|end| end <= start + size)
        })
    }

    /// The mappings that make up a range exactly; none if it has a gap or cuts one.
    fn exactly(&self, address: u64, len: u64) -> Option<Vec<u64>> {
        let mut at = address;
        let mut bases = Vec::new();
        while at < address + len {
            let (size, _) = self.mapped.get(&at)?;
            bases.push(at);
            at += size;
        }
        (at == address + len).then_some(bases)
    }

    /// Whether a range is reserved and nothing is mapped in it.
    fn is_empty(&self, address: u64, len: u64) -> bool {
        self.is_reserved(address, len) && !self.overlaps(address, len)
    }

    fn overlaps(&self, address: u64, len: u64) -> bool {
        let before = self.mapped.range(..address + len).next_back();
        before.is_some_and(|(&base, (size, _))| base + size > address)
    }
}

/// The memory mapped from this address on.
fn mapped_at(base: u64) -> Option<Physical> {
    ranges().mapped.get(&base).map(|(_, physical)| physical.clone())
}

/// Sets the access of every mapping in a range.
fn set_access(bases: &[Found], read: bool, write: bool) -> Outcome {
    for found in bases {
        // SAFETY: the range is mapped by `cuMemMap` inside a reservation.
        unsafe { map::protect(found.base, found.bytes, read, write) }
            .map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
        allocations::change(found.base, |one| one.kind = Kind::Mapped { read, write });
    }
    Ok(())
}

pub fn cuMemAddressReserve(
    ptr: Out<CUdeviceptr>,
    size: usize,
    alignment: usize,
    addr: CUdeviceptr,
    flags: u64,
) -> Outcome {
    ptr.require()?;
    whole(&[size as u64])?;
    let power = alignment == 0 || alignment.is_power_of_two();
    refuse_if(flags != 0 || !power || !addr.is_multiple_of(4096))?;
    // A wish that does not fit the steps is a wish that cannot be met.
    let wish = if addr.is_multiple_of(STEP) { addr } else { 0 };
    let align = (alignment as u64).max(STEP);
    let address = space::take(size as u64, align, wish);
    let address = address.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    ranges().reserved.insert(address, size as u64);
    ptr.set(address)
}

pub fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) -> Outcome {
    let mut ranges = ranges();
    let fits = ranges.reserved.get(&ptr) == Some(&(size as u64));
    refuse_if(!fits || ranges.overlaps(ptr, size as u64))?;
    ranges.reserved.remove(&ptr);
    drop(ranges);
    space::give(ptr, size as u64);
    Ok(())
}

pub fn cuMemMap(
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> Outcome {
    let physical = physical(handle)?;
    let (len, offset) = (size as u64, offset as u64);
    whole(&[ptr, len])?;
    let end = offset.checked_add(len);
    let inside = end.is_some_and(|end| end <= physical.backing.bytes());
    refuse_if(flags != 0 || !offset.is_multiple_of(STEP) || !inside)?;
    let mut ranges = ranges();
    refuse_if(!ranges.is_reserved(ptr, len) || ranges.overlaps(ptr, len))?;
    physical.backing.map(offset, len, ptr)?;
    let device = physical.prop.location.id.max(0);
    let kind = Kind::Mapped { read: false, write: false };
    let allocation = Allocation::without_context(device, len, kind, Home::Elsewhere);
    allocations::insert(ptr, allocation);
    ranges.mapped.insert(ptr, (len, physical));
    Ok(())
}

/// A reserved range in which nothing is mapped is unmapped with success, as a card's driver does.
pub fn cuMemUnmap(ptr: CUdeviceptr, size: usize) -> Outcome {
    whole(&[ptr, size as u64])?;
    if ranges().is_empty(ptr, size as u64) {
        return Ok(());
    }
    ranges().exactly(ptr, size as u64).ok_or(INVALID)?;
    exec::settle_all();
    let mut ranges = ranges();
    // Another thread may have been faster.
    let bases = ranges.exactly(ptr, size as u64).ok_or(INVALID)?;
    let mut gone = Vec::new();
    for base in bases {
        allocations::remove(base, |one| matches!(one.kind, Kind::Mapped { .. }));
        if let Some((len, physical)) = ranges.mapped.remove(&base) {
            unmap(base, len);
            gone.push(physical);
        }
    }
    drop(ranges);
    drop(gone);
    Ok(())
}

pub fn cuMemRetainAllocationHandle(
    handle: Out<CUmemGenericAllocationHandle>,
    addr: *mut c_void,
) -> Outcome {
    handle.require()?;
    let found = allocations::find(addr as u64);
    let found = found.filter(|found| matches!(found.kind, Kind::Mapped { .. }));
    let physical = mapped_at(found.ok_or(INVALID)?.base).ok_or(INVALID)?;
    handle.set(hand_out(physical)?)
}

pub fn cuMemSetAccess(
    ptr: CUdeviceptr,
    size: usize,
    desc: In<CUmemAccessDesc>,
    count: usize,
) -> Outcome {
    whole(&[ptr, size as u64])?;
    refuse_if(count == 0)?;
    let mut flags = None;
    for desc in desc.list(count)? {
        if desc.location.kind == CU_MEM_LOCATION_TYPE_DEVICE {
            process()?.gpu(desc.location.id)?;
        } else if desc.location.kind != CU_MEM_LOCATION_TYPE_HOST {
            return Err(INVALID);
        }
        let known = [
            CU_MEM_ACCESS_FLAGS_PROT_NONE,
            CU_MEM_ACCESS_FLAGS_PROT_READ,
            CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        ];
        refuse_if(!known.contains(&desc.flags))?;
        // All devices share one page table here: the widest access counts.
        flags = flags.max(Some(desc.flags));
    }
    let flags = flags.unwrap_or(CU_MEM_ACCESS_FLAGS_PROT_NONE);
    let held = ranges();
    held.exactly(ptr, size as u64).ok_or(INVALID)?;
    let found = allocations::within(ptr, size as u64);
    set_access(&found, flags & 1 != 0, flags & 2 != 0)
}

pub fn cuMemGetAccess(flags: Out<u64>, location: In<CUmemLocation>, ptr: CUdeviceptr) -> Outcome {
    flags.require()?;
    let location = location.get()?;
    refuse_if(location.kind != CU_MEM_LOCATION_TYPE_DEVICE)?;
    process()?.gpu(location.id)?;
    match allocations::find(ptr).map(|found| found.kind) {
        Some(Kind::Mapped { read, write }) => flags.set(u64::from(read) | u64::from(write) << 1),
        _ => Err(INVALID),
    }
}
