//! Probes of a process's controls over its own work.

use crate::Options;
use crate::control::{self, StopMethod, Way};
use crate::page::Page;
use crate::row::{Row, percentile};
use crate::watch::{Job, PATIENCE, stop_one};
use crate::worker::{Names, Worker};
use gpuslice_nvabi::control::class;
use gpuslice_shim::channels;
use std::time::{Duration, Instant};

/// Time slices that are asked for, µs; the last ones are extremes.
const SLICES_US: [u64; 6] = [200, 1000, 2048, 10_000, 0, 1_000_000];
/// How long the calls of [`preempts`] may take in all, each kind.
const BUDGET: Duration = Duration::from_secs(12);

/// A worker, and its channel group where one was seen; what is done to that is undone at the end.
pub fn worker(options: &Options) -> Result<(Worker, Option<(Way, Names)>), String> {
    let page = Page::new().map_err(|why| why.to_string())?;
    let worker = Worker::new(options, page).map_err(|why| why.to_string())?;
    let control = worker.group().zip(worker.names());
    if let Some((group, names)) = &control {
        control::remember(*group, names);
    }
    let control = control.map(|(group, names)| (Way::Own(group), names));
    Ok((worker, control))
}

/// Reports that no channel group was seen, which is a finding too; [`objects`] lists the objects that were.
pub fn unseen(probe: &str, options: &Options) -> Result<bool, String> {
    Row::of(probe).word("missing", "no channel group was seen").say();
    begins(options)
}

/// Options with the rounds per microsecond measured, so that children need not measure at the same time; and whether a
/// channel group was seen.
pub fn calibrated(options: &Options) -> Result<(Options, bool), String> {
    let (worker, control) = self::worker(options)?;
    let rounds_per_us = worker.rounds_per_us();
    let options = Options { rounds_per_us, ..options.clone() };
    Ok((options, control.is_some()))
}

/// P1: which objects leading to its work the driver made, and through which files.
pub fn objects(options: &Options) -> Result<bool, String> {
    let page = Page::new().map_err(|why| why.to_string())?;
    let mut worker = Worker::new(options, page).map_err(|why| why.to_string())?;
    let all = channels::seen();
    let mut kinds: Vec<(u32, i32)> = all.iter().map(|made| (made.class, made.fd)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for (class, fd) in kinds {
        let count = all.iter().filter(|made| (made.class, made.fd) == (class, fd)).count();
        let file = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        Row::of("objects")
            .word("class", &format!("{class:#06x}"))
            .word("what", meaning(class))
            .plain("count", count)
            .word("file", &file.display().to_string())
            .say();
    }
    let names = worker.names();
    Row::of("objects")
        .plain("groups_with_kernels", channels::groups(1).len())
        .plain("channels", names.map_or(0, |names| names.channels.len()))
        .plain("rounds_per_us", worker.rounds_per_us())
        .say();
    works(&mut worker)
}

fn meaning(class: u32) -> &'static str {
    match class {
        class::DEVICE => "device",
        class::SUBDEVICE => "subdevice",
        class::GROUP => "channel group",
        other if class::CHANNELS.contains(&other) => "channel",
        _ => "compute object",
    }
}

/// Whether a process that begins now can work.
pub fn begins(options: &Options) -> Result<bool, String> {
    let page = Page::new().map_err(|why| why.to_string())?;
    let mut worker = Worker::new(options, page).map_err(|why| why.to_string())?;
    works(&mut worker)
}

/// Whether a short piece of work comes out right.
fn works(worker: &mut Worker) -> Result<bool, String> {
    Job::launch(worker, Duration::from_millis(20))?;
    let (ended, right) = Job::settle(worker, PATIENCE)?;
    Row::of("works").plain("ended", ended).plain("right", right).say();
    Ok(right)
}

/// P2: time slices set and read back.
pub fn slices(options: &Options) -> Result<bool, String> {
    let (mut worker, control) = self::worker(options)?;
    let Some((way, names)) = control else {
        return unseen("slices", options);
    };
    let (first, us) = control::slice(&way, &names);
    Row::of("slices")
        .word("set_us", "as it was")
        .word("get", &first.status)
        .plain("got_us", us)
        .us("get_took_us", Some(first.us))
        .say();
    for wanted in SLICES_US {
        let set = control::set_slice(&way, &names, wanted);
        let (get, us) = control::slice(&way, &names);
        Row::of("slices")
            .plain("set_us", wanted)
            .word("set", &set.status)
            .us("set_took_us", Some(set.us))
            .word("get", &get.status)
            .plain("got_us", us)
            .us("get_took_us", Some(get.us))
            .say();
    }
    works(&mut worker)
}

/// P4 and P5: every method against one long kernel.
pub fn stops(options: &Options) -> Result<bool, String> {
    let (mut worker, control) = self::worker(options)?;
    let Some((way, names)) = control else {
        return unseen("stops", options);
    };
    let mut right = true;
    for method in StopMethod::ALL {
        right &= stop_one("stops", method, (&way, &names), &mut worker, options.length)?;
    }
    Ok(right)
}

/// P7: how long the driver takes to take work off the GPU, idle and in the middle of a kernel.
pub fn preempts(options: &Options) -> Result<bool, String> {
    let (mut worker, control) = self::worker(options)?;
    let Some((way, names)) = control else {
        return unseen("preempts", options);
    };
    for (what, busy) in [("idle", false), ("busy", true)] {
        if busy {
            Job::launch(&mut worker, options.length)?;
        }
        let (mut took, mut status, start) = (Vec::new(), String::new(), Instant::now());
        let end = if busy { options.length } else { BUDGET };
        while took.len() < options.count && start.elapsed() < end {
            let answer = control::preempt(&way, &names);
            took.push(answer.us);
            status = answer.status;
            // Without a pause, a process that is preempted all the time makes no progress.
            std::thread::sleep(Duration::from_micros(200));
        }
        took.sort_by(f64::total_cmp);
        let (ended, right) = Job::settle(&mut worker, options.length + PATIENCE)?;
        Row::of("preempts")
            .word("what", what)
            .word("status", &status)
            .plain("count", took.len())
            .us("p50_us", percentile(&took, 0.5))
            .us("p99_us", percentile(&took, 0.99))
            .plain("ended", ended)
            .plain("right", right)
            .say();
        if !right {
            return Ok(false);
        }
    }
    Ok(true)
}
