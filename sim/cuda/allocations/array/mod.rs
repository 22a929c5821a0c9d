//! Arrays: memory with a shape, reached through copies and textures only, never by a pointer.
//!
//! The real layout is NVIDIA's secret; ours is rows of a pitch, planes of rows, levels one after
//! the other. A mipmapped array owns its memory, and its levels are arrays that borrow it.

pub mod format;

use super::Home;
use crate::context::Context;
use crate::entry::refuse_if;
use crate::handles::{Key, Named, Table};
use crate::vram::Chunk;
use gpuslice_nvabi::types::{CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUresult};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// An array, or a mipmapped array (which has levels).
pub struct Array {
    pub shape: CUDA_ARRAY3D_DESCRIPTOR,
    pub context: &'static Context,
    /// Of the first byte; 0 for an array whose memory is mapped later.
    pub address: u64,
    /// Bytes taken, all levels together.
    pub bytes: u64,
    /// `None` for a level, which borrows.
    pub home: Option<Home>,
    pub levels: Vec<Key<Array>>,
    /// A mipmapped array is no array, though both are kept here.
    pub mipmapped: bool,
    /// Of a sparse array: the memory behind its tiles, by their places.
    pub tiles: BTreeMap<[u32; 5], Arc<Chunk>>,
}

impl Array {
    /// An array without memory.
    pub fn new(shape: CUDA_ARRAY3D_DESCRIPTOR, context: &'static Context, bytes: u64) -> Self {
        Self {
            shape,
            context,
            address: 0,
            bytes,
            home: None,
            levels: Vec::new(),
            mipmapped: false,
            tiles: BTreeMap::new(),
        }
    }

    /// Whether it has memory, or can have some: a level has not.
    pub fn is_whole(&self) -> bool {
        self.home.is_some() || format::is_mapped_later(&self.shape)
    }
}

impl Named for Array {
    const KIND: u8 = 0x41;
}

static ARRAYS: RwLock<Table<Array>> = RwLock::new(Table::new());

/// Where in memory an element of an array lies, and how much of the array there is from it on.
pub struct Place {
    pub address: u64,
    pub pitch: u64,
    pub plane: u64,
    /// Bytes, rows and planes.
    pub room: [u64; 3],
}

pub const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;

/// Looks an array up for a copy that begins at `[x in bytes, y, z]`.
pub fn place(handle: CUarray, [x, y, z]: [u64; 3]) -> Result<Place, CUresult> {
    with(handle.0, false, |array| {
        refuse_if(array.address == 0)?;
        let [row, height, depth] = format::extent(&array.shape)?;
        let pitch = format::pitch(row);
        let plane = pitch * height;
        let room = [row.checked_sub(x), height.checked_sub(y), depth.checked_sub(z)];
        let [Some(bytes), Some(rows), Some(planes)] = room else {
            return Err(INVALID);
        };
        let address = array.address + z * plane + y * pitch + x;
        Ok(Place { address, pitch, plane, room: [bytes, rows, planes] })
    })?
}

pub fn key(handle: *mut std::ffi::c_void) -> Result<Key<Array>, CUresult> {
    Key::from_pointer(handle).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Looks at an array, or at a mipmapped one. A handle that names none is refused here; a card's driver does not check
/// it, and the process ends with SIGSEGV.
pub fn with<R>(
    handle: *mut std::ffi::c_void,
    mipmapped: bool,
    look: impl FnOnce(&Array) -> R,
) -> Result<R, CUresult> {
    let arrays = ARRAYS.read().unwrap_or_else(PoisonError::into_inner);
    let array = arrays.get(key(handle)?).filter(|array| array.mipmapped == mipmapped);
    array.map(look).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Changes an array of either sort; `None` if there is none.
pub fn change<R>(handle: *mut std::ffi::c_void, change: impl FnOnce(&mut Array) -> R) -> Option<R> {
    let mut arrays = ARRAYS.write().unwrap_or_else(PoisonError::into_inner);
    arrays.get_mut(key(handle).ok()?).map(change)
}

/// Enters an array.
pub fn enter(array: Array) -> Result<Key<Array>, CUresult> {
    let mut arrays = ARRAYS.write().unwrap_or_else(PoisonError::into_inner);
    arrays.insert(array).ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

/// Takes an array out, its levels with it, and gives its memory back.
pub fn destroy(key: Key<Array>, fits: impl FnOnce(&Array) -> bool) -> Result<(), CUresult> {
    let mut arrays = ARRAYS.write().unwrap_or_else(PoisonError::into_inner);
    if !arrays.get(key).is_some_and(fits) {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    let Some(array) = arrays.remove(key) else {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    };
    for level in array.levels {
        arrays.remove(level);
    }
    drop(arrays);
    if let Some(home) = array.home {
        home.give_back(array.context, array.address);
    }
    Ok(())
}

/// The arrays of a context go with it.
pub fn context_ends(context: &Context) {
    let owned: Vec<Key<Array>> = {
        let arrays = ARRAYS.read().unwrap_or_else(PoisonError::into_inner);
        let own = arrays
            .iter()
            .filter(|(_, array)| array.context.serial == context.serial && array.is_whole());
        own.map(|(key, _)| key).collect()
    };
    for key in owned {
        // The only refusal is that another thread was faster.
        let _ = destroy(key, |_| true);
    }
}
