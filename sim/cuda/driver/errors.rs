//! Names and descriptions of error codes.

use crate::entry::{Out, Outcome};
use gpuslice_nvabi::types::CUresult;
use std::ffi::{CStr, c_char};

pub fn cuGetErrorName(error: CUresult, text: Out<*const c_char>) -> Outcome {
    put(error.name(), text)
}

pub fn cuGetErrorString(error: CUresult, text: Out<*const c_char>) -> Outcome {
    put(error.description(), text)
}

fn put(found: Option<&'static CStr>, text: Out<*const c_char>) -> Outcome {
    text.set(found.map_or(std::ptr::null(), CStr::as_ptr))?;
    if found.is_some() { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}
