//! The real functions: one slot per row of the table, filled on first use.
//!
//! A slot starts empty, so that a process that never calls CUDA (a preloaded library is in every process)
//! costs only a few zero pages: no relocation, no constructor, no driver.
//! The first call through a slot opens the real library (see [`search`]) and resolves the name. A
//! name that this driver lacks resolves to a function that returns "not supported".
//!
//! * [`slot`] the slots, [`real`] the same as typed functions for use in this library;
//! * [`export`] what the shim libraries export, [`tramp`] the machine code of exported names that pass straight
//!   through;
//! * [`text`] the real library's calls to itself;
//! * [`call`] helpers around calls of the real driver.

pub mod call;
pub mod export;
pub mod search;
pub mod text;
pub mod tramp;

use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use gpuslice_nvabi::types::{CUresult, nvmlReturn_t};

/// The real library that contains a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// `libcuda.so.1`.
    Driver,
    /// `libnvidia-ml.so.1`.
    Nvml,
}

/// Address of a real function; null until first used.
#[repr(transparent)]
#[derive(Debug)]
pub struct Slot(AtomicPtr<c_void>);

impl Slot {
    /// An empty slot.
    #[must_use]
    #[allow(clippy::new_without_default)] // a default would be used at run time; slots are statics
    pub const fn new() -> Slot {
        Slot(AtomicPtr::new(ptr::null_mut()))
    }

    /// The address if it has been resolved, else null.
    #[inline(always)]
    pub fn known(&self) -> *mut c_void {
        self.0.load(Ordering::Acquire)
    }

    /// The address, resolved under `name` on first use; never null.
    #[inline(always)]
    pub fn get(&self, library: Library, name: &CStr) -> *mut c_void {
        let known = self.known();
        if known.is_null() { self.fill(library, name) } else { known }
    }

    #[cold]
    #[inline(never)]
    fn fill(&self, library: Library, name: &CStr) -> *mut c_void {
        let found = crate::guard::guarded(None, || find(library, name));
        let address = found.unwrap_or(match library {
            Library::Driver => not_supported as *mut c_void,
            Library::Nvml => function_not_found as *mut c_void,
        });
        self.0.store(address, Ordering::Release);
        address
    }
}

/// Stands in for a driver function that the real driver lacks.
unsafe extern "C" fn not_supported() -> CUresult {
    match handle(Library::Driver) {
        Some(_) => CUresult::ERROR_NOT_SUPPORTED,
        None => CUresult::ERROR_NO_DEVICE,
    }
}

/// Stands in for an NVML function that the real library lacks.
unsafe extern "C" fn function_not_found() -> nvmlReturn_t {
    match handle(Library::Nvml) {
        Some(_) => nvmlReturn_t::ERROR_FUNCTION_NOT_FOUND,
        None => nvmlReturn_t::ERROR_LIBRARY_NOT_FOUND,
    }
}

/// The real function of that name; `None` if this driver lacks it.
#[must_use]
pub fn find(library: Library, name: &CStr) -> Option<*mut c_void> {
    let handle = handle(library)?;
    // SAFETY: `handle` came from dlopen and is never closed; `name` is NUL-terminated.
    let address = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// The opened real library; `None` if this machine has none.
fn handle(library: Library) -> Option<ptr::NonNull<c_void>> {
    static DRIVER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    static NVML: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let opened = match library {
        Library::Driver => &DRIVER,
        Library::Nvml => &NVML,
    };
    if let Some(handle) = ptr::NonNull::new(opened.load(Ordering::Acquire)) {
        return Some(handle);
    }
    // Threads may race here: the loader gives all of them the same handle.
    let handle = search::open(library)?;
    let first = match library {
        Library::Driver => c"cuInit",
        Library::Nvml => c"nvmlInit_v2",
    };
    // SAFETY: a handle that was just opened, a NUL-terminated name.
    text::note(library, unsafe { libc::dlsym(handle.as_ptr(), first.as_ptr()) });
    opened.store(handle.as_ptr(), Ordering::Release);
    Some(handle)
}

/// One [`Slot`] per row of both tables, under the row's name.
#[allow(non_upper_case_globals, missing_docs)]
pub mod slot {
    use super::Slot;

    macro_rules! slots {
        ($([$s:ident, $m:ident, $v:literal] $name:ident($($args:tt)*) $(-> $ret:ty)?;)*) => {
            $( pub static $name: Slot = Slot::new(); )*
        };
    }
    gpuslice_nvabi::for_each_driver_fn!(slots);
    gpuslice_nvabi::for_each_nvml_fn!(slots);
}

/// The real functions, by name and with their types: `real::cuMemFree_v2()` is a function pointer.
#[allow(non_snake_case, missing_docs)]
pub mod real {
    use super::{Library, slot};
    use core::ffi::{CStr, c_void};
    use core::mem::transmute;
    use gpuslice_nvabi::sig;

    const fn name(with_nul: &'static str) -> &'static CStr {
        match CStr::from_bytes_with_nul(with_nul.as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!("a name of the table has a NUL in it"),
        }
    }

    macro_rules! reals {
        ($library:ident; $($name:ident)*) => {$(
            #[inline(always)]
            pub fn $name() -> sig::$name {
                let address = slot::$name.get(
                    Library::$library, const { name(concat!(stringify!($name), "\0")) },
                );
                // SAFETY: the address of the symbol of that name, or of a function without
                // parameters, which any caller of the C convention may call with some.
                unsafe { transmute::<*mut c_void, sig::$name>(address) }
            }
        )*};
    }
    macro_rules! drivers {
        ($([$s:ident, $m:ident, $v:literal] $name:ident($($args:tt)*);)*) => {
            reals! { Driver; $($name)* }
        };
    }
    macro_rules! nvmls {
        ($([$s:ident, $m:ident, $v:literal] $name:ident($($args:tt)*) -> $ret:ty;)*) => {
            reals! { Nvml; $($name)* }
        };
    }
    gpuslice_nvabi::for_each_driver_fn!(drivers);
    gpuslice_nvabi::for_each_nvml_fn!(nvmls);
}

/// Calls the real function of a table row: `real!(cuMemFree_v2(pointer))`.
///
/// The caller is responsible for the arguments: they are the application's own, passed through, or live
/// locals of the hook.
#[macro_export]
macro_rules! real {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        let function = $crate::resolve::real::$name();
        // Also used inside unsafe code; arguments are plain values, see the head.
        #[allow(unused_unsafe, clippy::macro_metavars_in_unsafe)]
        // SAFETY: the real function with its own signature; arguments as the macro's head says.
        let result = unsafe { function($($arg),*) };
        result
    }};
}
