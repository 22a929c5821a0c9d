//! Work that is stopped and resumed: how soon its progress ends, whether it stays stopped, and that its results
//! are right.

use crate::control::{StopMethod, Way, saves};
use crate::page::Meter;
use crate::row::{Row, us_since};
use crate::worker::{Names, Worker};
use std::time::{Duration, Instant};

/// Work without progress for so long counts as stopped. A simulated GPU on a busy machine makes shorter pauses
/// than this.
const STILL: Duration = Duration::from_millis(50);
/// Work that still makes progress after so long was not stopped.
const TOO_LATE: Duration = Duration::from_millis(250);
/// How long stopped work is watched for progress.
const HOLD: Duration = Duration::from_millis(150);
/// How long the end of work may take beyond its length.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Work somewhere, here or in another process.
pub trait Job {
    /// Queues work of this length.
    fn launch(&mut self, length: Duration) -> Result<(), String>;
    /// Waits for its end: whether it came, and whether the results are right.
    fn settle(&mut self, within: Duration) -> Result<(bool, bool), String>;
    /// The meter of its progress.
    fn meter(&self) -> Meter;
}

impl Job for Worker {
    fn launch(&mut self, length: Duration) -> Result<(), String> {
        Worker::launch(self, length).map_err(|why| why.to_string())
    }

    fn settle(&mut self, within: Duration) -> Result<(bool, bool), String> {
        let ended = Worker::settle(self, within).map_err(|why| why.to_string())?;
        let right = ended && self.is_right().map_err(|why| why.to_string())?;
        Ok((ended, right))
    }

    fn meter(&self) -> Meter {
        Worker::meter(self)
    }
}

fn pause(meter: &Meter) {
    match meter {
        Meter::Told(_) => std::hint::spin_loop(),
        // Reading the simulated GPU's account takes its lock.
        Meter::Account(..) => std::thread::sleep(Duration::from_micros(20)),
    }
}

/// Microseconds until the work makes progress; `None` if it makes none within that time.
pub fn moves(meter: &Meter, within: Duration) -> Option<f64> {
    let (start, before) = (Instant::now(), meter.read());
    while start.elapsed() < within {
        if meter.read() != before {
            return Some(us_since(start));
        }
        pause(meter);
    }
    None
}

/// Microseconds from `since` to the work's last progress; `None` if it makes progress after `TOO_LATE`. Where this
/// thread waited for a processor, progress counts from the look before it.
pub fn stopped_after(meter: &Meter, since: Instant) -> Option<f64> {
    let (mut value, mut last) = (meter.read(), Instant::now());
    let (mut before, mut stopped_us) = (last, us_since(since));
    loop {
        let at = Instant::now();
        let now = meter.read();
        if now != value {
            if before.saturating_duration_since(since) >= TOO_LATE {
                return None;
            }
            (value, last, stopped_us) = (now, Instant::now(), us_since(since));
        } else if at.saturating_duration_since(last) > STILL {
            return Some(stopped_us);
        }
        before = at;
        pause(meter);
    }
}

/// Stops work in its middle, watches, resumes it, waits for its end. Whether the results are right.
///
/// # Errors
/// The process could not be reached, or the work never ended.
pub fn stop_one(
    probe: &str,
    (method, name): (StopMethod, &str),
    (way, names): (&Way, &Names),
    job: &mut dyn Job,
    length: Duration,
) -> Result<bool, String> {
    job.launch(length)?;
    let mut row = Row::of(probe).word("method", name);
    {
        let meter = &job.meter();
        let begun = moves(meter, Duration::from_secs(5)).is_some();
        let before = saves(way, names);
        let start = Instant::now();
        let stop = method.stop(way, names);
        let stopped_us = stopped_after(meter, start);
        let at = meter.read();
        if stopped_us.is_some() {
            std::thread::sleep(HOLD);
        }
        let stayed = stopped_us.is_some() && meter.read() == at;
        let after = saves(way, names);
        let resumed = method.resume(way, names);
        let again = moves(meter, Duration::from_secs(2));
        row = row
            .plain("begun", begun)
            .word("stop", &stop.status)
            .us("stop_us", Some(stop.us))
            .us("stopped_us", stopped_us)
            .plain("stayed_stopped", stayed);
        if let Some(go) = resumed {
            row = row.word("go", &go.status).us("go_us", Some(go.us));
        }
        row = row.us("moves_again_us", again);
        if let (Some(before), Some(after)) = (before, after) {
            let more: Vec<String> = before
                .iter()
                .zip(after)
                .map(|(before, after)| after.wrapping_sub(*before).to_string())
                .collect();
            row = row.plain("saves_all_idle_cta_cilp", format!("[{}]", more.join(",")));
        }
    }
    let (ended, right) = job.settle(length + PATIENCE)?;
    row.plain("ended", ended).plain("right", right).say();
    match ended {
        true => Ok(right),
        false => Err(format!("{name}: the work did not go on")),
    }
}
