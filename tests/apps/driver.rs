//! The driver API as a tenant sees it: `dlopen("libcuda.so.1")`, `dlsym`, call.

use gpuslice_nvabi::types::CUresult;
use std::ffi::{CStr, c_void};
use std::fmt;

/// A driver call that failed, or a driver that could not be loaded.
#[derive(Debug)]
pub enum Error {
    /// `dlopen` or `dlsym` failed; what it said.
    Load(String),
    /// A call and its result.
    Call(&'static str, CUresult),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Load(why) => write!(f, "no CUDA driver: {why}"),
            Error::Call(call, result) => write!(f, "{call} answered {}", result.0),
        }
    }
}

impl std::error::Error for Error {}

/// Turns a driver's answer into a `Result` that names the call.
///
/// # Errors
/// [`Error::Call`] unless the answer is success.
pub fn check(call: &'static str, result: CUresult) -> Result<(), Error> {
    if result == CUresult::SUCCESS { Ok(()) } else { Err(Error::Call(call, result)) }
}

fn last_error() -> Error {
    // SAFETY: dlerror has no arguments and gives null or a string valid until the next dl call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return Error::Load("the loader gives no reason".into());
    }
    // SAFETY: not null, hence a NUL-terminated string as above.
    Error::Load(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

fn symbol(handle: *mut c_void, name: &CStr) -> Result<*mut c_void, Error> {
    // SAFETY: `handle` came from dlopen and is never closed; `name` is NUL-terminated.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() { Err(last_error()) } else { Ok(address) }
}

/// Declares a struct of driver functions, by their names in the table, and how to load it.
#[macro_export]
macro_rules! driver_functions {
    ($(#[$doc:meta])* $name:ident { $($function:ident,)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $(#[doc = stringify!($function)] pub $function: gpuslice_nvabi::sig::$function,)*
        }

        impl $name {
            /// Loads the driver as any program does.
            ///
            /// # Errors
            /// [`Error::Load`]($crate::driver::Error::Load) with the loader's own words.
            #[allow(non_snake_case)]
            pub fn load() -> Result<$name, $crate::driver::Error> {
                let library = $crate::driver::Library::open()?;
                $(
                    // SAFETY: the driver's function of that name has the table's signature.
                    let $function: gpuslice_nvabi::sig::$function = unsafe {
                        std::mem::transmute(library.symbol(concat!(stringify!($function), "\0"))?)
                    };
                )*
                Ok($name { $($function,)* })
            }
        }
    };
}

/// The loaded driver library; never closed.
#[derive(Clone, Copy, Debug)]
pub struct Library(*mut c_void);

impl Library {
    /// Opens `libcuda.so.1` as any program does.
    ///
    /// # Errors
    /// [`Error::Load`] with the loader's own words.
    pub fn open() -> Result<Library, Error> {
        // SAFETY: loading the driver runs its constructors, which is what is wanted.
        let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            return Err(last_error());
        }
        Ok(Library(handle))
    }

    /// The address of a function; `name` ends with a NUL.
    ///
    /// # Errors
    /// [`Error::Load`] if the driver has none of that name.
    pub fn symbol(self, name: &str) -> Result<*mut c_void, Error> {
        let name = CStr::from_bytes_with_nul(name.as_bytes());
        symbol(self.0, name.map_err(|e| Error::Load(e.to_string()))?)
    }
}

driver_functions! {
    /// The driver functions tenants use.
    Driver {
        cuInit,
        cuDeviceGet,
        cuDeviceTotalMem_v2,
        cuCtxCreate_v2,
        cuCtxDestroy_v2,
        cuMemGetInfo_v2,
        cuMemAlloc_v2,
        cuMemFree_v2,
        cuMemcpyDtoH_v2,
        cuMemsetD32_v2,
        cuModuleLoadData,
        cuModuleGetFunction,
        cuLaunchKernel,
        cuStreamCreate,
        cuStreamSynchronize,
        cuEventCreate,
        cuEventRecord,
        cuEventSynchronize,
    }
}
