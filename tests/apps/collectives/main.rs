//! Collectives on two GPUs: each round puts a part on both, and each part waits on its GPU until the
//! other one has begun.
//!
//! `collectives SECONDS` goes on for so long and prints how many rounds it ended. A part is a kernel, a write
//! of its own word, a wait for the other's, and a kernel behind it: what launches last keeps the GPU
//! until its peer has run, as a kernel does that spins.

use gpuslice_apps::gpu::{self, Gpu, Outcome};
use gpuslice_apps::ok;
use gpuslice_nvabi::types::*;
use std::process::ExitCode;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Rounds that may be queued.
const DEEP: u32 = 4;

/// One GPU's side.
struct Side {
    gpu: Gpu,
    stream: CUstream,
    /// This side's word, and the other's.
    words: [CUdeviceptr; 2],
}

impl Side {
    fn new(device: i32, words: *mut c_void) -> Outcome<Side> {
        let (gpu, mut base) = (Gpu::new(device)?, 0);
        let stream = gpu::stream(CU_STREAM_NON_BLOCKING)?;
        ok!(cuMemHostGetDevicePointer_v2(&mut base, words, 0))?;
        let (mine, other) = (device as u64, 1 - device as u64);
        let words = [base + 64 * mine, base + 64 * other];
        Ok(Side { gpu, stream, words })
    }

    /// This side's part of a round.
    fn part(&self, round: u32) -> Outcome {
        let [mine, others] = self.words;
        ok!(cuCtxSetCurrent(self.gpu.context))?;
        self.gpu.kernel(self.stream, 200)?;
        ok!(cuStreamWriteValue32_v2(self.stream, mine, round, 0))?;
        let at_least = CU_STREAM_WAIT_VALUE_GEQ;
        ok!(cuStreamWaitValue32_v2(self.stream, others, round, at_least))?;
        self.gpu.kernel(self.stream, 50)
    }

    fn wait(&self) -> Outcome {
        ok!(cuCtxSetCurrent(self.gpu.context))?;
        ok!(cuStreamSynchronize(self.stream))
    }
}

fn run(seconds: u64) -> Outcome<u32> {
    let (mut context, mut words) = (CUcontext::NULL, null_mut());
    ok!(cuInit(0))?;
    ok!(cuCtxCreate_v2(&mut context, 0, 0))?;
    // for all contexts, and mapped
    ok!(cuMemHostAlloc(&mut words, 4096, 3))?;
    let sides = [Side::new(0, words)?, Side::new(1, words)?];
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut round = 0;
    while Instant::now() < end {
        round += 1;
        sides.iter().try_for_each(|side| side.part(round))?;
        if round % DEEP == 0 {
            sides.iter().try_for_each(Side::wait)?;
        }
    }
    sides.iter().try_for_each(Side::wait)?;
    Ok(round)
}

fn main() -> ExitCode {
    let seconds = std::env::args().nth(1).and_then(|word| word.parse().ok());
    match run(seconds.unwrap_or(1)) {
        Ok(rounds) => {
            println!("{rounds}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("collectives: {why}");
            ExitCode::FAILURE
        }
    }
}
