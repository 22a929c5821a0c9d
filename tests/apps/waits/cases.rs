//! The ways in which one stream waits for another.

use super::{KERNEL_US, Kind, Run, stream_of};
use gpuslice_apps::gpu::Outcome;
use gpuslice_apps::ok;
use gpuslice_nvabi::types::*;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Queues, pauses, releases, and waits for the end.
type Case = fn(&Run) -> Outcome;

pub const CASES: &[(&str, Case)] = &[
    ("value", value),
    ("copy", copy),
    ("event", event),
    ("host-function", host_function),
    ("graph", graph),
    ("mailbox", mailbox),
    ("capture", capture),
    ("finished-stream", finished_stream),
];

/// A stream waits for a word that another one writes.
fn value(run: &Run) -> Outcome {
    let Run { gpu, round, .. } = *run;
    run.pair(
        move |stream| {
            gpu.wait(stream, round)?;
            gpu.kernel(stream, KERNEL_US)
        },
        |stream| gpu.write(stream, round),
    )
}

/// The same of a word that a copy brings, behind a kernel.
fn copy(run: &Run) -> Outcome {
    let Run { gpu, round, .. } = *run;
    run.pair(
        move |stream| {
            gpu.kernel(stream, KERNEL_US)?;
            gpu.wait(stream, round)
        },
        |stream| {
            gpu.kernel(stream, KERNEL_US)?;
            let from = (&raw const round).cast();
            ok!(cuMemcpyHtoDAsync_v2(gpu.word(), from, 4, stream))?;
            ok!(cuStreamSynchronize(stream))
        },
    )
}

/// A stream waits for an event of a third one, which waits for the word.
fn event(run: &Run) -> Outcome {
    let Run { gpu, round, .. } = *run;
    let third = match run.kinds.0 {
        Kind::Blocking => Kind::Blocking,
        _ => Kind::NonBlocking,
    };
    run.pair(
        move |stream| {
            let mut event = CUevent::NULL;
            let third = stream_of(third)?;
            ok!(cuEventCreate(&mut event, 2))?;
            gpu.wait(third, round)?;
            ok!(cuEventRecord(event, third))?;
            ok!(cuStreamWaitEvent(stream, event, 0))?;
            gpu.kernel(stream, KERNEL_US)?;
            ok!(cuEventDestroy_v2(event))
        },
        |stream| {
            gpu.kernel(stream, KERNEL_US)?;
            gpu.write(stream, round)
        },
    )
}

unsafe extern "C" fn until_told(told: *mut c_void) {
    // SAFETY: the flag that the case keeps until its stream is done.
    let told = unsafe { &*told.cast::<AtomicBool>() };
    while !told.load(SeqCst) {
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
}

/// A host function waits until the host has seen the end of another stream's kernel.
fn host_function(run: &Run) -> Outcome {
    let gpu = run.gpu;
    let told = AtomicBool::new(false);
    let flag = (&raw const told).expose_provenance();
    run.pair(
        move |stream| {
            let flag = std::ptr::with_exposed_provenance_mut(flag);
            ok!(cuLaunchHostFunc(stream, Some(until_told), flag))?;
            gpu.kernel(stream, KERNEL_US)
        },
        |stream| {
            let done =
                gpu.kernel(stream, KERNEL_US).and_then(|()| ok!(cuStreamSynchronize(stream)));
            told.store(true, SeqCst);
            done
        },
    )
}

/// A graph of what `record` puts into a stream.
fn captured(record: impl FnOnce(CUstream) -> Outcome) -> Outcome<CUgraphExec> {
    let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
    let stream = stream_of(Kind::NonBlocking)?;
    ok!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED))?;
    let recorded = record(stream);
    ok!(cuStreamEndCapture(stream, &mut graph))?;
    recorded?;
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
    ok!(cuGraphDestroy(graph))?;
    ok!(cuStreamDestroy_v2(stream))?;
    Ok(exec)
}

/// A graph waits for the word that another graph writes.
fn graph(run: &Run) -> Outcome {
    let Run { gpu, round, .. } = *run;
    run.pair(
        move |stream| {
            let waits = captured(|stream| {
                gpu.kernel(stream, KERNEL_US)?;
                gpu.wait(stream, round)?;
                gpu.kernel(stream, KERNEL_US)
            })?;
            ok!(cuGraphLaunch(waits, stream))?;
            ok!(cuGraphExecDestroy(waits))
        },
        |stream| {
            let writes = captured(|stream| gpu.write(stream, round))?;
            ok!(cuGraphLaunch(writes, stream))?;
            ok!(cuGraphExecDestroy(writes))
        },
    )
}

/// What serves requests from one launch on, as a persistent kernel with a mailbox does: each request is a word
/// written by the other stream, each answer one that the host polls. (A stream's waits and writes stand for the
/// kernel's loop: the simulated GPU runs no loops.)
fn mailbox(run: &Run) -> Outcome {
    const REQUESTS: u32 = 3;
    let Run { gpu, round, .. } = *run;
    let (request, answer) = (gpu.memory + 8192, gpu.memory + 12288);
    let number = move |n: u32| round * 16 + n;
    run.pair(
        move |stream| {
            gpu.kernel(stream, KERNEL_US)?;
            for n in 1..=REQUESTS {
                let equal = CU_STREAM_WAIT_VALUE_EQ;
                ok!(cuStreamWaitValue32_v2(stream, request, number(n), equal))?;
                ok!(cuStreamWriteValue32_v2(stream, answer, number(n), 0))?;
            }
            gpu.kernel(stream, KERNEL_US)
        },
        |stream| {
            let reader = stream_of(Kind::NonBlocking)?;
            for n in 1..=REQUESTS {
                let (wanted, mut seen) = (number(n), 0_u32);
                let from = (&raw const wanted).cast();
                ok!(cuMemcpyHtoDAsync_v2(request, from, 4, stream))?;
                while seen != wanted {
                    ok!(cuMemcpyDtoHAsync_v2((&raw mut seen).cast(), answer, 4, reader))?;
                    ok!(cuStreamSynchronize(reader))?;
                }
                run.pause();
            }
            Ok(())
        },
    )
}

/// A stream is captured for as long as the host likes; it has work behind it, and so has the legacy stream.
fn capture(run: &Run) -> Outcome {
    let gpu = run.gpu;
    let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
    for kind in [Kind::Blocking, Kind::NonBlocking] {
        let (first, joined) = (stream_of(kind)?, stream_of(kind)?);
        let mut event = CUevent::NULL;
        ok!(cuEventCreate(&mut event, 2))?;
        gpu.kernel(CUstream::NULL, KERNEL_US)?;
        gpu.kernel(first, KERNEL_US)?;
        gpu.kernel(joined, KERNEL_US)?;
        ok!(cuStreamBeginCapture_v2(first, CU_STREAM_CAPTURE_MODE_GLOBAL))?;
        gpu.kernel(first, KERNEL_US)?;
        run.pause();
        ok!(cuEventRecord(event, first))?;
        ok!(cuStreamWaitEvent(joined, event, 0))?;
        gpu.kernel(joined, KERNEL_US)?;
        run.pause();
        ok!(cuEventRecord(event, joined))?;
        ok!(cuStreamWaitEvent(first, event, 0))?;
        ok!(cuStreamEndCapture(first, &mut graph))?;
        let mut nodes = 0;
        ok!(cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes))?;
        if nodes != 2 {
            return Err(format!("{nodes} nodes were captured of two kernels"));
        }
        ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
        ok!(cuGraphLaunch(exec, first))?;
        ok!(cuStreamSynchronize(first))?;
        ok!(cuGraphExecDestroy(exec))?;
        ok!(cuGraphDestroy(graph))?;
        ok!(cuEventDestroy_v2(event))?;
    }
    Ok(())
}

/// A blocking stream has finished, and stays so while the legacy stream waits: the host, which waits for the
/// first, is what releases the second.
fn finished_stream(run: &Run) -> Outcome {
    let Run { gpu, round, .. } = *run;
    let (finished, release) = (stream_of(Kind::Blocking)?, stream_of(Kind::NonBlocking)?);
    gpu.kernel(finished, KERNEL_US)?;
    gpu.wait(CUstream::NULL, round)?;
    run.pause();
    ok!(cuStreamSynchronize(finished))?;
    gpu.write(release, round)?;
    ok!(cuStreamSynchronize(CUstream::NULL))
}
