//! Calls that wait for the GPU: never held. Afterwards the gate learns that work has ended, and ends the turn of a
//! program that will not launch again soon. Pools return unused memory to the device at a wait, so their charges are
//! updated: NVML and other processes show the difference at once.

use crate::guard::guard;
use crate::memory::followed;
use crate::{launch, real, slice};
use gpuslice_nvabi::types::*;

/// Waits by `call`, and does what follows from the end of work.
fn waiting(call: impl FnOnce() -> CUresult) -> CUresult {
    guard(|| {
        let result = launch::wait(call);
        if let Some(slice) = slice::attached() {
            slice.settle_all();
        }
        Ok(result)
    })
}

/// Defines hooks: a jump to the driver while no turns are taken and there are no pools, since a thread may be
/// cancelled there; else [`waiting`].
macro_rules! waits {
    ($($name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {$(
        #[inline(always)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
            let known = crate::resolve::slot::$name.known();
            if launch::takes_turns() || known.is_null() || followed::any() {
                return waiting(|| real!($name($($arg),*)));
            }
            // SAFETY: the real function of that name, with its row's signature.
            let known: gpuslice_nvabi::sig::$name = unsafe { core::mem::transmute(known) };
            // SAFETY: the application's own arguments.
            unsafe { known($($arg),*) }
        }
    )*};
}

waits! {
    cuCtxSynchronize();
    cuCtxSynchronize_v2(ctx: CUcontext);
    cuEventSynchronize(h_event: CUevent);
    cuStreamSynchronize(h_stream: CUstream);
    cuStreamSynchronize_ptsz(h_stream: CUstream);
}
