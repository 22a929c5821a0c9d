//! Entry points about capture.

use super::super::resolve;
use super::capture::{self, begin, end, info, status, update};
use super::{Node, NodeKey, named};
use crate::entry::{In, Out, Outcome, refuse_if};
use gpuslice_nvabi::types::*;
use std::cell::Cell;

fn nodes(list: In<CUgraphNode>, count: usize) -> Result<Vec<NodeKey>, CUresult> {
    list.list(count)?.into_iter().map(|node| named::<Node>(node.0)).collect()
}

thread_local! {
    static MODE: Cell<CUstreamCaptureMode> = const { Cell::new(CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

/// Refuses what this thread may not do while captures go on; see [`capture::refuse_unsafe`].
pub fn refuse_unsafe() -> Outcome {
    capture::refuse_unsafe(MODE.get())
}

pub fn cuStreamBeginCapture_v2(h_stream: CUstream, mode: CUstreamCaptureMode) -> Outcome {
    begin(resolve(h_stream)?, mode, None)
}
pub use cuStreamBeginCapture_v2 as cuStreamBeginCapture_v2_ptsz;

pub fn cuStreamBeginCapture(h_stream: CUstream) -> Outcome {
    begin(resolve(h_stream)?, CU_STREAM_CAPTURE_MODE_GLOBAL, None)
}
pub use cuStreamBeginCapture as cuStreamBeginCapture_ptsz;

pub fn cuStreamBeginCaptureToGraph(
    h_stream: CUstream,
    h_graph: CUgraph,
    dependencies: In<CUgraphNode>,
    _dependency_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
    mode: CUstreamCaptureMode,
) -> Outcome {
    let graph = named(h_graph.0)?;
    let tips = nodes(dependencies, num_dependencies)?;
    begin(resolve(h_stream)?, mode, Some((graph, tips)))
}
pub use cuStreamBeginCaptureToGraph as cuStreamBeginCaptureToGraph_ptsz;

pub fn cuStreamEndCapture(h_stream: CUstream, ph_graph: Out<CUgraph>) -> Outcome {
    ph_graph.require()?;
    ph_graph.set(CUgraph::NULL)?;
    ph_graph.set(CUgraph(end(resolve(h_stream)?)?.to_pointer()))
}
pub use cuStreamEndCapture as cuStreamEndCapture_ptsz;

pub fn cuThreadExchangeStreamCaptureMode(mode: Out<CUstreamCaptureMode>) -> Outcome {
    let new = mode.get()?;
    refuse_if(new > CU_STREAM_CAPTURE_MODE_RELAXED)?;
    mode.set(MODE.replace(new))
}

pub fn cuStreamIsCapturing(
    h_stream: CUstream,
    capture_status: Out<CUstreamCaptureStatus>,
) -> Outcome {
    capture_status.require()?;
    capture_status.set(status(resolve(h_stream)?)?)
}
pub use cuStreamIsCapturing as cuStreamIsCapturing_ptsz;

pub fn cuStreamGetCaptureInfo(
    h_stream: CUstream,
    capture_status_out: Out<CUstreamCaptureStatus>,
    id_out: Out<u64>,
) -> Outcome {
    let info = info(resolve(h_stream)?);
    id_out.set_if_wanted(info.id);
    capture_status_out.set(info.status)
}
pub use cuStreamGetCaptureInfo as cuStreamGetCaptureInfo_ptsz;

pub fn cuStreamGetCaptureInfo_v2(
    h_stream: CUstream,
    capture_status_out: Out<CUstreamCaptureStatus>,
    id_out: Out<u64>,
    graph_out: Out<CUgraph>,
    dependencies_out: Out<*const CUgraphNode>,
    num_dependencies_out: Out<usize>,
) -> Outcome {
    cuStreamGetCaptureInfo_v3(
        h_stream,
        capture_status_out,
        id_out,
        graph_out,
        dependencies_out,
        Out::vouched(std::ptr::null_mut()),
        num_dependencies_out,
    )
}
pub use cuStreamGetCaptureInfo_v2 as cuStreamGetCaptureInfo_v2_ptsz;

pub fn cuStreamGetCaptureInfo_v3(
    h_stream: CUstream,
    capture_status_out: Out<CUstreamCaptureStatus>,
    id_out: Out<u64>,
    graph_out: Out<CUgraph>,
    dependencies_out: Out<*const CUgraphNode>,
    edge_data_out: Out<*const CUgraphEdgeData>,
    num_dependencies_out: Out<usize>,
) -> Outcome {
    let info = info(resolve(h_stream)?);
    id_out.set_if_wanted(info.id);
    graph_out.set_if_wanted(info.graph);
    dependencies_out.set_if_wanted(info.tips);
    edge_data_out.set_if_wanted(info.edges);
    num_dependencies_out.set_if_wanted(info.count);
    capture_status_out.set(info.status)
}
pub use cuStreamGetCaptureInfo_v3 as cuStreamGetCaptureInfo_v3_ptsz;

pub fn cuStreamUpdateCaptureDependencies(
    h_stream: CUstream,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    flags: u32,
) -> Outcome {
    let wanted = nodes(dependencies, num_dependencies)?;
    update(resolve(h_stream)?, wanted, flags)
}
pub use cuStreamUpdateCaptureDependencies as cuStreamUpdateCaptureDependencies_ptsz;

pub fn cuStreamUpdateCaptureDependencies_v2(
    h_stream: CUstream,
    dependencies: In<CUgraphNode>,
    _dependency_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
    flags: u32,
) -> Outcome {
    cuStreamUpdateCaptureDependencies(h_stream, dependencies, num_dependencies, flags)
}
pub use cuStreamUpdateCaptureDependencies_v2 as cuStreamUpdateCaptureDependencies_v2_ptsz;
