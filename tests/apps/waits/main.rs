//! Streams that wait for each other while the host pauses: correct on any driver, and a deadlock for a library
//! that puts work of its own between theirs.
//!
//! The legacy default stream is a barrier among all *blocking* streams of a context: it waits for their queued
//! work, and their later work waits for it. A program that has used it once, and then lets one blocking stream
//! wait for a word that another one writes, is correct. It never ends where a library records an event into the
//! legacy stream in between.
//!
//! `waits PAIR [PAUSE_MS ...]` runs every case of that pair of streams with each pause between the wait and its
//! release. It prints a line before each case and ends with 0 when all have ended, with 2 when one has not
//! ended after [`LIMIT`]. `waits list` prints the pairs.

mod cases;

use cases::CASES;
use gpuslice_apps::gpu::{self, Gpu, Outcome};
use gpuslice_apps::ok;
use gpuslice_nvabi::types::*;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// A case that takes longer never ends.
const LIMIT: Duration = Duration::from_secs(30);
/// Length of every kernel, µs.
const KERNEL_US: u64 = 50;
const PAUSES_MS: [u64; 5] = [2, 20, 60, 100, 300];

/// A kind of stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The default stream of all threads.
    Legacy,
    /// The default stream of the calling thread.
    PerThread,
    /// One that the legacy stream waits for, and the reverse.
    Blocking,
    /// One that knows nothing of the legacy stream.
    NonBlocking,
}

/// The streams that wait and that release, by name.
const PAIRS: &[(&str, Kind, Kind)] = &[
    ("blocking-blocking", Kind::Blocking, Kind::Blocking),
    ("blocking-nonblocking", Kind::Blocking, Kind::NonBlocking),
    ("nonblocking-blocking", Kind::NonBlocking, Kind::Blocking),
    ("nonblocking-nonblocking", Kind::NonBlocking, Kind::NonBlocking),
    ("thread-thread", Kind::PerThread, Kind::PerThread),
    ("thread-blocking", Kind::PerThread, Kind::Blocking),
    ("blocking-thread", Kind::Blocking, Kind::PerThread),
    ("legacy-nonblocking", Kind::Legacy, Kind::NonBlocking),
    ("nonblocking-legacy", Kind::NonBlocking, Kind::Legacy),
];

/// A stream of that kind, of the calling thread.
fn stream_of(kind: Kind) -> Outcome<CUstream> {
    match kind {
        Kind::Legacy => Ok(CUstream::NULL),
        Kind::PerThread => Ok(CU_STREAM_PER_THREAD),
        Kind::Blocking => gpu::stream(CU_STREAM_DEFAULT),
        Kind::NonBlocking => gpu::stream(CU_STREAM_NON_BLOCKING),
    }
}

/// One run of a case.
#[derive(Clone, Copy)]
struct Run {
    gpu: Gpu,
    /// The stream that waits and the one that releases it.
    kinds: (Kind, Kind),
    pause: Duration,
    /// No two runs have the same.
    round: u32,
}

impl Run {
    /// The host takes its time.
    fn pause(&self) {
        std::thread::sleep(self.pause);
    }

    /// Runs `queue` with the stream that waits, in a thread of its own, which then waits for that stream. `release`
    /// gets the other one once all is queued, and the pause is over.
    fn pair(
        &self,
        queue: impl FnOnce(CUstream) -> Outcome + Send,
        release: impl FnOnce(CUstream) -> Outcome,
    ) -> Outcome {
        let run = *self;
        let (queued, is_queued) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(move || {
                ok!(cuCtxSetCurrent(run.gpu.context))?;
                let stream = stream_of(run.kinds.0)?;
                let outcome = queue(stream);
                let _ = queued.send(());
                outcome?;
                ok!(cuStreamSynchronize(stream))
            });
            let _ = is_queued.recv();
            self.pause();
            let stream = stream_of(self.kinds.1)?;
            release(stream)?;
            ok!(cuStreamSynchronize(stream))?;
            waiter.join().unwrap_or_else(|_| Err("a thread panicked".into()))
        })
    }
}

/// Ends the program when `round` stays the same for longer than [`LIMIT`].
fn watch(round: &'static AtomicU32) {
    std::thread::spawn(move || {
        let mut before = round.load(SeqCst);
        loop {
            std::thread::sleep(LIMIT);
            if std::mem::replace(&mut before, round.load(SeqCst)) == round.load(SeqCst) {
                eprintln!("waits: the last case printed never ends");
                // Not through the driver's exit handlers, which wait for its work.
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(2) };
            }
        }
    });
}

fn run() -> Outcome {
    static ROUND: AtomicU32 = AtomicU32::new(0);
    let mut words = std::env::args().skip(1);
    let name = words.next().ok_or("usage: waits PAIR|list [PAUSE_MS ...]")?;
    if name == "list" {
        PAIRS.iter().for_each(|(name, ..)| println!("{name}"));
        return Ok(());
    }
    let pair = PAIRS.iter().find(|(pair, ..)| *pair == name);
    let (_, waiting, releasing) = *pair.ok_or_else(|| format!("no pair {name}"))?;
    let pauses: Result<Vec<u64>, _> = words.map(|word| word.parse()).collect();
    let mut pauses = pauses.map_err(|error| format!("a pause in ms: {error}"))?;
    if pauses.is_empty() {
        pauses = PAUSES_MS.into();
    }
    let gpu = Gpu::new(0)?;
    watch(&ROUND);
    gpu.kernel(CUstream::NULL, KERNEL_US)?;
    ok!(cuStreamSynchronize(CUstream::NULL))?;
    for ms in pauses {
        for (case, work) in CASES {
            println!("{case} {ms}");
            let round = ROUND.fetch_add(1, SeqCst) + 1;
            let (kinds, pause) = ((waiting, releasing), Duration::from_millis(ms));
            work(&Run { gpu, kinds, pause, round }).map_err(|why| format!("{case} {ms}: {why}"))?;
        }
    }
    ok!(cuCtxSynchronize())
}

fn main() -> ExitCode {
    gpuslice_apps::status("waits", run())
}
