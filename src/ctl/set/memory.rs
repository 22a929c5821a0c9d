//! The amounts of memory that `gpuslice set` changes: caps and limits on GPUs, and the cap on pinned host memory.
//!
//! Each is a command of its own to the daemon, and has the command that sets it back.

use super::{Options, OrNone, Told};
use crate::admin::Admin;
use crate::slice::limit_below_cap;
use crate::table::{Row, View};
use crate::why::with_dir;
use anyhow::{Context, Result, bail};
use gpuslice_wire::admin::{Answer, Command, MemoryAsk, NO_CAP};
use gpuslice_wire::ids::{ContainerId, GpuUuid, Lane};
use gpuslice_wire::select::{GpuRef, GpuSelector};
use gpuslice_wire::units::{Bytes, MIB};
use serde_json::Value;

/// What follows a GPU's name where its memory limit is meant.
const LIMIT: &str = ": memory limit";

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amount {
    /// The cap on a GPU.
    Cap,
    /// The memory limit on a GPU; none for the cap.
    Limit,
    /// The cap on pinned host memory; none for no cap.
    Pinned,
}

/// An amount of memory and its new value.
#[derive(Clone, Debug)]
pub(super) struct Step {
    amount: Amount,
    container: ContainerId,
    lane: Lane,
    gpu: Option<GpuUuid>,
    /// What to call the amount.
    pub(super) label: String,
    /// Its value before.
    was: Bytes,
    /// The cap before: a limit of the same size is none.
    cap: Bytes,
    /// The limit before.
    limit: Bytes,
    new: Option<MemoryAsk>,
    /// The value in force after the change.
    now: Bytes,
    /// A limit that equals the cap, where the same command changes the cap: the daemon changes both.
    follows: bool,
}

/// The changes of memory that the options ask for, in an order in which the daemon takes them.
///
/// # Errors
/// The slice has no such GPU.
pub(super) fn steps(
    options: &Options,
    view: &View,
    (id, rows): (&str, &[&Row]),
) -> Result<Vec<Step>> {
    let container = ContainerId::new(id).with_context(|| id.to_owned())?;
    let of_gpu = |amount, new, row: &Row| {
        let (gpu, limit) = (view.called(row.gpu), view.limit(row).limit);
        let (label, was) = match amount {
            Amount::Limit => (format!("{gpu}{LIMIT}"), limit),
            _ => (gpu, row.cap),
        };
        let (lane, gpu, cap) = (row.lane, Some(row.gpu), row.cap);
        let follows = options.memory.is_some() && limit == cap;
        Step { amount, container, lane, gpu, label, was, cap, limit, new, now: was, follows }
    };
    let chosen = || chosen(view, rows, options);
    limit_holds_cap(options, view, rows)?;
    let (mut caps, mut limits) = (Vec::new(), Vec::new());
    if let Some(cap) = options.memory {
        caps.extend(chosen()?.into_iter().map(|row| of_gpu(Amount::Cap, Some(cap), row)));
    }
    if let Some(OrNone(limit)) = options.memory_limit {
        limits.extend(chosen()?.into_iter().map(|row| of_gpu(Amount::Limit, limit, row)));
    }
    if let Some(OrNone(cap)) = options.pinned {
        let was = rows.iter().find_map(|row| row.pinned_cap).unwrap_or(NO_CAP);
        caps.push(Step {
            amount: Amount::Pinned,
            container,
            lane: Lane::HOST,
            gpu: None,
            label: "pinned host memory".to_owned(),
            was,
            cap: was,
            limit: was,
            new: Some(MemoryAsk::Exactly(cap.unwrap_or(NO_CAP))),
            now: was,
            follows: false,
        });
    }
    // A limit is never below the cap, so the one that makes room for the other goes first.
    Ok(match limit_first(options, view, rows) {
        true => limits.into_iter().chain(caps).collect(),
        false => caps.into_iter().chain(limits).collect(),
    })
}

impl Step {
    /// Makes the change; a value that is there already is not sent, unless the cap's change took it along.
    pub(super) fn make(&mut self, admin: &Admin) -> Result<Told> {
        let asked = match (self.amount, self.new) {
            (Amount::Limit, None) => Some(self.cap),
            (_, Some(MemoryAsk::Exactly(bytes))) => Some(bytes),
            _ => None,
        };
        let is_moved = self.amount == Amount::Limit && self.follows;
        if asked == Some(self.was) && !is_moved {
            return Ok(self.told(self.was));
        }
        let (now, reserved) = self.send(admin, self.new)?;
        self.now = now;
        let told = self.told(now);
        let (what, limit) = match self.amount {
            Amount::Limit => ("limit", now),
            // Without a limit above the old cap, the limit is the new cap.
            _ => ("cap", Some(self.limit).filter(|limit| *limit > self.was).unwrap_or(now)),
        };
        let text = told.text + &above(what, now, limit, reserved);
        Ok(Told { text, ..told })
    }

    /// Sets the value from before. A limit above the old cap that equalled the new one goes along with the cap, so it
    /// is set as well.
    pub(super) fn undo(&self, admin: &Admin) -> Result<()> {
        let before = match self.amount {
            Amount::Limit if self.was == self.cap => None,
            _ => Some(MemoryAsk::Exactly(self.was)),
        };
        self.send(admin, before)?;
        if self.amount == Amount::Cap && self.limit > self.cap && self.now == self.limit {
            let limit = Some(MemoryAsk::Exactly(self.limit));
            Step { amount: Amount::Limit, ..self.clone() }.send(admin, limit)?;
        }
        Ok(())
    }

    /// Sends a value; returns the one that is in force, and the memory held.
    fn send(&self, admin: &Admin, value: Option<MemoryAsk>) -> Result<(Bytes, Bytes)> {
        let (container, lane) = (self.container, self.lane);
        let command = match (self.amount, value) {
            (Amount::Limit, limit) => Command::Relimit { container, lane, limit },
            (_, Some(memory)) => Command::Resize { container, lane, memory },
            (_, None) => bail!("{}: there is no cap to set", self.label),
        };
        // A refusal of a limit begins with what it is; the GPU is missing.
        let place = self.label.strip_suffix(LIMIT).unwrap_or(&self.label);
        match admin.ask(&command).with_context(|| place.to_owned())? {
            Answer::Resized { cap, reserved } => Ok((cap, reserved)),
            _ => bail!("unexpected answer from the daemon; check that it has the same version"),
        }
    }

    /// The old value and `now`.
    fn told(&self, now: Bytes) -> Told {
        let what = match self.amount {
            Amount::Cap => "memory",
            Amount::Limit => "memory-limit",
            Amount::Pinned => "pinned",
        };
        let number = |bytes: Bytes| match bytes {
            NO_CAP => Value::Null,
            bytes => bytes.0.into(),
        };
        let text = |bytes: Bytes| match bytes {
            NO_CAP => "no cap".to_owned(),
            bytes => bytes.to_string(),
        };
        let values = [number(self.was), number(now)];
        Told::of((what, self.gpu, &self.label), values, [&text(self.was), &text(now)])
    }
}

/// Whether a new memory limit is above the present one, so that a larger cap may follow it.
fn limit_first(options: &Options, view: &View, rows: &[&Row]) -> bool {
    let Some(OrNone(Some(limit))) = options.memory_limit else {
        return false;
    };
    rows.iter().any(|row| amount(view, row, limit) > view.limit(row).limit)
}

/// An amount of memory on a slice's GPU: of a part as many MiB as fit in it.
fn amount(view: &View, row: &Row, asked: MemoryAsk) -> Bytes {
    match asked {
        MemoryAsk::Exactly(bytes) => bytes,
        MemoryAsk::Ratio { part, whole } => {
            let total = view.gpu(row.gpu).map_or(0, |gpu| gpu.total.0);
            let mib = u128::from(total / MIB) * u128::from(part) / u128::from(whole.max(1));
            Bytes(u64::try_from(mib).unwrap_or(u64::MAX).saturating_mul(MIB))
        }
    }
}

/// Refuses a new limit below a new cap before the first of them is changed.
fn limit_holds_cap(options: &Options, view: &View, rows: &[&Row]) -> Result<()> {
    let (Some(cap), Some(OrNone(Some(limit)))) = (options.memory, options.memory_limit) else {
        return Ok(());
    };
    for row in chosen(view, rows, options)? {
        let [cap, limit] = [cap, limit].map(|asked| amount(view, row, asked));
        if limit < cap {
            let gpu = view.called(row.gpu);
            bail!("{gpu}: {}", limit_below_cap(&limit.to_string(), &cap.to_string()));
        }
    }
    Ok(())
}

/// The rows to change: all of the slice's, or those of the GPUs that are named.
fn chosen<'a>(view: &View, rows: &[&'a Row], options: &Options) -> Result<Vec<&'a Row>> {
    if rows.is_empty() {
        bail!("the slice exists only as a record without a daemon; gpuslice rm removes it");
    }
    let gpus = options.gpus.as_deref();
    let Some(GpuSelector::List(list)) = gpus.map(GpuSelector::parse).transpose()? else {
        return Ok(rows.to_vec());
    };
    let command = |words: &str| {
        with_dir(Some(words.to_owned()), options.runtime_dir.as_deref()).unwrap_or_default()
    };
    let one = |gpu: GpuRef| {
        let is_meant = |row: &&&Row| match gpu {
            GpuRef::Index(index) => view.index(row.gpu) == index.0,
            GpuRef::Uuid(uuid) => row.gpu == uuid,
        };
        match (rows.iter().find(is_meant), gpu) {
            (Some(row), _) => Ok(*row),
            (None, GpuRef::Index(index)) => {
                bail!("the slice has no GPU {}; {} lists its GPUs", index.0, command("gpuslice ps"))
            }
            (None, GpuRef::Uuid(uuid)) => {
                let list = command("gpuslice ps -o NAME,UUID");
                bail!("the slice has no {uuid}; {list} lists its GPUs")
            }
        }
    };
    list.into_iter().flatten().map(one).collect()
}

/// The memory held above a value that was just set, and its consequence; empty if none is.
fn above(what: &str, value: Bytes, limit: Bytes, held: Bytes) -> String {
    if held <= value {
        return String::new();
    }
    let follows = match held > limit {
        true => format!("allocations are refused until usage falls below the {what}"),
        false => "that is borrowed, and wanted back when others ask for what is promised to them"
            .to_owned(),
    };
    format!("; {held} are held, {} above it: {follows}", held.saturating_sub(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::{gpu, slice};
    use gpuslice_wire::units::GIB;

    #[test]
    fn the_rows_of_some_gpus_or_all() {
        let other = Row { gpu: GpuUuid([2; 16]), lane: Lane(1), ..slice("a", 1, None, true, 0) };
        let view = View {
            gpus: vec![gpu(1, 4), gpu(2, 7)],
            rows: vec![slice("a", 1, None, true, 0), other],
            ..View::default()
        };
        let all: Vec<&Row> = view.rows.iter().collect();
        let lanes = |gpu: Option<&str>| {
            let gpu = gpu.map(|gpu| ["--gpus", gpu, "--runtime-dir", "/d"]);
            let rows = chosen(&view, &all, &options(gpu.as_ref().map_or(&[], |words| &words[..])));
            rows.map(|rows| rows.iter().map(|row| row.lane).collect::<Vec<_>>())
        };
        assert_eq!(lanes(None).ok(), Some(vec![Lane(0), Lane(1)]));
        let named = |text: &str| lanes(Some(text));
        assert_eq!(named("all").ok(), Some(vec![Lane(0), Lane(1)]));
        assert_eq!(named("7").ok(), Some(vec![Lane(1)]));
        assert_eq!(named("7,4").ok(), Some(vec![Lane(1), Lane(0)]));
        let uuid = |byte| GpuUuid([byte; 16]).to_string();
        assert_eq!(named(&uuid(1)).ok(), Some(vec![Lane(0)]));
        assert!(named(&uuid(3)).is_err());
        let none = named("4,1").expect_err("a lane is no index").to_string();
        assert_eq!(none, "the slice has no GPU 1; gpuslice ps --runtime-dir /d lists its GPUs");
        let none = named(&uuid(3)).expect_err("none of its GPUs").to_string();
        assert!(none.ends_with("; gpuslice ps -o NAME,UUID --runtime-dir /d lists its GPUs"));
        assert!(chosen(&view, &[], &options(&[])).is_err());
    }

    #[test]
    fn a_cap_below_what_is_held_is_told() {
        let line = |limit| above("cap", Bytes(GIB / 2), Bytes(limit), Bytes(GIB));
        let refused = "allocations are refused until usage falls below the cap";
        assert_eq!(line(GIB / 2), format!("; 1GiB are held, 512MiB above it: {refused}"));
        assert!(line(GIB).starts_with("; 1GiB are held, 512MiB above it: that is borrowed"));
        assert_eq!(above("cap", Bytes(GIB), Bytes(GIB), Bytes(GIB)), "");
    }

    fn options(words: &[&str]) -> Options {
        let words = [&["set", "a"], words].concat();
        let parsed = <Options as clap::Args>::augment_args(clap::Command::new("set"));
        let matches = parsed.get_matches_from(words);
        <Options as clap::FromArgMatches>::from_arg_matches(&matches).expect("options")
    }

    /// The commands go out in an order in which the cap is never above the limit, and each knows what was before.
    #[test]
    fn each_amount_is_a_step_with_its_old_value() {
        let view = View {
            gpus: vec![gpu(1, 4)],
            rows: vec![slice("a", 1, None, true, 0)],
            ..View::default()
        };
        let rows: Vec<&Row> = view.rows.iter().collect();
        let labels = |words: &[&str]| {
            let steps = steps(&options(words), &view, ("a", &rows)).expect("steps");
            steps.into_iter().map(|it| (it.label, it.was)).collect::<Vec<_>>()
        };
        let (cap, limit) = ("gpu 4".to_owned(), "gpu 4: memory limit".to_owned());
        let (cap, limit) = ((cap, Bytes(GIB)), (limit, Bytes(GIB)));
        let more = ["--memory", "2GiB", "--memory-limit", "3GiB"];
        assert_eq!(labels(&more), [limit.clone(), cap.clone()]);
        let less = ["--memory", "256MiB", "--memory-limit", "512MiB"];
        assert_eq!(labels(&less), [cap, limit]);
        let pinned = ("pinned host memory".to_owned(), NO_CAP);
        assert_eq!(labels(&["--pinned", "1GiB"]), [pinned]);
    }

    /// Nothing is changed first: the daemon would refuse the second step.
    #[test]
    fn a_limit_below_the_cap_of_the_same_command_is_refused() {
        let view = View {
            gpus: vec![gpu(1, 4)],
            rows: vec![slice("a", 1, None, true, 0)],
            ..View::default()
        };
        let rows: Vec<&Row> = view.rows.iter().collect();
        let of = |cap, limit| {
            let words = ["--memory", cap, "--memory-limit", limit];
            steps(&options(&words), &view, ("a", &rows)).map_err(|why| why.to_string())
        };
        let advice = "ask for a limit of at least 5GiB, or for a cap of at most 4GiB";
        let why = of("5GiB", "4GiB").expect_err("below");
        assert_eq!(why, format!("gpu 4: memory limit 4GiB is below the cap 5GiB; {advice}"));
        assert!(of("1/2", "1/4").is_err() && of("1/2", "256MiB").is_err());
        assert!(of("1/2", "512MiB").is_ok() && of("5GiB", "none").is_ok());
    }

    #[test]
    fn a_cap_that_is_lifted_and_one_that_is_there_are_told() {
        let capped = Row { pinned_cap: Some(Bytes(GIB)), ..slice("a", 1, None, true, 0) };
        let view = View { rows: vec![capped], ..View::default() };
        let rows: Vec<&Row> = view.rows.iter().collect();
        let step = |words: &[&str]| {
            let steps = steps(&options(words), &view, ("a", &rows)).expect("steps");
            steps.into_iter().next().expect("one")
        };
        let none = step(&["--pinned", "none"]);
        assert_eq!(none.new, Some(MemoryAsk::Exactly(NO_CAP)));
        let told = none.told(NO_CAP);
        assert_eq!(told.text, "pinned host memory: 1GiB -> no cap");
        assert_eq!((&told.values[0], &told.values[1]), (&GIB.into(), &Value::Null));
        let same = step(&["--pinned", "1GiB"]).told(Bytes(GIB));
        assert!(same.is_same);
        assert_eq!(same.text, "pinned host memory: 1GiB already; nothing to change");
        assert!(!step(&["--pinned", "1025MiB"]).told(Bytes(GIB + MIB)).is_same);
    }
}
