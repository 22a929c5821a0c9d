//! The process's connection to the daemon, from the first CUDA call to the end of the process.
//!
//! The library is loaded into `sh` and `ls` too, so it has no constructor and does nothing before a CUDA
//! function is called. The first call determines once whether the process is in a slice (there is a socket
//! to attach to) or not (every later call passes straight through). In a slice without an answering daemon
//! the call fails: unknown is never "no limit".
//!
//! One [`Session`] holds all state of this process in its slice: connection, pages, accounts, allocation
//! tables. It is created once and never freed. A forked child must not use its parent's session, so it
//! resets it (see `fork`) and attaches when it first needs one.

pub mod clock;
pub mod conn;
mod credit_return;
mod fork;
mod groups;
mod measure;
mod place;
mod session;
mod shared;
pub mod sys;

pub use session::{Purpose, Reservation, Session};

use crate::guard::Uncancelled;
use crate::real;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use gpuslice_nvabi::types::{CUcontext, CUresult};
use gpuslice_wire::units::Duration;

/// How long the first CUDA call waits for a daemon that does not answer.
const ATTACH_WAIT: Duration = Duration::from_millis(10_000);

/// The session; null before the attach and in a process outside any slice.
static SESSION: AtomicPtr<Session> = AtomicPtr::new(core::ptr::null_mut());
/// Set once the process is known to be in no slice.
static OUTSIDE: AtomicBool = AtomicBool::new(false);
/// Set while attaching; not a `Mutex`, because a forked child must be able to clear it.
static ATTACHING: AtomicBool = AtomicBool::new(false);

/// The session, if the process has attached; never attaches, never waits.
#[inline]
#[must_use]
pub fn attached() -> Option<&'static Session> {
    // SAFETY: null or a session that was leaked by `attach`.
    unsafe { SESSION.load(Ordering::Acquire).as_ref() }
}

/// The session, attaching if this is the first call that needs one; `None` outside of any slice.
///
/// # Errors
/// `CUDA_ERROR_SYSTEM_NOT_READY` when there is a slice and its daemon does not answer.
#[inline]
pub fn session() -> Result<Option<&'static Session>, CUresult> {
    match attached() {
        Some(session) => Ok(Some(session)),
        None => begin(),
    }
}

/// The first call that needs a session. Before `cuInit` the driver itself rejects all calls, which needs
/// no daemon.
#[cold]
fn begin() -> Result<Option<&'static Session>, CUresult> {
    if OUTSIDE.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let mut context = CUcontext::NULL;
    match real!(cuCtxGetCurrent(&raw mut context)) {
        CUresult::ERROR_NOT_INITIALIZED => Err(CUresult::ERROR_NOT_INITIALIZED),
        _ => attach(Purpose::Use, ATTACH_WAIT),
    }
}

/// The session for a process that begins to use CUDA.
///
/// # Errors
/// As [`session`].
pub fn at_init() -> Result<Option<&'static Session>, CUresult> {
    match attached() {
        Some(session) => Ok(Some(session)),
        None => attach(Purpose::Use, ATTACH_WAIT),
    }
}

/// Like [`session`], waiting at most `patience` for the daemon.
///
/// # Errors
/// As [`session`].
#[cold]
pub fn attach(purpose: Purpose, patience: Duration) -> Result<Option<&'static Session>, CUresult> {
    if OUTSIDE.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let _uncancelled = Uncancelled::begin();
    crate::guard::silence();
    let Some(socket) = place::socket() else {
        OUTSIDE.store(true, Ordering::Relaxed);
        return Ok(None);
    };
    fork::watch();
    let deadline = sys::now().plus(patience);
    let mut pause = Backoff::default();
    loop {
        if let Some(_guard) = AttachGuard::take() {
            if let Some(session) = attached() {
                return Ok(Some(session));
            }
            match Session::open(&socket, purpose, deadline) {
                Ok(session) => {
                    let session: &'static Session = Box::leak(Box::new(session));
                    SESSION.store(core::ptr::from_ref(session).cast_mut(), Ordering::Release);
                    return Ok(Some(session));
                }
                // The daemon rejected the attach: a retry would not change that.
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
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

/// Exponential pauses between attempts to reach the daemon: 10 ms to 500 ms.
struct Backoff(u64);

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff(10_000_000)
    }
}

impl Backoff {
    fn nap(&mut self) {
        sys::nap(self.0);
        self.0 = (self.0 * 2).min(500_000_000);
    }
}
