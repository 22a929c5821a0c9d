//! One function-pointer type per row of the table, under the row's name: `sig::cuMemAlloc_v2`.
//!
//! Code that resolves a symbol by name transmutes it to the type of that name, so it cannot be called with
//! another function's parameters.

use crate::types::*;

/// Defines a type for each driver row; all return `CUresult`.
macro_rules! driver_types {
    ($([$s:ident, $m:ident, $v:literal] $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        $( pub type $name = unsafe extern "C" fn($($arg: $ty),*) -> CUresult; )*
    };
}

/// Defines a type for each NVML row.
macro_rules! nvml_types {
    ($([$s:ident, $m:ident, $v:literal]
       $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty;)*) => {
        $( pub type $name = unsafe extern "C" fn($($arg: $ty),*) -> $ret; )*
    };
}

crate::for_each_driver_fn!(driver_types);
crate::for_each_nvml_fn!(nvml_types);
