//! What waits for a turn and what does not, function by function.
//!
//! Every function of the table that may put work on the GPU is called once, with nothing in its arguments,
//! through a shim whose gate is closed. Most of them the stub does not even have: that they came through
//! the gate is seen in the process's own count.

use super::slice;
use crate::suite::{Injection, Slice};
use gpuslice_nvabi::DRIVER;

/// Calls each in a turn of a process of its own. Returns the number of gated launches.
fn counted(slice: &Slice, names: &[&str]) -> u64 {
    slice.daemon.turn(7);
    // The stub takes one word alone for this function, and answers with 77.
    let calls: Vec<String> = names
        .iter()
        .map(|name| match *name {
            "cuStreamWriteValue32_v2" => "write".to_owned(),
            name => format!("call:{name}"),
        })
        .collect();
    let mut steps = vec!["init", "ctx:0"];
    steps.extend(calls.iter().map(String::as_str));
    steps.push("wait");
    let mut probe = slice.start(&steps);
    let lines = probe.lines();
    assert_eq!(lines.len(), 2 + names.len(), "{lines:?}");
    let written = lines.iter().filter(|line| *line == "write 77 0 0").count();
    assert_eq!(written, calls.iter().filter(|call| *call == "write").count(), "{lines:?}");
    slice.daemon.state().launches()
}

/// The table's functions whose names begin with one of these, in CUDA's own order.
fn begin(starts: &[&str]) -> Vec<&'static str> {
    let names = DRIVER.iter().map(|function| function.name);
    names.filter(|name| starts.iter().any(|start| name.starts_with(start))).collect()
}

/// How the names begin of functions that put work on the GPU.
const WORK: [&str; 9] = [
    "cuMemset",
    "cuMemcpy",
    "cuMemPrefetch",
    "cuMemDiscardAndPrefetch",
    "cuMemBatchDecompress",
    "cuFabricCpy",
    "cuLaunchKernel",
    "cuLaunchCooperative",
    "cuLaunchGrid",
];
/// Those of functions that order streams or wait, and are never held by the gate.
const ORDER: [&str; 10] = [
    "cuStreamWait",
    "cuStreamWrite",
    "cuStreamBatchMemOp",
    "cuStreamSynchronize",
    "cuStreamAddCallback",
    "cuLaunchHostFunc",
    "cuEvent",
    "cuCtxSynchronize",
    "cuMemDiscardBatch",
    "cuMemAdvise",
];
/// Those of other functions that take a stream.
const OTHER: [&str; 23] = [
    // A case of its own.
    "cuGraphLaunch",
    // The driver copies a graph's description once; the graph itself is held.
    "cuGraphUpload",
    // They order memory, and map it into the page tables.
    "cuMemAllocAsync",
    "cuMemAllocFromPool",
    "cuMemFreeAsync",
    "cuMemMapArray",
    "cuStreamAttachMem",
    // They order streams with a graphics API or another driver.
    "cuGraphicsMap",
    "cuGraphicsUnmap",
    "cuGLMap",
    "cuGLUnmap",
    "cuSignalExternalSemaphores",
    "cuWaitExternalSemaphores",
    // They tell of a stream, change it or end it, or record a graph.
    "cuStreamQuery",
    "cuStreamGet",
    "cuStreamSet",
    "cuStreamCopyAttributes",
    "cuStreamDestroy",
    "cuStreamBeginCapture",
    "cuStreamBeginRecapture",
    "cuStreamEndCapture",
    "cuStreamUpdateCapture",
    "cuStreamIsCapturing",
];

/// A function of a new driver that takes a stream must be put into one of the lists.
#[test]
fn every_function_with_a_stream_is_of_one_kind() {
    let all = [&WORK[..], &ORDER, &OTHER].concat();
    for function in DRIVER.iter().filter(|it| it.takes_stream) {
        let kinds = all.iter().filter(|start| function.name.starts_with(**start));
        assert_eq!(kinds.count(), 1, "{}", function.name);
    }
    let streams = DRIVER.iter().filter(|it| it.takes_stream).count();
    assert!(streams > 180, "{streams}");
}

pub fn every_call_that_puts_work_on_the_gpu_is_gated(injection: Injection) {
    let mut work = begin(&WORK);
    work.push("cuLaunch");
    assert!(work.len() > 120, "{work:?}");
    let slice = slice(injection);
    assert_eq!(counted(&slice, &work), work.len() as u64);
}

/// A graph is one launch. The stub's graphs are real ones, so the call needs one.
pub fn a_graph_is_gated_as_one_launch(injection: Injection) {
    let slice = slice(injection);
    slice.daemon.turn(7);
    let steps = ["init", "ctx:0", "graph:0x1000", "wait", "rungraph:0", "rungraph:0", "wait"];
    let mut probe = slice.start(&steps);
    probe.lines();
    let before = slice.daemon.state().launches();
    probe.go_on();
    assert_eq!(probe.lines(), ["rungraph 0 0 0"; 2]);
    assert_eq!(slice.daemon.state().launches() - before, 2);
}

pub fn calls_that_only_order_or_wait_are_not_gated(injection: Injection) {
    let mut rest = begin(&ORDER);
    // The stub implements these, which write where a null points, and they take no stream.
    let events = ["cuEventCreate", "cuEventDestroy_v2", "cuEventElapsedTime"];
    rest.retain(|name| !events.contains(name));
    assert!(rest.contains(&"cuStreamWriteValue32_v2"), "{rest:?}");
    assert!(rest.len() > 30, "{rest:?}");
    let slice = slice(injection);
    assert_eq!(counted(&slice, &rest), 0);
}

/// Every launch is held until the turn, but not for ever.
pub fn work_waits_for_its_turn(injection: Injection) {
    let slice = slice(injection);
    slice.daemon.turn(8);
    let mut probe = slice.start(&["init", "ctx:0", "wait", "call:cuMemsetD8_v2", "wait"]);
    probe.lines();
    probe.go_on();
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| send.send(probe.lines()));
        slice.daemon.until("a launch that waits", |state| state.is_runnable());
        let soon = std::time::Duration::from_millis(300);
        assert!(receive.recv_timeout(soon).is_err(), "it did not wait");
        assert_eq!(slice.daemon.state().launches(), 0);
        slice.daemon.turn(9);
        assert_eq!(receive.recv().expect("it goes on").len(), 1);
    });
    assert_eq!(slice.daemon.state().launches(), 1);
}
