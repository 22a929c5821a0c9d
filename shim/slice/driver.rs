//! The gate's backend in production: the driver through its table, and the daemon through its session.

use super::state::Slice;
use crate::daemon::sys::SecondMapping;
use crate::launch::backend::{Context, DriverBackend, Event, Pages, Pinned, Progress, Stream};
use crate::launch::captures;
use crate::resolve::call::relaxed;
use crate::{channels, real};
use core::sync::atomic::Ordering::Relaxed;
use gpuslice_nvabi::types::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_WAIT_VALUE_EQ,
    CUcontext, CUdeviceptr, CUevent, CUresult, CUstream,
};
use gpuslice_wire::limits::PAGE_BYTES;
use gpuslice_wire::page::GATE_OPEN;
use std::ptr::with_exposed_provenance_mut as pointer;

fn event_of(event: Event) -> CUevent {
    CUevent(pointer(event.0))
}

fn stream_of(stream: Stream) -> CUstream {
    CUstream(pointer(stream.0))
}

fn succeeded(result: CUresult) -> bool {
    result == CUresult::SUCCESS
}

impl DriverBackend for Slice {
    fn pages(&self) -> Pages {
        Pages { container: self.daemon.container(), client: self.daemon.client() }
    }

    fn lane(&self) -> Option<usize> {
        let lane = self.lane_of_current().ok()??;
        Some(usize::from(lane.0))
    }

    fn ring(&self) {
        self.daemon.ring();
    }

    fn reconnect(&self) {
        // The daemon may have stopped this process's work before it went away.
        if self.daemon.container().stop.load(Relaxed) != 0 {
            channels::resume();
        }
        self.daemon.tend();
    }

    fn answer_recalls(&self) -> bool {
        self.credit_return.answer_recalls(&self.daemon, || {
            self.reclaim();
        })
    }

    fn settle(&self) {
        if self.credit_return.is_due() {
            // Without requests, nothing else notices a connection that the application or the daemon closed,
            // and the daemon would not learn of this process's turns and credit.
            self.daemon.tend();
            self.settle_all();
            self.credit_return.return_idle(&self.daemon);
        }
        self.daemon.settle();
    }

    fn context(&self) -> Option<Context> {
        let mut context = CUcontext::NULL;
        let found = succeeded(real!(cuCtxGetCurrent(&raw mut context)));
        (found && !context.is_null()).then(|| context.into())
    }

    fn foreign(
        &self,
        stream: Stream,
        current: Option<Context>,
    ) -> Option<(Context, Option<usize>)> {
        let mut context = CUcontext::NULL;
        if !succeeded(real!(cuStreamGetCtx(stream_of(stream), &raw mut context))) {
            return None;
        }
        // That of a green context's stream stands in for the primary one, and may be current to one thread only.
        let context = self.contexts.primary_of(context).unwrap_or(context);
        let its = Some(Context::from(context)).filter(|its| current != Some(*its))?;
        let lane = self.lane_of(self.contexts.device(context)?).ok()?;
        Some((its, lane.map(|lane| usize::from(lane.0))))
    }

    fn within(&self, context: Context, work: &mut dyn FnMut()) -> bool {
        let context = CUcontext(pointer(context.0));
        if !succeeded(real!(cuCtxPushCurrent_v2(context))) {
            return false;
        }
        work();
        let mut popped = CUcontext::NULL;
        let _ = real!(cuCtxPopCurrent_v2(&raw mut popped));
        true
    }

    fn capturing(&self, stream: Stream) -> bool {
        let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
        match real!(cuStreamIsCapturing(stream_of(stream), &raw mut status)) {
            CUresult::SUCCESS => status != CU_STREAM_CAPTURE_STATUS_NONE,
            // A driver older than stream capture.
            CUresult::ERROR_NOT_SUPPORTED => false,
            // The legacy stream while another is captured, or an invalid handle: the launch reports it.
            _ => true,
        }
    }

    fn event(&self) -> Option<Event> {
        let mut event = CUevent::NULL;
        let made = relaxed(|| real!(cuEventCreate(&raw mut event, 0)));
        (succeeded(made) && !event.is_null()).then(|| Event(event.0.expose_provenance()))
    }

    fn record(&self, event: Event, stream: Stream) -> bool {
        succeeded(real!(cuEventRecord(event_of(event), stream_of(stream))))
    }

    fn progress(&self, event: Event) -> Progress {
        match relaxed(|| real!(cuEventQuery(event_of(event)))) {
            CUresult::ERROR_NOT_READY => Progress::Pending,
            _ => Progress::Done,
        }
    }

    fn finished(&self, stream: Stream) -> Option<Progress> {
        let ask = || {
            if self.capturing(stream) {
                return None;
            }
            match relaxed(|| real!(cuStreamQuery(stream_of(stream)))) {
                CUresult::ERROR_NOT_READY => Some(Progress::Pending),
                _ => Some(Progress::Done),
            }
        };
        captures::apart(ask).unwrap_or(Some(Progress::Pending))
    }

    fn elapsed(&self, from: Event, to: Event) -> Option<u64> {
        let mut ms = 0.0_f32;
        let (from, to) = (event_of(from), event_of(to));
        let result = relaxed(|| real!(cuEventElapsedTime(&raw mut ms, from, to)));
        (succeeded(result) && ms >= 0.0).then(|| (f64::from(ms) * 1e6) as u64)
    }

    fn generation(&self) -> u32 {
        self.daemon.generation()
    }

    /// Each context has a mapping and a registration of its own: they end with it, and no other context's
    /// streams wait for memory that is no longer pinned.
    fn pin(&self) -> Option<Pinned> {
        let page = SecondMapping::of(self.daemon.client()).ok()?;
        let (at, flags) = (page.address(), CU_MEMHOSTREGISTER_DEVICEMAP);
        let mut address: CUdeviceptr = 0;
        let pinned = relaxed(|| real!(cuMemHostRegister_v2(at, PAGE_BYTES, flags)));
        if !succeeded(pinned) {
            return None;
        }
        let found = relaxed(|| real!(cuMemHostGetDevicePointer_v2(&raw mut address, at, 0)));
        if !succeeded(found) {
            let _ = relaxed(|| real!(cuMemHostUnregister(at)));
            return None;
        }
        Some(Pinned { page, address })
    }

    fn hold(&self, stream: Stream, address: u64) -> bool {
        let (stream, how) = (stream_of(stream), CU_STREAM_WAIT_VALUE_EQ);
        succeeded(real!(cuStreamWaitValue32_v2(stream, address, GATE_OPEN, how)))
    }

    fn discard(&self, event: Event) {
        let _ = relaxed(|| real!(cuEventDestroy_v2(event_of(event))));
    }
}
