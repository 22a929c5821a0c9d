//! C symbols that a shim library exports, generated from the rows of the tables.
//!
//! A hook's export goes on to the hook of that name in this library (a hook that is missing, or has
//! another signature than its row, does not compile). A row that passes is a jump to the real function
//! in a library that must export everything, and nothing in one that need not.

/// Exports the hooked rows of the driver's table, and leaves the others to the real library.
#[macro_export]
macro_rules! export_driver_hooks {
    ($([$shim:ident, $sim:ident, $v:literal] $name:ident($($args:tt)*);)*) => {
        $( $crate::export_row! { $shim nothing hooks DRIVER $name } )*
    };
}

/// Exports every row of the driver's table.
#[macro_export]
macro_rules! export_driver {
    ($([$shim:ident, $sim:ident, $v:literal] $name:ident($($args:tt)*);)*) => {
        $( $crate::export_row! { $shim resolve_driver hooks DRIVER $name } )*
    };
}

/// Exports every row of NVML's table.
#[macro_export]
macro_rules! export_nvml {
    ($([$shim:ident, $sim:ident, $v:literal] $name:ident($($args:tt)*) -> $ret:ty;)*) => {
        $( $crate::export_row! { $shim resolve_nvml nvml_hooks NVML $name } )*
    };
}

/// Exports one row: column one, how it is resolved if it passes through, the hooks' module, whose code.
#[macro_export]
macro_rules! export_row {
    (hook resolve_nvml $room:ident $text:ident $name:ident) => {
        const _: gpuslice_nvabi::sig::$name = $crate::$room::$name;
        $crate::hooked! { $name, $crate::$room::$name, $text, resolve_nvml }
    };
    (hook $resolve:ident $room:ident $text:ident $name:ident) => {
        const _: gpuslice_nvabi::sig::$name = $crate::$room::$name;
        $crate::hooked! { $name, $crate::$room::$name, $text, resolve_driver }
    };
    (pass nothing $room:ident $text:ident $name:ident) => {};
    (pass $resolve:ident $room:ident $text:ident $name:ident) => {
        $crate::trampoline! { $name, $resolve }
    };
}
