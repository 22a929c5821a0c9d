//! The common entry of every driver call.
//!
//! A C program passes raw pointers and expects a code back. The entry turns the pointers into [`In`]
//! and [`Out`] (checked for null, read and written in one place) and the implementation's result
//! into a `CUresult`. It catches panics, refuses calls before `cuInit` and after `fork`, lets calls
//! wait while a checkpoint of the process holds them back (see [`held_back`]), and notes the
//! caller's default stream: the symbols ending in `_ptds` and `_ptsz` are the same functions with a
//! default stream per thread.

use gpuslice_nvabi::types::CUresult;
use gpuslice_sim_device::{Machine, ProcessState};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// What an implementation answers.
pub type Outcome = Result<(), CUresult>;

/// Refuses an argument of which this is true: `ERROR_INVALID_VALUE`.
pub fn refuse_if(wrong: bool) -> Outcome {
    if wrong {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    Ok(())
}

/// Properties of an entry point that follow from its name; computed at compile time.
#[derive(Clone, Copy)]
pub struct Call {
    needs_init: bool,
    per_thread: bool,
    /// Refused while a stream is captured: it may wait for the device.
    pub unsafe_in_capture: bool,
    /// A checkpoint of the process does not hold it back: see [`held_back`].
    synchronises: bool,
}

/// Entry points that answer before `cuInit`.
const ALWAYS: [&str; 7] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuGetExportTable",
];

/// Entry points that may wait for the device, whichever version of them.
const UNSAFE_IN_CAPTURE: [&str; 18] = [
    "cuMemAlloc",
    "cuMemAllocPitch",
    "cuMemAllocManaged",
    "cuMemFree",
    "cuMemAllocHost",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister",
    "cuMemHostUnregister",
    "cuArrayCreate",
    "cuArray3DCreate",
    "cuMipmappedArrayCreate",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuModuleUnload",
    "cuCtxSynchronize",
];

impl Call {
    /// Of the exported symbol `name`.
    pub const fn named(name: &str) -> Self {
        let mut needs_init = true;
        let mut at = 0;
        while at < ALWAYS.len() {
            needs_init &= !same(name.as_bytes(), ALWAYS[at].as_bytes());
            at += 1;
        }
        let name = name.as_bytes();
        let mut unsafe_in_capture = false;
        at = 0;
        while at < UNSAFE_IN_CAPTURE.len() {
            unsafe_in_capture |= same(base(name), UNSAFE_IN_CAPTURE[at].as_bytes());
            at += 1;
        }
        Self {
            unsafe_in_capture,
            synchronises: same(base(name), b"cuCtxSynchronize")
                || same(name, b"cuStreamSynchronize")
                || same(name, b"cuStreamSynchronize_ptsz"),
            needs_init,
            per_thread: ends_with(name, b"_ptsz") || ends_with(name, b"_ptds"),
        }
    }
}

/// The name without its version.
const fn base(name: &[u8]) -> &[u8] {
    match ends_with(name, b"_v2") {
        true => name.split_at(name.len() - 3).0,
        false => name,
    }
}

const fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && ends_with(left, right)
}

const fn ends_with(name: &[u8], end: &[u8]) -> bool {
    if name.len() < end.len() {
        return false;
    }
    let mut at = 0;
    while at < end.len() {
        if name[name.len() - end.len() + at] != end[at] {
            return false;
        }
        at += 1;
    }
    true
}

const FRESH: u8 = 0;
const READY: u8 = 1;
const FORKED: u8 = 2;
static PHASE: AtomicU8 = AtomicU8::new(FRESH);

/// Of this process, once `cuInit` has succeeded: a checkpoint of the process holds back its calls.
static MACHINE: OnceLock<&'static Machine> = OnceLock::new();

/// `cuInit` has succeeded.
pub fn set_ready(machine: &'static Machine) {
    MACHINE.get_or_init(|| machine);
    PHASE.store(READY, Ordering::Release);
}

/// This process is the child of one that had initialised the driver: it has none of its own.
pub fn set_forked() {
    if PHASE.load(Ordering::Acquire) == READY {
        PHASE.store(FORKED, Ordering::Release);
    }
}

/// See [`set_forked`].
pub fn is_forked() -> bool {
    PHASE.load(Ordering::Acquire) == FORKED
}

thread_local! {
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether stream 0 means this thread's own default stream in the call being served.
pub fn per_thread_default() -> bool {
    PER_THREAD.get()
}

/// Runs the implementation of one call.
#[inline]
pub fn guard<R: Reply>(call: Call, body: impl FnOnce() -> R) -> CUresult {
    if call.needs_init && PHASE.load(Ordering::Acquire) != READY {
        return CUresult::ERROR_NOT_INITIALIZED;
    }
    if call.needs_init
        && let Some(code) = MACHINE.get().and_then(|machine| held_back(call, machine))
    {
        return code;
    }
    let before = call.per_thread.then(|| PER_THREAD.replace(true));
    let result = catch_unwind(AssertUnwindSafe(body));
    if let Some(before) = before {
        PER_THREAD.set(before);
    }
    result.map_or(CUresult::ERROR_UNKNOWN, Reply::reply)
}

/// What a checkpoint of the process does to a call: most wait for its end.
///
/// Calls that wait for a context or a stream do not: they return at once while the process is locked, and are an
/// access to an invalid address in the driver while it is checkpointed. So measured with the drivers 580.178.04 and
/// 595.84, 12 of 12 times: `validation/FINDINGS.md` of github.com/VivianSobers/gpunap.
fn held_back(call: Call, machine: &Machine) -> Option<CUresult> {
    if call.synchronises {
        match machine.own_state() {
            ProcessState::Locked => return Some(CUresult::SUCCESS),
            ProcessState::Checkpointed => end_by_segv(),
            ProcessState::Running | ProcessState::Failed | ProcessState::Lost => {}
        }
    }
    match machine.wait_for_unlock() {
        ProcessState::Failed => Some(CUresult::ERROR_UNKNOWN),
        ProcessState::Lost => end_by_segv(),
        _ => None,
    }
}

/// Ends the process as an invalid access does. A program's own handler would return to no such access.
fn end_by_segv() -> ! {
    // SAFETY: the default action needs no handler, and `raise` takes a number.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        libc::raise(libc::SIGSEGV);
    }
    // Only where this thread blocks the signal.
    loop {
        std::thread::park();
    }
}

/// Results that convert to a `CUresult`.
pub trait Reply {
    fn reply(self) -> CUresult;
}

impl Reply for CUresult {
    fn reply(self) -> CUresult {
        self
    }
}

impl Reply for Outcome {
    fn reply(self) -> CUresult {
        self.err().unwrap_or(CUresult::SUCCESS)
    }
}

/// How an argument of the C call becomes one of an implementation: unchanged, or wrapped.
pub trait FromAbi<A> {
    /// # Safety
    /// A pointer is null, or valid for what the driver API says the function does with it.
    unsafe fn from_abi(argument: A) -> Self;
}

impl<A> FromAbi<A> for A {
    unsafe fn from_abi(argument: A) -> Self {
        argument
    }
}

/// Where the caller wants a result; may be null. Valid by the caller's promise (see [`FromAbi`]).
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T> FromAbi<*mut T> for Out<T> {
    unsafe fn from_abi(argument: *mut T) -> Self {
        Self(argument)
    }
}

impl<T> Out<T> {
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The same place for values of another type.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// A place the caller has named inside a structure or a list that came through `from_abi`,
    /// and so vouches for as well.
    pub fn vouched(pointer: *mut T) -> Self {
        Self(pointer)
    }

    /// Null is an invalid value.
    pub fn require(self) -> Outcome {
        if self.0.is_null() { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    /// Writes; null is an invalid value.
    pub fn set(self, value: T) -> Outcome {
        self.require()?;
        self.set_if_wanted(value);
        Ok(())
    }

    /// Writes unless the pointer is null.
    pub fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, and then valid for a write by the promise of `from_abi`.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// Writes the element `at` of an array the caller says has more than `at` elements.
    pub fn set_at(self, at: usize, value: T) -> Outcome {
        self.require()?;
        // SAFETY: not null, and an array of more than `at` elements by the promise of `from_abi`.
        unsafe { self.0.add(at).write_unaligned(value) }
        Ok(())
    }

    /// Reads what the caller left there; null is an invalid value.
    pub fn get(self) -> Result<T, CUresult>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }
}

/// What the caller wants read; may be null. Valid by the caller's promise (see [`FromAbi`]).
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T> FromAbi<*const T> for In<T> {
    unsafe fn from_abi(argument: *const T) -> Self {
        Self(argument)
    }
}

impl<T> FromAbi<*mut T> for In<T> {
    unsafe fn from_abi(argument: *mut T) -> Self {
        Self(argument)
    }
}

impl<T> From<Out<T>> for In<T> {
    fn from(place: Out<T>) -> Self {
        Self(place.0)
    }
}

impl<T> In<T> {
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub fn pointer(self) -> *const T {
        self.0
    }

    /// The same place read as another type.
    pub fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }

    /// A place the caller has named inside a structure; see [`Out::vouched`].
    pub fn vouched(pointer: *const T) -> Self {
        Self(pointer)
    }
}

impl<T: Copy> In<T> {
    /// Reads; null is an invalid value.
    pub fn get(self) -> Result<T, CUresult> {
        self.at(0)
    }

    /// Reads the element `at` of an array the caller says has more than `at` elements.
    pub fn at(self, at: usize) -> Result<T, CUresult> {
        refuse_if(self.0.is_null())?;
        // SAFETY: not null, and an array of more than `at` elements by the promise of `from_abi`.
        Ok(unsafe { self.0.add(at).read_unaligned() })
    }

    /// Reads `count` elements.
    pub fn list(self, count: usize) -> Result<Vec<T>, CUresult> {
        (0..count).map(|at| self.at(at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_says_what_a_call_needs() {
        let check = |name, needs_init, per_thread| {
            let call = Call::named(name);
            assert_eq!((call.needs_init, call.per_thread), (needs_init, per_thread), "{name}");
        };
        check("cuInit", false, false);
        check("cuGetProcAddress_v2", false, false);
        check("cuMemAllocAsync_ptsz", true, true);
        check("cuMemcpyHtoD_v2_ptds", true, true);
        check("cuMemcpyHtoD_v2", true, false);
        check("cuInit_v9", true, false);
        for name in ["cuCtxSynchronize", "cuCtxSynchronize_v2", "cuStreamSynchronize_ptsz"] {
            assert!(Call::named(name).synchronises, "{name}");
        }
        assert!(!Call::named("cuEventSynchronize").synchronises);
        let waits = |name| Call::named(name).unsafe_in_capture;
        assert!(waits("cuMemAlloc_v2") && waits("cuMemAlloc") && waits("cuCtxSynchronize_v2"));
        assert!(!waits("cuMemAllocAsync") && !waits("cuMemGetInfo_v2") && !waits("cuMemFreeAsync"));
    }

    #[test]
    fn a_panic_becomes_a_code() {
        const CALL: Call = Call::named("cuInit");
        let result = guard(CALL, || -> Outcome { std::panic::resume_unwind(Box::new(())) });
        assert_eq!(result, CUresult::ERROR_UNKNOWN);
        assert_eq!(guard(CALL, || Err(CUresult::ERROR_NOT_FOUND)), CUresult::ERROR_NOT_FOUND);
        assert_eq!(guard(Call::named("cuMemFree"), || Ok(())), CUresult::ERROR_NOT_INITIALIZED);
    }
}
