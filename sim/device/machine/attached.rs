//! One machine per process and role, made at the first use and kept for ever.
//!
//! No lock guards the pointer: a fork could copy it locked by a thread the child does not have. If
//! two threads attach at the same time, one of the two machines stays unused.

#![allow(unsafe_code)]

use super::{Machine, Role};
use crate::directory;
use crate::error::Error;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

static ATTACHED: [AtomicPtr<Machine>; 2] = [AtomicPtr::new(null_mut()), AtomicPtr::new(null_mut())];

impl Machine {
    /// This process's machine for the driver, at the default directory; attached once, for the life
    /// of the process. In a forked child it is a fresh attachment: the parent's belongs to the
    /// parent, and its `&'static Machine` must not be used any more.
    pub fn attach() -> Result<&'static Machine, Error> {
        Self::shared(Role::Driver)
    }

    /// The same for observers (NVML, tools).
    pub fn observe() -> Result<&'static Machine, Error> {
        Self::shared(Role::Observer)
    }

    fn shared(role: Role) -> Result<&'static Machine, Error> {
        let place = &ATTACHED[role as usize];
        let present = place.load(Ordering::Acquire);
        // SAFETY: only leaked boxes are ever stored, so the reference is good for ever.
        if let Some(machine) = unsafe { present.as_ref() }
            && machine.is_mine()
        {
            return Ok(machine);
        }
        let machine: &'static Machine =
            Box::leak(Box::new(Self::open(&directory::default_dir(), role)?));
        let new = std::ptr::from_ref(machine).cast_mut();
        match place.compare_exchange(present, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(machine),
            // Another thread was faster. Ours stays attached, unused: closing its file of locks
            // would release the other's lock as well.
            // SAFETY: as above.
            Err(other) => Ok(unsafe { other.as_ref() }.unwrap_or(machine)),
        }
    }
}
