//! Stream captures: announced to the gate, so that it queries no stream under capture.

use crate::guard::guard;
use crate::launch::captures;
use crate::real;
use gpuslice_nvabi::types::*;

/// Defines hooks for calls that begin a capture, and for calls by which a stream joins one.
macro_rules! announced {
    ($how:ident $($name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        $(
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
                guard(|| Ok(captures::$how(|| real!($name($($arg),*)))))
            }
        )*
    };
}

announced! {
    begin
    cuStreamBeginCapture(h_stream: CUstream);
    cuStreamBeginCapture_ptsz(h_stream: CUstream);
    cuStreamBeginCapture_v2(h_stream: CUstream, mode: CUstreamCaptureMode);
    cuStreamBeginCapture_v2_ptsz(h_stream: CUstream, mode: CUstreamCaptureMode);
    cuStreamBeginCaptureToGraph(
        h_stream: CUstream, h_graph: CUgraph, dependencies: *const CUgraphNode,
        dependency_data: *const CUgraphEdgeData, num_dependencies: usize, mode: CUstreamCaptureMode,
    );
    cuStreamBeginCaptureToGraph_ptsz(
        h_stream: CUstream, h_graph: CUgraph, dependencies: *const CUgraphNode,
        dependency_data: *const CUgraphEdgeData, num_dependencies: usize, mode: CUstreamCaptureMode,
    );
    cuStreamBeginRecaptureToGraph(
        h_stream: CUstream, mode: CUstreamCaptureMode, h_graph: CUgraph,
        callback: CUgraphRecaptureCallback, user_data: *mut c_void,
    );
    cuStreamBeginRecaptureToGraph_ptsz(
        h_stream: CUstream, mode: CUstreamCaptureMode, h_graph: CUgraph,
        callback: CUgraphRecaptureCallback, user_data: *mut c_void,
    );
    cuStreamBeginCaptureToCig(h_stream: CUstream, parameters: *mut c_void);
    cuStreamBeginCaptureToCig_ptsz(h_stream: CUstream, parameters: *mut c_void);
}

announced! {
    join
    cuStreamWaitEvent(h_stream: CUstream, h_event: CUevent, flags: u32);
    cuStreamWaitEvent_ptsz(h_stream: CUstream, h_event: CUevent, flags: u32);
}
