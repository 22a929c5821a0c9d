//! `gpuslice set`: changes a slice's caps, weight, share, limit or priority while its container runs.
//!
//! A cap takes effect with the next allocation. A cap below the memory held takes nothing away: growth
//! is refused until enough is freed. A weight, a share, a limit and a priority take effect with the next turn;
//! past GPU time stays charged.

use crate::admin::Admin;
use crate::node;
use crate::out;
use crate::rm::find;
use crate::slice::parse_memory;
use crate::table::{Row, View};
use anyhow::{Context, Result, bail};
use gpuslice_wire::admin::{Answer, Command, MemoryAsk};
use gpuslice_wire::ids::{ContainerId, Lane};
use gpuslice_wire::policy::{Change, Class};
use gpuslice_wire::select::GpuRef;
use gpuslice_wire::units::{Bytes, Percent, Weight};
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `gpuslice set`.
#[derive(clap::Args)]
pub struct Options {
    /// Id, id prefix, or name as shown by `gpuslice ps`
    #[arg(value_name = "CONTAINER", add = crate::complete::slices())]
    container: String,
    /// Set the GPU memory cap, on all its GPUs or the one given by --gpu; a size, or a part of the GPU's memory: 1/4
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    memory: Option<MemoryAsk>,
    /// Restrict --memory to this GPU, by its index on the node or its UUID
    #[arg(long, value_name = "GPU", requires = "memory", allow_hyphen_values = true, add = crate::complete::gpus())]
    gpu: Option<GpuRef>,
    /// Set the pinned host memory cap
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, allow_hyphen_values = true)]
    pinned: Option<Bytes>,
    /// Set the scheduling weight, 1 to 1000, on all its GPUs, or none
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    weight: Option<Change<Weight>>,
    /// Set the share of GPU time in percent, or none
    #[arg(long, value_name = "PCT", allow_hyphen_values = true)]
    share: Option<Change<Percent>>,
    /// Set the limit of GPU time in percent, or none
    #[arg(long, value_name = "PCT", allow_hyphen_values = true)]
    share_limit: Option<Change<Percent>>,
    /// Set the priority: high, normal or best-effort
    #[arg(long, value_name = "CLASS", allow_hyphen_values = true)]
    priority: Option<Class>,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

impl Options {
    /// Whether an option asks for a change.
    fn changes(&self) -> bool {
        let memory = self.memory.is_some() || self.pinned.is_some();
        let share = self.share.is_some() || self.share_limit.is_some();
        memory || share || self.weight.is_some() || self.priority.is_some()
    }
}

/// The slice as people call it: its name if it has one, else its id.
fn called<'a>(id: &'a str, rows: &[&'a Row]) -> &'a str {
    let name = rows.first().map(|row| row.name.as_str());
    name.filter(|name| !name.is_empty()).unwrap_or(id)
}

/// Runs `gpuslice set`.
///
/// # Errors
/// No daemon answers; no slice or GPU matches, or several do; the request does not fit.
pub fn main(options: &Options) -> Result<ExitCode> {
    if !options.changes() {
        bail!(
            "nothing to set; give --memory, --pinned, --weight, --share, --share-limit or --priority"
        );
    }
    let dir = node::runtime_dir(options.runtime_dir.as_deref());
    let admin = Admin::connect(&dir)?;
    let view = View::of(admin.list()?);
    let id = find(&view, &options.container, &dir)?;
    let mut told = Vec::new();
    let done = change(options, &admin, (&view, &id), &mut told);
    for line in told {
        out::line(&line)?;
    }
    done.map(|()| ExitCode::SUCCESS)
}

/// The options of `gpuslice set` for a container: one option and its value, as on its command line.
///
/// # Errors
/// The value is malformed; the text for the person.
pub fn options(container: &str, option: &str, value: &str) -> Result<Options, String> {
    let all = ["gpuslice set".to_owned(), container.to_owned(), format!("{option}={value}")];
    let parsed = <Options as clap::Args>::augment_args(clap::Command::new("gpuslice set"))
        .try_get_matches_from(all)
        .and_then(|matches| <Options as clap::FromArgMatches>::from_arg_matches(&matches));
    parsed.map_err(|why| {
        let text = why.to_string();
        let first = text.lines().next().unwrap_or_default();
        first.strip_prefix("error: ").unwrap_or(first).to_owned()
    })
}

/// Changes the container `id` and adds a line for each change that was made, also before an error.
///
/// # Errors
/// As [`main`].
pub fn change(
    options: &Options,
    admin: &Admin,
    (view, id): (&View, &str),
    told: &mut Vec<String>,
) -> Result<()> {
    let rows: Vec<&Row> = view.rows.iter().filter(|row| row.container == id).collect();
    resize(options, admin, view, (id, &rows), told)?;
    retune(options, admin, (id, &rows), told)
}

/// Changes the memory caps.
fn resize(
    options: &Options,
    admin: &Admin,
    view: &View,
    (id, rows): (&str, &[&Row]),
    lines: &mut Vec<String>,
) -> Result<()> {
    let container = ContainerId::new(id).with_context(|| id.to_owned())?;
    let mut changes = Vec::new();
    if let Some(cap) = options.memory {
        for row in chosen(view, rows.iter().copied(), options.gpu)? {
            let what = view.called(row.gpu);
            changes.push((row.lane, cap, what, Some(row.cap)));
        }
    }
    if let Some(cap) = options.pinned {
        let was = rows.iter().find_map(|row| row.pinned_cap);
        let cap = MemoryAsk::Exactly(cap);
        changes.push((Lane::HOST, cap, "pinned host memory".to_owned(), was));
    }
    for (lane, cap, what, was) in changes {
        let command = Command::Resize { container, lane, memory: cap };
        let Answer::Resized { cap, reserved } = admin.ask(&command).context(what.clone())? else {
            bail!("unexpected answer from the daemon; check that it has the same version")
        };
        lines.push(told(called(id, rows), &what, was, cap, reserved));
    }
    Ok(())
}

/// Changes weight, share, limit and priority.
fn retune(
    options: &Options,
    admin: &Admin,
    (id, rows): (&str, &[&Row]),
    told: &mut Vec<String>,
) -> Result<()> {
    let weight = options.weight.unwrap_or_default();
    let share = options.share.unwrap_or_default();
    let share_limit = options.share_limit.unwrap_or_default();
    let class = options.priority;
    let lines = retuned(rows.first().copied(), weight, [share, share_limit], class);
    if lines.is_empty() {
        return Ok(());
    }
    let container = ContainerId::new(id).with_context(|| id.to_owned())?;
    let command = Command::Retune { container, weight, share, share_limit, class };
    let Answer::Done {} = admin.ask(&command)? else {
        bail!("unexpected answer from the daemon; check that it has the same version")
    };
    told.extend(lines.iter().map(|line| format!("{}: {line}", called(id, rows))));
    Ok(())
}

/// Old and new scheduling parameters, one line for each that was changed; share and limit as a pair.
fn retuned(
    was: Option<&Row>,
    weight: Change<Weight>,
    [share, share_limit]: [Change<Percent>; 2],
    class: Option<Class>,
) -> Vec<String> {
    let percent = |percent: Option<u32>| percent.map_or("none".to_owned(), |p| format!("{p}%"));
    let number = |number: Option<u32>| number.map_or("none".to_owned(), |n| n.to_string());
    let before = |text: &dyn Fn(&Row) -> String| was.map_or("unknown".to_owned(), text);
    let mut lines = Vec::new();
    if weight != Change::Keep {
        let was = before(&|row| number(row.weight));
        lines.push(format!("weight: {was} -> {}", number(weight.of(None).map(Weight::get))));
    }
    if share != Change::Keep {
        let was = before(&|row| percent(row.share));
        lines.push(format!("share: {was} -> {}", percent(share.of(None).map(Percent::get))));
    }
    if share_limit != Change::Keep {
        let was = before(&|row| percent(row.share_limit));
        let limit = percent(share_limit.of(None).map(Percent::get));
        lines.push(format!("share-limit: {was} -> {limit}"));
    }
    if let Some(class) = class {
        let was = before(&|row| row.class.to_string());
        lines.push(format!("priority: {was} -> {class}"));
    }
    lines
}

/// The rows to change: all of the slice's, or one GPU's.
fn chosen<'a>(
    view: &View,
    rows: impl Iterator<Item = &'a Row>,
    gpu: Option<GpuRef>,
) -> Result<Vec<&'a Row>> {
    let is_meant = |row: &&Row| match gpu {
        None => true,
        Some(GpuRef::Index(index)) => view.index(row.gpu) == index.0,
        Some(GpuRef::Uuid(uuid)) => row.gpu == uuid,
    };
    let rows: Vec<&Row> = rows.filter(is_meant).collect();
    match (rows.is_empty(), gpu) {
        (true, Some(GpuRef::Index(index))) => {
            bail!("the slice has no GPU {}; gpuslice ps lists its GPUs", index.0)
        }
        (true, Some(GpuRef::Uuid(uuid))) => {
            bail!("the slice has no {uuid}; gpuslice ps -o NAME,UUID lists its GPUs")
        }
        (true, None) => {
            bail!("the slice exists only as a record without a daemon; gpuslice rm removes it")
        }
        _ => Ok(rows),
    }
}

/// Old and new cap, as a line for the user.
fn told(id: &str, what: &str, was: Option<Bytes>, cap: Bytes, reserved: Bytes) -> String {
    let was = was.map_or("no cap".to_owned(), |was| was.to_string());
    let mut line = format!("{id}: {what}: {was} -> {cap}");
    if reserved > cap {
        line += &format!(
            "; {reserved} are held, so allocations are refused until usage falls below the cap"
        );
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::{gpu, slice};
    use gpuslice_wire::ids::{GpuUuid, NvmlIndex};
    use gpuslice_wire::units::GIB;

    #[test]
    fn the_rows_of_one_gpu_or_all() {
        let other = Row { gpu: GpuUuid([2; 16]), lane: Lane(1), ..slice("a", 1, None, true, 0) };
        let view = View {
            gpus: vec![gpu(1, 4), gpu(2, 7)],
            rows: vec![slice("a", 1, None, true, 0), other],
            ..View::default()
        };
        let lanes = |gpu| {
            let rows = chosen(&view, view.rows.iter(), gpu);
            rows.map(|rows| rows.iter().map(|row| row.lane).collect::<Vec<_>>())
        };
        assert_eq!(lanes(None).ok(), Some(vec![Lane(0), Lane(1)]));
        let index = |index| Some(GpuRef::Index(NvmlIndex(index)));
        assert_eq!(lanes(index(7)).ok(), Some(vec![Lane(1)]));
        let uuid = |byte| Some(GpuRef::Uuid(GpuUuid([byte; 16])));
        assert_eq!(lanes(uuid(1)).ok(), Some(vec![Lane(0)]));
        assert!(lanes(uuid(3)).is_err());
        let none = lanes(index(1)).expect_err("a lane is no index").to_string();
        assert!(none.contains("no GPU 1"), "{none}");
        assert!(chosen(&view, [].into_iter(), None).is_err());
    }

    #[test]
    fn each_change_of_time_is_told() {
        let row = slice("a", 3, None, true, 0);
        let percent = |percent| Change::to(Percent::new(percent).ok());
        let (weight, class) = (Change::to(Weight::new(7).ok()), Some(Class::BestEffort));
        let told = retuned(Some(&row), weight, [percent(50), percent(80)], class);
        assert_eq!(
            told,
            [
                "weight: 3 -> 7",
                "share: none -> 50%",
                "share-limit: none -> 80%",
                "priority: normal -> best-effort"
            ]
        );
        assert!(retuned(Some(&row), Change::Keep, [Change::Keep; 2], None).is_empty());
        let gone = retuned(None, Change::None, [Change::None; 2], None);
        assert_eq!(
            gone,
            ["weight: unknown -> none", "share: unknown -> none", "share-limit: unknown -> none"]
        );
    }

    #[test]
    fn a_cap_below_what_is_held_is_told() {
        let line = |cap, held| told("web", "gpu 0", Some(Bytes(GIB)), Bytes(cap), Bytes(held));
        assert_eq!(line(2 * GIB, GIB), "web: gpu 0: 1GiB -> 2GiB");
        assert!(line(GIB / 2, GIB).ends_with(
            "1GiB are held, so allocations are refused until usage falls below the cap"
        ));
        let first = told("web", "pinned host memory", None, Bytes(GIB), Bytes(0));
        assert!(first.ends_with("no cap -> 1GiB"), "{first}");
    }
}
