//! Probes of an unmodified driver's controls of channel groups: `control-probe PROBE [OPTION…]`.
//!
//! Each probe is one function that prints its findings as lines of JSON. A finding is never wrong: a refused
//! control is as good a finding as one that works. What must hold is that the probe ends, that the work it
//! stopped resumes, and that every result computed meanwhile is right; otherwise it exits with 1. The probes
//! touch only channel groups of this program's own processes, and use only controls that can be undone. However
//! the program ends, the state is restored: by itself (`control::undo`), and by the driver, which frees a dead
//! process's objects.

mod control;
mod gates;
mod own;
mod page;
mod row;
mod second;
mod spin;
mod watch;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// The GPU is the simulated one.
    sim: bool,
    /// Kernels take all of the GPU.
    wide: bool,
    /// Length of the kernel that is stopped.
    length: Duration,
    /// How long each process's progress is measured.
    window: Duration,
    /// Timed calls of a control.
    count: usize,
    /// Repetitions of cheap measurements.
    rounds: usize,
    /// Only every so many-th of a list of lengths is measured.
    every: usize,
    /// Rounds of the kernel in a microsecond; 0 to measure it.
    rounds_per_us: f64,
    /// Of a child: its time slice, or 0.
    slice_us: u64,
    /// Of a child: the page it writes its progress to.
    page_fd: i32,
    /// Of a child: the socket it sends its file through.
    socket_fd: i32,
}

type Probe = fn(&Options) -> Result<bool, String>;

/// Every probe, and the functions of the child processes of some.
const PROBES: [(&str, Probe); 13] = [
    ("begins", own::begins),
    ("objects", own::objects),
    ("slices", own::slices),
    ("weights", spin::weights),
    ("stops", own::stops),
    ("second", second::second),
    ("preempts", own::preempts),
    ("gates", gates::gates),
    ("sweep", spin::sweep),
    ("sweep-wide", spin::sweep_wide),
    ("teardown", second::teardown),
    ("spin", spin::child),
    ("held", second::child),
];

fn options(words: &mut dyn Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        sim: false,
        wide: false,
        length: Duration::from_secs(5),
        window: Duration::from_secs(2),
        count: 1000,
        rounds: 3,
        every: 1,
        rounds_per_us: 0.0,
        slice_us: 0,
        page_fd: -1,
        socket_fd: -1,
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--sim" => {
                options.sim = true;
                continue;
            }
            "--wide" => {
                options.wide = true;
                continue;
            }
            "--quick" => {
                (options.count, options.rounds, options.every) = (100, 1, 3);
                options.window = Duration::from_millis(500);
                continue;
            }
            _ => {}
        }
        let value = words.next().ok_or(format!("{word} needs a value"))?;
        let bad = |why: &dyn std::fmt::Display| format!("{word} {value}: {why}");
        match word.as_str() {
            "--kernel-ms" => {
                let ms = value.parse().map_err(|why| bad(&why))?;
                options.length = Duration::from_millis(ms);
            }
            "--rounds-per-us" => options.rounds_per_us = value.parse().map_err(|why| bad(&why))?,
            "--slice-us" => options.slice_us = value.parse().map_err(|why| bad(&why))?,
            "--page-fd" => options.page_fd = value.parse().map_err(|why| bad(&why))?,
            "--socket-fd" => options.socket_fd = value.parse().map_err(|why| bad(&why))?,
            _ => return Err(format!("unknown option {word}")),
        }
    }
    Ok(options)
}

fn run() -> Result<bool, String> {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let Some((_, probe)) = PROBES.iter().find(|(one, _)| *one == name) else {
        let all: Vec<&str> = PROBES.iter().map(|(one, _)| *one).collect();
        return Err(format!("no probe {name:?}; there are {}", all.join(", ")));
    };
    let options = options(&mut words)?;
    // When the parent ends, its children end too.
    // SAFETY: takes a plain number.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    control::undo_on_signals();
    let done = probe(&options);
    control::undo();
    done
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("control-probe: a result is wrong, or a process did not end");
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("control-probe: {why}");
            ExitCode::FAILURE
        }
    }
}
