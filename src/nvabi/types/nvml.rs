//! The types of NVML: results, structures, enumerations, constants (nvml.h 13.5).

pub mod consts;
pub mod enums;
pub mod result;
pub mod structs;

pub use consts::*;
pub use enums::*;
pub use result::nvmlReturn_t;
pub use structs::*;
