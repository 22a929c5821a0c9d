//! Handles of contexts. A handle is a number that is never reused, so that a living context differs
//! from a destroyed one and from a made-up pointer.

use super::Context;
use gpuslice_nvabi::types::{CUcontext, CUresult};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

static CONTEXTS: RwLock<Vec<&'static Context>> = RwLock::new(Vec::new());
static SERIAL: AtomicU64 = AtomicU64::new(1);

/// Handles look like addresses no program has: above what user space may map.
const BASE: u64 = 0x00c0_0000_0000_0000;
const STEP: u64 = 64;

pub fn next_serial() -> u64 {
    SERIAL.fetch_add(1, Ordering::Relaxed)
}

pub fn handle(serial: u64) -> CUcontext {
    CUcontext((BASE + serial * STEP) as usize as *mut _)
}

/// Enters a new context.
pub fn enter(context: Context) -> &'static Context {
    let context: &'static Context = Box::leak(Box::new(context));
    let mut contexts = CONTEXTS.write().unwrap_or_else(PoisonError::into_inner);
    contexts.push(context);
    context
}

/// Takes an ended context out; it stays readable for the threads that still have it current.
pub fn leave(context: &Context) {
    let mut contexts = CONTEXTS.write().unwrap_or_else(PoisonError::into_inner);
    contexts.retain(|other| other.serial != context.serial);
}

/// The living context of a handle.
pub fn find(handle: CUcontext) -> Result<&'static Context, CUresult> {
    let place = (handle.0 as usize as u64).wrapping_sub(BASE);
    let contexts = CONTEXTS.read().unwrap_or_else(PoisonError::into_inner);
    contexts
        .iter()
        .copied()
        .find(|context| context.serial * STEP == place)
        .ok_or(CUresult::ERROR_INVALID_CONTEXT)
}

/// The living contexts on a GPU, or on all.
pub fn living() -> Vec<&'static Context> {
    CONTEXTS.read().unwrap_or_else(PoisonError::into_inner).clone()
}
