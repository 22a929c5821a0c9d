//! The C functions, made from the table: one export per row.
//!
//! Each export converts pointers to [`crate::abi`] values and a panic to NVML_ERROR_UNKNOWN. A
//! function without an implementation still reports whether the library was initialised.

#![allow(unsafe_code)]

use crate::abi::{FromC, Outcome};
use crate::{calls, session};
use core::ffi::{c_char, c_void};
use gpuslice_nvabi::types::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn guard(call: impl FnOnce() -> Outcome) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => nvmlReturn_t::SUCCESS,
        Ok(Err(error)) => error,
        Err(_) => nvmlReturn_t::ERROR_UNKNOWN,
    }
}

fn not_supported() -> Outcome {
    session::machine()?;
    Err(nvmlReturn_t::ERROR_NOT_SUPPORTED)
}

macro_rules! export {
    // The one function that answers a text, and may be called before anything else.
    (sim nvmlErrorString($result:ident: $ty:ty) -> $ret:ty) => {
        #[unsafe(no_mangle)]
        extern "C" fn nvmlErrorString($result: $ty) -> $ret {
            calls::error_text($result)
        }
    };
    // These make and end what all others need.
    (sim nvmlInit $($row:tt)*) => { export!(always nvmlInit $($row)*); };
    (sim nvmlInit_v2 $($row:tt)*) => { export!(always nvmlInit_v2 $($row)*); };
    (sim nvmlInitWithFlags $($row:tt)*) => { export!(always nvmlInitWithFlags $($row)*); };
    (sim nvmlShutdown $($row:tt)*) => { export!(always nvmlShutdown $($row)*); };
    (sim $($row:tt)*) => { export!((session::machine()?; session::take_time();) $($row)*); };
    (always $($row:tt)*) => { export!(() $($row)*); };
    (($($first:tt)*) $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            guard(|| {
                $($first)*
                // SAFETY: the caller's pointers are what NVML's documentation of this function
                // says: null, or good for the lengths given with them.
                calls::$name($(unsafe { FromC::from_c($arg) }),*)
            })
        }
    };
    (none $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($(_: $ty),*) -> $ret {
            guard(not_supported)
        }
    };
}

macro_rules! exports {
    ($([$shim:ident, $sim:ident, $since:literal]
        $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty;)*) => {
        $(export!($sim $name($($arg: $ty),*) -> $ret);)*
    };
}

gpuslice_nvabi::for_each_nvml_fn!(exports);
