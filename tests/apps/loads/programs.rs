//! The programs: what a unit of work of each is, and how long its process computes between two.
//!
//! Sizes are those of small models, so that a bench sees hundreds of units in seconds. Kernels have given lengths on
//! every GPU; copies take what the GPU takes for them.

use crate::pace::{Random, now_ns, pause_until};
use gpuslice_apps::gpu::{self, Gpu, Outcome};
use gpuslice_apps::ok;
use gpuslice_nvabi::types::*;
use std::ptr::null_mut;
use std::time::Duration;

/// A program that does one unit of work after the other.
pub trait Program {
    /// Does a unit for so many requests together, at least one, and waits for its end.
    ///
    /// # Errors
    /// The call that failed, and its code.
    fn unit(&mut self, requests: usize) -> Outcome;

    /// Requests that a unit can be for.
    fn batch(&self) -> usize {
        1
    }

    /// Time between a unit's end and the next one's begin, ns.
    fn gap(&mut self) -> u64 {
        0
    }
}

/// Sizes that an option can change.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Length of each kernel, µs.
    pub kernel_us: u64,
    /// Kernels that are launched before the process waits for them.
    pub launches: usize,
    /// The gap.
    pub pause: Duration,
}

/// Names of the programs.
pub const NAMES: &str = "steps, decode, train, streams, copy, serve, still or shared";

/// The program of that name; sizes that are not asked for are the program's own.
///
/// # Errors
/// There is none of that name, or a call failed.
pub fn named(name: &str, sizes: Option<Sizes>, seed: u64) -> Outcome<Box<dyn Program>> {
    let gpu = Gpu::new(0)?;
    let sizes = |kernel_us, launches, pause_us| {
        let pause = Duration::from_micros(pause_us);
        sizes.unwrap_or(Sizes { kernel_us, launches, pause })
    };
    Ok(match name {
        "steps" => Box::new(Steps::new(gpu, sizes(1_000, 1, 100))?),
        "decode" => Box::new(Decode::new(gpu, sizes(20, 24, 40))?),
        "train" => Box::new(Train { gpu, stream: stream()?, random: Random::of(seed) }),
        "streams" => Box::new(Streams::new(gpu)?),
        "copy" => Box::new(Copy::new(gpu)?),
        "still" => Box::new(Still(stream()?)),
        "shared" => Box::new(shared(&gpu)?),
        "serve" => Box::new(Serve::new(gpu, sizes(100, 5, 0))?),
        _ => return Err(format!("no load {name}; there are {NAMES}")),
    })
}

fn stream() -> Outcome<CUstream> {
    gpu::stream(CU_STREAM_NON_BLOCKING)
}

/// An event without a time.
fn event() -> Outcome<CUevent> {
    let mut event = CUevent::NULL;
    ok!(cuEventCreate(&mut event, 2))?;
    Ok(event)
}

/// Pinned memory of the host, and as much of the GPU's.
fn buffer(bytes: usize) -> Outcome<(*mut c_void, CUdeviceptr)> {
    let (mut host, mut device) = (null_mut(), 0);
    ok!(cuMemHostAlloc(&mut host, bytes, 0))?;
    ok!(cuMemAlloc_v2(&mut device, bytes))?;
    Ok((host, device))
}

/// Kernels, their end, a pause: the plainest of all, for a table of sizes.
struct Steps {
    gpu: Gpu,
    stream: CUstream,
    sizes: Sizes,
}

impl Steps {
    fn new(gpu: Gpu, sizes: Sizes) -> Outcome<Steps> {
        Ok(Steps { gpu, stream: stream()?, sizes })
    }
}

impl Program for Steps {
    fn unit(&mut self, _: usize) -> Outcome {
        for _ in 0..self.sizes.launches {
            self.gpu.kernel(self.stream, self.sizes.kernel_us)?;
        }
        ok!(cuStreamSynchronize(self.stream))
    }

    fn gap(&mut self) -> u64 {
        self.sizes.pause.as_nanos() as u64
    }
}

/// A language model that answers: each token is the replay of a graph, whose end the process needs to choose the
/// token. A unit is an answer of [`TOKENS`].
struct Decode {
    exec: CUgraphExec,
    stream: CUstream,
    choice: u64,
}

/// Tokens of an answer.
const TOKENS: usize = 16;

impl Decode {
    fn new(gpu: Gpu, sizes: Sizes) -> Outcome<Decode> {
        let stream = stream()?;
        let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
        ok!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED))?;
        for _ in 0..sizes.launches {
            gpu.kernel(stream, sizes.kernel_us)?;
        }
        ok!(cuStreamEndCapture(stream, &mut graph))?;
        ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
        ok!(cuGraphDestroy(graph))?;
        Ok(Decode { exec, stream, choice: sizes.pause.as_nanos() as u64 })
    }
}

impl Program for Decode {
    fn unit(&mut self, _: usize) -> Outcome {
        for _ in 0..TOKENS {
            ok!(cuGraphLaunch(self.exec, self.stream))?;
            ok!(cuStreamSynchronize(self.stream))?;
            pause_until(now_ns() + self.choice);
        }
        Ok(())
    }
}

/// Training: a unit is a step of forward, backward and optimiser with one wait at its end, as for a loss that is
/// logged; then the data loader takes its time.
struct Train {
    gpu: Gpu,
    stream: CUstream,
    random: Random,
}

impl Program for Train {
    fn unit(&mut self, _: usize) -> Outcome {
        let [forward, backward, optimiser] = [(8, 300), (16, 300), (32, 20)];
        for (kernels, us) in [forward, backward, optimiser] {
            for _ in 0..kernels {
                self.gpu.kernel(self.stream, us)?;
            }
        }
        ok!(cuStreamSynchronize(self.stream))
    }

    fn gap(&mut self) -> u64 {
        self.random.between(Duration::from_micros(200), Duration::from_micros(1_500))
    }
}

/// Several streams: a unit forks from one to three by events and joins them again.
struct Streams {
    gpu: Gpu,
    first: CUstream,
    fork: CUevent,
    others: [(CUstream, CUevent); 3],
}

impl Streams {
    fn new(gpu: Gpu) -> Outcome<Streams> {
        let other = || Ok::<_, String>((stream()?, event()?));
        let others = [other()?, other()?, other()?];
        Ok(Streams { gpu, first: stream()?, fork: event()?, others })
    }
}

impl Program for Streams {
    fn unit(&mut self, _: usize) -> Outcome {
        self.gpu.kernel(self.first, 200)?;
        ok!(cuEventRecord(self.fork, self.first))?;
        for (stream, joined) in self.others {
            ok!(cuStreamWaitEvent(stream, self.fork, 0))?;
            for _ in 0..4 {
                self.gpu.kernel(stream, 100)?;
            }
            ok!(cuEventRecord(joined, stream))?;
        }
        for (_, joined) in self.others {
            ok!(cuStreamWaitEvent(self.first, joined, 0))?;
        }
        self.gpu.kernel(self.first, 200)?;
        ok!(cuStreamSynchronize(self.first))
    }

    fn gap(&mut self) -> u64 {
        50_000
    }
}

/// A loader: a unit is four chunks in two streams, each copied in, worked on and copied back, so that a copy overlaps
/// the work on the chunk before.
struct Copy {
    gpu: Gpu,
    sides: [(CUstream, (*mut c_void, CUdeviceptr)); 2],
}

/// Bytes of a chunk, and of its result.
const CHUNK: usize = 1 << 20;
const RESULT: usize = 1 << 16;

impl Copy {
    fn new(gpu: Gpu) -> Outcome<Copy> {
        let side = || Ok::<_, String>((stream()?, buffer(CHUNK)?));
        Ok(Copy { gpu, sides: [side()?, side()?] })
    }
}

impl Program for Copy {
    fn unit(&mut self, _: usize) -> Outcome {
        for (stream, (host, device)) in self.sides.iter().cycle().take(4) {
            ok!(cuMemcpyHtoDAsync_v2(*device, *host, CHUNK, *stream))?;
            self.gpu.kernel(*stream, 100)?;
            ok!(cuMemcpyDtoHAsync_v2(*host, *device, RESULT, *stream))?;
        }
        for (stream, _) in self.sides {
            ok!(cuStreamSynchronize(stream))?;
        }
        Ok(())
    }
}

/// A server: a unit answers all requests in its queue, as far as they fit into a batch. A larger batch takes
/// longer, by a tenth for each request more.
struct Serve {
    gpu: Gpu,
    stream: CUstream,
    buffer: (*mut c_void, CUdeviceptr),
    sizes: Sizes,
}

/// Bytes of a request and of its answer.
const MESSAGE: usize = 4096;

impl Serve {
    fn new(gpu: Gpu, sizes: Sizes) -> Outcome<Serve> {
        Ok(Serve { gpu, stream: stream()?, buffer: buffer(8 * MESSAGE)?, sizes })
    }
}

impl Program for Serve {
    fn unit(&mut self, requests: usize) -> Outcome {
        let (host, device) = self.buffer;
        let bytes = requests * MESSAGE;
        ok!(cuMemcpyHtoDAsync_v2(device, host, bytes, self.stream))?;
        for _ in 0..self.sizes.launches {
            let more = self.sizes.kernel_us * (requests as u64 - 1) / 10;
            self.gpu.kernel(self.stream, self.sizes.kernel_us + more)?;
        }
        ok!(cuMemcpyDtoHAsync_v2(host, device, bytes, self.stream))?;
        ok!(cuStreamSynchronize(self.stream))
    }

    fn batch(&self) -> usize {
        8
    }

    fn gap(&mut self) -> u64 {
        self.sizes.pause.as_nanos() as u64
    }
}

/// A program that computes nothing, and waits now and then all the same.
struct Still(CUstream);

/// The same, of memory for which it has made a handle that other processes may open.
fn shared(gpu: &Gpu) -> Outcome<Still> {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    ok!(cuIpcGetMemHandle(&mut handle, gpu.memory))?;
    Ok(Still(stream()?))
}

impl Program for Still {
    fn unit(&mut self, _: usize) -> Outcome {
        ok!(cuStreamSynchronize(self.0))?;
        ok!(cuStreamSynchronize(CUstream::NULL))?;
        ok!(cuCtxSynchronize())
    }

    fn gap(&mut self) -> u64 {
        20_000_000
    }
}
