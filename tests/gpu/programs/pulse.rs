//! A service that gets requests at random and must answer soon: what its latency is.
//!
//! Requests arrive as a Poisson process, whether or not the one before is answered (they queue, as real
//! ones do: a client that waits for its answer before it asks again would hide the delay). Each is a
//! number of kernels of a given length; its latency is from arrival to the end of its last kernel.
//! Prints one line of JSON at the end: percentiles in µs, and the raw latencies with `--raw`.

use gpuslice_apps::driver::{Error, check};
use gpuslice_apps::spin::{ROUNDS_NAME, Rounds, SPIN_PTX};
use gpuslice_nvabi::types::{CUcontext, CUdeviceptr, CUfunction, CUmodule, CUstream};
use std::process::ExitCode;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

gpuslice_apps::driver_functions! {
    /// What a service needs.
    Driver {
        cuInit,
        cuDeviceGet,
        cuCtxCreate_v2,
        cuModuleLoadData,
        cuModuleGetFunction,
        cuStreamCreate,
        cuStreamSynchronize,
        cuLaunchKernel,
        cuMemAlloc_v2,
    }
}

/// What to do.
struct Options {
    /// Length of a kernel, µs.
    kernel_us: u64,
    /// What the GPU computes in a microsecond: a kernel is work, however often it is interrupted.
    rounds_per_us: f64,
    /// Kernels of a request.
    kernels: u64,
    /// Requests a second, on average.
    rate: f64,
    /// How long, s.
    seconds: f64,
    seed: u64,
    raw: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        kernel_us: 50,
        rounds_per_us: 0.0,
        kernels: 20,
        rate: 100.0,
        seconds: 10.0,
        seed: 1,
        raw: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--raw" {
            options.raw = true;
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let bad = |e: &dyn std::fmt::Display| format!("{word} {value}: {e}");
        match word.as_str() {
            "--kernel-us" => options.kernel_us = value.parse().map_err(|e| bad(&e))?,
            "--rounds-per-us" => options.rounds_per_us = value.parse().map_err(|e| bad(&e))?,
            "--kernels" => options.kernels = value.parse().map_err(|e| bad(&e))?,
            "--rate" => options.rate = value.parse().map_err(|e| bad(&e))?,
            "--seconds" => options.seconds = value.parse().map_err(|e| bad(&e))?,
            "--seed" => options.seed = value.parse().map_err(|e| bad(&e))?,
            _ => return Err(format!("unknown option {word}")),
        }
    }
    if options.rate <= 0.0 || options.seconds <= 0.0 || options.rounds_per_us <= 0.0 {
        return Err("--rounds-per-us, --rate and --seconds must be above 0".into());
    }
    Ok(options)
}

/// Gaps between requests, s: exponentially distributed, the same for the same seed.
struct Gaps {
    state: u64,
    rate: f64,
}

impl Iterator for Gaps {
    type Item = f64;
    fn next(&mut self) -> Option<f64> {
        // xorshift64*: good enough for arrival times
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let word = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        let unit = (word as f64 + 1.0) / (1u64 << 53) as f64;
        Some(-unit.ln() / self.rate)
    }
}

struct Service {
    cuda: Driver,
    function: CUfunction,
    stream: CUstream,
    counter: CUdeviceptr,
}

impl Service {
    fn new() -> Result<Service, Error> {
        let cuda = Driver::load()?;
        let (mut device, mut context) = (0, CUcontext::NULL);
        let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
        let (mut stream, mut counter) = (CUstream::NULL, 0);
        // SAFETY: every out-pointer is a live local; text and name are NUL-terminated.
        unsafe {
            check("cuInit", (cuda.cuInit)(0))?;
            check("cuDeviceGet", (cuda.cuDeviceGet)(&mut device, 0))?;
            check("cuCtxCreate", (cuda.cuCtxCreate_v2)(&mut context, 0, device))?;
            let load = (cuda.cuModuleLoadData)(&mut module, SPIN_PTX.as_ptr().cast());
            check("cuModuleLoadData", load)?;
            let get = (cuda.cuModuleGetFunction)(&mut function, module, ROUNDS_NAME.as_ptr());
            check("cuModuleGetFunction", get)?;
            check("cuStreamCreate", (cuda.cuStreamCreate)(&mut stream, 1))?;
            check("cuMemAlloc", (cuda.cuMemAlloc_v2)(&mut counter, 256))?;
        }
        Ok(Service { cuda, function, stream, counter })
    }

    fn answer(&self, options: &Options) -> Result<(), Error> {
        let mut work = Rounds {
            nanoseconds: options.kernel_us * 1000,
            rounds: (options.kernel_us as f64 * options.rounds_per_us) as u64,
            counter: self.counter,
            ..Rounds::default()
        };
        let mut params = work.pointers();
        for _ in 0..options.kernels {
            let (f, s) = (self.function, self.stream);
            // SAFETY: the kernel's own arguments, which are copied by the call.
            check("cuLaunchKernel", unsafe {
                let params = params.as_mut_ptr();
                (self.cuda.cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, s, params, null_mut())
            })?;
        }
        // SAFETY: a live stream.
        check("cuStreamSynchronize", unsafe { (self.cuda.cuStreamSynchronize)(self.stream) })
    }

    /// Latencies of all requests, µs, in order of arrival.
    fn serve(&self, options: &Options) -> Result<Vec<f64>, Error> {
        let gaps = Gaps {
            state: options.seed.max(1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            rate: options.rate,
        };
        let (start, mut at, mut latencies) = (Instant::now(), 0.0, Vec::new());
        for gap in gaps {
            at += gap;
            if at > options.seconds {
                return Ok(latencies);
            }
            let arrival = start + Duration::from_secs_f64(at);
            let early = arrival.saturating_duration_since(Instant::now());
            // A sleep ends late by as much as the answer may take: the last stretch is watched.
            std::thread::sleep(early.saturating_sub(Duration::from_micros(300)));
            while Instant::now() < arrival {
                std::hint::spin_loop();
            }
            self.answer(options)?;
            latencies.push(arrival.elapsed().as_secs_f64() * 1e6);
        }
        Ok(latencies)
    }
}

fn report(options: &Options, latencies: &[f64]) {
    let mut sorted = latencies.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let index = (sorted.len() as f64 * part) as usize;
        sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
    };
    let raw = match options.raw {
        true => latencies.iter().map(|us| format!("{us:.0}")).collect::<Vec<_>>().join(","),
        false => String::new(),
    };
    println!(
        r#"{{"requests":{},"p50_us":{:.1},"p90_us":{:.1},"p99_us":{:.1},"p999_us":{:.1},"max_us":{:.1},"raw_us":[{raw}]}}"#,
        sorted.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

fn run() -> Result<(), String> {
    let options = options()?;
    let service = Service::new().map_err(|e| e.to_string())?;
    service.answer(&options).map_err(|e| e.to_string())?; // the first one loads the kernel
    let latencies = service.serve(&options).map_err(|e| e.to_string())?;
    report(&options, &latencies);
    Ok(())
}

fn main() -> ExitCode {
    gpuslice_apps::status("pulse", run())
}
