//! What a forked child does with its parent's session: forget it.
//!
//! The child has its parent's open files of the driver, too, and while it has them the driver keeps the
//! parent's memory, also when the parent is gone. So it keeps the connection as it keeps those, and loses it
//! when it loses those: by closing what it inherited, by becoming another program, by its end.
//! The daemon, which knows of the parent's death from its pidfd, charges the memory until then.
//!
//! All else is forgotten. This runs where only async-signal-safe calls are allowed (other threads of the
//! parent, and whatever locks they held, exist no more): a few atomics and `fstat`, `close`. The
//! parent's session is left in memory as it is; nobody looks at it again.

use super::{ATTACHING, SESSION, clock, sys};
use crate::gate;
use core::sync::atomic::{AtomicBool, Ordering};

/// Arranges for children to be looked after; once per process, and before there is anything a child
/// must not inherit. Not a `Once`: in the child of a fork in its middle it would never end.
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
