//! Resets the session in a forked child.
//!
//! The child inherits its parent's open files of the driver. While it has them, the driver keeps the parent's
//! memory, even after the parent's end. So the child keeps the connection as long as those files: until it
//! closes its inherited descriptors, executes another program or ends. The daemon, which learns of the
//! parent's end from its pidfd, charges the memory until then.
//!
//! Everything else is reset. Only async-signal-safe calls are allowed here (the parent's other threads do not
//! exist, and locks they held stay locked): a few atomics and `fstat`, `close`. The parent's session is left
//! in memory and never used again.

use super::{ATTACHING, SESSION, clock, sys};
use crate::gate;
use core::sync::atomic::{AtomicBool, Ordering};

/// Registers the handler for forked children; once per process, before any state exists that a child must
/// not inherit. Not a `Once`: a child forked during it would block for ever.
pub fn watch() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::AcqRel) {
        sys::at_fork(in_child);
    }
}

unsafe extern "C" fn in_child() {
    let session = SESSION.swap(core::ptr::null_mut(), Ordering::AcqRel);
    ATTACHING.store(false, Ordering::Release);
    // SAFETY: null or a leaked session, of which only atomics and plain data are touched.
    if let Some(session) = unsafe { session.as_ref() } {
        session.close_in_child();
    }
    clock::in_child();
    gate::in_child();
}
