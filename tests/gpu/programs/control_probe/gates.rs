//! P8: waits in a stream on a word that the host changes: what they cost, how soon they take effect, and whether a
//! waiting process leaves the GPU to others.

use crate::Options;
use crate::page::Page;
use crate::row::{Row, percentile, us_since};
use crate::spin::{Spinning, rates};
use crate::watch::{Job, PATIENCE, moves, stopped_after};
use crate::worker::Worker;
use gpuslice_apps::driver::Error;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Kernels between two gates, µs.
const SPACINGS_US: [u64; 3] = [10, 50, 100];
/// Kernels queued at once: together with their gates they fit into a driver's queue.
const QUEUED: usize = 400;

/// See the file's head.
pub fn gates(options: &Options) -> Result<bool, String> {
    let page = Page::new().map_err(|why| why.to_string())?;
    let mut worker = Worker::new(options, page).map_err(|why| why.to_string())?;
    worker.page().gate().store(1, Ordering::Release);
    let done = cost(options, &mut worker).and_then(|()| holds(options, &mut worker));
    let done = done.and_then(|()| gives_away(options, &mut worker));
    // After any result: no stream is left waiting for ever.
    worker.page().gate().store(1, Ordering::Release);
    done?;
    let (ended, right) = Job::settle(&mut worker, PATIENCE)?;
    Row::of("gates").plain("ended", ended).plain("right", right).say();
    Ok(right)
}

fn queue(worker: &mut Worker, us: u64, gated: bool) -> Result<(), Error> {
    for _ in 0..QUEUED {
        if gated {
            worker.wait_for_gate()?;
        }
        worker.launch(Duration::from_micros(us))?;
    }
    Ok(())
}

/// The cost of an open gate before every kernel.
fn cost(options: &Options, worker: &mut Worker) -> Result<(), String> {
    for us in SPACINGS_US {
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for gated in [false, true, true, false].repeat(options.rounds) {
            let start = Instant::now();
            queue(worker, us, gated).map_err(|why| why.to_string())?;
            Job::settle(worker, PATIENCE)?;
            let each = us_since(start) / QUEUED as f64;
            if gated { &mut with } else { &mut without }.push(each);
        }
        without.sort_by(f64::total_cmp);
        with.sort_by(f64::total_cmp);
        // The minimum: a delayed processor only adds time.
        let (plain, gated) = (percentile(&without, 0.0), percentile(&with, 0.0));
        let more = plain.zip(gated).map(|(plain, gated)| gated - plain);
        Row::of("gates")
            .plain("spacing_us", us)
            .us("kernel_us", plain)
            .us("gated_us", gated)
            .us("a_gate_us", more)
            .say();
    }
    Ok(())
}

/// How soon a queue stops when the gate closes, and makes progress when it opens again.
fn holds(options: &Options, worker: &mut Worker) -> Result<(), String> {
    let (mut closing, mut opening) = (Vec::new(), Vec::new());
    for _ in 0..5 * options.rounds {
        queue(worker, 100, true).map_err(|why| why.to_string())?;
        let meter = worker.meter();
        let start = Instant::now();
        worker.page().gate().store(0, Ordering::Release);
        closing.extend(stopped_after(&meter, start));
        worker.page().gate().store(1, Ordering::Release);
        opening.extend(moves(&meter, Duration::from_secs(2)));
        Job::settle(worker, PATIENCE)?;
    }
    closing.sort_by(f64::total_cmp);
    opening.sort_by(f64::total_cmp);
    Row::of("gates")
        .plain("closed", closing.len())
        .us("close_to_stopped_p50_us", percentile(&closing, 0.5))
        .us("close_to_stopped_max_us", percentile(&closing, 1.0))
        .us("open_to_moves_p50_us", percentile(&opening, 0.5))
        .say();
    Ok(())
}

/// Another process's rate while this one waits at a closed gate, relative to its rate while this one has no work.
fn gives_away(options: &Options, worker: &mut Worker) -> Result<(), String> {
    let mut options = options.clone();
    options.rounds_per_us = worker.rounds_per_us();
    let mut other = [Spinning::start(&options, 0)?];
    other[0].ready()?;
    let alone = rates(&mut other, options.window)?[0];
    worker.page().gate().store(0, Ordering::Release);
    queue(worker, 100, true).map_err(|why| why.to_string())?;
    let beside = rates(&mut other, options.window)?[0];
    worker.page().gate().store(1, Ordering::Release);
    let [other] = other;
    let right = other.end()?;
    Row::of("gates")
        .plain("others_beside_a_closed_gate", format!("{:.3}", beside / alone.max(1.0)))
        .plain("right", right)
        .say();
    Ok(())
}
