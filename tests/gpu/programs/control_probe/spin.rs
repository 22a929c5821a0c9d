//! Processes that are always busy, each with its own time slice, and each one's part of the GPU.

use crate::Options;
use crate::control;
use crate::own;
use crate::row::Row;
use crate::watch::{Job, PATIENCE};
use crate::worker::Worker;
use gpuslice_apps::driver::Error;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Length of their kernels.
const KERNEL: Duration = Duration::from_millis(5);
/// How many are queued.
const QUEUED: usize = 8;
/// Slices of two processes, µs, for how the GPU is to be divided.
const WEIGHTS: [(&str, [u64; 2]); 3] =
    [("1:1", [2000, 2000]), ("1:3", [1000, 3000]), ("1:9", [1000, 9000])];
/// Equal slices of two processes, µs, 0 for the driver's own: the lost time is the cost of the switches.
const SWEEP_US: [u64; 8] = [0, 100, 200, 500, 1000, 2048, 5000, 10_000];

/// The child: works until its standard input ends. It answers each line with the time and its progress so far.
pub fn child(options: &Options) -> Result<bool, String> {
    let (mut worker, control) = own::worker(options)?;
    let status = match (options.slice_us, control) {
        (0, _) => "as it was".into(),
        (_, None) => "no channel group was seen".into(),
        (us, Some((way, names))) => control::set_slice(&way, &names, us).status,
    };
    let done = AtomicBool::new(false);
    let meter = worker.meter();
    println!("set {status}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            for _ in std::io::stdin().lines().map_while(Result::ok) {
                println!("at {} {}", start.elapsed().as_nanos(), meter.read());
            }
            done.store(true, Ordering::Relaxed);
        });
        let worked = work(&mut worker, &done);
        done.store(true, Ordering::Relaxed);
        worked
    })
    .map_err(|why| why.to_string())?;
    let (ended, right) = Job::settle(&mut worker, PATIENCE)?;
    println!("end {}", ended && right);
    Ok(ended && right)
}

/// Keeps kernels queued, so many that a process that runs late now and then does not leave the GPU idle.
fn work(worker: &mut Worker, done: &AtomicBool) -> Result<(), Error> {
    let mut marks = Vec::new();
    for _ in 0..QUEUED {
        marks.push(worker.event()?);
        worker.launch(KERNEL)?;
        worker.record(marks[marks.len() - 1])?;
    }
    while !done.load(Ordering::Relaxed) {
        for mark in &marks {
            worker.wait(*mark)?;
            worker.launch(KERNEL)?;
            worker.record(*mark)?;
        }
    }
    Ok(())
}

/// A child at work.
pub struct Spinning {
    child: Child,
    ask: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    /// The status of setting its slice.
    pub status: String,
}

impl Spinning {
    /// Starts a child, which does not work yet; with a `slice_us` of 0 its time slice stays as it is.
    ///
    /// # Errors
    /// It did not start.
    pub fn start(options: &Options, slice_us: u64) -> Result<Spinning, String> {
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["spin", "--slice-us", &slice_us.to_string()])
            .args(["--rounds-per-us", &options.rounds_per_us.to_string()])
            .args(options.sim.then_some("--sim"))
            .args(options.wide.then_some("--wide"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|why| why.to_string())?;
        let (ask, answers) = (child.stdin.take(), child.stdout.take());
        Ok(Spinning {
            child,
            ask,
            answers: BufReader::new(answers.ok_or("no output of the child")?).lines(),
            status: String::new(),
        })
    }

    /// Waits until it is at work.
    ///
    /// # Errors
    /// It ended before.
    pub fn ready(&mut self) -> Result<(), String> {
        self.status = self.word("set ")?;
        Ok(())
    }

    fn word(&mut self, begins: &str) -> Result<String, String> {
        let line = self.answers.next().and_then(Result::ok).unwrap_or_default();
        let rest = line.strip_prefix(begins).map(str::to_owned);
        rest.ok_or_else(|| format!("a child said {line:?} where {begins:?} was due"))
    }

    /// The child's time, ns, and its progress by then.
    ///
    /// # Errors
    /// It ended.
    pub fn look(&mut self) -> Result<(f64, f64), String> {
        let ask = self.ask.as_mut().ok_or("the child was ended")?;
        ask.write_all(b"\n").map_err(|why| why.to_string())?;
        let word = self.word("at ")?;
        let numbers: Vec<f64> = word.split(' ').filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [at, had] => Ok((at, had)),
            _ => Err(format!("a child said {word:?}")),
        }
    }

    /// Ends the child; whether its results are right.
    ///
    /// # Errors
    /// It said nothing.
    pub fn end(mut self) -> Result<bool, String> {
        self.ask = None;
        let right = self.word("end ")? == "true";
        self.child.wait().map_err(|why| why.to_string())?;
        Ok(right)
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        // Without effect on a child that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Each process's progress per second, from two looks that are so far apart.
pub fn rates(all: &mut [Spinning], apart: Duration) -> Result<Vec<f64>, String> {
    let before: Vec<_> = all.iter_mut().map(Spinning::look).collect::<Result<_, _>>()?;
    std::thread::sleep(apart);
    let after: Vec<_> = all.iter_mut().map(Spinning::look).collect::<Result<_, _>>()?;
    let each = before.iter().zip(&after);
    Ok(each.map(|((at, had), (later, more))| (more - had) * 1e9 / (later - at).max(1.0)).collect())
}

struct Together {
    status: String,
    each: Vec<f64>,
    right: bool,
}

fn together(options: &Options, slices: &[u64]) -> Result<Together, String> {
    let start = |us: &u64| Spinning::start(options, *us);
    let mut all: Vec<Spinning> = slices.iter().map(start).collect::<Result<_, _>>()?;
    for one in &mut all {
        one.ready()?;
    }
    std::thread::sleep(options.window / 5);
    // A simulated GPU shares its machine with other work: the window with the median part of five is judged.
    let windows = if options.sim { 5 } else { 1 };
    let mut each =
        (0..windows).map(|_| rates(&mut all, options.window)).collect::<Result<Vec<_>, _>>()?;
    let part = |it: &Vec<f64>| it[0] / it.iter().sum::<f64>().max(1.0);
    each.sort_by(|one, other| part(one).total_cmp(&part(other)));
    let each = each.swap_remove(windows / 2);
    let status = all.last().map(|one| one.status.clone()).unwrap_or_default();
    let mut right = true;
    for one in all {
        right &= one.end()?;
    }
    Ok(Together { status, each, right })
}

/// P3: whether the GPU is divided as the slices of two busy processes say.
pub fn weights(options: &Options) -> Result<bool, String> {
    let (options, _) = own::calibrated(options)?;
    let mut right = true;
    for (name, slices) in WEIGHTS {
        let two = together(&options, &slices)?;
        let sum: f64 = two.each.iter().sum();
        let due = slices[0] as f64 / (slices[0] + slices[1]) as f64;
        Row::of("weights")
            .word("slices", name)
            .word("set", &two.status)
            .plain("due", format!("{due:.3}"))
            .plain("got", format!("{:.3}", two.each[0] / sum.max(1.0)))
            .plain("right", two.right)
            .say();
        right &= two.right;
    }
    Ok(right)
}

/// P11: the time lost to switches between two processes, by the length of their slices, with one thread each.
pub fn sweep(options: &Options) -> Result<bool, String> {
    sweep_as("sweep", options)
}

/// The same where each multiprocessor has all the threads and shared memory that it can; a switch must save all of it.
pub fn sweep_wide(options: &Options) -> Result<bool, String> {
    let wide = Options { wide: true, ..options.clone() };
    sweep_as("sweep wide", &wide)
}

fn sweep_as(probe: &str, options: &Options) -> Result<bool, String> {
    let (options, _) = own::calibrated(options)?;
    let alone = together(&options, &[0])?;
    let mut right = alone.right;
    let whole = alone.each[0].max(1.0);
    let lengths = SWEEP_US.iter().step_by(options.every);
    for us in lengths {
        let two = together(&options, &[*us, *us])?;
        let sum: f64 = two.each.iter().sum();
        Row::of(probe)
            .plain("slice_us", us)
            .word("set", &two.status)
            .plain("together", format!("{:.4}", sum / whole))
            .plain("first", format!("{:.3}", two.each[0] / sum.max(1.0)))
            .us("lost_a_switch_us", Some(*us as f64 * (whole / sum.max(1.0) - 1.0)))
            .plain("right", two.right)
            .say();
        right &= two.right;
    }
    Ok(right)
}
