//! Whether this process has memory whose charge changes without a hooked call.
//!
//! Pools, graphs and exported descriptors must be looked at before charges are read. Most processes have none
//! of them, and query the free memory often. Set once; for a forked child the check is merely unnecessary.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

static FOLLOWED: AtomicBool = AtomicBool::new(false);

/// Notes that there is such memory.
pub fn follow() {
    FOLLOWED.store(true, Relaxed);
}

/// Whether there is.
#[inline]
#[must_use]
pub fn any() -> bool {
    FOLLOWED.load(Relaxed)
}
