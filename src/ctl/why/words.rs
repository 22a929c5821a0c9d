//! A finding in words: a label for a column, a sentence, and the command that helps.
//!
//! Names come from tenants and may hold spaces or quotes. A command that is shown is likely to be pasted into root's
//! shell, so it has a container's name only if that is plain and names one container, else the id.

use super::advice::{behind_advice, higher_limit, larger_part, limit, more_memory, set};
use super::{Finding, NOTABLE, Partner, Why, came_back, refused_ago};
use crate::table::{MemoryWait, Row, View};
use crate::text::{counted, cut};
use gpuslice_wire::policy::{Class, Policy};
use gpuslice_wire::snapshot::SuspensionState;
use gpuslice_wire::units::{Bytes, MIB};
use gpuslice_wire::waits::WaitCause;
use std::path::Path;
use unicode_width::UnicodeWidthStr;

/// A slice that got so much more than its due, of the GPU's time, got more than measuring explains.
const CLEARLY: f64 = 0.05;

/// A finding in words.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// A few words, for a column: see [`Told::fitted`].
    pub label: String,
    /// The container in these words.
    pub about: Option<String>,
    /// A sentence without its subject.
    pub sentence: String,
    /// The command that helps; a sentence where no command does.
    pub advice: Option<String>,
    /// What happened lately beside the reason.
    pub notes: Vec<String>,
}

impl Told {
    /// The few words in `width` cells. The reason is worth more than the name of a container in it, which is cut or
    /// left out.
    pub fn fitted(&self, width: usize) -> String {
        let over = self.label.width().saturating_sub(width);
        let Some(name) = self.about.as_ref().filter(|_| over > 0) else {
            return cut(&self.label, width);
        };
        match name.width().saturating_sub(over) {
            0 | 1 => {
                let reason = self.label.replacen(name.as_str(), "", 1);
                cut(reason.trim_start_matches(':').trim(), width)
            }
            room => self.label.replacen(name.as_str(), &cut(name, room), 1),
        }
    }
}

/// A length of time, ns, in the unit that suits it.
pub fn duration(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        1_000_000_000..60_000_000_000 => format!("{:.1} s", ns as f64 / 1e9),
        60_000_000_000..3_600_000_000_000 => format!("{} min", ns / 60_000_000_000),
        _ => format!("{} h", ns / 3_600_000_000_000),
    }
}

/// A part of the time in whole percent.
pub fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

/// Advice for a daemon whose runtime directory the reader had to give: a command needs it too.
pub fn with_dir(advice: Option<String>, dir: Option<&Path>) -> Option<String> {
    let is_command = |it: &str| it.starts_with("gpuslice ");
    Some(match (advice?, dir) {
        (command, Some(dir)) if is_command(&command) => {
            format!("{command} --runtime-dir {}", quoted(&dir.display().to_string()))
        }
        (advice, _) => advice,
    })
}

/// A word for a shell.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,=@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

impl Finding {
    /// The finding about `row` in words.
    pub fn told(&self, now: &View, row: &Row) -> Told {
        let (label, sentence, advice) = match &self.why {
            Why::Behind { container, cause, longest, late } => {
                self.behind(now, row, (container, *cause), (*longest, *late))
            }
            Why::Beside { container } => self.beside(now, row, container),
            Why::Weight | Why::Share | Why::Policy => self.queued(now, row),
            Why::Limit | Why::PastLimit(_) | Why::PolicyLimit | Why::NoTurns => {
                self.limited(now, row)
            }
            Why::Suspended(state) => suspended(now, row, *state),
            Why::Frozen => frozen(now, row),
            Why::Refused(ago) => refused(now, row, *ago),
            Why::Lent(wait) => lent(now, row, *wait),
            Why::Gang { gpu, behind } => {
                let there = now
                    .rows
                    .iter()
                    .find(|it| Some(it.gpu) == *gpu && it.container == row.container);
                let gpu = gpu.map_or("other GPUs".to_owned(), |gpu| now.called(gpu));
                let who = behind.as_ref().map(|(it, _)| now.name(it));
                let has = who.as_ref().map_or(String::new(), |who| format!(", which {who} has"));
                (
                    format!("gang: {gpu}"),
                    format!("waits {} for {gpu} of its gang{has}", percent(self.part)),
                    behind
                        .as_ref()
                        .zip(there)
                        .map(|((it, cause), there)| behind_advice(now, there, it, *cause)),
                )
            }
            Why::Idle | Why::NoProcess | Why::Nothing | Why::Away => self.alone(now, row),
        };
        let about = match &self.why {
            Why::Behind { container, .. } | Why::Beside { container } => Some(now.name(container)),
            _ => None,
        };
        Told { label, about, sentence, advice, notes: self.notes(now, row) }
    }

    /// Behind one container.
    fn behind(
        &self,
        now: &View,
        row: &Row,
        (container, cause): (&str, WaitCause),
        (longest, late): (u64, u64),
    ) -> (String, String, Option<String>) {
        let name = now.name(container);
        let (part, longest) = (percent(self.part), duration(longest));
        let other = now.rows.iter().find(|it| it.container == container && it.gpu == row.gpu);
        let turns = counted(late, "late turn");
        let turns = if late > 0 { format!(" ({turns})") } else { String::new() };
        let (short, why) = match cause {
            WaitCause::LongKernel => {
                ("long kernels", format!("whose queued work lasts up to {longest}{turns}"))
            }
            WaitCause::NoDrain => ("no drain", format!("whose work does not end in time{turns}")),
            WaitCause::HigherClass => {
                let class = other.map_or(Class::High, |it| it.class);
                ("higher class", format!("which is of a higher class ({class})"))
            }
            WaitCause::Gang => (
                "its gang",
                "for whose gang the GPU is reserved until its other GPUs are free".into(),
            ),
            WaitCause::Queue => ("turns", "which has its turns".into()),
        };
        let advice = behind_advice(now, row, container, cause);
        (format!("{name}: {short}"), format!("waits {part}: behind {name}, {why}"), Some(advice))
    }

    /// Beside the work of one container: the culprit is the one that drained late more often.
    fn beside(&self, now: &View, row: &Row, container: &str) -> (String, String, Option<String>) {
        let (name, part) = (now.name(container), percent(self.part));
        let other = now.rows.iter().find(|it| it.container == container && it.gpu == row.gpu);
        let culprit = other.filter(|it| it.late_turns >= row.late_turns);
        let kernels = match culprit {
            Some(_) => "whose kernels outlast its turns",
            None => "since its own kernels outlast its turns",
        };
        let sentence = format!(
            "runs beside {name} for {part} of the time, {kernels}: the GPU itself divides its time between them"
        );
        let advice = culprit.map(|it| limit(now, row, it));
        (format!("beside {name}"), sentence, advice)
    }

    /// Its limit holds it back, or its policy has no turns.
    fn limited(&self, now: &View, row: &Row) -> (String, String, Option<String>) {
        let (part, gpu) = (percent(self.part), now.index(row.gpu));
        let limit = percent(f64::from(row.cap_ppm) / 1e6);
        match &self.why {
            Why::Limit => (
                format!("limit {limit}"),
                format!("held back {part} by its share limit of {limit}"),
                Some(set(now, row, &higher_limit(now, row))),
            ),
            Why::PastLimit(ppm) => {
                let limit = ppm.map(|ppm| percent(f64::from(ppm) / 1e6));
                let (of, label) = match limit {
                    Some(limit) => (format!(" of {limit}"), format!("past limit {limit}")),
                    None => (String::new(), "past limit".to_owned()),
                };
                (label, format!("was held back {part} by a limit{of}, which no longer holds"), None)
            }
            Why::PolicyLimit => (
                format!("{} {limit}", now.policy(row.gpu)),
                format!("held back {part}: policy {} gives it {limit}", now.policy(row.gpu)),
                Some(match row.share {
                    Some(share) if now.policy(row.gpu) == Policy::Fixed && share < 100 => {
                        set(now, row, &format!("--share-limit {}", (2 * share).min(100)))
                    }
                    _ => format!("gpuslice policy {gpu} soft"),
                }),
            ),
            _ => (
                "native".to_owned(),
                "runs beside others without turns: policy native divides the GPU by no weight"
                    .into(),
                Some(format!("gpuslice policy {gpu} soft")),
            ),
        }
    }

    /// Its part of the GPU's time is what the node's rules give it.
    fn queued(&self, now: &View, row: &Row) -> (String, String, Option<String>) {
        let (part, due) = (percent(self.part), percent(self.due));
        let charged = self.growth.part(self.growth.gpu);
        let got = percent(charged);
        let behind = &self.growth.behind;
        let most = behind.iter().max_by_key(|by| by.by_cause.iter().sum::<u64>());
        let beside =
            most.map_or(String::new(), |by| format!(", most behind {}", now.name(&by.container)));
        let waits = format!("waits {part}{beside}");
        let rivals: Vec<&str> = behind.iter().map(|by| by.container.as_str()).collect();
        // A slice that has more than its due needs no more.
        let has_more = charged > self.due + CLEARLY;
        let advice = (!has_more).then(|| larger_part(now, row, &rivals));
        let (label, rule) = match &self.why {
            Why::Share => {
                let share = row.share.unwrap_or(0);
                (format!("share {share}%"), format!("its share is {share} %"))
            }
            Why::Policy => {
                let policy = now.policy(row.gpu);
                let rule = format!("policy {policy} counts no weights, it is due {due}");
                (policy.to_string(), rule)
            }
            _ => {
                let weight = row.weight.unwrap_or(1);
                let share = row.share.map(|share| format!("share of {share} % and its "));
                let share = share.unwrap_or_default();
                let rule = format!("by its {share}weight of {weight} it is due {due}");
                (format!("weight {weight}"), rule)
            }
        };
        (label, format!("{waits}: {rule}, and it got {got}"), advice)
    }

    /// No other container is the reason.
    fn alone(&self, now: &View, row: &Row) -> (String, String, Option<String>) {
        let part = percent(self.part);
        match self.why {
            Why::Idle => (
                "idle".to_owned(),
                format!(
                    "has no work for the GPU {part} of the time: it loads data, computes on the CPU, or waits for input"
                ),
                Some("no GPU setting helps: give the program more CPU or faster input".to_owned()),
            ),
            Why::NoProcess => (
                "no process".to_owned(),
                "has no process that uses the GPU: its program has not started to, or has ended"
                    .into(),
                None,
            ),
            Why::Away => {
                let back = came_back(now, row);
                let ago =
                    back.map_or(String::new(), |(ago, _)| format!(", until {} ago", duration(ago)));
                let length =
                    self.away(back).map_or(String::new(), |length| format!(" for {length}"));
                (
                    "daemon away".to_owned(),
                    format!(
                        "the daemon was away{length}{ago}: containers ran without turns and got no more memory"
                    ),
                    Some("journalctl -u gpusliced".to_owned()),
                )
            }
            _ => {
                let runs = percent(self.growth.part(self.growth.running));
                let here = if self.partner.is_some() { " on this GPU" } else { "" };
                let uses = match (self.growth.is_open, self.growth.got) {
                    (false, _) => String::new(),
                    (true, Some(got)) => format!(" for its launches, and uses {}", percent(got)),
                    (true, None) => {
                        " for its launches, and what it uses of that is not known".to_owned()
                    }
                };
                (
                    "-".to_owned(),
                    format!(
                        "has the GPU {runs} of the time{uses}: nothing{here} keeps it from more"
                    ),
                    None,
                )
            }
        }
    }

    /// How long the daemon was away, where that is known: `back` is how long ago it came back, and its last absence.
    /// After a restart the account has no more than its wait for processes to come back.
    fn away(&self, back: Option<(u64, Option<u64>)>) -> Option<String> {
        let (absent, growth) = (duration(self.growth.absent), &self.growth);
        match back {
            _ if growth.is_anew => Some(format!("up to {absent}")),
            Some((_, None)) => None,
            _ if growth.part(growth.absent) >= NOTABLE => Some(absent),
            Some((_, Some(ns))) => Some(duration(ns)),
            None => None,
        }
    }

    /// What happened lately beside the reason.
    fn notes(&self, now: &View, row: &Row) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(Partner { gpu, behind, part }) = &self.partner {
            let has =
                behind.as_ref().map_or(String::new(), |it| format!(", which {} has", now.name(it)));
            let (gpu, part) = (now.called(*gpu), percent(*part));
            notes.push(format!("it is held back {part} on {gpu} of its gang{has}"));
        }
        if let (Some(ago), false) = (refused_ago(now, row), matches!(self.why, Why::Refused(_))) {
            notes.push(format!(
                "an allocation of {} was refused {} ago, with {} left",
                row.denied_need,
                duration(ago),
                row.denied_left
            ));
        }
        if let (Some((ago, _)), false) = (came_back(now, row), self.why == Why::Away) {
            notes.push(format!("the daemon was away until {} ago", duration(ago)));
        }
        if now.is_over(row) {
            let limit = now.limit(row).limit;
            let what = if limit > row.cap { "memory limit" } else { "cap" };
            notes.push(format!("it holds more than its {what} of {limit}, and cannot grow"));
        }
        let suspended = self.growth.suspended;
        if !matches!(self.why, Why::Suspended(_)) && self.growth.part(suspended) >= NOTABLE {
            notes.push(format!("it was suspended for {} of that time", duration(suspended)));
        }
        let wanted = now.limit(row).wanted;
        if wanted > Bytes::ZERO {
            let advice = "or it may be suspended: others lack what is promised to them";
            notes.push(format!(
                "it should give back {wanted} of the memory beyond its cap, {advice}"
            ));
        }
        notes
    }
}

/// A suspended container, or one on the way.
fn suspended(now: &View, row: &Row, state: SuspensionState) -> (String, String, Option<String>) {
    let memory = now.on_host(row);
    let (sentence, advice) = match state {
        SuspensionState::Suspending => {
            (format!("is being suspended: {memory} move to the host, and its processes wait"), None)
        }
        // It has no room yet: a command to resume it would be refused.
        SuspensionState::Suspended if now.reclaimed.contains(&row.container) => (
            format!(
                "is suspended, with {memory} on the host, because others lacked what is promised to them: the daemon \
                 resumes it when there is room"
            ),
            None,
        ),
        SuspensionState::Suspended => (
            format!(
                "is suspended, with {memory} on the host: its processes wait until it is resumed"
            ),
            Some(format!("gpuslice resume {}", now.handle(&row.container))),
        ),
        SuspensionState::Resuming => (
            format!("is being resumed: {memory} move back to the GPU, and its processes wait"),
            None,
        ),
    };
    (state.name().to_owned(), sentence, advice)
}

/// A container that is frozen.
fn frozen(now: &View, row: &Row) -> (String, String, Option<String>) {
    let held = row.used.saturating_add(row.untracked).max(row.reserved);
    let sentence = format!(
        "is frozen: it holds {held}, its cap is {}, and a part of that was taken behind the shim",
        row.cap
    );
    let fits = set(now, row, &format!("--memory {}MiB", held.0.div_ceil(MIB)));
    ("frozen".to_owned(), sentence, Some(fits))
}

/// The slice that has borrowed what this one lacks, by its handle; how much it has beyond its cap, and what frees that.
fn borrower(now: &View, row: &Row, need: Bytes) -> Option<(String, Bytes, String)> {
    let other = now.borrower_of(row, need)?;
    let name = now.handle(&other.container);
    let frees = format!("gpuslice suspend {name}");
    Some((name, now.borrowed(other), frees))
}

/// An allocation that waits for memory that others have borrowed.
fn lent(now: &View, row: &Row, wait: MemoryWait) -> (String, String, Option<String>) {
    let waited = duration(now.now_ns.saturating_sub(wait.since_ns));
    let sentence = format!("waits for {} within its cap since {waited}", wait.need);
    let (sentence, advice) = match borrower(now, row, wait.need) {
        Some((other, lent, frees)) => {
            let has =
                format!(": {other} has {lent} beyond its own, and is to give back what is missing");
            (sentence + &has, Some(frees))
        }
        None => (sentence, None),
    };
    ("memory lent".to_owned(), sentence, advice)
}

/// A refused allocation.
fn refused(now: &View, row: &Row, ago: u64) -> (String, String, Option<String>) {
    let (need, left) = (row.denied_need, row.denied_left);
    let unused = match row.denied_credit {
        Bytes::ZERO => String::new(),
        bytes => format!("; {bytes} were unused credit of its other processes"),
    };
    let sentence = format!(
        "was refused memory {} ago: it asked for {need}, and could get {left}; its cap is {}{unused}",
        duration(ago),
        row.cap
    );
    let (sentence, advice) = match borrower(now, row, need) {
        Some((other, lent, frees)) => {
            let has = format!("; {other} has {lent} beyond its own cap, and did not give it back");
            (sentence + &has, frees)
        }
        None => (sentence, more_memory(now, row)),
    };
    (format!("memory refused {} ago", duration(ago)), sentence, Some(advice))
}
