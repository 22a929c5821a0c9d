//! A tenant for the demo and the tests: takes memory until it is refused, then keeps the GPU busy.
//!
//! Prints one line of JSON per event: `memory` once (the driver's free and total memory, the memory got,
//! the code of the refusal), `progress` every 50 ms (CLOCK_MONOTONIC ns, kernels finished), and `end`.
//!
//! It ends by itself after `--seconds`, with `--with-reader` also when its output has no reader. With
//! `--pause-us` it is mostly idle: a kernel, its end, a pause; at the end it prints how much longer than its
//! kernel each took (`latency`), and when it launched each (`wants`, CLOCK_MONOTONIC ns). With `--idle` it
//! launches nothing. With `--rounds-per-us` its kernels compute so much instead of watching the clock, so that
//! the count is work even where others ran in between. `--batch` is for long kernels, `--most-mib` for a
//! device whose memory others need too. It is installed with the package, so `--help` lists its options.

use gpuslice_apps::driver::{Driver, Error, check};
use gpuslice_apps::spin::{ROUNDS_NAME, Rounds, SPIN_NAME, SPIN_PTX};
use gpuslice_nvabi::types::{
    CUcontext, CUdeviceptr, CUevent, CUfunction, CUmodule, CUresult, CUstream,
};
use std::cell::Cell;
use std::io::Write;
use std::process::ExitCode;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Kernels between two events, if nothing else is said; two batches are in flight, so the queue never runs empty.
const BATCH: u64 = 16;
/// A kernel that is watched while it runs, ns.
const LONG_NS: u64 = 50_000_000;

const HELP: &str = "\
A small CUDA program: it allocates GPU memory until it is refused, then launches kernels until its time is over.
It prints one line of JSON for each event: memory, progress every 50 ms, and end.

Usage: tenant [OPTIONS]

  --seconds S         end after this time [default: 5]
  --with-reader       end also when its output has no reader any more
  --device N          use this CUDA device [default: 0]
  --step-mib N        allocate in steps of N MiB [default: 64]
  --most-mib N        allocate N MiB at most [default: until it is refused]
  --kernel-us N       length of a kernel in microseconds [default: 200]
  --rounds-per-us N   let a kernel compute this many rounds for each microsecond instead of watching the clock
  --batch N           kernels between two events; two batches are in flight [default: 16]
  --pause-us N        launch one kernel, wait for its end, pause; print how long each took
  --idle              allocate, and launch nothing
  --no-launch         allocate, and end
  --help              print this";

struct Options {
    seconds: f64,
    kernel_us: u64,
    rounds_per_us: f64,
    batch: u64,
    step: usize,
    most: usize,
    launch: bool,
    device: i32,
    with_reader: bool,
    pause: Option<Duration>,
    idle: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        seconds: 5.0,
        kernel_us: 200,
        rounds_per_us: 0.0,
        batch: BATCH,
        step: 64 * MIB,
        most: usize::MAX,
        launch: true,
        device: 0,
        with_reader: false,
        pause: None,
        idle: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let bad = |e: &dyn std::fmt::Display| e.to_string();
        match word.as_str() {
            "--seconds" => options.seconds = value()?.parse().map_err(|e| bad(&e))?,
            "--kernel-us" => options.kernel_us = value()?.parse().map_err(|e| bad(&e))?,
            "--rounds-per-us" => {
                options.rounds_per_us = value()?.parse().map_err(|e| bad(&e))?;
            }
            "--batch" => options.batch = value()?.parse::<u64>().map_err(|e| bad(&e))?.max(1),
            "--step-mib" => options.step = value()?.parse::<usize>().map_err(|e| bad(&e))? * MIB,
            "--most-mib" => {
                let mib = value()?.parse::<usize>().map_err(|e| bad(&e))?;
                options.most = mib.saturating_mul(MIB);
            }
            "--device" => options.device = value()?.parse().map_err(|e| bad(&e))?,
            "--pause-us" => {
                let us = value()?.parse().map_err(|e| bad(&e))?;
                options.pause = Some(Duration::from_micros(us));
            }
            "--idle" => options.idle = true,
            "--no-launch" => options.launch = false,
            "--with-reader" => options.with_reader = true,
            _ => return Err(format!("unknown option {word}; tenant --help lists all")),
        }
    }
    Ok(options)
}

/// Prints a line; whether the output still has a reader.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Without a reader it goes on, unless `--with-reader` is given.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Ends the process as soon as its output has no reader, also while an allocation waits for a daemon that is gone.
fn end_without_reader() {
    std::thread::spawn(|| {
        let mut output = libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 };
        // SAFETY: `output` is one entry, and ours. `_exit` runs nothing that could wait for the other threads.
        unsafe {
            while libc::poll(&raw mut output, 1, -1) < 0 || output.revents & libc::POLLERR == 0 {
                std::thread::sleep(Duration::from_millis(50));
            }
            libc::_exit(0)
        }
    });
}

/// Allocates `step` bytes again and again until the driver refuses or it has `most`, and keeps them; `refused`
/// is then 0.
fn fill(cuda: &Driver, step: usize, most: usize) -> Result<(), Error> {
    let (mut free, mut total, mut got) = (0usize, 0usize, 0usize);
    // SAFETY: both point to a usize of ours.
    check("cuMemGetInfo", unsafe { (cuda.cuMemGetInfo_v2)(&mut free, &mut total) })?;
    let refusal = loop {
        if got >= most {
            break 0;
        }
        let mut address: CUdeviceptr = 0;
        // SAFETY: `address` is ours; the memory is kept until the context ends.
        let result = unsafe { (cuda.cuMemAlloc_v2)(&mut address, step) };
        if check("cuMemAlloc", result).is_err() {
            break result.0;
        }
        got += step;
    };
    say(&format!(
        r#"{{"event":"memory","total":{total},"free":{free},"got":{got},"refusal":{refusal}}}"#
    ));
    Ok(())
}

gpuslice_apps::driver_functions! {
    /// What it takes to see how far a kernel is.
    Telling {
        cuMemHostAlloc,
        cuMemHostGetDevicePointer_v2,
        cuEventQuery,
    }
}

/// A page of the host in which kernels tell how many rounds they have done.
struct Told {
    cuda: Telling,
    word: *const AtomicU64,
    seen: CUdeviceptr,
}

impl Told {
    fn new() -> Result<Told, Error> {
        const DEVICEMAP: u32 = 2;
        let cuda = Telling::load()?;
        let (mut page, mut seen) = (null_mut(), 0);
        // SAFETY: out-pointers to live locals; the page is never freed.
        unsafe {
            let alloc = (cuda.cuMemHostAlloc)(&mut page, 4096, DEVICEMAP);
            check("cuMemHostAlloc", alloc)?;
            page.cast::<[u64; 512]>().write([0; 512]);
            let get = (cuda.cuMemHostGetDevicePointer_v2)(&mut seen, page, 0);
            check("cuMemHostGetDevicePointer", get)?;
        }
        let word = page.cast_const().cast();
        Ok(Told { cuda, word, seen })
    }

    /// Rounds done by all kernels; a simulated GPU runs none.
    fn rounds(&self) -> u64 {
        // SAFETY: the first word of the page, aligned.
        unsafe { &*self.word }.load(Ordering::Relaxed)
    }

    fn is_done(&self, event: CUevent) -> bool {
        // SAFETY: a live event.
        unsafe { (self.cuda.cuEventQuery)(event) != CUresult::ERROR_NOT_READY }
    }
}

struct Spinner<'a> {
    cuda: &'a Driver,
    function: CUfunction,
    stream: CUstream,
    counter: CUdeviceptr,
    nanoseconds: u64,
    /// Of each kernel; 0 for one that watches the clock.
    rounds: u64,
    told: Option<Told>,
    launched: Cell<u64>,
    batch: u64,
}

impl Spinner<'_> {
    fn new<'a>(cuda: &'a Driver, options: &Options) -> Result<Spinner<'a>, Error> {
        let (mut module, mut function) = (CUmodule(null_mut()), CUfunction(null_mut()));
        let (mut stream, mut counter) = (CUstream(null_mut()), 0 as CUdeviceptr);
        let rounds = (options.kernel_us as f64 * options.rounds_per_us) as u64;
        // SAFETY: every out-pointer is a live local; PTX and name are NUL-terminated statics.
        unsafe {
            check(
                "cuModuleLoadData",
                (cuda.cuModuleLoadData)(&mut module, SPIN_PTX.as_ptr().cast()),
            )?;
            let name = match rounds {
                0 => SPIN_NAME.as_ptr(),
                _ => ROUNDS_NAME.as_ptr(),
            };
            check("cuModuleGetFunction", (cuda.cuModuleGetFunction)(&mut function, module, name))?;
            check("cuStreamCreate", (cuda.cuStreamCreate)(&mut stream, 1))?;
            check("cuMemAlloc", (cuda.cuMemAlloc_v2)(&mut counter, 256))?;
            check("cuMemsetD32", (cuda.cuMemsetD32_v2)(counter, 0, 64))?;
            // The kernels' stream does not wait for the default stream, which sets the counter. And a tenant that
            // launches nothing has no work of its own any more when it tells what it got: it can be stopped.
            check("cuStreamSynchronize", (cuda.cuStreamSynchronize)(CUstream(null_mut())))?;
        }
        Ok(Spinner {
            cuda,
            function,
            stream,
            counter,
            nanoseconds: options.kernel_us * 1000,
            rounds,
            told: (rounds > 0).then(Told::new).transpose()?,
            launched: Cell::new(0),
            batch: options.batch,
        })
    }

    fn launch(&self) -> Result<(), Error> {
        let (mut ns, mut counter) = (self.nanoseconds, self.counter);
        let mut timed = [(&raw mut ns).cast(), (&raw mut counter).cast()];
        let mut counted = Rounds {
            nanoseconds: ns,
            rounds: self.rounds,
            base: self.launched.get() * self.rounds,
            page: self.told.as_ref().map_or(0, |told| told.seen),
            counter,
        };
        self.launched.set(self.launched.get() + 1);
        let mut counted = counted.pointers();
        let params = match self.rounds {
            0 => timed.as_mut_ptr(),
            _ => counted.as_mut_ptr(),
        };
        // SAFETY: each kernel's own arguments, which are copied by the call.
        check("cuLaunchKernel", unsafe {
            let (f, s) = (self.function, self.stream);
            (self.cuda.cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, s, params, null_mut())
        })
    }

    fn finished(&self) -> Result<u32, Error> {
        let mut count = 0u32;
        let to = (&raw mut count).cast();
        // SAFETY: copies the counter's four bytes into `count`.
        check("cuMemcpyDtoH", unsafe { (self.cuda.cuMemcpyDtoH_v2)(to, self.counter, 4) })?;
        Ok(count)
    }

    fn work(&self, until: Instant) -> Result<u64, Error> {
        let mut events = [CUevent(null_mut()); 2];
        for event in &mut events {
            // SAFETY: `event` is ours; 2 = CU_EVENT_DISABLE_TIMING.
            check("cuEventCreate", unsafe { (self.cuda.cuEventCreate)(event, 2) })?;
        }
        let (mut batches, mut launched) = (0usize, 0u64);
        let mut next = Instant::now();
        while Instant::now() < until {
            for _ in 0..self.batch {
                self.launch()?;
            }
            launched += self.batch;
            // SAFETY: live handles of this context.
            unsafe {
                check(
                    "cuEventRecord",
                    (self.cuda.cuEventRecord)(events[batches % 2], self.stream),
                )?;
                if batches > 0 {
                    let before = events[(batches + 1) % 2];
                    self.watch(before, launched - 2 * self.batch);
                    check("cuEventSynchronize", (self.cuda.cuEventSynchronize)(before))?;
                }
            }
            batches += 1;
            if Instant::now() >= next {
                self.progress(launched.saturating_sub(self.batch));
                next += Duration::from_millis(50);
            }
        }
        self.synchronize()?;
        Ok(launched)
    }

    /// Tells of progress while a batch of long kernels takes its time.
    fn watch(&self, event: CUevent, done: u64) {
        let Some(told) = self.told.as_ref().filter(|_| self.nanoseconds >= LONG_NS) else {
            return;
        };
        while !told.is_done(event) {
            // A simulated GPU writes no rounds, and then nothing is printed.
            if told.rounds() > 0 {
                self.progress(done);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Says what was done: so many kernels, or more, if kernels tell of that.
    fn progress(&self, kernels: u64) {
        let told = self.told.as_ref().map_or(0, Told::rounds);
        let rounds = told.max(kernels * self.rounds);
        match self.rounds {
            0 => progress(kernels, kernels * self.nanoseconds),
            each => {
                let busy = rounds as f64 / each as f64 * self.nanoseconds as f64;
                progress(kernels, busy as u64)
            }
        }
    }

    fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: a live stream of this context.
        check("cuStreamSynchronize", unsafe { (self.cuda.cuStreamSynchronize)(self.stream) })
    }

    /// A kernel, its end, a pause, until it is time.
    fn pulse(&self, until: Instant, pause: Duration) -> Result<u64, Error> {
        let (mut waits, mut wants, mut next) = (Vec::new(), Vec::new(), Instant::now());
        while Instant::now() < until {
            let start = Instant::now();
            wants.push(now_ns().to_string());
            self.launch()?;
            self.synchronize()?;
            let took = start.elapsed().as_nanos() as u64;
            waits.push(took.saturating_sub(self.nanoseconds));
            if Instant::now() >= next {
                self.progress(waits.len() as u64);
                next += Duration::from_millis(50);
            }
            std::thread::sleep(pause);
        }
        say(&format!(r#"{{"event":"wants","ns":[{}]}}"#, wants.join(",")));
        waits.sort_unstable();
        let at = |part: usize| waits.get(waits.len() * part / 100);
        if let (Some(middle), Some(high), Some(most)) = (at(50), at(99), waits.last()) {
            let count = waits.len();
            say(&format!(
                r#"{{"event":"latency","count":{count},"p50_ns":{middle},"p99_ns":{high},"max_ns":{most}}}"#
            ));
        }
        Ok(waits.len() as u64)
    }
}

/// Has no work, and says so.
fn idle(until: Instant) {
    while Instant::now() < until {
        progress(0, 0);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// CLOCK_MONOTONIC, which is the simulated device's clock too.
fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn progress(kernels: u64, busy: u64) {
    let now = now_ns();
    say(&format!(r#"{{"event":"progress","now_ns":{now},"kernels":{kernels},"busy_ns":{busy}}}"#));
}

fn run(options: &Options) -> Result<(), Error> {
    if options.with_reader {
        end_without_reader();
    }
    let cuda = Driver::load()?;
    let (mut device, mut context) = (0, CUcontext(null_mut()));
    // SAFETY: every out-pointer is a live local.
    unsafe {
        check("cuInit", (cuda.cuInit)(0))?;
        check("cuDeviceGet", (cuda.cuDeviceGet)(&mut device, options.device))?;
        check("cuCtxCreate", (cuda.cuCtxCreate_v2)(&mut context, 0, device))?;
    }
    // Before memory is full: the kernel's counter needs some too.
    let spinner = options.launch.then(|| Spinner::new(&cuda, options)).transpose()?;
    fill(&cuda, options.step, options.most)?;
    if let Some(spinner) = spinner {
        let until = Instant::now() + Duration::from_secs_f64(options.seconds);
        let launched = match options.pause {
            _ if options.idle => {
                idle(until);
                0
            }
            Some(pause) => spinner.pulse(until, pause)?,
            None => spinner.work(until)?,
        };
        let finished = spinner.finished()?;
        say(&format!(r#"{{"event":"end","launched":{launched},"finished":{finished}}}"#));
    }
    // SAFETY: the context is ours and nothing of it is used after this.
    check("cuCtxDestroy", unsafe { (cuda.cuCtxDestroy_v2)(context) })
}

fn main() -> ExitCode {
    if std::env::args().skip(1).any(|word| word == "--help" || word == "-h") {
        say(HELP);
        return ExitCode::SUCCESS;
    }
    let ended = options().and_then(|options| run(&options).map_err(|e| e.to_string()));
    gpuslice_apps::status("tenant", ended)
}
