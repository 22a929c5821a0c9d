//! Device and managed memory: `cuMemAlloc` and its kin.
//!
//! An allocation that fits into half a slab comes from the context's heap; a larger one has pages of
//! its own. Freeing waits for the work queued in the context, as the real driver does: a queued copy
//! must still find its memory.
//!
//! Managed memory stays where it was made: on the device, which the host can use as well (all memory
//! of the simulated device is mapped), or, once the device is full, in the host's memory. So there
//! may be more of it than the device has, as with the real driver. With `managed=moves` it is on the host until
//! a kernel, a fill or a prefetch uses it, and leaves the device again where other memory needs the room; what the
//! host's program touches does not move back, since the device is not told of it. It has
//! pages of its own whatever its size, because the device does not charge them to this process.
//!
//! A card differs: on an H200 (driver 580.159.04) 64 MiB of touched managed memory took 128 MiB by
//! `cuMemGetInfo` and by NVML for the card, and none for the process. After the free 64 MiB of them stayed
//! taken. Here they take 64 MiB, and all of it comes back.

use crate::allocations::{self, Allocation, Home, Kind};
use crate::context::{self, Context};
use crate::driver::device_error;
use crate::entry::{Out, Outcome, refuse_if};
use crate::exec::{self, sparing};
use crate::vram::{Chunk, Heap, Pages, SLAB, map, order};
use gpuslice_nvabi::types::{
    CU_MEM_ATTACH_GLOBAL, CU_MEM_ATTACH_HOST, CU_MEM_ATTACH_SINGLE, CUdeviceptr, CUdeviceptr_v1,
    CUresult,
};

/// Largest piece taken from the heap.
const SMALL_MOST: u64 = SLAB / 2;
/// Of the host's memory.
const PAGE: usize = 4096;
/// Rows of pitched memory begin at multiples of this.
pub const PITCH: u64 = 512;

/// Takes memory of a context's GPU, wherever it fits.
pub fn take(context: &'static Context, bytes: u64) -> Result<(u64, Home), CUresult> {
    sparing(context.gpu().index, || take_once(context, bytes))
}

fn heaps_on(context: &Context) -> impl Iterator<Item = &'static Heap> {
    let device = context.device;
    let living = context::living().into_iter();
    living.filter(move |other| other.device == device).map(|other| &other.heap)
}

fn take_once(context: &'static Context, bytes: u64) -> Result<(u64, Home), CUresult> {
    let gpu = context.gpu();
    if bytes > gpu.total_bytes {
        return Err(CUresult::ERROR_OUT_OF_MEMORY);
    }
    match order(bytes).filter(|_| bytes <= SMALL_MOST) {
        Some(order) => {
            let (address, slab) = context.heap.take(gpu.index, order)?;
            Ok((address, Home::Heap { slab, order: order as u8 }))
        }
        None => {
            let pages = Pages::new(gpu.index, bytes)?;
            Ok((pages.address, Home::Pages(pages)))
        }
    }
}

/// Managed memory in the current context: the host's where the device has not that much left.
fn allocate_managed(bytes: u64, flags: u32) -> Result<u64, CUresult> {
    let kind = Kind::Managed { flags };
    let context = exec::working()?;
    refuse_if(bytes == 0)?;
    let gpu = context.gpu().index;
    let refused = match sparing(gpu, || Pages::of(Chunk::managed(gpu, bytes)?)) {
        Ok(pages) => {
            let address = pages.address;
            let allocation = Allocation::new(context, bytes, kind, Home::Pages(pages));
            allocations::insert(address, allocation);
            return Ok(address);
        }
        Err(CUresult::ERROR_OUT_OF_MEMORY) => CUresult::ERROR_OUT_OF_MEMORY,
        Err(other) => return Err(other),
    };
    let len = usize::try_from(bytes).map_err(|_| refused)?;
    let len = len.checked_next_multiple_of(PAGE).ok_or(refused)?;
    // What the device could have given was refused for another reason, an injected one.
    if bytes <= info(context)?.0 || len > map::host_bytes() {
        return Err(refused);
    }
    let address = map::anonymous(len).map_err(|_| refused)?;
    let allocation = Allocation::new(context, bytes, kind, Home::Host(len));
    allocations::insert(address, allocation);
    Ok(address)
}

/// Allocates and enters memory in the current context.
pub fn allocate(bytes: u64, kind: Kind) -> Result<u64, CUresult> {
    let context = exec::working()?;
    refuse_if(bytes == 0)?;
    let (address, home) = take(context, bytes)?;
    allocations::insert(address, Allocation::new(context, bytes, kind, home));
    Ok(address)
}

/// A device's free and total bytes as this process may use them.
pub fn info(context: &Context) -> Result<(u64, u64), CUresult> {
    let machine = crate::driver::process()?.machine;
    let info = machine.mem_info(context.gpu().index).map_err(device_error)?;
    let spare: u64 = heaps_on(context).map(Heap::spare_bytes).sum();
    Ok(((info.free + spare).min(info.total), info.total))
}

pub fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Outcome {
    let (free_bytes, total_bytes) = info(exec::working()?)?;
    free.require()?;
    total.set(total_bytes as usize)?;
    free.set(free_bytes as usize)
}

/// The 32-bit name of before CUDA 3.2. A card's driver answers this for any size in a context of today.
pub fn cuMemAlloc(dptr: Out<CUdeviceptr_v1>, _bytesize: u32) -> Outcome {
    dptr.require()?;
    exec::working()?;
    Err(CUresult::ERROR_INVALID_CONTEXT)
}

pub fn cuMemAlloc_v2(dptr: Out<CUdeviceptr>, bytesize: usize) -> Outcome {
    dptr.require()?;
    dptr.set(allocate(bytesize as u64, Kind::Device)?)
}

pub fn cuMemAllocPitch_v2(
    dptr: Out<CUdeviceptr>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> Outcome {
    dptr.require()?;
    pitch.require()?;
    refuse_if(width == 0 || height == 0 || !matches!(element, 4 | 8 | 16))?;
    let row = (width as u64).checked_next_multiple_of(PITCH);
    let bytes = row.and_then(|row| row.checked_mul(height as u64));
    exec::working()?;
    let bytes = bytes.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    dptr.set(allocate(bytes, Kind::Device)?)?;
    pitch.set((bytes / height as u64) as usize)
}

pub fn cuMemAllocManaged(dptr: Out<CUdeviceptr>, bytesize: usize, flags: u32) -> Outcome {
    dptr.require()?;
    exec::working()?;
    let known = [CU_MEM_ATTACH_GLOBAL, CU_MEM_ATTACH_HOST, CU_MEM_ATTACH_SINGLE];
    refuse_if(!known.contains(&flags) || flags == CU_MEM_ATTACH_SINGLE)?;
    dptr.set(allocate_managed(bytesize as u64, flags)?)
}

/// Needs no current context, as with the real driver: the pointer says whose it is.
pub fn cuMemFree_v2(dptr: CUdeviceptr) -> Outcome {
    if dptr == 0 {
        return Ok(());
    }
    let freeable = |kind: Kind| {
        let pool = matches!(kind, Kind::Pool { .. } | Kind::Graph);
        pool || matches!(kind, Kind::Device | Kind::Managed { .. })
    };
    let found = allocations::find(dptr).filter(|found| found.base == dptr && freeable(found.kind));
    let found = found.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let _held = found.context.and_then(Context::hold);
    // What a killed context holds goes with it, not before.
    found.context.map_or(Ok(()), exec::settle)?;
    if matches!(found.kind, Kind::Pool { .. } | Kind::Graph) {
        return exec::free_ordered(dptr);
    }
    // Of two threads that free the same pointer one finds it gone.
    let gone = allocations::remove(dptr, |one| one.id == found.id);
    gone.ok_or(CUresult::ERROR_INVALID_VALUE)?.release(dptr);
    Ok(())
}

pub fn cuMemGetAddressRange_v2(
    base: Out<CUdeviceptr>,
    size: Out<usize>,
    dptr: CUdeviceptr,
) -> Outcome {
    context::current()?;
    let found = allocations::find(dptr).ok_or(CUresult::ERROR_NOT_FOUND)?;
    base.set_if_wanted(found.base);
    size.set_if_wanted(found.bytes as usize);
    Ok(())
}
