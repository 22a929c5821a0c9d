//! The types of the driver's and NVML's interfaces, under their header names.
//!
//! Import all of it (`use gpuslice_nvabi::types::*`) where the table is expanded: the rows name
//! these types. Field and parameter names are the header's in snake case, `type` is `kind`.

pub use core::ffi::{c_char, c_void};

/// Holds size and field offsets of a `#[repr(C)]` type at compile time.
macro_rules! layout {
    ($type:ty, $size:literal $(, $field:ident: $offset:literal)* $(,)?) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            $( assert!(core::mem::offset_of!($type, $field) == $offset); )*
        };
    };
}

pub mod attributes;
pub mod checkpoint;
pub mod consts;
pub mod copy;
pub mod enums;
pub mod enums_more;
pub mod graph;
pub mod handles;
pub mod launch;
pub mod memory;
pub mod nvml;
pub mod result;

pub use attributes::*;
pub use checkpoint::*;
pub use consts::*;
pub use copy::*;
pub use enums::*;
pub use enums_more::*;
pub use graph::*;
pub use handles::*;
pub use launch::*;
pub use memory::*;
pub use nvml::*;
pub use result::CUresult;
