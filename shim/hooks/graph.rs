//! Graphs that allocate: their needs are determined at instantiation, and reserved before a launch.
//! [`crate::memory::graphs`] has the reasons.
//!
//! A launch that needs memory reserves it before it enters the gate, so that no turn passes during a
//! request to the daemon.

use crate::guard::{Outcome, guard};
use crate::launch::{self, DefaultStream, Work};
use crate::real;
use crate::resolve::slot;
use crate::slice::{self, Slice};
use core::ffi::c_char;
use core::mem::transmute;
use gpuslice_nvabi::sig;
use gpuslice_nvabi::types::*;

/// Defines launches of graphs: straight to the driver while the gate is open and no executable of this
/// process needs memory; see `launches!` for the shape.
macro_rules! graph_launches {
    ($($name:ident, $slowly:ident, $default_stream:expr;)*) => {$(
        #[inline(always)]
        pub unsafe extern "C" fn $name(graph: CUgraphExec, stream: CUstream) -> CUresult {
            let real = slot::$name.known();
            if launch::open_to_graphs() && !real.is_null() {
                // SAFETY: the real function of that name, with its row's signature.
                let real: sig::$name = unsafe { transmute(real) };
                // SAFETY: the application's own arguments.
                return unsafe { real(graph, stream) };
            }
            $slowly(graph, stream)
        }

        #[cold]
        #[inline(never)]
        fn $slowly(graph: CUgraphExec, stream: CUstream) -> CUresult {
            let call = || real!($name(graph, stream));
            guard(|| {
                let Some(slice) = slice::get()? else {
                    return Ok(call());
                };
                slice.graphs.launch(&slice.daemon, &slice.devices, graph, || {
                    if launch::open() {
                        return call();
                    }
                    launch::launch(slice, Work::graph(graph, stream, $default_stream), call)
                })
            })
        }
    )*};
}

graph_launches! {
    cuGraphLaunch, launched_slowly, DefaultStream::Legacy;
    cuGraphLaunch_ptsz, launched_slowly_per_thread, DefaultStream::PerThread;
}

fn uploaded(graph: CUgraphExec, call: impl FnOnce() -> CUresult) -> Outcome {
    match slice::get()? {
        Some(slice) => slice.graphs.launch(&slice.daemon, &slice.devices, graph, call),
        None => Ok(call()),
    }
}

/// Sends launches of graphs through the longer path from now on, if one needs memory.
fn meter(slice: &Slice) {
    if slice.graphs.any() {
        launch::meter_graphs();
    }
}

/// Instantiates by `call`.
///
/// # Safety
/// `call` writes the executable to `made` when it answers success.
unsafe fn instantiated(
    graph: CUgraph,
    made: *const CUgraphExec,
    flags: u64,
    call: impl FnOnce() -> CUresult,
) -> Outcome {
    let upload = flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
    match slice::get()? {
        // SAFETY: as the caller says.
        Some(slice) => unsafe {
            let (daemon, devices) = (&slice.daemon, &slice.devices);
            let result = slice.graphs.instantiate(daemon, devices, graph, made, upload, call);
            meter(slice);
            result
        },
        None => Ok(call()),
    }
}

/// The flags of an instantiation described by a structure.
fn flags_of(params: *const CUDA_GRAPH_INSTANTIATE_PARAMS) -> u64 {
    // SAFETY: null, or the application's own, which the driver is about to read.
    unsafe { params.as_ref() }.map_or(0, |params| params.flags)
}

/// Notes that `exec` was changed by `call` to do what `graph` does, or that in addition if `beside`.
fn updated(
    exec: CUgraphExec,
    graph: CUgraph,
    beside: bool,
    call: impl FnOnce() -> CUresult,
) -> Outcome {
    let result = call();
    if result == CUresult::SUCCESS
        && let Some(slice) = slice::attached()
    {
        slice.graphs.changed(exec, graph, beside);
        meter(slice);
    }
    Ok(result)
}

hooks! {
    guard cuGraphUpload(h_graph: CUgraphExec, h_stream: CUstream) as |call| uploaded(h_graph, call);

    guard cuGraphUpload_ptsz(h_graph_exec: CUgraphExec, h_stream: CUstream) as |call|
        uploaded(h_graph_exec, call);

    guard cuGraphInstantiate(
        ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, ph_error_node: *mut CUgraphNode,
        log_buffer: *mut c_char, buffer_size: usize,
    ) as |call| {
        // SAFETY: the application's own pointer, which the driver checks and writes.
        unsafe { instantiated(h_graph, ph_graph_exec, 0, call) }
    };

    guard cuGraphInstantiate_v2(
        ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, ph_error_node: *mut CUgraphNode,
        log_buffer: *mut c_char, buffer_size: usize,
    ) as |call| {
        // SAFETY: as in `cuGraphInstantiate`.
        unsafe { instantiated(h_graph, ph_graph_exec, 0, call) }
    };

    guard cuGraphInstantiateWithFlags(
        ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, flags: u64,
    ) as |call| {
        // SAFETY: as in `cuGraphInstantiate`.
        unsafe { instantiated(h_graph, ph_graph_exec, flags, call) }
    };

    guard cuGraphInstantiateWithParams(
        ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph,
        instantiate_params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) as |call| {
        // SAFETY: as in `cuGraphInstantiate`.
        unsafe { instantiated(h_graph, ph_graph_exec, flags_of(instantiate_params), call) }
    };

    guard cuGraphInstantiateWithParams_ptsz(
        ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph,
        instantiate_params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) as |call| {
        // SAFETY: as in `cuGraphInstantiate`.
        unsafe { instantiated(h_graph, ph_graph_exec, flags_of(instantiate_params), call) }
    };

    guard cuGraphExecUpdate(
        h_graph_exec: CUgraphExec, h_graph: CUgraph, h_error_node_out: *mut CUgraphNode,
        update_result_out: *mut CUgraphExecUpdateResult,
    ) as |call| updated(h_graph_exec, h_graph, false, call);

    guard cuGraphExecUpdate_v2(
        h_graph_exec: CUgraphExec, h_graph: CUgraph, result_info: *mut CUgraphExecUpdateResultInfo,
    ) as |call| updated(h_graph_exec, h_graph, false, call);

    guard cuGraphExecChildGraphNodeSetParams(
        h_graph_exec: CUgraphExec, h_node: CUgraphNode, child_graph: CUgraph,
    ) as |call| updated(h_graph_exec, child_graph, true, call);

    /// Of the kinds of nodes that can be changed, only child graphs have memory.
    guard cuGraphExecNodeSetParams(
        h_graph_exec: CUgraphExec, h_node: CUgraphNode, node_params: *mut CUgraphNodeParams,
    ) as |call| {
        // SAFETY: null, or the application's own, which the driver is about to read.
        match unsafe { node_params.as_ref() } {
            Some(params) if params.kind == CU_GRAPH_NODE_TYPE_GRAPH => {
                // SAFETY: the kind says which member the application has set.
                let child = unsafe { params.params.graph }.graph;
                updated(h_graph_exec, child, true, call)
            }
            _ => Ok(call()),
        }
    };

    guard cuGraphExecDestroy(h_graph_exec: CUgraphExec) as |call| match slice::attached() {
        Some(slice) => Ok(slice.graphs.destroy(&slice.daemon, h_graph_exec, call)),
        None => Ok(call()),
    };

    guard cuDeviceGraphMemTrim(device: CUdevice) as |call| {
        let result = call();
        if let Some(slice) = slice::attached() {
            slice.graphs.settle_all(&slice.daemon);
        }
        Ok(result)
    };
}
