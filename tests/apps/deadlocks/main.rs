//! Launch dependencies: work that waits for other work of the same program, in every legal and some illegal
//! ways. A shim that holds launches back can deadlock such a program.
//!
//! `deadlocks CASE ROUNDS` prints `ready`, runs the case ROUNDS times, and exits with 0 when every round has
//! ended. Run it while another container uses the GPU, so that turns end in the middle of a round. On the
//! driver alone it tells whether the case deadlocks by itself.

use gpuslice_apps::api::{calls::*, check};
use gpuslice_apps::ok;
use gpuslice_apps::spin::{SPIN_NAME, SPIN_PTX};
use gpuslice_nvabi::types::*;
use std::process::ExitCode;
use std::ptr::null_mut;
use std::time::Duration;

/// A case ends early with what went wrong.
type Outcome<T = ()> = Result<T, String>;

/// What all cases have: a context, a kernel, a word that streams wait for.
#[derive(Clone, Copy)]
struct Gpu {
    context: CUcontext,
    kernel: CUfunction,
    memory: CUdeviceptr,
}

// SAFETY: a driver's handles are good in every thread of the process.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

const FLAG: u64 = 4096;

impl Gpu {
    fn new() -> Outcome<Gpu> {
        let (mut context, mut module) = (CUcontext::NULL, CUmodule::NULL);
        let (mut kernel, mut memory) = (CUfunction::NULL, 0);
        ok!(cuInit(0))?;
        ok!(cuCtxCreate_v2(&mut context, 0, 0))?;
        ok!(cuModuleLoadData(&mut module, SPIN_PTX.as_ptr().cast()))?;
        ok!(cuModuleGetFunction(&mut kernel, module, SPIN_NAME.as_ptr()))?;
        ok!(cuMemAlloc_v2(&mut memory, 1 << 21))?;
        ok!(cuMemsetD8_v2(memory, 0, 1 << 21))?;
        Ok(Gpu {
            context,
            kernel,
            memory,
        })
    }

    /// A stream that does not wait for the legacy one.
    fn stream(self) -> Outcome<CUstream> {
        let mut stream = CUstream::NULL;
        ok!(cuStreamCreate(&mut stream, 1))?;
        Ok(stream)
    }

    /// Launches a kernel of so many microseconds by one of the two flavours.
    fn spin(self, stream: CUstream, us: u64, per_thread: bool) -> CUresult {
        let (mut ns, mut counter) = (us * 1_000, self.memory);
        let mut params = [(&raw mut ns).cast(), (&raw mut counter).cast()];
        let (f, params, none) = (self.kernel, params.as_mut_ptr(), null_mut());
        if per_thread {
            cuLaunchKernel_ptsz(f, 1, 1, 1, 1, 1, 1, 0, stream, params, none)
        } else {
            cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, params, none)
        }
    }

    fn kernel(self, stream: CUstream, us: u64) -> Outcome {
        check("a launch", self.spin(stream, us, false))
    }

    /// A stream that waits for the word to be `value`, with a kernel behind.
    fn wait(self, stream: CUstream, value: u32) -> Outcome {
        let flag = self.memory + FLAG;
        let equal = CU_STREAM_WAIT_VALUE_EQ;
        ok!(cuStreamWaitValue32_v2(stream, flag, value, equal))?;
        self.kernel(stream, 200)
    }
}

/// So long a turn does not last.
fn past_the_turn() {
    std::thread::sleep(Duration::from_millis(40));
}

/// A stream waits for a word that another one writes behind a kernel.
fn word(gpu: Gpu, round: u32) -> Outcome {
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    gpu.wait(a, round)?;
    past_the_turn();
    gpu.kernel(b, 200)?;
    ok!(cuStreamWriteValue32_v2(b, gpu.memory + FLAG, round, 0))?;
    ok!(cuStreamSynchronize(a))
}

/// The same of a word that a copy brings.
fn copy(gpu: Gpu, round: u32) -> Outcome {
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    gpu.wait(a, round)?;
    past_the_turn();
    let from = (&raw const round).cast();
    ok!(cuMemcpyHtoDAsync_v2(gpu.memory + FLAG, from, 4, b))?;
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
    called_back(gpu, gpu.stream()?, gpu.stream()?)
}

/// The same into the function's own stream.
fn own_stream(gpu: Gpu, _: u32) -> Outcome {
    let stream = gpu.stream()?;
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
            thread
                .join()
                .unwrap_or_else(|_| Err("a thread panicked".into()))
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
        let stream = gpu.stream()?;
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
    let (a, b) = (gpu.stream()?, gpu.stream()?);
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
    let mut other = CUcontext::NULL;
    ok!(cuCtxCreate_v2(&mut other, 0, 0))?;
    let (mut module, mut kernel, mut memory) = (CUmodule::NULL, CUfunction::NULL, 0);
    ok!(cuModuleLoadData(&mut module, SPIN_PTX.as_ptr().cast()))?;
    ok!(cuModuleGetFunction(&mut kernel, module, SPIN_NAME.as_ptr()))?;
    ok!(cuMemAlloc_v2(&mut memory, 4096))?;
    let there = Gpu {
        context: other,
        kernel,
        memory,
    };
    let stream = there.stream()?;
    (0..100).try_for_each(|_| there.kernel(stream, 50))?;
    ok!(cuCtxDestroy_v2(other))?;
    ok!(cuCtxSetCurrent(gpu.context))?;
    let stream = gpu.stream()?;
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
    let gpu = Gpu::new()?;
    println!("ready");
    (1..=rounds).try_for_each(|round| case(gpu, round))?;
    ok!(cuCtxSynchronize())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("deadlocks: {why}");
            ExitCode::FAILURE
        }
    }
}
