//! `gpuslice set`: changes a slice's caps, weight, share, limit or priority while its container runs.
//!
//! A cap takes effect with the next allocation. A cap below the memory held takes nothing away: growth
//! is refused until enough is freed. A weight, a share, a limit and a priority take effect with the next turn;
//! past GPU time stays charged.

use crate::admin::Admin;
use crate::node;
use crate::out;
use crate::rm::find;
use crate::slice::{CapError, parse_cap, parse_memory};
use crate::table::{Row, View};
use anyhow::{Context, Result, bail};
use gpuslice_wire::admin::{Answer, Command, MemoryAsk};
use gpuslice_wire::ids::{ContainerId, GpuUuid, Lane};
use gpuslice_wire::policy::{Change, Class};
use gpuslice_wire::select::GpuRef;
use gpuslice_wire::units::{Bytes, Percent, Weight};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `gpuslice set`.
#[derive(clap::Args)]
pub struct Options {
    /// Id, id prefix, or name as shown by `gpuslice ps`
    #[arg(value_name = "CONTAINER", add = crate::complete::slices())]
    container: String,
    /// Set the GPU memory cap, on all its GPUs or the one given by --gpu; a size, or a part of the GPU's memory: 1/4
    #[arg(long, value_name = "SIZE", value_parser = parse_cap, allow_hyphen_values = true)]
    memory: Option<MemoryAsk>,
    /// Set how far it may grow into GPU memory that others leave unused, or none for its cap
    #[arg(long, value_name = "SIZE", value_parser = parse_limit, allow_hyphen_values = true)]
    memory_limit: Option<Limit>,
    /// Restrict --memory and --memory-limit to this GPU, by its index on the node or its UUID
    #[arg(long, alias = "gpus", value_name = "GPU", allow_hyphen_values = true, add = crate::complete::gpus())]
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
    /// Print one JSON object; sizes in bytes
    #[arg(long)]
    json: bool,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

/// A memory limit: a size, or a part of the GPU's memory; none for the cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit(Option<MemoryAsk>);

/// Parses `none`, a size of 1 MiB or more, or a part of the GPU's memory.
fn parse_limit(text: &str) -> Result<Limit, CapError> {
    match text {
        "none" => Ok(Limit(None)),
        _ => parse_cap(text).map(|limit| Limit(Some(limit))),
    }
}

/// A change that was made.
#[derive(Clone, Debug)]
pub struct Told {
    /// The option that asked for it.
    what: &'static str,
    /// The GPU, if it is of one.
    gpu: Option<GpuUuid>,
    /// The old value and the new one.
    values: [Value; 2],
    /// The change as a line, without the container's name.
    text: String,
}

impl Told {
    fn json(&self) -> Value {
        let [was, is] = &self.values;
        let gpu = self.gpu.map(|gpu| gpu.to_string());
        json!({ "what": self.what, "gpu": gpu, "was": was, "is": is, "text": self.text })
    }
}

/// The changes as lines, each with the container's name.
pub fn lines(view: &View, id: &str, told: &[Told]) -> Vec<String> {
    let rows: Vec<&Row> = view.rows.iter().filter(|row| row.container == id).collect();
    told.iter().map(|it| format!("{}: {}", called(id, &rows), it.text)).collect()
}

impl Options {
    /// Whether an option asks for a change.
    fn changes(&self) -> bool {
        let memory = self.memory.is_some() || self.memory_limit.is_some() || self.pinned.is_some();
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
            "nothing to set; give --memory, --memory-limit, --pinned, --weight, --share, --share-limit or --priority"
        );
    }
    let dir = node::runtime_dir(options.runtime_dir.as_deref());
    let admin = Admin::connect(&dir)?;
    let view = View::of(admin.list()?);
    let id = find(&view, &options.container, &dir)?;
    let mut told = Vec::new();
    let done = change(options, &admin, (&view, &id), &mut told);
    if options.json && done.is_ok() {
        let changes: Vec<Value> = told.iter().map(Told::json).collect();
        let all = json!({ "container": id, "name": view.name(&id), "changes": changes });
        out::line(&out::document("set", 1, all).to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    for line in lines(&view, &id, &told) {
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
    told: &mut Vec<Told>,
) -> Result<()> {
    let rows: Vec<&Row> = view.rows.iter().filter(|row| row.container == id).collect();
    if options.gpu.is_some() && options.memory.is_none() && options.memory_limit.is_none() {
        bail!("--gpu restricts --memory and --memory-limit; give one of them");
    }
    // A limit is never below the cap, so the one that makes room for the other goes first.
    let first = limit_first(options, view, &rows);
    if first {
        relimit(options, admin, view, (id, &rows), told)?;
    }
    resize(options, admin, view, (id, &rows), told)?;
    if !first {
        relimit(options, admin, view, (id, &rows), told)?;
    }
    retune(options, admin, (id, &rows), told)
}

/// Changes the memory caps.
fn resize(
    options: &Options,
    admin: &Admin,
    view: &View,
    (id, rows): (&str, &[&Row]),
    all: &mut Vec<Told>,
) -> Result<()> {
    let container = ContainerId::new(id).with_context(|| id.to_owned())?;
    let mut changes = Vec::new();
    if let Some(cap) = options.memory {
        for row in chosen(view, rows.iter().copied(), options.gpu)? {
            let what = view.called(row.gpu);
            changes.push((row.lane, cap, what, Some(row.cap), Some(row.gpu)));
        }
    }
    if let Some(cap) = options.pinned {
        let was = rows.iter().find_map(|row| row.pinned_cap);
        let cap = MemoryAsk::Exactly(cap);
        changes.push((Lane::HOST, cap, "pinned host memory".to_owned(), was, None));
    }
    for (lane, cap, what, was, gpu) in changes {
        let command = Command::Resize { container, lane, memory: cap };
        let Answer::Resized { cap, reserved } = admin.ask(&command).context(what.clone())? else {
            bail!("unexpected answer from the daemon; check that it has the same version")
        };
        // Without a limit above the old cap, the limit is the new cap.
        let limit = rows.iter().find(|row| gpu == Some(row.gpu)).map(|row| view.limit(row).limit);
        let limit = limit.filter(|limit| Some(*limit) > was).unwrap_or(cap);
        let text = told(&what, was, cap) + &above("cap", cap, limit, reserved);
        let what = if gpu.is_some() { "memory" } else { "pinned" };
        let values = [was.map(|was| was.0).into(), cap.0.into()];
        all.push(Told { what, gpu, values, text });
    }
    Ok(())
}

/// Whether a new memory limit is above the present one, so that a larger cap may follow it.
fn limit_first(options: &Options, view: &View, rows: &[&Row]) -> bool {
    let Some(Limit(Some(limit))) = options.memory_limit else {
        return false;
    };
    rows.iter().any(|row| match limit {
        MemoryAsk::Exactly(limit) => limit > view.limit(row).limit,
        MemoryAsk::Ratio { part, whole } => {
            let total = view.gpu(row.gpu).map_or(0, |gpu| gpu.total.0);
            u128::from(total) * u128::from(part)
                > u128::from(view.limit(row).limit.0) * u128::from(whole)
        }
    })
}

/// Changes the memory limits.
fn relimit(
    options: &Options,
    admin: &Admin,
    view: &View,
    (id, rows): (&str, &[&Row]),
    all: &mut Vec<Told>,
) -> Result<()> {
    let Some(Limit(limit)) = options.memory_limit else {
        return Ok(());
    };
    let container = ContainerId::new(id).with_context(|| id.to_owned())?;
    for row in chosen(view, rows.iter().copied(), options.gpu)? {
        let (what, was) = (view.called(row.gpu), view.limit(row).limit);
        let command = Command::Relimit { container, lane: row.lane, limit };
        let answer = admin.ask(&command).context(what.clone())?;
        let Answer::Resized { cap: limit, reserved } = answer else {
            bail!("unexpected answer from the daemon; check that it has the same version")
        };
        let values = [was.0.into(), limit.0.into()];
        let text = format!("{what}: memory limit {was} -> {limit}");
        let text = text + &above("limit", limit, limit, reserved);
        all.push(Told { what: "memory-limit", gpu: Some(row.gpu), values, text });
    }
    Ok(())
}

/// Changes weight, share, limit and priority.
fn retune(
    options: &Options,
    admin: &Admin,
    (id, rows): (&str, &[&Row]),
    told: &mut Vec<Told>,
) -> Result<()> {
    let weight = options.weight.unwrap_or_default();
    let share = options.share.unwrap_or_default();
    let share_limit = options.share_limit.unwrap_or_default();
    let class = options.priority;
    let changes = retuned(rows.first().copied(), weight, [share, share_limit], class);
    if changes.is_empty() {
        return Ok(());
    }
    let container = ContainerId::new(id).with_context(|| id.to_owned())?;
    let command = Command::Retune { container, weight, share, share_limit, class };
    let Answer::Done {} = admin.ask(&command)? else {
        bail!("unexpected answer from the daemon; check that it has the same version")
    };
    told.extend(changes);
    Ok(())
}

/// Old and new scheduling parameters, each that was changed.
fn retuned(
    was: Option<&Row>,
    weight: Change<Weight>,
    [share, share_limit]: [Change<Percent>; 2],
    class: Option<Class>,
) -> Vec<Told> {
    let number = |number: Option<u32>| number.map_or("none".to_owned(), |n| n.to_string());
    let percent = |percent: Option<u32>| percent.map_or("none".to_owned(), |p| format!("{p}%"));
    let change = |what, shown: &dyn Fn(Option<u32>) -> String, before: Option<Option<u32>>, now| {
        let was = before.map_or("unknown".to_owned(), shown);
        let text = format!("{what}: {was} -> {}", shown(now));
        Told { what, gpu: None, values: [before.flatten().into(), now.into()], text }
    };
    let mut all = Vec::new();
    if weight != Change::Keep {
        // Without a share, the weight that was not set is 1.
        let shares = share.of(was.and_then(|row| Percent::new(row.share?).ok()));
        let least = shares.is_none().then_some(1);
        let now = weight.of(None).map(Weight::get).or(least);
        all.push(change("weight", &number, was.map(|row| row.weight), now));
    }
    let was_share = was.map(|row| row.share);
    let was_limit = was.map(|row| row.share_limit);
    for (what, was, it) in [("share", was_share, share), ("share-limit", was_limit, share_limit)] {
        if it != Change::Keep {
            all.push(change(what, &percent, was, it.of(None).map(Percent::get)));
        }
    }
    if let Some(class) = class {
        let before = was.map(|row| row.class);
        let shown = before.map_or("unknown".to_owned(), |class| class.to_string());
        let text = format!("priority: {shown} -> {class}");
        let values = [before.map(Class::name).into(), class.name().into()];
        all.push(Told { what: "priority", gpu: None, values, text });
    }
    all
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
fn told(what: &str, was: Option<Bytes>, cap: Bytes) -> String {
    let was = was.map_or("no cap".to_owned(), |was| was.to_string());
    format!("{what}: {was} -> {cap}")
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
    use gpuslice_wire::ids::NvmlIndex;
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
        let json: Vec<Value> = told.iter().map(Told::json).collect();
        assert_eq!(
            (&json[0]["was"], &json[0]["is"], &json[1]["was"]),
            (&json!(3), &json!(7), &Value::Null)
        );
        assert_eq!((&json[3]["what"], &json[3]["is"]), (&json!("priority"), &json!("best-effort")));
        let told: Vec<String> = told.into_iter().map(|it| it.text).collect();
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
        let gone: Vec<String> = gone.into_iter().map(|it| it.text).collect();
        assert_eq!(
            gone,
            ["weight: unknown -> 1", "share: unknown -> none", "share-limit: unknown -> none"]
        );
    }

    #[test]
    fn a_cap_below_what_is_held_is_told() {
        let line = |limit| above("cap", Bytes(GIB / 2), Bytes(limit), Bytes(GIB));
        let refused = "allocations are refused until usage falls below the cap";
        assert_eq!(line(GIB / 2), format!("; 1GiB are held, 512MiB above it: {refused}"));
        assert!(line(GIB).starts_with("; 1GiB are held, 512MiB above it: that is borrowed"));
        assert_eq!(above("cap", Bytes(GIB), Bytes(GIB), Bytes(GIB)), "");
        let first = told("pinned host memory", None, Bytes(GIB));
        assert!(first.ends_with("no cap -> 1GiB"), "{first}");
    }
}
