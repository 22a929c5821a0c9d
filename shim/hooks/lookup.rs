//! Maps a real function's address to its hook.
//!
//! Programs get most of the driver through `cuGetProcAddress`, which selects among versions and
//! stream variants of a name by rules of its own. A copy of these rules would fail with the next
//! driver. So the real function is called, unchanged, and the *address* it returns is replaced if it is
//! that of a hooked function: the right form by construction. Any other address is returned as is.
//!
//! In addition, the requested name must be the hook's own, or one that CUDA has given to the hook's function.
//! Linkers fold functions with the same code into one (all that return "not supported", for example), so an
//! address alone is ambiguous.
//!
//! The map is filled once, from the exported name of every hook, and then from the real
//! `cuGetProcAddress` for forms to which it gives an address of its own. An address that the driver exports as
//! another form of the name is that form, whatever version was asked for, and only its hook belongs to it.

use crate::daemon::sys;
use crate::hooks;
use crate::resolve::{Library, find};
use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};
use gpuslice_nvabi::types::CUresult;
use std::ffi::CString;

/// Entries of the map; a power of two, several times the number of hooks.
const PLACES: usize = 1024;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

/// Whether the map is filled.
const EMPTY: u8 = 0;
const FILLING: u8 = 1;
const FILLED: u8 = 2;

/// Open addressing by real address; several hooks may have the same one. `real` is written last.
struct Map {
    state: AtomicU8,
    real: [AtomicUsize; PLACES],
    hook: [AtomicPtr<c_void>; PLACES],
    name: [AtomicPtr<c_char>; PLACES],
}

static MAP: Map = Map::new();

/// The hook for the function at `real`, if the requested name (`asked`) is the hook's; else `real`.
#[inline]
#[must_use]
pub fn hooked(real: *mut c_void, asked: &CStr) -> *mut c_void {
    if MAP.state.load(Ordering::Acquire) != FILLED {
        fill();
    }
    let own = MAP.get(real as usize, asked);
    own.or_else(|| MAP.get(real as usize, renamed(asked)?)).unwrap_or(real)
}

/// The function that a name may mean from some version on, if it is no form of the name. `cuda.h` of CUDA 12 and
/// later defines `cuGraphInstantiate` as this function. A driver need not: 580.159.04 answers the first
/// `cuGetProcAddress` with `cuGraphInstantiate_v2`.
fn renamed(asked: &CStr) -> Option<&'static CStr> {
    (asked == c"cuGraphInstantiate").then_some(c"cuGraphInstantiateWithFlags")
}

impl Map {
    const fn new() -> Map {
        Map {
            state: AtomicU8::new(EMPTY),
            real: [const { AtomicUsize::new(0) }; PLACES],
            hook: [const { AtomicPtr::new(ptr::null_mut()) }; PLACES],
            name: [const { AtomicPtr::new(ptr::null_mut()) }; PLACES],
        }
    }

    fn places(real: usize) -> impl Iterator<Item = usize> {
        let first = real.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55;
        (first..first + PLACES).map(|place| place % PLACES)
    }

    fn get(&self, real: usize, asked: &CStr) -> Option<*mut c_void> {
        for place in Map::places(real) {
            match self.real[place].load(Ordering::Acquire) {
                0 => return None,
                there if there == real && self.is_named(place, asked) => {
                    return Some(self.hook[place].load(Ordering::Relaxed));
                }
                _ => {}
            }
        }
        None
    }

    /// Enters the hook of a form that the driver gave for a base name, unless the function has a hook: it is exported
    /// as another form.
    fn insert_asked(&self, base: &CStr, real: usize, form: (&'static CStr, *mut c_void)) {
        if self.get(real, base).is_none() {
            self.insert(real, form.0, form.1);
        }
    }

    fn is_named(&self, place: usize, asked: &CStr) -> bool {
        // SAFETY: written before `real` was, from a static string with its NUL.
        let name = unsafe { CStr::from_ptr(self.name[place].load(Ordering::Relaxed)) };
        is_form_of(name.to_bytes(), asked.to_bytes())
    }

    /// Only one thread fills the map.
    fn insert(&self, real: usize, name: &'static CStr, hook: *mut c_void) {
        for place in Map::places(real) {
            match self.real[place].load(Ordering::Relaxed) {
                0 => {
                    self.name[place].store(name.as_ptr().cast_mut(), Ordering::Relaxed);
                    self.hook[place].store(hook, Ordering::Relaxed);
                    return self.real[place].store(real, Ordering::Release);
                }
                there if there == real && self.is_named(place, name) => return,
                _ => {}
            }
        }
    }
}

/// Whether `exported` is `base` followed by nothing but version and stream suffixes.
fn is_form_of(exported: &[u8], base: &[u8]) -> bool {
    let suffix =
        |rest: &[u8]| rest.is_empty() || rest.starts_with(b"_v") || rest.starts_with(b"_pt");
    exported.strip_prefix(base).is_some_and(suffix)
}

/// Receives a hook's exported name, the CUDA version of its form, and its address.
pub type Visitor<'a> = &'a mut dyn FnMut(&'static CStr, i32, *mut c_void);

/// Passes a row's hook to `$each`, if it has one.
macro_rules! row {
    (pass $each:ident $name:ident $since:literal) => {};
    (hook $each:ident $name:ident $since:literal) => {
        $each(
            const {
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name of the table has a NUL in it"),
                }
            },
            $since,
            hooks::$name as *mut c_void,
        );
    };
}

/// Passes every hook's exported name, CUDA version and address to `each`.
pub fn each_hook(each: Visitor<'_>) {
    macro_rules! family {
        ($([$shim:ident, $sim:ident, $since:literal] $name:ident($($args:tt)*);)*) => {
            $( row!($shim each $name $since); )*
        };
    }
    gpuslice_nvabi::for_each_driver_fn!(family);
}

#[cold]
fn fill() {
    // A second thread waits for the first, but not for ever: in the child of a fork the first may not exist.
    // Filling twice writes the same values.
    for _ in 0..1000 {
        match MAP.state.compare_exchange(EMPTY, FILLING, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => break,
            Err(FILLED) => return,
            Err(_) => sys::nap(100_000),
        }
    }
    each_hook(&mut |name, _, hook| {
        if let Some(real) = find(Library::Driver, name) {
            MAP.insert(real as usize, name, hook);
        }
    });
    let mut driver = 0;
    let _ = crate::real!(cuDriverGetVersion(&raw mut driver));
    each_hook(&mut |name, since, hook| {
        // An older driver would return an older form, with another signature.
        if since <= driver
            && let Some((base, real)) = ask(name, since)
        {
            MAP.insert_asked(&base, real as usize, (name, hook));
        }
    });
    MAP.state.store(FILLED, Ordering::Release);
}

/// The base name of `exported`, and the real driver's address for it at the version that introduced this form.
fn ask(exported: &CStr, since: i32) -> Option<(CString, *mut c_void)> {
    let exported = exported.to_str().ok()?;
    let base = base_of(exported);
    let is_per_thread = exported.ends_with("_ptsz") || exported.ends_with("_ptds");
    let flags = if is_per_thread { PER_THREAD } else { 0 };
    let base = CString::new(base).ok()?;
    let mut address = ptr::null_mut();
    let result = driver_lookup(&base, &raw mut address, since, flags)?;
    (result == CUresult::SUCCESS && !address.is_null()).then_some((base, address))
}

/// An exported name without the suffixes of versions and streams.
fn base_of(exported: &str) -> &str {
    let plain = exported.strip_suffix("_ptsz").or(exported.strip_suffix("_ptds"));
    let plain = plain.unwrap_or(exported);
    match plain.rsplit_once("_v") {
        Some((base, version)) if version.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => plain,
    }
}

/// The real driver's newest `cuGetProcAddress`; `None` for a driver older than 11.3.
fn driver_lookup(
    base: &CStr,
    address: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> Option<CUresult> {
    let base: *const c_char = base.as_ptr();
    if find(Library::Driver, c"cuGetProcAddress_v2").is_some() {
        let mut status = 0;
        return Some(crate::real!(cuGetProcAddress_v2(
            base,
            address,
            version,
            flags,
            &raw mut status
        )));
    }
    find(Library::Driver, c"cuGetProcAddress")?;
    Some(crate::real!(cuGetProcAddress(base, address, version, flags)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hook_has_one_address() {
        let (mut names, mut count) = (std::collections::BTreeSet::new(), 0);
        each_hook(&mut |name, since, hook| {
            assert!(since >= 2000 && !hook.is_null());
            names.insert(name);
            count += 1;
        });
        assert_eq!(names.len(), count);
        assert!(count * 4 <= PLACES, "{count} hooks in {PLACES} places");
        let rows = gpuslice_nvabi::DRIVER.iter();
        let hooks = rows.filter(|row| row.shim == gpuslice_nvabi::Shim::Hook);
        assert_eq!(count, hooks.count());
    }

    #[test]
    fn colliding_and_shared_addresses_are_all_found() {
        let map = Map::new();
        for real in 1..=250usize {
            map.insert(real << 4, c"cuMemFree_v2", real as *mut c_void);
            map.insert(real << 4, c"cuLaunch", (real + 1000) as *mut c_void);
            map.insert(real << 4, c"cuLaunch", ptr::null_mut());
        }
        for real in 1..=250usize {
            assert_eq!(map.get(real << 4, c"cuMemFree"), Some(real as *mut c_void));
            assert_eq!(map.get(real << 4, c"cuLaunch"), Some((real + 1000) as *mut c_void));
            assert_eq!(map.get(real << 4, c"cuCoredumpGetAttribute"), None);
        }
        assert_eq!(map.get(251 << 4, c"cuLaunch"), None);
    }

    /// A driver may answer with an older form than the table expects as of a version.
    #[test]
    fn an_exported_form_has_its_own_hook() {
        let map = Map::new();
        let hook = |number: usize| number as *mut c_void;
        map.insert(32, c"cuCtxCreate_v2", hook(2));
        // The first address is the second form's, the other is no symbol's.
        for real in [32, 64] {
            map.insert_asked(c"cuCtxCreate", real, (c"cuCtxCreate_v3", hook(3)));
        }
        let found = [32, 64].map(|real| map.get(real, c"cuCtxCreate"));
        assert_eq!(found, [Some(hook(2)), Some(hook(3))]);
        assert_eq!(map.get(32, c"cuCtxCreate_v3"), None);
    }

    /// Otherwise the address of a form without a hook could have another form's.
    #[test]
    fn the_forms_of_a_name_have_hooks_all_or_none() {
        let mut hooked = std::collections::BTreeMap::new();
        for row in gpuslice_nvabi::DRIVER {
            let is_hooked = row.shim == gpuslice_nvabi::Shim::Hook;
            let all = *hooked.entry(base_of(row.name)).or_insert(is_hooked);
            assert_eq!(all, is_hooked, "{}", row.name);
        }
        assert_eq!(base_of("cuMemcpyHtoD_v2_ptds"), "cuMemcpyHtoD");
    }

    #[test]
    fn only_suffixes_make_a_form() {
        assert!(is_form_of(b"cuMemFreeAsync_ptsz", b"cuMemFreeAsync"));
        assert!(is_form_of(b"cuMemFree_v2", b"cuMemFree") && is_form_of(b"cuInit", b"cuInit"));
        assert!(!is_form_of(b"cuLaunchKernel", b"cuLaunch"));
        assert!(!is_form_of(b"cuLaunch", b"cuLaunchKernel"));
    }
}
