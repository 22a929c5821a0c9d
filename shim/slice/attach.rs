//! The slice of this process, from the first CUDA call to the end of the process.
//!
//! The library is loaded into `sh` and `ls` too, so it has no constructor and does nothing before a CUDA
//! function is called. The first call determines once whether the process is in a slice (there is a socket
//! to attach to) or not (every later call passes straight through). In a slice without an answering daemon
//! the call fails: unknown is never "no limit".
//!
//! # Forked children
//! A child inherits its parent's open files of the driver. While it has them, the driver keeps the parent's
//! memory, even after the parent's end. So the child keeps the connection as long as those files: until it
//! closes its inherited descriptors, executes another program or ends. The daemon, which learns of the
//! parent's end from its pidfd, charges the memory until then.
//!
//! Everything else is reset, and the child attaches when it first needs a slice. Only async-signal-safe calls
//! are allowed in the reset (the parent's other threads do not exist, and locks they held stay locked): a few
//! atomics and `fstat`, `close`. The parent's slice is left in memory and never used again.

use super::state::Slice;
use crate::daemon::sys::{self, Backoff};
use crate::daemon::{Callbacks, Purpose, Session, clock, place};
use crate::guard::Uncancelled;
use crate::{launch, real};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use gpuslice_nvabi::types::{CUcontext, CUresult};
use gpuslice_wire::limits::DAEMON_WAIT_NS;
use gpuslice_wire::units::Duration;
use std::io::ErrorKind;

/// How long the first CUDA call waits for a daemon that does not answer: as long as growth does. The daemon of a node
/// whose disk stands still for some seconds answers late.
const ATTACH_WAIT: Duration = Duration(DAEMON_WAIT_NS);

/// The slice; null before the attach and in a process outside any slice.
static SLICE: AtomicPtr<Slice> = AtomicPtr::new(core::ptr::null_mut());
/// Set once the process is known to be in no slice.
static OUTSIDE: AtomicBool = AtomicBool::new(false);
/// Set while attaching; not a `Mutex`, because a forked child must be able to clear it.
static ATTACHING: AtomicBool = AtomicBool::new(false);

/// The slice, if the process has attached; never attaches, never waits.
#[inline]
#[must_use]
pub fn attached() -> Option<&'static Slice> {
    // SAFETY: null or a slice that was leaked by `attach`.
    unsafe { SLICE.load(Ordering::Acquire).as_ref() }
}

/// The slice, attaching if this is the first call that needs it; `None` outside of any slice.
///
/// # Errors
/// `CUDA_ERROR_SYSTEM_NOT_READY` when there is a slice and its daemon does not answer.
#[inline]
pub fn get() -> Result<Option<&'static Slice>, CUresult> {
    match attached() {
        Some(slice) => Ok(Some(slice)),
        None => begin(),
    }
}

/// The first call that needs a slice. Before `cuInit` the driver itself rejects all calls, which needs
/// no daemon.
#[cold]
fn begin() -> Result<Option<&'static Slice>, CUresult> {
    if OUTSIDE.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let mut context = CUcontext::NULL;
    match real!(cuCtxGetCurrent(&raw mut context)) {
        CUresult::ERROR_NOT_INITIALIZED => Err(CUresult::ERROR_NOT_INITIALIZED),
        _ => attach(Purpose::Use, ATTACH_WAIT),
    }
}

/// The slice of a process that begins to use CUDA.
///
/// # Errors
/// As [`get`].
pub fn at_init() -> Result<Option<&'static Slice>, CUresult> {
    match attached() {
        Some(slice) => Ok(Some(slice)),
        None => attach(Purpose::Use, ATTACH_WAIT),
    }
}

/// Like [`get`], waiting at most `patience` for the daemon.
///
/// # Errors
/// As [`get`].
#[cold]
pub fn attach(purpose: Purpose, patience: Duration) -> Result<Option<&'static Slice>, CUresult> {
    if OUTSIDE.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let _uncancelled = Uncancelled::begin();
    crate::guard::silence();
    let Some(socket) = place::socket() else {
        OUTSIDE.store(true, Ordering::Relaxed);
        return Ok(None);
    };
    watch_forks();
    let deadline = sys::now().plus(patience);
    let mut pause = Backoff::default();
    loop {
        if let Some(_guard) = AttachGuard::take() {
            if let Some(slice) = attached() {
                return Ok(Some(slice));
            }
            match Session::open(&socket, purpose, CALLBACKS, deadline) {
                Ok(session) => {
                    let slice: &'static Slice = Box::leak(Box::new(Slice::new(session)));
                    SLICE.store(core::ptr::from_ref(slice).cast_mut(), Ordering::Release);
                    return Ok(Some(slice));
                }
                // The daemon rejected the attach: a retry would not change that.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    return Err(CUresult::ERROR_SYSTEM_NOT_READY);
                }
                Err(_) => {}
            }
        }
        if sys::now() >= deadline {
            return Err(CUresult::ERROR_SYSTEM_NOT_READY);
        }
        pause.nap();
    }
}

/// The duties towards the session, which calls only while the slice is attached.
const CALLBACKS: Callbacks = Callbacks {
    // The gate thread returns recalled credit. It also notices a restarted daemon, which would otherwise not
    // learn of this process's memory before the next launch.
    credit_begins: || {
        if let Some(slice) = attached() {
            launch::watch(slice);
        }
    },
    reclaim: || attached().is_some_and(|slice| slice.reclaim()),
    report: |conn, deadline| {
        let Some(slice) = attached() else {
            return Ok(());
        };
        slice.handles.report_again(conn, deadline)?;
        slice.groups.report_again(&slice.daemon, conn, deadline)
    },
};

/// The right to attach, which one thread has at a time.
struct AttachGuard;

impl AttachGuard {
    fn take() -> Option<AttachGuard> {
        (!ATTACHING.swap(true, Ordering::Acquire)).then_some(AttachGuard)
    }
}

impl Drop for AttachGuard {
    fn drop(&mut self) {
        ATTACHING.store(false, Ordering::Release);
    }
}

/// Registers the handler for forked children; once per process, before any state exists that a child must
/// not inherit. Not a `Once`: a child forked during it would block for ever.
fn watch_forks() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::AcqRel) {
        sys::at_fork(in_child);
    }
}

unsafe extern "C" fn in_child() {
    let slice = SLICE.swap(core::ptr::null_mut(), Ordering::AcqRel);
    ATTACHING.store(false, Ordering::Release);
    // SAFETY: null or a leaked slice, of which only atomics and plain data are touched.
    if let Some(slice) = unsafe { slice.as_ref() } {
        slice.daemon.close_in_child();
    }
    clock::in_child();
    launch::in_child();
}
