//! Launch dependencies: work that waits for other work of the same program, in every legal and some illegal
//! ways. A shim that holds launches back can deadlock such a program.
//!
//! `deadlocks CASE ROUNDS` prints `ready`, runs the case ROUNDS times, and exits with 0 when every round has
//! ended. Run it while another container uses the GPU, so that turns end in the middle of a round. On the
//! driver alone it tells whether the case deadlocks by itself.

use gpuslice_apps::api::{calls::*, check};
use gpuslice_apps::gpu::{self, Gpu, Outcome};
use gpuslice_apps::ok;
use gpuslice_nvabi::types::*;
use std::process::ExitCode;
use std::time::Duration;

/// A stream that does not wait for the legacy one.
fn stream() -> Outcome<CUstream> {
    gpu::stream(CU_STREAM_NON_BLOCKING)
}

/// `stream` waits for the word to be `value`, with a kernel behind.
fn wait(gpu: Gpu, stream: CUstream, value: u32) -> Outcome {
    gpu.wait(stream, value)?;
    gpu.kernel(stream, 200)
}

/// So long a turn does not last.
fn past_the_turn() {
    std::thread::sleep(Duration::from_millis(40));
}

/// A stream waits for a word that another one writes behind a kernel.
fn word(gpu: Gpu, round: u32) -> Outcome {
    let (a, b) = (stream()?, stream()?);
    wait(gpu, a, round)?;
    past_the_turn();
    gpu.kernel(b, 200)?;
    gpu.write(b, round)?;
    ok!(cuStreamSynchronize(a))
}

/// The same of a word that a copy brings.
fn copy(gpu: Gpu, round: u32) -> Outcome {
    let (a, b) = (stream()?, stream()?);
    wait(gpu, a, round)?;
    past_the_turn();
    let from = (&raw const round).cast();
    ok!(cuMemcpyHtoDAsync_v2(gpu.word(), from, 4, b))?;
    ok!(cuStreamSynchronize(a))
}

/// What a host function is told, and what its launch answered.
struct Call {
    gpu: Gpu,
    into: CUstream,
    answer: CUresult,
}

unsafe extern "C" fn launch(call: *mut c_void) {
    // SAFETY: the `Call` that the case keeps until its stream is done.
    let call = unsafe { &mut *call.cast::<Call>() };
    past_the_turn();
    let current = cuCtxSetCurrent(call.gpu.context);
    call.answer = match current {
        CUresult::SUCCESS => call.gpu.spin(call.into, 200, false),
        other => other,
    };
}

/// A host function launches, between two kernels of its stream. CUDA forbids that, and a driver may say so.
fn called_back(gpu: Gpu, a: CUstream, into: CUstream) -> Outcome {
    let answer = CUresult::ERROR_UNKNOWN;
    let mut call = Call { gpu, into, answer };
    gpu.kernel(a, 200)?;
    ok!(cuLaunchHostFunc(a, Some(launch), (&raw mut call).cast()))?;
    gpu.kernel(a, 200)?;
    ok!(cuStreamSynchronize(a))?;
    match call.answer {
        CUresult::SUCCESS | CUresult::ERROR_NOT_PERMITTED => Ok(()),
        other => Err(format!("a launch in a host function answered {other:?}")),
    }
}

fn callback(gpu: Gpu, _: u32) -> Outcome {
    called_back(gpu, stream()?, stream()?)
}

/// The same into the function's own stream.
fn own_stream(gpu: Gpu, _: u32) -> Outcome {
    let stream = stream()?;
    called_back(gpu, stream, stream)
}

/// Does something in four threads, each with the context current.
fn four(gpu: Gpu, work: impl Fn(u32) -> Outcome + Sync) -> Outcome {
    let work = &work;
    std::thread::scope(|scope| {
        let one = |number| {
            scope.spawn(move || {
                ok!(cuCtxSetCurrent(gpu.context))?;
                work(number)
            })
        };
        let all: Vec<_> = (0..4).map(one).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Outcome>| {
            thread.join().unwrap_or_else(|_| Err("a thread panicked".into()))
        };
        all.into_iter().try_for_each(join)
    })
}

/// Threads use their own default streams, the common one, which waits for all of those, and copies between.
fn flavours(gpu: Gpu, _: u32) -> Outcome {
    four(gpu, |number| {
        let mut back = 0_u32;
        for _ in 0..20 {
            check("a launch", gpu.spin(CUstream::NULL, 100, true))?;
            gpu.kernel(CUstream::NULL, 100)?;
            let at = gpu.memory + 8192 + 4096 * u64::from(number);
            ok!(cuMemsetD32Async_ptsz(at, number, 1024, CUstream::NULL))?;
            ok!(cuMemcpyDtoDAsync_v2(at + 64, at, 64, CUstream::NULL))?;
            ok!(cuStreamSynchronize_ptsz(CUstream::NULL))?;
            ok!(cuMemcpyDtoH_v2_ptds((&raw mut back).cast(), at + 64, 4))?;
            if back != number {
                return Err(format!("{back} came back of {number}"));
            }
        }
        Ok(())
    })
}

/// One thread captures, in the mode that forbids most, while others launch.
fn capture(gpu: Gpu, _: u32) -> Outcome {
    four(gpu, |number| {
        let stream = stream()?;
        if number != 0 {
            for _ in 0..40 {
                gpu.kernel(stream, 100)?;
                ok!(cuMemsetD32Async(gpu.memory + 8192, 0, 64, stream))?;
            }
            return Ok(());
        }
        let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
        let mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
        ok!(cuStreamBeginCapture_v2(stream, mode))?;
        for _ in 0..10 {
            gpu.kernel(stream, 100)?;
            ok!(cuMemsetD32Async(gpu.memory + 8192, 0, 64, stream))?;
            past_the_turn();
        }
        ok!(cuStreamEndCapture(stream, &mut graph))?;
        ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
        ok!(cuGraphLaunch(exec, stream))?;
        ok!(cuStreamSynchronize(stream))
    })
}

/// Much is queued in streams that wait for each other; they are destroyed before it has run, and memory is
/// freed, which waits for all of it.
fn deep(gpu: Gpu, _: u32) -> Outcome {
    let (a, b) = (stream()?, stream()?);
    let (mut event, mut memory) = (CUevent::NULL, 0);
    ok!(cuEventCreate(&mut event, 2))?;
    ok!(cuMemAlloc_v2(&mut memory, 1 << 21))?;
    for pair in [[a, b], [b, a]].iter().cycle().take(60) {
        gpu.kernel(pair[0], 50)?;
        ok!(cuEventRecord(event, pair[0]))?;
        ok!(cuStreamWaitEvent(pair[1], event, 0))?;
        gpu.kernel(pair[1], 50)?;
        gpu.kernel(CUstream::NULL, 20)?;
    }
    ok!(cuStreamDestroy_v2(a))?;
    ok!(cuEventDestroy_v2(event))?;
    ok!(cuMemFree_v2(memory))?;
    ok!(cuStreamDestroy_v2(b))
}

/// A context goes with work in it, and the process's others go on.
fn context(gpu: Gpu, _: u32) -> Outcome {
    let there = Gpu::new(0)?;
    let doomed = stream()?;
    (0..100).try_for_each(|_| there.kernel(doomed, 50))?;
    ok!(cuCtxDestroy_v2(there.context))?;
    ok!(cuCtxSetCurrent(gpu.context))?;
    let stream = stream()?;
    (0..100).try_for_each(|_| gpu.kernel(stream, 50))?;
    ok!(cuStreamSynchronize(stream))
}

/// Queues the dependent work of one round, given its number, and waits until it ends.
type Case = fn(Gpu, u32) -> Outcome;

const CASES: &[(&str, Case)] = &[
    ("word", word),
    ("copy", copy),
    ("callback", callback),
    ("own-stream", own_stream),
    ("flavours", flavours),
    ("capture", capture),
    ("deep", deep),
    ("context", context),
];

fn run() -> Outcome {
    let mut words = std::env::args().skip(1);
    let (name, rounds) = (words.next(), words.next());
    let name = name.ok_or("usage: deadlocks CASE ROUNDS")?;
    let case = CASES.iter().find(|(case, _)| *case == name);
    let (_, case) = case.ok_or_else(|| format!("no case {name}"))?;
    let rounds: u32 = rounds.and_then(|word| word.parse().ok()).unwrap_or(1);
    let gpu = Gpu::new(0)?;
    println!("ready");
    (1..=rounds).try_for_each(|round| case(gpu, round))?;
    ok!(cuCtxSynchronize())
}

fn main() -> ExitCode {
    gpuslice_apps::status("deadlocks", run())
}
