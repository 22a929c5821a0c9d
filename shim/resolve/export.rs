//! What a door exports: C symbols made from the rows of the tables.
//!
//! A hook's export is a function of its row's signature that goes on to the hook of that name in
//! this library (a hook that is missing, or has another signature, does not compile). A row that passes is
//! a trampoline in a door that must export everything, and nothing in one that need not.

/// Exports the hooked rows of the driver's table, and leaves the others to the real library.
#[macro_export]
macro_rules! export_driver_hooks {
    ($([$shim:ident, $sim:ident, $v:literal] $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        $( $crate::export_row! { $shim nothing hooks $name($($arg: $ty),*) -> CUresult } )*
    };
}

/// Exports every row of the driver's table.
#[macro_export]
macro_rules! export_driver {
    ($([$shim:ident, $sim:ident, $v:literal] $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        $( $crate::export_row! {
            $shim resolve_driver hooks $name($($arg: $ty),*) -> CUresult
        } )*
    };
}

/// Exports every row of NVML's table.
#[macro_export]
macro_rules! export_nvml {
    ($([$shim:ident, $sim:ident, $v:literal]
        $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty;)*) => {
        $( $crate::export_row! { $shim resolve_nvml mirror $name($($arg: $ty),*) -> $ret } )*
    };
}

/// Exports one row.
#[macro_export]
macro_rules! export_row {
    (hook $way:ident $room:ident $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty) => {
        #[doc = concat!("The hook before the real `", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            // SAFETY: the caller's own arguments, in the signature of the row.
            unsafe { $crate::$room::$name($($arg),*) }
        }
    };
    (pass nothing $($rest:tt)*) => {};
    (pass $resolve:ident $room:ident $name:ident $($rest:tt)*) => {
        $crate::trampoline! { $name, $resolve }
    };
}
