//! Calls that wait for the GPU: held only while the container is suspended, where the driver does not hold them
//! itself ([`launch::wait_for_resume`]). Afterwards the gate learns that work has ended, and ends the turn of a
//! program that will not launch again soon. Pools return unused memory to the device at a wait, so their charges are
//! updated: NVML and other processes show the difference at once. They also learn that streams have freed what they
//! were to free.

use super::pool::per_thread;
use crate::guard::guard;
use crate::memory::followed;
use crate::slice::{self, Slice};
use crate::{launch, real};
use gpuslice_nvabi::types::*;

/// What a call waits for.
#[derive(Clone, Copy)]
enum Wait {
    /// The current context.
    Current,
    Context(CUcontext),
    Stream(CUstream),
    Event,
}

impl Wait {
    /// The device, and the stream if it is for one; `None` where that is not known.
    fn of(self, slice: &Slice) -> Option<(CUdevice, Option<CUstream>)> {
        match self {
            Wait::Current => {
                let mut device = 0;
                let known = real!(cuCtxGetDevice(&raw mut device)) == CUresult::SUCCESS;
                known.then_some((device, None))
            }
            Wait::Context(context) => Some((slice.contexts.device(context)?, None)),
            Wait::Stream(stream) => {
                let (_, device) = slice.of_stream(stream).ok()?;
                Some((device, Some(stream)))
            }
            Wait::Event => None,
        }
    }

    /// Whether it must not reach the driver now, in a container whose memory is on the host or on the way.
    #[inline(always)]
    fn is_of_suspended(self) -> bool {
        // The driver holds back waits for events.
        !matches!(self, Wait::Event) && slice::attached().is_some_and(Slice::is_suspended)
    }
}

/// Waits by `call`, and does what follows from the end of work.
fn waiting(what: Wait, call: impl FnOnce() -> CUresult) -> CUresult {
    guard(|| {
        let slice = slice::attached();
        let pools = slice.filter(|_| followed::any());
        let frees = pools.and_then(|slice| {
            let (device, stream) = what.of(slice)?;
            let lane = slice.lane_of(device).ok()??;
            slice.contexts.is_only(device).then(|| slice.pools.awaited(lane, stream))
        });
        if let Some(slice) = slice.filter(|_| what.is_of_suspended()) {
            launch::wait_for_resume(slice);
        }
        let result = launch::wait(call);
        if let Some(frees) = frees.filter(|_| result == CUresult::SUCCESS) {
            frees.executed();
        }
        if let Some(slice) = slice {
            slice.settle_all();
        }
        Ok(result)
    })
}

/// Defines hooks: a jump to the driver while no turns are taken and there are no pools, since a thread may be
/// cancelled there; else [`waiting`]. The look at the suspension is the last thing before the driver.
macro_rules! waits {
    ($($name:ident($($arg:ident: $ty:ty),* $(,)?) as $wait:expr;)*) => {$(
        #[inline(always)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
            let known = crate::resolve::slot::$name.known();
            let direct = !launch::takes_turns() && !known.is_null() && !followed::any();
            if !direct || $wait.is_of_suspended() {
                return waiting($wait, || real!($name($($arg),*)));
            }
            // SAFETY: the real function of that name, with its row's signature.
            let known: gpuslice_nvabi::sig::$name = unsafe { core::mem::transmute(known) };
            // SAFETY: the application's own arguments.
            unsafe { known($($arg),*) }
        }
    )*};
}

waits! {
    cuCtxSynchronize() as Wait::Current;
    cuCtxSynchronize_v2(ctx: CUcontext) as Wait::Context(ctx);
    cuEventSynchronize(h_event: CUevent) as Wait::Event;
    cuStreamSynchronize(h_stream: CUstream) as Wait::Stream(h_stream);
    cuStreamSynchronize_ptsz(h_stream: CUstream) as Wait::Stream(per_thread(h_stream));
}
