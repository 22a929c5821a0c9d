//! Calls that the real library makes to its own exported functions.
//!
//! A driver may implement one of its functions by calling another by name. By the loader's rules that call
//! reaches this library if the driver was not linked to prefer itself. It must pass: the application's call
//! has been charged or admitted already. Such a call is recognised by its return address, which costs less
//! than tracking the state of each thread. The address is in the real library or, if the call was a tail
//! call (a jump), in this library, which called the driver.

use super::Library;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

/// The address range of a library's code; empty while it is not loaded.
#[repr(C)]
#[derive(Debug)]
pub struct Text {
    start: AtomicUsize,
    bytes: AtomicUsize,
}

/// The real driver's code.
pub static DRIVER: Text = Text::nowhere();
/// The real NVML's code.
pub static NVML: Text = Text::nowhere();
/// This library's code, once a real library is loaded.
pub static OWN: Text = Text::nowhere();

impl Text {
    const fn nowhere() -> Text {
        Text { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0) }
    }

    /// Sets this to the code around `address`.
    fn find(&self, address: *const c_void) {
        let mut found = Search { address: address as usize, start: 0, end: 0 };
        // SAFETY: `visit` gets `found`, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
        self.start.store(found.start, Ordering::Relaxed);
        self.bytes.store(found.end - found.start, Ordering::Release);
    }
}

/// Records the code ranges of the real library that contains `address`, and of this library.
pub fn note(library: Library, address: *const c_void) {
    OWN.find(note as *const c_void);
    match library {
        Library::Driver => DRIVER.find(address),
        Library::Nvml => NVML.find(address),
    }
}

struct Search {
    address: usize,
    start: usize,
    end: usize,
}

/// Inspects one loaded object; 1 ends the walk.
unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the loader gives a whole description, `find` its own search.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    // SAFETY: the object's program headers, mapped as long as it is loaded.
    let parts = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let code =
        |part: &&libc::Elf64_Phdr| part.p_type == libc::PT_LOAD && part.p_flags & libc::PF_X != 0;
    for part in parts.iter().filter(code) {
        let start = (info.dlpi_addr as usize).wrapping_add(part.p_vaddr as usize);
        let end = start + part.p_memsz as usize;
        if (start..end).contains(&search.address) {
            (search.start, search.end) = (start, end);
            return 1;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_around_an_address() {
        let text = Text::nowhere();
        text.find(note as *const c_void);
        let start = text.start.load(Ordering::Relaxed);
        let bytes = text.bytes.load(Ordering::Relaxed);
        assert!((start..start + bytes).contains(&(visit as *const c_void as usize)));
        text.find(core::ptr::null());
        assert_eq!(text.bytes.load(Ordering::Relaxed), 0);
    }
}
