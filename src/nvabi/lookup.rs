//! Lookup by name and version: the exported symbol that `cuGetProcAddress` selects.
//!
//! A program passes a *base name* ("cuMemAlloc"), the CUDA version it was written for and the
//! stream variant. The driver returns the newest form that is not newer than that version:
//! `cuMemAlloc_v2` for 3020 and later, the 32-bit `cuMemAlloc` before. With the per-thread flag it
//! prefers that form's `_ptsz`/`_ptds` variant if there is one. A base name that exists only in
//! newer versions is distinguished from one that does not exist at all, because `cuGetProcAddress_v2`
//! reports the difference.
//!
//! A lookup is on the start-up path of every runtime (hundreds of names) and is benchmarked, so
//! names are hashed into an open-addressed index built at compile time: one hash, one or two
//! comparisons, then a walk over the few forms of that base.

use crate::table::{DRIVER, DRIVER_COUNT};

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`: prefer the `_ptsz`/`_ptds` variant.
pub const PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The exported symbol.
    pub symbol: &'static str,
    /// Its position in [`DRIVER`].
    pub index: usize,
}

/// The reason why a lookup failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// No version of the driver has a function of that base name.
    NotFound,
    /// Such a function exists, but only from a later version than the requested one.
    VersionNotSufficient,
}

/// The symbol for `base` as of `cuda_version` (major * 1000 + minor * 10), under `flags` of
/// `cuGetProcAddress_v2`.
pub fn symbol(base: &str, cuda_version: u32, flags: u64) -> Result<Found, Missing> {
    // From CUDA 12 on the header maps this name to another function, not to a version of itself. Whether a card's
    // driver does so here is not known.
    let base = match base {
        "cuGraphInstantiate" if cuda_version >= 12000 => "cuGraphInstantiateWithFlags",
        other => other,
    };
    form(base, cuda_version, flags)
}

/// The same for the first `cuGetProcAddress`, which keeps to the forms of the name: an H200's driver (580.159.04) gave
/// `cuGraphInstantiate_v2` for `cuGraphInstantiate` as of 12000.
pub fn form(base: &str, cuda_version: u32, flags: u64) -> Result<Found, Missing> {
    let first = INDEX.first(base.as_bytes()).ok_or(Missing::NotFound)?;
    let plain = newest(first, cuda_version).ok_or(Missing::VersionNotSufficient)?;
    let chosen = if flags & PER_THREAD_DEFAULT_STREAM == 0 {
        plain
    } else {
        let generation = INDEX.parts[plain].generation;
        forms(first)
            .find(|&i| {
                let parts = INDEX.parts[i];
                parts.per_thread
                    && parts.generation == generation
                    && DRIVER[i].since <= cuda_version
            })
            .unwrap_or(plain)
    };
    Ok(Found { symbol: DRIVER[chosen].name, index: chosen })
}

/// The position in [`DRIVER`] of an exported symbol, suffixes included.
pub fn exported(name: &str) -> Option<usize> {
    let base = &name.as_bytes()[..suffix(name.as_bytes()).base];
    forms(INDEX.first(base)?).find(|&i| DRIVER[i].name == name)
}

/// The newest of a base's forms, without stream variants, that is not newer than `version`.
fn newest(first: usize, version: u32) -> Option<usize> {
    forms(first)
        .filter(|&i| DRIVER[i].since <= version && !INDEX.parts[i].per_thread)
        .max_by_key(|&i| DRIVER[i].since)
}

/// All forms of one base name, starting with `first`.
fn forms(first: usize) -> impl Iterator<Item = usize> {
    core::iter::successors(Some(first), |&i| {
        let next = INDEX.next[i];
        (next != NONE).then_some(next as usize)
    })
}

/// A parsed exported name: `cuMemcpyHtoD_v2_ptds` = base of 12 bytes, generation 2, a stream variant.
#[derive(Clone, Copy)]
struct Suffix {
    base: usize,
    generation: u8,
    per_thread: bool,
}

const fn suffix(name: &[u8]) -> Suffix {
    let mut end = name.len();
    let per_thread = ends_with(name, end, b"_ptsz") || ends_with(name, end, b"_ptds");
    if per_thread {
        end -= 5;
    }
    let mut generation = 1;
    if end > 3 && name[end - 3] == b'_' && name[end - 2] == b'v' && name[end - 1].is_ascii_digit() {
        generation = name[end - 1] - b'0';
        end -= 3;
    }
    Suffix { base: end, generation, per_thread }
}

const fn ends_with(name: &[u8], end: usize, tail: &[u8]) -> bool {
    if end < tail.len() {
        return false;
    }
    let mut i = 0;
    while i < tail.len() {
        if name[end - tail.len() + i] != tail[i] {
            return false;
        }
        i += 1;
    }
    true
}

const NONE: u16 = u16::MAX;
const SLOTS: usize = 2048; // a power of two, at least twice the number of base names
const _: () = assert!(DRIVER_COUNT * 2 <= SLOTS && DRIVER_COUNT < NONE as usize);

/// Base names by hash, forms of one base chained in table order, and every parsed name.
struct Index {
    slots: [u16; SLOTS],
    next: [u16; DRIVER_COUNT],
    parts: [Suffix; DRIVER_COUNT],
}

static INDEX: Index = Index::build();

impl Index {
    const fn build() -> Self {
        let mut index = Self {
            slots: [NONE; SLOTS],
            next: [NONE; DRIVER_COUNT],
            parts: [suffix(b""); DRIVER_COUNT],
        };
        let mut i = 0;
        while i < DRIVER_COUNT {
            index.insert(i);
            i += 1;
        }
        index
    }

    const fn insert(&mut self, i: usize) {
        let name = DRIVER[i].name.as_bytes();
        self.parts[i] = suffix(name);
        let base = self.parts[i].base;
        let mut slot = hash(name, base) % SLOTS;
        while self.slots[slot] != NONE {
            let mut last = self.slots[slot] as usize;
            if self.has_base(last, name, base) {
                while self.next[last] != NONE {
                    last = self.next[last] as usize;
                }
                self.next[last] = i as u16;
                return;
            }
            slot = (slot + 1) % SLOTS;
        }
        self.slots[slot] = i as u16;
    }

    /// Whether row `i`'s base is the first `len` bytes of `name`.
    const fn has_base(&self, i: usize, name: &[u8], len: usize) -> bool {
        let ours = DRIVER[i].name.as_bytes();
        if self.parts[i].base != len {
            return false;
        }
        let mut at = 0;
        while at < len {
            if ours[at] != name[at] {
                return false;
            }
            at += 1;
        }
        true
    }

    fn first(&self, base: &[u8]) -> Option<usize> {
        let mut slot = hash(base, base.len()) % SLOTS;
        while self.slots[slot] != NONE {
            let i = self.slots[slot] as usize;
            if self.has_base(i, base, base.len()) {
                return Some(i);
            }
            slot = (slot + 1) % SLOTS;
        }
        None
    }
}

/// FNV-1a over the first `len` bytes.
const fn hash(name: &[u8], len: usize) -> usize {
    let mut h: u32 = 0x811c_9dc5;
    let mut i = 0;
    while i < len {
        h = (h ^ name[i] as u32).wrapping_mul(0x0100_0193);
        i += 1;
    }
    (h ^ (h >> 15)) as usize
}
