//! The kinds of memory, each with its allocation and its release.

use gpuslice_apps::driver::{Error, check};
use gpuslice_nvabi::types::*;
use std::ptr::null_mut;

gpuslice_apps::driver_functions! {
    /// What churning needs.
    Calls {
        cuInit,
        cuDeviceGet,
        cuCtxCreate_v2,
        cuCtxDestroy_v2,
        cuCtxSetCurrent,
        cuMemGetInfo_v2,
        cuMemAlloc_v2,
        cuMemAllocPitch_v2,
        cuMemAllocManaged,
        cuMemsetD8Async,
        cuMemFree_v2,
        cuStreamCreate,
        cuStreamSynchronize,
        cuMemAllocAsync,
        cuMemFreeAsync,
        cuDeviceGetDefaultMemPool,
        cuMemPoolTrimTo,
        cuMemCreate,
        cuMemAddressReserve,
        cuMemMap,
        cuMemUnmap,
        cuMemRelease,
        cuMemAddressFree,
        cuArrayCreate_v2,
        cuArrayDestroy,
    }
}

/// Kinds of memory.
pub const FAMILIES: u64 = 6;
/// Width of a row of pitched memory and of arrays, bytes.
const ROW: u64 = 4096;

/// Something taken.
pub enum Item {
    Plain(CUdeviceptr, u64),
    Managed(CUdeviceptr, u64),
    Pool(CUdeviceptr, u64),
    /// Mapped, its handle released.
    Mapped(CUdeviceptr, u64),
    Array(CUarray, u64),
}

// SAFETY: handles of the driver, which any thread of the process may use.
unsafe impl Send for Item {}

impl Item {
    pub fn bytes(&self) -> u64 {
        match *self {
            Item::Plain(_, bytes)
            | Item::Managed(_, bytes)
            | Item::Pool(_, bytes)
            | Item::Mapped(_, bytes)
            | Item::Array(_, bytes) => bytes,
        }
    }

    /// Whether it is memory that NVML does not show.
    pub fn is_managed(&self) -> bool {
        matches!(self, Item::Managed(..))
    }
}

/// A call that failed.
pub struct Refused(&'static str, CUresult);

impl Refused {
    /// Whether that is what a program must expect.
    pub fn is_refusal(&self) -> bool {
        self.1 == CUresult::ERROR_OUT_OF_MEMORY
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        Error::Call(refused.0, refused.1)
    }
}

fn tried(call: &'static str, result: CUresult) -> Result<(), Refused> {
    match result {
        CUresult::SUCCESS => Ok(()),
        _ => Err(Refused(call, result)),
    }
}

/// The driver with a context.
pub struct Cuda(Calls);

impl Cuda {
    pub fn start() -> Result<(Cuda, CUcontext), Error> {
        let calls = Calls::load()?;
        let (mut device, mut context) = (0, CUcontext(null_mut()));
        // SAFETY: out-pointers are live locals, here and below; handles are the driver's.
        unsafe {
            check("cuInit", (calls.cuInit)(0))?;
            check("cuDeviceGet", (calls.cuDeviceGet)(&mut device, 0))?;
            let created = (calls.cuCtxCreate_v2)(&mut context, 0, device);
            check("cuCtxCreate", created)?;
        }
        Ok((Cuda(calls), context))
    }

    pub fn stream(&self) -> Result<CUstream, Error> {
        let mut stream = CUstream(null_mut());
        // SAFETY: as in `start`; 1 = CU_STREAM_NON_BLOCKING.
        check("cuStreamCreate", unsafe { (self.0.cuStreamCreate)(&mut stream, 1) })?;
        Ok(stream)
    }

    pub fn enter(&self, context: CUcontext) -> Result<(), Error> {
        // SAFETY: a living context.
        check("cuCtxSetCurrent", unsafe { (self.0.cuCtxSetCurrent)(context) })
    }

    pub fn leave(&self, context: CUcontext) -> Result<(), Error> {
        // SAFETY: a living context, which nothing uses after this.
        check("cuCtxDestroy", unsafe { (self.0.cuCtxDestroy_v2)(context) })
    }

    pub fn synchronize(&self, stream: CUstream) -> Result<(), Error> {
        // SAFETY: a living stream, or the context's own.
        check("cuStreamSynchronize", unsafe { (self.0.cuStreamSynchronize)(stream) })
    }

    /// Free and total bytes.
    pub fn info(&self) -> Result<(usize, usize), Error> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: as in `start`.
        check("cuMemGetInfo", unsafe { (self.0.cuMemGetInfo_v2)(&mut free, &mut total) })?;
        Ok((free, total))
    }

    /// Gives back what the pool keeps.
    pub fn trim(&self) -> Result<(), Error> {
        let mut pool = CUmemoryPool(null_mut());
        // SAFETY: as in `start`.
        unsafe {
            let default = (self.0.cuDeviceGetDefaultMemPool)(&mut pool, 0);
            check("cuDeviceGetDefaultMemPool", default)?;
            check("cuMemPoolTrimTo", (self.0.cuMemPoolTrimTo)(pool, 0))
        }
    }

    /// Takes `bytes`, which are whole rows of [`ROW`] for the families that have rows.
    pub fn take(&self, family: u64, bytes: u64, stream: CUstream) -> Result<Item, Refused> {
        let (mut at, mut pitch, size) = (0, 0, bytes as usize);
        let rows = (bytes / ROW).max(1) as usize;
        // SAFETY: as in `start`.
        unsafe {
            match family {
                0 => {
                    tried("cuMemAlloc", (self.0.cuMemAlloc_v2)(&mut at, size))?;
                    Ok(Item::Plain(at, bytes))
                }
                1 => {
                    let result =
                        (self.0.cuMemAllocPitch_v2)(&mut at, &mut pitch, ROW as usize, rows, 4);
                    tried("cuMemAllocPitch", result)?;
                    Ok(Item::Plain(at, (pitch * rows) as u64))
                }
                2 => {
                    let result = (self.0.cuMemAllocManaged)(&mut at, size, 1);
                    tried("cuMemAllocManaged", result)?;
                    // The GPU uses it, so that it is there, also on a machine where managed memory moves; a part is
                    // never used, and may be on the host.
                    if !(bytes / ROW).is_multiple_of(4) {
                        tried("cuMemsetD8Async", (self.0.cuMemsetD8Async)(at, 0, size, stream))?;
                    }
                    Ok(Item::Managed(at, bytes))
                }
                3 => {
                    let result = (self.0.cuMemAllocAsync)(&mut at, size, stream);
                    tried("cuMemAllocAsync", result)?;
                    Ok(Item::Pool(at, bytes))
                }
                4 => self.map(size.next_multiple_of(2 << 20)),
                _ => self.array(rows),
            }
        }
    }

    /// Physical memory whose handle is released once it is mapped: only the mapping holds it.
    fn map(&self, bytes: usize) -> Result<Item, Refused> {
        // SAFETY: plain data; zero is a valid value of each field.
        let mut what: CUmemAllocationProp = unsafe { std::mem::zeroed() };
        (what.kind, what.location.kind) =
            (CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE);
        let (mut handle, mut at) = (0, 0);
        // SAFETY: as in `start`.
        unsafe {
            tried("cuMemCreate", (self.0.cuMemCreate)(&mut handle, bytes, &what, 0))?;
            let reserved = (self.0.cuMemAddressReserve)(&mut at, bytes, 0, 0, 0);
            tried("cuMemAddressReserve", reserved)?;
            tried("cuMemMap", (self.0.cuMemMap)(at, bytes, 0, handle, 0))?;
            tried("cuMemRelease", (self.0.cuMemRelease)(handle))?;
        }
        Ok(Item::Mapped(at, bytes as u64))
    }

    fn array(&self, rows: usize) -> Result<Item, Refused> {
        let mut array = CUarray(null_mut());
        let shape = CUDA_ARRAY_DESCRIPTOR {
            width: ROW as usize / 4,
            height: rows,
            format: CU_AD_FORMAT_UNSIGNED_INT32,
            num_channels: 1,
        };
        // SAFETY: as in `start`.
        tried("cuArrayCreate", unsafe { (self.0.cuArrayCreate_v2)(&mut array, &shape) })?;
        Ok(Item::Array(array, ROW * rows as u64))
    }

    pub fn give_back(&self, item: Item, stream: CUstream) -> Result<(), Error> {
        // SAFETY: what `take` gave, once.
        unsafe {
            match item {
                Item::Plain(at, _) | Item::Managed(at, _) => {
                    check("cuMemFree", (self.0.cuMemFree_v2)(at))
                }
                Item::Pool(at, _) => check("cuMemFreeAsync", (self.0.cuMemFreeAsync)(at, stream)),
                Item::Mapped(at, bytes) => {
                    check("cuMemUnmap", (self.0.cuMemUnmap)(at, bytes as usize))?;
                    let freed = (self.0.cuMemAddressFree)(at, bytes as usize);
                    check("cuMemAddressFree", freed)
                }
                Item::Array(array, _) => check("cuArrayDestroy", (self.0.cuArrayDestroy)(array)),
            }
        }
    }
}
