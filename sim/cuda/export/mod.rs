//! Exports every row of the driver table under its own name.
//!
//! A row marked `sim` calls `imp::<name>`: a missing implementation or one of another signature
//! does not compile. A row marked `none` answers that it is not supported, as a driver does on
//! hardware that lacks a feature. `lookup` gives the addresses of the same functions by name.

mod lookup;

use crate::entry::{Call, FromAbi, Reply, guard};
use crate::exec;
use gpuslice_nvabi::types::*;

/// The implementation of each entry point.
mod imp {
    pub use super::lookup::imp::*;
    pub use crate::context::imp::*;
    pub use crate::driver::imp::*;
    pub use crate::exec::imp::*;
    pub use crate::lifetime::imp::*;
    pub use crate::memory::imp::*;
}

macro_rules! export {
    ($([$shim:ident, $sim:ident, $since:literal] $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        $(export!(@$sim $name($($arg: $ty),*));)*
    };
    (@sim $name:ident($($arg:ident: $ty:ty),*)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
            const CALL: Call = Call::named(stringify!($name));
            guard(CALL, move || {
                if CALL.unsafe_in_capture && let Err(code) = exec::refuse_unsafe() {
                    return code;
                }
                // SAFETY: pointers are valid for this call: that is the driver API's contract,
                // and the caller of the exported symbol has promised it.
                #[allow(unused_unsafe)]
                unsafe {
                    imp::$name($(FromAbi::from_abi($arg)),*).reply()
                }
            })
        }
    };
    (@none $name:ident($($arg:ident: $ty:ty),*)) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($(_: $ty),*) -> CUresult {
            CUresult::ERROR_NOT_SUPPORTED
        }
    };
}

gpuslice_nvabi::for_each_driver_fn!(export);

/// The addresses of the exported functions, in the order of the table.
fn addresses() -> Vec<usize> {
    let mut addresses = Vec::new();
    macro_rules! collect {
        ($([$shim:ident, $sim:ident, $since:literal]
            $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
            $(addresses.push($name as *const () as usize);)*
        };
    }
    gpuslice_nvabi::for_each_driver_fn!(collect);
    addresses
}
