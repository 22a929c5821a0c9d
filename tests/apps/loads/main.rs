//! Loads like real programs: tenants that wait for their work, pause for data, or answer requests.
//!
//! A bench whose tenants keep the GPU's queue full says nothing about a program that waits for each step. These do
//! what such programs do, by the driver API only, on any driver.
//!
//! `loads LOAD` runs one of them, [`programs::NAMES`], in one of two ways. *Closed loop*: the next unit of work
//! begins when the last one has ended and its gap is over; slow service slows the load. *Open loop*, with `--rate`:
//! requests arrive at seeded random times whatever the service, wait in a queue, and their latency counts from their
//! arrival. A client that waits for its answer before it asks again would hide a delay from the figures.
//!
//! At the end it prints one line of JSON: `count` of requests, `p50_ns`, `p99_ns` and `max_ns` of their latencies,
//! and `lost`, the arrivals that found the queue full.
//!
//! `--seconds`, `--seed`, `--rate` per second, `--clients` of a closed loop; `--kernel-us`, `--launches` and
//! `--pause-us` change the sizes of `steps`, `decode` and `serve`.

mod pace;
mod programs;

use gpuslice_apps::gpu::Outcome;
use pace::{Random, now_ns, pause_until};
use programs::{Program, Sizes};
use std::collections::VecDeque;
use std::process::ExitCode;
use std::time::Duration;

/// Requests that may wait; later ones are lost.
const QUEUE: usize = 4096;
/// Latencies that are kept: the last ones of a long run.
const KEPT: usize = 1 << 17;

struct Options {
    load: String,
    seconds: f64,
    seed: u64,
    rate: f64,
    clients: usize,
    sizes: Option<Sizes>,
}

fn number<T: std::str::FromStr<Err: std::fmt::Display>>(word: &str, value: &str) -> Outcome<T> {
    value.parse().map_err(|error| format!("{word} {value}: {error}"))
}

fn options() -> Outcome<Options> {
    let mut words = std::env::args().skip(1);
    let load = words.next().ok_or(format!("usage: loads LOAD [OPTIONS]: {}", programs::NAMES))?;
    let mut options = Options { load, seconds: 5.0, seed: 1, rate: 0.0, clients: 1, sizes: None };
    let (mut kernel_us, mut launches, mut pause_us) = (None, None, None);
    while let Some(word) = words.next() {
        let value = words.next().ok_or(format!("{word} needs a value"))?;
        match word.as_str() {
            "--seconds" => options.seconds = number(&word, &value)?,
            "--seed" => options.seed = number(&word, &value)?,
            "--rate" => options.rate = number(&word, &value)?,
            "--clients" => options.clients = number(&word, &value)?,
            "--kernel-us" => kernel_us = Some(number(&word, &value)?),
            "--launches" => launches = Some(number(&word, &value)?),
            "--pause-us" => pause_us = Some(number(&word, &value)?),
            _ => return Err(format!("unknown option {word}")),
        }
    }
    if let (Some(kernel_us), Some(launches), Some(pause_us)) = (kernel_us, launches, pause_us) {
        let pause = Duration::from_micros(pause_us);
        options.sizes = Some(Sizes { kernel_us, launches, pause });
    } else if kernel_us.is_some() || launches.is_some() || pause_us.is_some() {
        return Err("--kernel-us, --launches and --pause-us go together".into());
    }
    Ok(options)
}

/// Latencies of requests, ns.
#[derive(Default)]
struct Latencies {
    last: VecDeque<u64>,
    count: u64,
    lost: u64,
}

impl Latencies {
    fn add(&mut self, ns: u64) {
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(ns);
        self.count += 1;
    }

    fn tell(&self) {
        let mut all: Vec<u64> = self.last.iter().copied().collect();
        all.sort_unstable();
        let at = |part: usize| all.get(all.len() * part / 100).copied().unwrap_or(0);
        let (middle, high, most) = (at(50), at(99), all.last().copied().unwrap_or(0));
        let (count, lost) = (self.count, self.lost);
        println!(
            r#"{{"event":"latency","count":{count},"p50_ns":{middle},"p99_ns":{high},"max_ns":{most},"lost":{lost}}}"#
        );
    }
}

/// All clients ask, get their answers, and ask again.
fn closed(program: &mut dyn Program, clients: usize, until: u64) -> Outcome<Latencies> {
    let (mut latencies, clients) = (Latencies::default(), clients.clamp(1, program.batch()));
    while now_ns() < until {
        let begin = now_ns();
        program.unit(clients)?;
        let end = now_ns();
        (0..clients).for_each(|_| latencies.add(end - begin));
        pause_until(end + program.gap());
    }
    Ok(latencies)
}

/// Requests arrive at their times and wait for the units before.
fn open(program: &mut dyn Program, options: &Options, until: u64) -> Outcome<Latencies> {
    let (mut latencies, mut queue) = (Latencies::default(), VecDeque::new());
    let mut random = Random::of(options.seed);
    let mut next = now_ns() + random.arrival(options.rate);
    loop {
        let now = now_ns();
        if now >= until {
            return Ok(latencies);
        }
        while next <= now {
            match queue.len() < QUEUE {
                true => queue.push_back(next),
                false => latencies.lost += 1,
            }
            next += random.arrival(options.rate);
        }
        if queue.is_empty() {
            pause_until(next.min(until));
            continue;
        }
        let requests = queue.len().min(program.batch());
        program.unit(requests)?;
        let end = now_ns();
        queue.drain(..requests).for_each(|arrival| latencies.add(end - arrival));
        pause_until(end + program.gap());
    }
}

fn run(options: &Options) -> Outcome {
    pace::sleep_exactly();
    let mut program = programs::named(&options.load, options.sizes, options.seed)?;
    let until = now_ns() + (options.seconds * 1e9) as u64;
    let latencies = match options.rate > 0.0 {
        true => open(&mut *program, options, until)?,
        false => closed(&mut *program, options.clients, until)?,
    };
    latencies.tell();
    Ok(())
}

fn main() -> ExitCode {
    gpuslice_apps::status("loads", options().and_then(|options| run(&options)))
}
