//! The pointers (entries of the global offset table) through which a loaded library calls another one.
//!
//! The loader fills them in from the library's list of *relocations*, each of which names a place and
//! a symbol; the list stays in memory. A place in the part that the loader has made read-only since
//! (RELRO) is made writable during the exchange.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};

/// Kinds of relocations that store a function's address.
#[cfg(target_arch = "x86_64")]
const ADDRESS: [u64; 3] = [1, 6, 7];
#[cfg(target_arch = "aarch64")]
const ADDRESS: [u64; 3] = [257, 1025, 1026];

const PAGE: usize = 4096;

// Tags of the dynamic section, as in elf.h.
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;

/// One pointer of a library.
#[derive(Debug)]
pub struct GotEntry {
    at: usize,
    sealed: bool,
}

impl GotEntry {
    /// Redirects the pointer to `target`, after storing its old target in `previous`.
    pub fn turn(&self, target: *mut c_void, previous: &AtomicPtr<c_void>) {
        let page = (self.at & !(PAGE - 1)) as *mut c_void;
        let protect = |access| {
            // SAFETY: a page of the library's data, which stays readable throughout.
            !self.sealed || unsafe { libc::mprotect(page, PAGE, access) } == 0
        };
        if !protect(libc::PROT_READ | libc::PROT_WRITE) {
            return;
        }
        // SAFETY: the loader's place for one address, aligned, mapped while the library is loaded,
        // which it is for ever; others only read it.
        let entry = unsafe { AtomicPtr::from_ptr(self.at as *mut *mut c_void) };
        // The old target is stored before any thread can reach the new one.
        previous.store(entry.load(Acquire), Release);
        entry.store(target, Release);
        let _ = protect(libc::PROT_READ);
    }
}

/// The pointers to `symbol` in the library that contains `address`; none if the library has an unknown
/// format.
pub fn find(address: *const c_void, symbol: &CStr) -> Vec<GotEntry> {
    let mut search = Search { address: address as usize, symbol, found: Vec::new() };
    // SAFETY: `visit` gets `search`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

struct Search<'a> {
    address: usize,
    symbol: &'a CStr,
    found: Vec<GotEntry>,
}

/// Searches one loaded object; 1 ends the walk.
unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the loader gives a whole description, `find` its own search.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    // SAFETY: the object's program headers, mapped as long as it is loaded.
    let parts = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let base = info.dlpi_addr as usize;
    let range = |part: &libc::Elf64_Phdr| {
        let start = base.wrapping_add(part.p_vaddr as usize);
        start..start.wrapping_add(part.p_memsz as usize)
    };
    let of = |kind| parts.iter().find(move |part| part.p_type == kind).map(range);
    let loaded = parts.iter().filter(|part| part.p_type == libc::PT_LOAD);
    if !loaded.clone().any(|part| range(part).contains(&search.address)) {
        return 0;
    }
    if let Some(dynamic) = of(libc::PT_DYNAMIC) {
        // SAFETY: the loader relocated this object by just this list.
        let places = unsafe { Lists::read(base, dynamic.start, dynamic.end) }.places(search.symbol);
        let sealed = of(libc::PT_GNU_RELRO).unwrap_or_default();
        let writable = |at: &usize| loaded.clone().any(|part| range(part).contains(at));
        let entries = places
            .into_iter()
            .filter(writable)
            .map(|at| GotEntry { at, sealed: sealed.contains(&at) });
        search.found.extend(entries);
    }
    1
}

/// Addresses of an object's lists.
#[derive(Default)]
struct Lists {
    base: usize,
    names: usize,
    symbols: usize,
    relocations: [(usize, usize); 2],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Relocation {
    place: u64,
    info: u64,
    addend: i64,
}

impl Lists {
    /// # Safety
    /// A loaded object's own table of tags and values, from `at` to `end`, ended by a zero tag.
    unsafe fn read(base: usize, at: usize, end: usize) -> Lists {
        let mut lists = Lists { base, ..Lists::default() };
        for at in (at..end).step_by(16) {
            // SAFETY: inside the table.
            let [tag, value] = unsafe { (at as *const [u64; 2]).read() };
            let bytes = value as usize;
            // Some loaders write absolute addresses into the table, others leave it unchanged.
            let address = if bytes < base { base + bytes } else { bytes };
            match tag as i64 {
                0 => break,
                DT_STRTAB => lists.names = address,
                DT_SYMTAB => lists.symbols = address,
                DT_RELA => lists.relocations[0].0 = address,
                DT_RELASZ => lists.relocations[0].1 = bytes,
                DT_JMPREL => lists.relocations[1].0 = address,
                DT_PLTRELSZ => lists.relocations[1].1 = bytes,
                _ => {}
            }
        }
        lists
    }

    /// The places that hold the address of `symbol`.
    fn places(&self, symbol: &CStr) -> Vec<usize> {
        let mut all = Vec::new();
        if self.names == 0 || self.symbols == 0 {
            return all;
        }
        for (start, bytes) in self.relocations.into_iter().filter(|list| list.0 != 0) {
            for at in (start..start + bytes).step_by(size_of::<Relocation>()) {
                // SAFETY: inside the object's list of relocations.
                let it = unsafe { (at as *const Relocation).read() };
                let (kind, which) = (it.info & 0xffff_ffff, (it.info >> 32) as usize);
                if !ADDRESS.contains(&kind) || which == 0 || it.addend != 0 {
                    continue;
                }
                let entry = self.symbols + which * size_of::<libc::Elf64_Sym>();
                // SAFETY: relocations name entries of this table.
                let entry = unsafe { (entry as *const libc::Elf64_Sym).read() };
                // SAFETY: and these names of the table of names, each ended by a zero.
                let name = unsafe { CStr::from_ptr((self.names + entry.st_name as usize) as _) };
                if name == symbol {
                    all.push(self.base.wrapping_add(it.place as usize));
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test program reaches libc's `mprotect` by the same mechanism, from this very file.
    #[test]
    fn a_library_s_pointer_is_found_redirected_and_restored() {
        let entries = find(visit as *const c_void, c"mprotect");
        assert!(!entries.is_empty(), "this program calls mprotect");
        assert!(find(visit as *const c_void, c"no_such_function").is_empty());
        let here = entries.iter().map(|entry| {
            // SAFETY: as in `turn`.
            unsafe { AtomicPtr::from_ptr(entry.at as *mut *mut c_void) }.load(Acquire)
        });
        let all: Vec<_> = here.collect();
        assert!(all.iter().all(|it| *it == libc::mprotect as *mut c_void));
    }
}
