//! What the page shows, as JSON: the view of now with its explanations, the last minutes, and events.
//!
//! One reader asks the daemon for all pages together. A page gets everything at first, then what is new in each second.

use super::pace::{Ask, Pace};
use crate::admin::Admin;
use crate::events::Shown;
use crate::gpus::summaries;
use crate::node;
use crate::past::Series;
use crate::table::{Row, View, owner_json};
use crate::top::model::{Line, Model};
use anyhow::Result;
use gpuslice_wire::samples::Sample;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Events that a page shows.
const EVENTS: usize = 200;
/// Between the first two questions after a while without pages.
const FIRST_RATES: Duration = Duration::from_millis(250);
/// Version of the JSON.
const VERSION: u32 = 2;

/// See the file's head.
pub struct Feed {
    runtime_dir: PathBuf,
    /// The same, if the user had to give it.
    given_dir: Option<PathBuf>,
    admin: Option<Admin>,
    model: Option<Model>,
    events: VecDeque<Shown>,
    /// The start of the daemon whose events these are, and the number of the last one.
    daemon: u64,
    last: u64,
    /// What keeps the figures from being new.
    error: Option<String>,
    /// The end of the last interval that pages have.
    told_ns: u64,
    /// The number of the last event that pages have.
    told: u64,
    /// Pages show another daemon's numbers: they have to forget these.
    is_other: bool,
    pace: Pace,
}

impl Feed {
    /// A feed from a daemon, which is asked later.
    pub fn new(given_dir: Option<PathBuf>) -> Feed {
        Feed {
            runtime_dir: node::runtime_dir(given_dir.as_deref()),
            given_dir,
            admin: None,
            model: None,
            events: VecDeque::new(),
            daemon: 0,
            last: 0,
            error: None,
            told_ns: 0,
            told: 0,
            is_other: false,
            pace: Pace::default(),
        }
    }

    /// The server's clock has ticked; whether a stream is open. Asks the daemon for what is new, if a client wants it.
    pub fn tick(&mut self, has_streams: bool) {
        let now = Instant::now();
        if has_streams {
            self.pace.want(now);
        }
        let ask = self.pace.tick(now);
        self.follow(ask);
    }

    /// A client wants the figures.
    pub fn want(&mut self) {
        let ask = self.pace.want(Instant::now());
        self.follow(ask);
    }

    /// A daemon that is gone is told, and asked anew the next time.
    fn follow(&mut self, ask: Ask) {
        if ask == Ask::Nothing {
            return;
        }
        let mut done = self.ask(ask == Ask::Anew);
        if ask == Ask::Anew && done.is_ok() {
            std::thread::sleep(FIRST_RATES);
            done = self.ask(false);
        }
        self.pace.asked(Instant::now());
        self.error = done.err().map(|why| format!("{why:#}"));
        if self.error.is_some() {
            self.admin = None;
        }
    }

    fn ask(&mut self, is_anew: bool) -> Result<()> {
        let admin = match self.admin.take() {
            Some(admin) => admin,
            None => Admin::connect(&self.runtime_dir)?,
        };
        self.follow_events(&admin)?;
        let view = View::of(admin.list()?);
        match &mut self.model {
            Some(model) if is_anew => model.see_anew(view),
            Some(model) => model.see(view),
            None => {
                let model = self.model.insert(Model::new(view));
                model.given_dir.clone_from(&self.given_dir);
            }
        }
        if let Some(model) = &mut self.model {
            model.past.follow(&admin)?;
        }
        self.admin = Some(admin);
        Ok(())
    }

    /// Takes in new events. Another daemon counts anew, and remembers nothing of the one before.
    fn follow_events(&mut self, admin: &Admin) -> Result<()> {
        loop {
            let (rows, end) = admin.events(self.last)?;
            if std::mem::replace(&mut self.daemon, end.daemon_unix_ns) != end.daemon_unix_ns {
                (self.last, self.told, self.told_ns) = (0, 0, 0);
                self.events.clear();
                self.is_other = self.model.take().is_some();
                continue;
            }
            self.last = end.last;
            self.events.extend(rows.into_iter().filter_map(Shown::of));
            let old = self.events.len().saturating_sub(EVENTS);
            self.events.drain(..old);
            if !end.more {
                return Ok(());
            }
        }
    }

    /// Everything, for a page that opens.
    pub fn whole(&self) -> Value {
        self.json(true, 0, 0)
    }

    /// What is new since the last call; everything, if the daemon is another one.
    pub fn news(&mut self) -> Value {
        let is_other = self.error.is_none() && std::mem::take(&mut self.is_other);
        let value = self.json(is_other, self.told_ns, self.told);
        let past = self.model.iter().flat_map(|model| model.past.series.values());
        let ends = past.filter_map(|it| it.samples.back()).map(|it| it.end_ns);
        self.told_ns = ends.max().unwrap_or(0).max(self.told_ns);
        self.told = self.last;
        value
    }

    fn json(&self, is_whole: bool, after_ns: u64, after: u64) -> Value {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let mut value = json!({
            "schema": "gpuslice/web", "version": VERSION, "whole": is_whole,
            "unix_ms": unix.as_millis() as u64, "figures_ns": null, "error": self.error, "gpus": [], "slices": [],
            "series": [], "samples": [],
        });
        let events = self.events.iter().filter(|it| it.sequence > after);
        value["events"] = events.map(Shown::json).collect();
        let Some(model) = &self.model else {
            return value;
        };
        let (before, now) = (model.before(), model.now());
        value["figures_ns"] = now.now_ns.into();
        value["gpus"] = summaries(before, now).iter().map(crate::gpus::json_of).collect();
        value["slices"] = model.lines().iter().map(|line| slice(now, line)).collect();
        let past = &model.past;
        let series = past.series.iter().map(|(number, it)| series(*number, it));
        value["series"] = series.collect();
        let samples = past.series.values().flat_map(|it| &it.samples);
        let new = samples.filter(|it| it.end_ns > after_ns);
        value["samples"] = new.map(|it| sample(it, past.unix_of(it.end_ns))).collect();
        value
    }
}

fn series(number: u32, it: &Series) -> Value {
    json!({ "number": number, "container": it.container, "name": it.name, "gpu": it.gpu.to_string() })
}

/// Series, end in ms since 1970, length in ms; parts of the time: got, due, waited, idle; memory in bytes.
fn sample(it: &Sample, unix_ns: u64) -> Value {
    let part = |us: u64| (1e4 * crate::past::part(it, us)).round() / 1e4;
    let (got, waited, idle) =
        (part(it.got_us.into()), part(it.waited_us()), part(it.idle_us.into()));
    let due = f64::from(it.due_ppm / 100) / 1e4;
    let times = (unix_ns / 1_000_000, it.length_us / 1_000);
    json!([it.series, times.0, times.1, got, due, waited, idle, it.memory.0])
}

/// A slice with its figures and its explanation.
fn slice(now: &View, line: &Line<'_>) -> Value {
    let Line { row, finding, told, .. } = line;
    let growth = &finding.growth;
    let part = |ns: u64| growth.part(ns);
    json!({
        "container": row.container, "name": row.name, "gpu": row.gpu.to_string(), "index": now.index(row.gpu),
        "pod": owner_json(now, row), "class": row.class.name(), "weight": row.weight, "share": row.share,
        "share_limit": row.share_limit, "memory_cap": row.cap.0, "memory_limit": now.limit(row).limit.0,
        "memory_used": row.used.0, "memory_untracked": row.untracked.0, "holds": row.holds != 0,
        "processes": row.clients, "denied": row.denied, "late_turns": row.late_turns,
        "due": finding.due, "got": growth.got, "wait": part(growth.waited()), "idle": part(growth.idle),
        "reason": finding.why.name(), "why": told.label, "sentence": told.sentence, "try": told.advice,
        "notes": told.notes, "waits": waits(now, row),
    })
}

fn waits(now: &View, row: &Row) -> Vec<Value> {
    let time = now.time(row);
    let waits = time.into_iter().flat_map(|time| time.waits());
    let wait = waits.map(|(container, wait)| {
        json!({
            "behind": now.name(container.as_str()), "total_ns": wait.total_ns,
            "longest_ns": wait.longest_ns, "cause": wait.cause.name(),
        })
    });
    wait.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests;
    use gpuslice_wire::units::Bytes;

    /// A key that `gpuslice ps --json` has too has the same value.
    #[test]
    fn memory_is_that_of_ps() {
        let (used, untracked) = (Bytes(960 << 20), Bytes(4 << 20));
        let rows = vec![Row { used, untracked, ..tests::slice("train", 1, None, true, 0) }];
        let view = View { rows, ..View::default() };
        let model = Model::new(view.clone());
        let shown = slice(&view, &model.lines()[0]);
        let ps = &crate::table::json(&view)["slices"][0];
        for key in ["memory_used", "memory_untracked", "memory_cap", "memory_limit"] {
            assert_eq!(shown[key], ps[key], "{key}");
        }
    }
}
