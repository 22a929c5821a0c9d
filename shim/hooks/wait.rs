//! Calls that wait for the GPU: never held. Afterwards the gate learns that work has ended, and ends the turn of a
//! program that will not launch again soon.

use crate::guard::guard;
use crate::{launch, real};
use gpuslice_nvabi::types::*;

/// Defines hooks: a jump to the driver while no turns are taken, since a thread may be cancelled there; else by
/// [`launch::wait`].
macro_rules! waits {
    ($($name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {$(
        #[inline(always)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
            let known = crate::resolve::slot::$name.known();
            if launch::takes_turns() || known.is_null() {
                return guard(|| Ok(launch::wait(|| real!($name($($arg),*)))));
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
