//! Entry points by name: `cuGetProcAddress`.
//!
//! A program asks for a base name, the CUDA version it was written for and the default stream it
//! means; it gets the newest form of the function that version knew. Names of exact symbols are
//! not found, nor are functions newer than the driver's own version. The first form of the lookup differs
//! from the second in one name ([`lookup::form`]).

use crate::driver::{process, text};
use gpuslice_nvabi::lookup::{self, Found, Missing};
use gpuslice_nvabi::types::{
    CU_GET_PROC_ADDRESS_SUCCESS, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, CUdriverProcAddressQueryResult, CUresult,
};
use gpuslice_sim_device::Machine;
use std::ffi::c_void;
use std::sync::OnceLock;

/// Longest name looked at; the longest of the table is far below.
const NAME_MOST: usize = 128;
/// The flags there are: default (0), legacy stream (1), per-thread stream (2).
const FLAGS: u64 = 3;

/// Addresses of our own exports in the order of the table.
fn addresses() -> &'static [usize] {
    static ADDRESSES: OnceLock<Vec<usize>> = OnceLock::new();
    ADDRESSES.get_or_init(super::addresses)
}

/// The driver's own version, e.g. 13000.
fn driver_version() -> u32 {
    let machine = process().map(|process| process.machine).ok();
    let (major, minor) =
        machine.or_else(|| Machine::attach().ok()).map_or((13, 0), Machine::driver);
    major * 1000 + minor * 10
}

/// Selects among the forms of a name.
type Select = fn(&str, u32, u64) -> Result<Found, Missing>;

/// The address, or why there is none.
fn address(
    select: Select,
    name: &str,
    version: u32,
    flags: u64,
) -> Result<usize, CUdriverProcAddressQueryResult> {
    let asked = version.min(driver_version());
    match select(name, asked, flags) {
        Ok(found) => {
            addresses().get(found.index).copied().ok_or(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
        }
        // Functions newer than this driver are unknown to it.
        Err(Missing::VersionNotSufficient) if asked == version => {
            Err(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT)
        }
        Err(_) => Err(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
    }
}

/// Entry points.
pub mod imp {
    use super::*;
    use crate::entry::{In, Out, Outcome};
    use gpuslice_nvabi::types::CUuuid;
    use std::ffi::c_char;

    pub fn cuGetProcAddress(
        symbol: In<c_char>,
        pfn: Out<*mut c_void>,
        version: i32,
        flags: u64,
    ) -> Outcome {
        look(lookup::form, symbol, pfn, version, flags).1
    }

    pub fn cuGetProcAddress_v2(
        symbol: In<c_char>,
        pfn: Out<*mut c_void>,
        version: i32,
        flags: u64,
        status: Out<CUdriverProcAddressQueryResult>,
    ) -> Outcome {
        let (result, outcome) = look(lookup::symbol, symbol, pfn, version, flags);
        if let Some(result) = result {
            status.set_if_wanted(result);
        }
        outcome
    }

    fn look(
        select: Select,
        symbol: In<c_char>,
        pfn: Out<*mut c_void>,
        version: i32,
        flags: u64,
    ) -> (Option<CUdriverProcAddressQueryResult>, Outcome) {
        let invalid = (None, Err(CUresult::ERROR_INVALID_VALUE));
        // A card's driver finds a function for version -1: the number has no sign there.
        let version = version as u32;
        // It does not check the two pointers; with a null one the process ends with SIGSEGV.
        if pfn.is_null() || flags & !FLAGS != 0 || flags == FLAGS {
            return invalid;
        }
        let Ok(name) = text(symbol, NAME_MOST) else {
            return invalid;
        };
        match address(select, &name, version, flags) {
            Ok(entry) => {
                pfn.set_if_wanted(entry as *mut c_void);
                (Some(CU_GET_PROC_ADDRESS_SUCCESS), Ok(()))
            }
            Err(why) => {
                pfn.set_if_wanted(std::ptr::null_mut());
                (Some(why), Err(CUresult::ERROR_NOT_FOUND))
            }
        }
    }

    /// NVIDIA's private tables are not imitated: what asks for them is told there is none.
    pub fn cuGetExportTable(table: Out<*const c_void>, _id: In<CUuuid>) -> Outcome {
        table.set(std::ptr::null())?;
        Err(CUresult::ERROR_INVALID_VALUE)
    }
}
