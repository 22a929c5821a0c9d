//! A C caller's arguments as values that can be used safely.
//!
//! A pointer becomes an [`Out`] or an [`In`] as the call enters. Making one is the unsafe step
//! (it believes the caller's contract); after that every use checks for null and for room.

#![allow(unsafe_code)]

use core::ffi::{c_char, c_void};
use gpuslice_nvabi::types::{nvmlDevice_t, nvmlEventSet_t, nvmlReturn_t};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The result of a call: nothing, or an error for the caller.
pub(crate) type Outcome = Result<(), nvmlReturn_t>;

/// An argument of a C call.
pub(crate) trait FromC<C> {
    /// # Safety
    /// A pointer is null, or good for what the function's documentation says is done with it.
    unsafe fn from_c(raw: C) -> Self;
}

/// Where an answer goes; may be null.
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

/// Where a question is read from; may be null.
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

impl<T> FromC<*mut T> for Out<T> {
    unsafe fn from_c(raw: *mut T) -> Self {
        Self(raw)
    }
}

impl<T> FromC<*const T> for In<T> {
    unsafe fn from_c(raw: *const T) -> Self {
        Self(raw)
    }
}

macro_rules! plain {
    ($($ty:ty),*) => {
        $(impl FromC<$ty> for $ty {
            unsafe fn from_c(raw: $ty) -> Self {
                raw
            }
        })*
    };
}
plain!(u32, i32, u64, nvmlDevice_t, nvmlEventSet_t);

/// Longest path, its closing zero included.
const PATH_BYTES: usize = 4096;

const NULL: nvmlReturn_t = nvmlReturn_t::ERROR_INVALID_ARGUMENT;

impl<T: Copy> Out<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The answer; a null place is the caller's error.
    pub(crate) fn put(self, value: T) -> Outcome {
        self.put_at(0, value)
    }

    fn put_at(self, index: usize, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(NULL);
        }
        // SAFETY: not null, hence good for the documented length (see `FromC`); `list` keeps
        // indices below it. Callers may have packed their structures.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }

    /// A pointer found in a structure the caller passed, under the same contract as the call's own.
    pub(crate) fn pointed(raw: *mut T) -> Self {
        Self(raw)
    }

    /// What the caller put there before the call.
    pub(crate) fn get(self) -> Result<T, nvmlReturn_t> {
        if self.0.is_null() {
            return Err(NULL);
        }
        // SAFETY: as in `put_at`; in such places the documentation has the caller write first.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// A list into a place with room for `room` entries.
    pub(crate) fn list(self, room: usize, values: &[T]) -> Outcome {
        for (index, &value) in values.iter().take(room).enumerate() {
            self.put_at(index, value)?;
        }
        Ok(())
    }

    /// The same place seen as another type: of a list the table gives as untyped, the entries.
    pub(crate) fn entry<U>(self, index: usize) -> Out<U> {
        if self.0.is_null() {
            return Out(std::ptr::null_mut());
        }
        // SAFETY: as in `put_at`; the caller of `entry` keeps the index below the list's length.
        Out(unsafe { self.0.cast::<U>().add(index) })
    }
}

impl Out<c_char> {
    /// A text with its closing zero into `length` bytes.
    pub(crate) fn text(self, length: u32, text: &str) -> Outcome {
        if self.0.is_null() {
            return Err(NULL);
        }
        if (length as usize) < text.len() + 1 {
            return Err(nvmlReturn_t::ERROR_INSUFFICIENT_SIZE);
        }
        let bytes: Vec<c_char> = text.bytes().chain([0]).map(|byte| byte as c_char).collect();
        self.list(bytes.len(), &bytes)
    }
}

impl Out<u32> {
    /// NVML's lists: the count says how much room there is, and how much there was to say.
    pub(crate) fn counted<T: Copy>(self, place: Out<T>, values: &[T]) -> Outcome {
        let room = self.get()? as usize;
        if room != 0 && place.is_null() {
            return Err(NULL);
        }
        self.put(values.len() as u32)?;
        if room < values.len() {
            return Err(nvmlReturn_t::ERROR_INSUFFICIENT_SIZE);
        }
        place.list(room, values)
    }
}

impl Out<c_void> {
    pub(crate) fn of<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> In<T> {
    /// See [`Out::pointed`].
    pub(crate) fn pointed(raw: *const T) -> Self {
        Self(raw)
    }

    pub(crate) fn get(self) -> Result<T, nvmlReturn_t> {
        Out(self.0.cast_mut()).get()
    }
}

impl In<c_char> {
    /// A text of at most 95 bytes, longer than any name this library knows.
    pub(crate) fn text(self) -> Result<String, nvmlReturn_t> {
        let bytes = self.bytes(96)?.ok_or(nvmlReturn_t::ERROR_NOT_FOUND)?;
        String::from_utf8(bytes).map_err(|_| NULL)
    }

    /// A path; one longer than the system takes cannot be opened.
    pub(crate) fn path(self) -> Result<PathBuf, nvmlReturn_t> {
        let bytes = self.bytes(PATH_BYTES)?;
        let bytes = bytes.ok_or(nvmlReturn_t::ERROR_OPERATING_SYSTEM)?;
        Ok(OsString::from_vec(bytes).into())
    }

    /// The bytes before the closing zero, if that is one of the first `most`.
    fn bytes(self, most: usize) -> Result<Option<Vec<u8>>, nvmlReturn_t> {
        let place = Out::<c_char>(self.0.cast_mut());
        let mut bytes = Vec::new();
        for index in 0..most {
            match place.entry::<c_char>(index).get()? {
                0 => return Ok(Some(bytes)),
                byte => bytes.push(byte as u8),
            }
        }
        Ok(None)
    }
}
