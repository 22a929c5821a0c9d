//! Initialisation, and entry points by name.

use super::lookup::hooked;
use crate::channels;
use crate::resolve::real;
use crate::slice::{self, groups};
use core::ffi::CStr;
use gpuslice_nvabi::types::*;

hooks! {
    /// Attaches first: a process in a slice whose daemon does not answer must not get an unlimited context.
    guard cuInit(flags: u32) as |call| {
        if let Some(slice) = slice::at_init()?
            && groups::wanted(&slice.daemon)
        {
            channels::look(real::cuInit() as *const c_void);
        }
        Ok(call())
    };
}

/// Replaces the address that the driver returned by a hook's.
///
/// # Safety
/// `symbol` and `pfn` are as `cuGetProcAddress` requires, and the driver answered success.
unsafe fn exchange(symbol: *const c_char, pfn: *mut *mut c_void) {
    if symbol.is_null() || pfn.is_null() {
        return;
    }
    // SAFETY: the driver has just read `symbol` and written `pfn`.
    unsafe { *pfn = hooked(*pfn, CStr::from_ptr(symbol)) };
}

hooks! {
    quick cuGetProcAddress(
        symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: i32, flags: u64,
    ) as |call| {
        let result = call();
        if result == CUresult::SUCCESS {
            // SAFETY: the application's own arguments, found good by the driver.
            unsafe { exchange(symbol, pfn) };
        }
        Ok(result)
    };

    quick cuGetProcAddress_v2(
        symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: i32, flags: u64,
        symbol_status: *mut CUdriverProcAddressQueryResult,
    ) as |call| {
        let result = call();
        if result == CUresult::SUCCESS {
            // SAFETY: the application's own arguments, found good by the driver.
            unsafe { exchange(symbol, pfn) };
        }
        Ok(result)
    };
}
