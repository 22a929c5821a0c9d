//! The small allocations of a context: slabs of 2 MiB, shared out by the buddy system.
//!
//! One empty slab is kept for the next allocation, so that a program that allocates and frees in a
//! loop does not go to the device each time. A kept slab is not lost: it counts as free to
//! this process, and is given up when memory is short.

use super::buddy::{Buddy, SLAB};
use super::pages::Pages;
use gpuslice_nvabi::types::CUresult;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The slabs of one context.
#[derive(Default)]
pub struct Heap(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    slabs: BTreeMap<u64, Slab>,
    /// Slabs with any room, by address.
    roomy: BTreeSet<u64>,
    /// The slab the last piece came from or went to.
    last: u64,
    empty: usize,
}

struct Slab {
    buddy: Buddy,
    pages: Pages,
}

impl Heap {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A piece of the order: its address and that of its slab.
    pub fn take(&self, gpu: usize, order: usize) -> Result<(u64, u64), CUresult> {
        if let Some(found) = self.lock().take(order) {
            return Ok(found);
        }
        // The device is asked without the lock; two threads at once make two slabs, no harm.
        let pages = Pages::new(gpu, SLAB)?;
        let mut inner = self.lock();
        let base = pages.address;
        inner.slabs.insert(base, Slab { buddy: Buddy::new(), pages });
        inner.roomy.insert(base);
        (inner.last, inner.empty) = (base, inner.empty + 1);
        inner.take(order).ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// Gives a piece back.
    pub fn give(&self, slab: u64, address: u64, order: usize) {
        // Released slabs are dropped after the lock.
        let _given_up = self.lock().give(slab, address, order);
    }

    /// The memory a piece of this slab lies in.
    pub fn chunk(&self, slab: u64) -> Option<std::sync::Arc<super::Chunk>> {
        self.lock().slabs.get(&slab).map(|slab| slab.pages.chunk.clone())
    }

    /// Bytes kept though nothing is in them.
    pub fn spare_bytes(&self) -> u64 {
        self.lock().empty as u64 * SLAB
    }

    /// Gives the kept slabs up; returns whether there were any.
    pub fn trim(&self) -> bool {
        let mut inner = self.lock();
        let empty: Vec<u64> =
            inner.slabs.iter().filter(|(_, slab)| slab.buddy.is_empty()).map(|at| *at.0).collect();
        let given_up: Vec<Option<Slab>> = empty.iter().map(|&base| inner.remove(base)).collect();
        drop(inner);
        !given_up.is_empty()
    }

    /// Gives everything up.
    pub fn clear(&self) {
        let given_up = std::mem::take(&mut *self.lock());
        drop(given_up);
    }
}

impl Inner {
    fn take(&mut self, order: usize) -> Option<(u64, u64)> {
        let last = self.last;
        let fits = |slab: &Slab| slab.buddy.has(order);
        let base = if self.slabs.get(&last).is_some_and(fits) {
            last
        } else {
            let mut roomy = self.roomy.iter().copied();
            roomy.find(|base| self.slabs.get(base).is_some_and(fits))?
        };
        let slab = self.slabs.get_mut(&base)?;
        if slab.buddy.is_empty() {
            self.empty -= 1;
        }
        let offset = slab.buddy.take(order)?;
        if !slab.buddy.has(0) {
            self.roomy.remove(&base);
        }
        self.last = base;
        Some((base + offset, base))
    }

    fn give(&mut self, base: u64, address: u64, order: usize) -> Option<Slab> {
        let slab = self.slabs.get_mut(&base)?;
        if !slab.buddy.has(0) {
            self.roomy.insert(base);
        }
        slab.buddy.give(address - base, order);
        self.last = base;
        if !slab.buddy.is_empty() {
            return None;
        }
        self.empty += 1;
        if self.empty > 1 { self.remove(base) } else { None }
    }

    /// Takes an empty slab out.
    fn remove(&mut self, base: u64) -> Option<Slab> {
        self.empty -= 1;
        self.roomy.remove(&base);
        self.slabs.remove(&base)
    }
}
