//! The linker: puts images together into one.
//!
//! PTX linked with PTX is PTX: one text after the other. Anything else gives an image of unknown
//! content, in the form of an empty cubin.

use super::super::{cstr, key};
use super::image;
use crate::context::current;
use crate::entry::{In, Out, Outcome, refuse_if};
use crate::handles::{Key, Named, Table};
use gpuslice_nvabi::types::{CUjit_option, CUjitInputType, CUlinkState, CUresult};
use std::ffi::{c_char, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A link in progress.
#[derive(Default)]
pub struct Link {
    text: Vec<u8>,
    opaque: bool,
    /// The image returned to the program, which reads it until the link is destroyed.
    result: Option<Box<[u8]>>,
}

impl Named for Link {
    const KIND: u8 = 9;
}

static LINKS: Mutex<Table<Link>> = Mutex::new(Table::new());

fn links() -> MutexGuard<'static, Table<Link>> {
    LINKS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    fn add(&mut self, bytes: &[u8]) -> Result<(), CUresult> {
        if image::from_bytes(bytes)?.opaque {
            self.opaque = true;
        } else {
            let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            self.text.extend_from_slice(text);
            self.text.push(b'\n');
        }
        Ok(())
    }

    fn complete(&mut self) -> &[u8] {
        let (text, opaque) = (&self.text, self.opaque);
        self.result.get_or_insert_with(|| {
            let mut bytes = if opaque { b"\x7fELF\x02\x01\x01".to_vec() } else { text.clone() };
            bytes.push(0);
            bytes.into()
        })
    }
}

// Entry points of the linker.
pub fn cuLinkCreate_v2(
    _num_options: u32,
    _options: *mut CUjit_option,
    _option_values: *mut *mut c_void,
    state_out: Out<CUlinkState>,
) -> Outcome {
    state_out.require()?;
    current()?;
    let link = links().insert(Link::default()).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    state_out.set(CUlinkState(link.to_pointer()))
}

pub fn cuLinkAddData_v2(
    state: CUlinkState,
    _kind: CUjitInputType,
    data: In<c_void>,
    size: usize,
    _name: *const c_char,
    _num_options: u32,
    _options: *mut CUjit_option,
    _option_values: *mut *mut c_void,
) -> Outcome {
    let link: Key<Link> = key(state.0)?;
    refuse_if(data.is_null() || size == 0)?;
    // SAFETY: not null, and of that size by the program's promise.
    let bytes = unsafe { std::slice::from_raw_parts(data.pointer().cast::<u8>(), size) };
    links().get_mut(link).ok_or(CUresult::ERROR_INVALID_HANDLE)?.add(bytes)
}

pub fn cuLinkAddFile_v2(
    state: CUlinkState,
    _kind: CUjitInputType,
    path: In<c_char>,
    _num_options: u32,
    _options: *mut CUjit_option,
    _option_values: *mut *mut c_void,
) -> Outcome {
    use std::os::unix::ffi::OsStrExt;
    let link: Key<Link> = key(state.0)?;
    let path = cstr(path)?;
    let bytes = std::fs::read(std::ffi::OsStr::from_bytes(path.to_bytes()));
    let bytes = bytes.map_err(|_| CUresult::ERROR_FILE_NOT_FOUND)?;
    links().get_mut(link).ok_or(CUresult::ERROR_INVALID_HANDLE)?.add(&bytes)
}

pub fn cuLinkComplete(
    state: CUlinkState,
    cubin_out: Out<*mut c_void>,
    size_out: Out<usize>,
) -> Outcome {
    cubin_out.require()?;
    let mut links = links();
    let link = links.get_mut(key(state.0)?).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    if link.text.is_empty() && !link.opaque {
        return Err(CUresult::ERROR_NO_BINARY_FOR_GPU);
    }
    let result = link.complete();
    size_out.set_if_wanted(result.len());
    cubin_out.set(result.as_ptr().cast_mut().cast())
}

pub fn cuLinkDestroy(state: CUlinkState) -> Outcome {
    links().remove(key(state.0)?).map(|_| ()).ok_or(CUresult::ERROR_INVALID_HANDLE)
}
