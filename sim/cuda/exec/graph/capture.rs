//! Capture: a stream turns calls into nodes of a graph instead of executing them.
//!
//! A capture begins with one stream. Every stream that waits for an event recorded in it joins,
//! and must be joined back before the first stream ends the capture. For each stream the capture
//! knows its tips: the nodes that the stream's next one depends on. Calls that cannot be part of a
//! graph (waiting, the legacy default stream) invalidate the capture: from then on every call in it
//! fails, the call that ends it included.

use super::super::stream::{EventKey, Manner, StreamKey, shared};
use super::super::task::Task;
use super::super::{context_of, threads};
use super::memory::{Memory, uses};
use super::{GraphKey, NodeKey, State, state};
use crate::entry::{Outcome, refuse_if};
use gpuslice_nvabi::types::*;
use gpuslice_sim_device::ContextId;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

/// How many captures are going on; while there are none, a launch pays one load for this room.
static GOING_ON: AtomicUsize = AtomicUsize::new(0);

struct Capture {
    graph: GraphKey,
    /// The graph was the program's before.
    given: bool,
    first: StreamKey,
    context: ContextId,
    mode: CUstreamCaptureMode,
    thread: ThreadId,
    tips: HashMap<u64, Vec<NodeKey>>,
    /// The tips as handles, for programs that read them through a pointer.
    shown: HashMap<u64, Shown>,
    spoilt: bool,
}

/// A stream's tips in the driver's words; all edges are full dependencies, but a program may read
/// as many edge data as there are tips.
#[derive(Default)]
struct Shown {
    tips: Vec<CUgraphNode>,
    edges: Vec<CUgraphEdgeData>,
}

/// The captures that go on.
#[derive(Default)]
pub struct Captures {
    going_on: HashMap<u64, Capture>,
    of_stream: HashMap<u64, u64>,
    /// Events recorded in a capture, with the tips they stand for.
    events: HashMap<u64, (u64, Vec<NodeKey>)>,
    last_id: u64,
}

impl Captures {
    fn of(&mut self, stream: StreamKey) -> Option<(u64, &mut Capture)> {
        let id = *self.of_stream.get(&stream.id())?;
        Some((id, self.going_on.get_mut(&id)?))
    }

    fn take(&mut self, id: u64) -> Option<Capture> {
        let capture = self.going_on.remove(&id)?;
        self.of_stream.retain(|_, of| *of != id);
        GOING_ON.fetch_sub(1, Ordering::Relaxed);
        Some(capture)
    }

    /// Refuses the legacy default stream while it would have to wait for a stream that is being captured, and
    /// invalidates that capture.
    fn refuse_legacy(&mut self, stream: StreamKey) -> Outcome {
        let Some(capture) = self.implied(stream)? else {
            return Ok(());
        };
        capture.spoilt = true;
        Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT)
    }

    /// The capture that a use of `stream` would spoil, if that is the legacy default stream.
    fn implied(&mut self, stream: StreamKey) -> Result<Option<&mut Capture>, CUresult> {
        let look = |key: StreamKey| {
            let found = shared()?
                .with(|model| model.stream(key).map(|stream| (stream.context, stream.manner)));
            found.ok_or(CUresult::ERROR_INVALID_HANDLE)
        };
        let (context, manner) = look(stream)?;
        if manner != Manner::Legacy {
            return Ok(None);
        }
        let blocking = |capture: &&mut Capture| {
            let (of, first) = (capture.context, look(capture.first));
            of == context && first.is_ok_and(|(_, manner)| manner == Manner::Blocking)
        };
        Ok(self.going_on.values_mut().find(blocking))
    }
}

fn none_going_on() -> bool {
    GOING_ON.load(Ordering::Relaxed) == 0
}

/// Adds a task to the graph captured from the stream; false where the stream is not captured.
pub fn capture(stream: StreamKey, task: &Task) -> Result<bool, CUresult> {
    if none_going_on() {
        return Ok(false);
    }
    let State { graphs, captures, .. } = &mut *state();
    let Some((_, capture)) = captures.of(stream) else {
        captures.refuse_legacy(stream)?;
        return Ok(false);
    };
    if capture.spoilt {
        return Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    let tips = capture.tips.entry(stream.id()).or_default();
    let node = graphs.add(capture.graph, tips, task.clone())?;
    *tips = vec![node];
    Ok(true)
}

/// Allocates as a node of the graph captured from the stream; `None` where it is not captured.
pub fn capture_alloc(stream: StreamKey, bytes: usize) -> Result<Option<u64>, CUresult> {
    if !is_capturing(stream) {
        return Ok(None);
    }
    let context = context_of(stream)?;
    let memory = match freed_before(stream, context.device, bytes as u64) {
        Some(memory) => memory,
        None => Memory::new(context, bytes as u64)?,
    };
    let address = memory.address;
    capture(stream, &Task::Alloc(memory))?;
    Ok(Some(address))
}

/// Memory of the captured graph that was freed before the stream's next node in every order of execution. As a card's
/// driver may, an allocation there has its addresses again; here only one of the same size.
fn freed_before(stream: StreamKey, device: CUdevice, bytes: u64) -> Option<Arc<Memory>> {
    let State { graphs, captures, .. } = &mut *state();
    let (_, capture) = captures.of(stream)?;
    let earlier = ancestors(graphs, capture.tips.get(&stream.id())?.clone());
    let tasks = |nodes: &[NodeKey]| -> Vec<Task> {
        let nodes = nodes.iter().filter_map(|node| graphs.node(*node).ok());
        nodes.map(|node| node.task.clone()).collect()
    };
    let (earlier, all) = (tasks(&earlier), tasks(graphs.nodes(capture.graph).ok()?));
    let is_free = |memory: &Memory| {
        let (allocs, _) = uses(&all, memory.address);
        let (_, frees) = uses(&earlier, memory.address);
        allocs == frees
    };
    earlier.iter().find_map(|task| match task {
        Task::Alloc(memory) if memory.device == device && memory.bytes == bytes => {
            is_free(memory).then(|| Arc::clone(memory))
        }
        _ => None,
    })
}

/// Records an event in a captured stream; false where the stream is not captured.
pub fn capture_record(event: EventKey, stream: StreamKey) -> Result<bool, CUresult> {
    let captures = &mut state().captures;
    let Some((id, capture)) = captures.of(stream) else {
        captures.events.remove(&event.id());
        return Ok(false);
    };
    if capture.spoilt {
        return Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    let tips = capture.tips.get(&stream.id()).cloned().unwrap_or_default();
    captures.events.insert(event.id(), (id, tips));
    Ok(true)
}

/// Makes a stream wait for an event where either belongs to a capture; false where neither does.
pub fn capture_wait(event: EventKey, stream: StreamKey) -> Result<bool, CUresult> {
    let captures = &mut state().captures;
    let recorded = captures.events.get(&event.id()).cloned();
    let joined = captures.of_stream.get(&stream.id()).copied();
    let Some((id, tips)) = recorded else {
        let Some((_, capture)) = captures.of(stream) else {
            return Ok(false);
        };
        // The graph cannot depend on what happens outside it.
        capture.spoilt = true;
        return Err(CUresult::ERROR_STREAM_CAPTURE_ISOLATION);
    };
    if !captures.going_on.contains_key(&id) {
        return Err(CUresult::ERROR_CAPTURED_EVENT);
    }
    if let Some(other) = joined.filter(|other| *other != id) {
        for id in [id, other] {
            if let Some(capture) = captures.going_on.get_mut(&id) {
                capture.spoilt = true;
            }
        }
        return Err(CUresult::ERROR_STREAM_CAPTURE_MERGE);
    }
    captures.refuse_legacy(stream)?;
    let Some(capture) = captures.going_on.get_mut(&id) else {
        return Ok(false);
    };
    if capture.spoilt {
        return Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    let all = capture.tips.entry(stream.id()).or_default();
    for tip in tips {
        if !all.contains(&tip) {
            all.push(tip);
        }
    }
    captures.of_stream.insert(stream.id(), id);
    Ok(true)
}

/// For calls that may wait for the device behind the program's back, as allocating does: an error,
/// and the end of every capture that forbids it, the thread being in the given mode. A thread's own
/// captures forbid it unless they are relaxed, those of other threads only if they are global.
pub fn refuse_unsafe(thread_mode: CUstreamCaptureMode) -> Outcome {
    if none_going_on() || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED {
        return Ok(());
    }
    let here = threads::current();
    let mut result = Ok(());
    for capture in state().captures.going_on.values_mut() {
        let forbids = match capture.thread == here {
            true => capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED,
            false => [thread_mode, capture.mode] == [CU_STREAM_CAPTURE_MODE_GLOBAL; 2],
        };
        if forbids {
            capture.spoilt = true;
            result = Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    result
}

/// Whether the stream is captured.
pub fn is_capturing(stream: StreamKey) -> bool {
    !none_going_on() && state().captures.of_stream.contains_key(&stream.id())
}

/// For calls that wait for a stream: an error, and the end of the capture, where it is captured.
pub fn refuse_capturing(stream: StreamKey) -> Outcome {
    if none_going_on() {
        return Ok(());
    }
    let captures = &mut state().captures;
    if let Some((_, capture)) = captures.of(stream) {
        capture.spoilt = true;
        return Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    captures.refuse_legacy(stream)
}

/// The same for calls that wait for a whole context.
pub fn refuse_capturing_in(context: ContextId) -> Outcome {
    let mut result = Ok(());
    if none_going_on() {
        return result;
    }
    for capture in state().captures.going_on.values_mut().filter(|one| one.context == context) {
        capture.spoilt = true;
        result = Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    result
}

/// For calls that ask about an event: it has no time while it stands for a node.
pub fn refuse_captured(event: EventKey) -> Outcome {
    let captures = &mut state().captures;
    match captures.events.contains_key(&event.id()) {
        true => Err(CUresult::ERROR_CAPTURED_EVENT),
        false => Ok(()),
    }
}

/// An event is destroyed.
pub fn forget_event(event: EventKey) {
    state().captures.events.remove(&event.id());
}

/// A stream is destroyed: a capture it began is lost, one it joined is spoilt.
pub fn forget_stream(stream: StreamKey) {
    let State { graphs, captures, .. } = &mut *state();
    let Some((id, capture)) = captures.of(stream) else {
        return;
    };
    capture.spoilt = true;
    let (first, graph, given) = (capture.first, capture.graph, capture.given);
    captures.of_stream.remove(&stream.id());
    if first == stream {
        captures.take(id);
        if !given {
            // What the nodes held goes with them.
            drop(graphs.destroy(graph));
        }
    }
}

/// A context ends, and its captures with it.
pub fn context_ends(context: ContextId) {
    let captures = &mut state().captures;
    let of_it = |one: &(&u64, &Capture)| one.1.context == context;
    let ids: Vec<u64> = captures.going_on.iter().filter(of_it).map(|(id, _)| *id).collect();
    for id in ids {
        captures.take(id);
    }
}

/// Begins a capture into a new graph, or into the given one behind the given nodes.
pub fn begin(
    stream: StreamKey,
    mode: CUstreamCaptureMode,
    given: Option<(GraphKey, Vec<NodeKey>)>,
) -> Outcome {
    refuse_if(mode > CU_STREAM_CAPTURE_MODE_RELAXED)?;
    let context = shared()?.with(|model| {
        let stream = model.stream(stream)?;
        (stream.manner != Manner::Legacy).then_some(stream.context)
    });
    let context = context.ok_or(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED)?;
    let State { graphs, captures, .. } = &mut *state();
    if captures.of(stream).is_some() {
        return Err(CUresult::ERROR_ILLEGAL_STATE);
    }
    let is_given = given.is_some();
    if let Some((graph, tips)) = &given {
        graphs.graph(*graph)?;
        for tip in tips {
            refuse_if(graphs.node(*tip)?.graph != *graph)?;
        }
    }
    let (graph, tips) = match given {
        Some(given) => given,
        None => (graphs.create()?, Vec::new()),
    };
    captures.last_id += 1;
    let id = captures.last_id;
    captures.of_stream.insert(stream.id(), id);
    captures.going_on.insert(
        id,
        Capture {
            graph,
            given: is_given,
            first: stream,
            context,
            mode,
            thread: threads::current(),
            tips: HashMap::from([(stream.id(), tips)]),
            shown: HashMap::new(),
            spoilt: false,
        },
    );
    GOING_ON.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Ends a capture; the graph is the program's from now on.
pub fn end(stream: StreamKey) -> Result<GraphKey, CUresult> {
    let State { graphs, captures, .. } = &mut *state();
    let (id, capture) = captures.of(stream).ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
    if capture.first != stream {
        return Err(CUresult::ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    let relaxed = capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED;
    if !relaxed && capture.thread != threads::current() {
        return Err(CUresult::ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    let capture = captures.take(id).ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
    let ended = match (capture.spoilt, unjoined(graphs, &capture)) {
        (true, _) => Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED),
        (false, true) => Err(CUresult::ERROR_STREAM_CAPTURE_UNJOINED),
        (false, false) => Ok(capture.graph),
    };
    if ended.is_err() && !capture.given {
        drop(graphs.destroy(capture.graph));
    }
    ended
}

/// Whether a stream that joined did something the first stream does not wait for.
fn unjoined(graphs: &super::Graphs<Task>, capture: &Capture) -> bool {
    let tips = capture.tips.get(&capture.first.id()).cloned().unwrap_or_default();
    let seen = ancestors(graphs, tips);
    capture.tips.values().flatten().any(|tip| !seen.contains(tip))
}

/// The given nodes and all that come before them.
fn ancestors(graphs: &super::Graphs<Task>, mut seen: Vec<NodeKey>) -> Vec<NodeKey> {
    let mut at = 0;
    while let Some(node) = seen.get(at).copied() {
        for before in graphs.before(node).unwrap_or_default() {
            if !seen.contains(before) {
                seen.push(*before);
            }
        }
        at += 1;
    }
    seen
}

/// The state of a stream's capture.
pub struct Info {
    pub status: CUstreamCaptureStatus,
    pub id: u64,
    pub graph: CUgraph,
    pub tips: *const CUgraphNode,
    pub edges: *const CUgraphEdgeData,
    pub count: usize,
}

/// The present state of a stream's capture; the lists live until the next query.
pub fn info(stream: StreamKey) -> Info {
    let captures = &mut state().captures;
    let Some((id, capture)) = captures.of(stream) else {
        let (tips, edges, count) = (std::ptr::null(), std::ptr::null(), 0);
        let status = CU_STREAM_CAPTURE_STATUS_NONE;
        return Info { status, id: 0, graph: CUgraph::NULL, tips, edges, count };
    };
    let tips = capture.tips.get(&stream.id()).cloned().unwrap_or_default();
    let shown = capture.shown.entry(stream.id()).or_default();
    shown.tips = tips.iter().map(|tip| CUgraphNode(tip.to_pointer())).collect();
    shown.edges.resize(tips.len(), super::calls::PLAIN);
    let status = match capture.spoilt {
        true => CU_STREAM_CAPTURE_STATUS_INVALIDATED,
        false => CU_STREAM_CAPTURE_STATUS_ACTIVE,
    };
    let (tips, edges, count) = (shown.tips.as_ptr(), shown.edges.as_ptr(), shown.tips.len());
    Info { status, id, graph: CUgraph(capture.graph.to_pointer()), tips, edges, count }
}

/// The status of a stream; refused where the legacy default stream may not be used, which leaves the other
/// stream's capture as it is (CUDA driver API, `cuStreamIsCapturing`).
pub fn status(stream: StreamKey) -> Result<CUstreamCaptureStatus, CUresult> {
    if !none_going_on() && state().captures.implied(stream)?.is_some() {
        return Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    Ok(info(stream).status)
}

/// Makes a stream's next node depend on the given nodes: besides its tips, or instead of them.
pub fn update(stream: StreamKey, wanted: Vec<NodeKey>, flags: u32) -> Outcome {
    let State { graphs, captures, .. } = &mut *state();
    let (_, capture) = captures.of(stream).ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
    for node in &wanted {
        refuse_if(graphs.node(*node)?.graph != capture.graph)?;
    }
    let tips = capture.tips.entry(stream.id()).or_default();
    match flags {
        CU_STREAM_SET_CAPTURE_DEPENDENCIES => *tips = wanted,
        CU_STREAM_ADD_CAPTURE_DEPENDENCIES => tips.extend(wanted),
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    }
    Ok(())
}
