//! `gpuslice set`: changes a slice's caps, weight, share, limit or priority while its container runs.
//!
//! A cap takes effect with the next allocation. A cap below the memory held takes nothing away: growth
//! is refused until enough is freed. A weight, a share, a limit and a priority take effect with the next turn;
//! past GPU time stays charged.
//!
//! The options of one command are made together or not at all: the daemon changes one amount of memory at a time, so
//! each has the command that sets it back. What is as it was asked for already is said, and nothing is sent for it.

mod memory;

use crate::admin::{Admin, Silent};
use crate::node;
use crate::out;
use crate::rm::find;
use crate::slice::{parse_cap, parse_gpus, parse_memory};
use crate::table::{Row, View};
use anyhow::{Context, Result, anyhow, bail};
use gpuslice_wire::admin::{Answer, Command, MemoryAsk};
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use gpuslice_wire::policy::{Change, Class};
use gpuslice_wire::units::{Bytes, Percent, UnitError, Weight};
use memory::Step;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `gpuslice set`.
#[derive(clap::Args)]
pub struct Options {
    /// Id, id prefix, or name as shown by `gpuslice ps`
    #[arg(value_name = "CONTAINER", add = crate::complete::slices())]
    container: String,
    /// Set the GPU memory cap, on all its GPUs or those given by --gpus; a size, or a part of the GPU's memory: 1/4
    #[arg(long, value_name = "SIZE", value_parser = parse_cap, allow_hyphen_values = true)]
    memory: Option<MemoryAsk>,
    /// Set how far it may grow into GPU memory that others leave unused, or none for its cap
    #[arg(long, value_name = "SIZE", value_parser = or_none(parse_cap), allow_hyphen_values = true)]
    memory_limit: Option<OrNone<MemoryAsk>>,
    /// Restrict --memory and --memory-limit to these of its GPUs: all, or a list of indices on the node or UUIDs
    #[arg(long, visible_alias = "gpu", value_name = "SEL", value_parser = parse_gpus, allow_hyphen_values = true, add = crate::complete::gpus())]
    gpus: Option<String>,
    /// Set the pinned host memory cap, for all its GPUs together, or none
    #[arg(long, value_name = "SIZE", value_parser = or_none(parse_memory), allow_hyphen_values = true)]
    pinned: Option<OrNone<Bytes>>,
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
    #[arg(long, value_name = "CLASS", allow_hyphen_values = true, add = crate::complete::priorities())]
    priority: Option<Class>,
    /// Print one JSON object; sizes in bytes
    #[arg(long)]
    json: bool,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

/// An amount of memory, or none for the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OrNone<T>(Option<T>);

/// A parser of `none`, and of what `parse` takes.
fn or_none<T>(
    parse: fn(&str) -> Result<T, UnitError>,
) -> impl Fn(&str) -> Result<OrNone<T>, UnitError> + Clone {
    move |text| match text {
        "none" => Ok(OrNone(None)),
        _ => parse(text).map(|amount| OrNone(Some(amount))),
    }
}

/// A change that was made, or a value that was asked for and is there already.
#[derive(Clone, Debug)]
pub struct Told {
    /// The option that asked for it.
    what: &'static str,
    /// The GPU, if it is of one.
    gpu: Option<GpuUuid>,
    /// The old value and the new one.
    values: [Value; 2],
    /// The value was there already.
    is_same: bool,
    /// The change as a line, without the container's name.
    text: String,
}

impl Told {
    /// A value of `label` that is there or was changed, in words `was` and `is`.
    fn of(
        (what, gpu, label): (&'static str, Option<GpuUuid>, &str),
        values: [Value; 2],
        [was, is]: [&str; 2],
    ) -> Told {
        let is_same = values[0] == values[1] && was == is;
        let text = match is_same {
            true => format!("{label}: {is} already; nothing to change"),
            false => format!("{label}: {was} -> {is}"),
        };
        Told { what, gpu, values, is_same, text }
    }

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
    /// Why the words ask for nothing that can be done.
    fn wrong(&self) -> Option<&'static str> {
        let of_gpus = self.memory.is_some() || self.memory_limit.is_some();
        let share = self.share.is_some() || self.share_limit.is_some();
        let others = self.pinned.is_some() || self.weight.is_some() || self.priority.is_some();
        match (of_gpus, share || others) {
            (false, false) => Some(
                "nothing to set; give --memory, --memory-limit, --pinned, --weight, --share, --share-limit or --priority",
            ),
            (false, true) if self.gpus.is_some() => {
                Some("--gpus restricts --memory and --memory-limit; give one of them")
            }
            _ => None,
        }
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
    if let Some(wrong) = options.wrong() {
        out::note(wrong);
        return Ok(ExitCode::from(out::WRONG_WORDS));
    }
    let dir = node::runtime_dir(options.runtime_dir.as_deref());
    let admin = Admin::connect(&dir)?;
    let view = View::of(admin.list()?);
    let id = find(&view, &options.container, &dir)?;
    let mut told = Vec::new();
    let done = change(options, &admin, (&view, &id), &mut told);
    let text = match options.json {
        true => json_text(&view, &id, &told, done.is_ok()).into_iter().collect(),
        false => lines(&view, &id, &told),
    };
    for line in text {
        out::line(&line)?;
    }
    let rows: Vec<&Row> = view.rows.iter().filter(|row| row.container == id).collect();
    done.map(|()| ExitCode::SUCCESS).with_context(|| called(&id, &rows).to_owned())
}

/// The changes as one JSON object. After an error it has those that could not be set back; none if there are none.
fn json_text(view: &View, id: &str, told: &[Told], is_done: bool) -> Option<String> {
    let changes: Vec<Value> = told.iter().map(Told::json).collect();
    let all = json!({ "container": id, "name": view.name(id), "changes": changes });
    (is_done || !told.is_empty()).then(|| out::document("set", 1, all).to_string())
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

/// Changes the container `id`, all that is asked for or nothing, and adds a line for each option. After an error these
/// are the changes that could not be undone.
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
    let mut made: Vec<(Step, Told)> = Vec::new();
    let done = memory::steps(options, view, (id, &rows)).and_then(|steps| {
        steps.into_iter().try_for_each(|mut step| {
            let answer = step.make(admin)?;
            made.push((step, answer));
            Ok(())
        })
    });
    match done.and_then(|()| retune(options, admin, (id, &rows))) {
        Ok(retuned) => {
            told.extend(made.into_iter().map(|(_, it)| it).chain(retuned));
            Ok(())
        }
        Err(why) => Err(undo(made, |step| step.undo(admin), told, why)),
    }
}

/// Sets back what was changed, the last change first. What cannot be set back is told, and named in the error.
fn undo(
    made: Vec<(Step, Told)>,
    set_back: impl Fn(&Step) -> Result<()>,
    told: &mut Vec<Told>,
    why: anyhow::Error,
) -> anyhow::Error {
    let changed: Vec<_> = made.into_iter().filter(|(_, it)| !it.is_same).collect();
    if changed.is_empty() {
        return why;
    }
    let mut left = Vec::new();
    for (step, it) in changed.into_iter().rev() {
        if let Err(kept) = set_back(&step) {
            left.push(format!("{} could not be set back: {kept:#}", step.label));
            told.insert(0, it);
        }
    }
    match left.is_empty() {
        true if why.is::<Silent>() => anyhow!("{why:#}; what came before it was set back"),
        true => anyhow!("{why:#}; nothing was changed: what came before it was set back"),
        false => anyhow!("{why:#}; {}", left.join("; ")),
    }
}

/// Changes weight, share, limit and priority.
fn retune(options: &Options, admin: &Admin, (id, rows): (&str, &[&Row])) -> Result<Vec<Told>> {
    let weight = options.weight.unwrap_or_default();
    let share = options.share.unwrap_or_default();
    let share_limit = options.share_limit.unwrap_or_default();
    let class = options.priority;
    let changes = retuned(rows.first().copied(), weight, [share, share_limit], class);
    // Under the policy fixed a share is its own limit, which none cannot lift: the daemon says so.
    if changes.iter().all(|it| it.is_same) && share_limit != Change::None {
        return Ok(changes);
    }
    let container = ContainerId::new(id).with_context(|| id.to_owned())?;
    let command = Command::Retune { container, weight, share, share_limit, class };
    let Answer::Done {} = admin.ask(&command)? else {
        bail!("unexpected answer from the daemon; check that it has the same version")
    };
    Ok(changes)
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
    type Number = Option<u32>;
    let change = |what, shown: &dyn Fn(Number) -> String, before: Option<Number>, now: Number| {
        let was = before.map_or("unknown".to_owned(), shown);
        let values = [before.flatten().into(), now.into()];
        Told::of((what, None, what), values, [&was, &shown(now)])
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
        let values = [before.map(Class::name).into(), class.name().into()];
        all.push(Told::of(("priority", None, "priority"), values, [&shown, class.name()]));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::slice;

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
        let (weight, class) = (Change::to(Weight::new(3).ok()), Some(Class::Normal));
        let same = retuned(Some(&row), weight, [Change::None, Change::Keep], class);
        assert!(same.iter().all(|it| it.is_same), "{same:?}");
        assert_eq!(same[0].text, "weight: 3 already; nothing to change");
        let gone = retuned(None, Change::None, [Change::None; 2], None);
        assert!(gone.iter().all(|it| !it.is_same), "the values before are unknown: {gone:?}");
        let gone: Vec<String> = gone.into_iter().map(|it| it.text).collect();
        assert_eq!(
            gone,
            ["weight: unknown -> 1", "share: unknown -> none", "share-limit: unknown -> none"]
        );
    }

    /// The exit status is that of wrong words, and no daemon is asked.
    #[test]
    fn words_that_change_nothing_are_wrong() {
        let wrong = |words: &[&str]| {
            let words = [&["set", "a", "--runtime-dir", "/nonexistent"], words].concat();
            let command = <Options as clap::Args>::augment_args(clap::Command::new("set"));
            let matches = command.get_matches_from(words);
            let options = <Options as clap::FromArgMatches>::from_arg_matches(&matches);
            let options = options.expect("options");
            let wrong = options.wrong();
            let code = main(&options).ok();
            assert_eq!(wrong.is_some(), code == Some(ExitCode::from(out::WRONG_WORDS)));
            wrong
        };
        for words in [&[][..], &["--gpus", "0"]] {
            assert!(wrong(words).is_some_and(|why| why.starts_with("nothing to set")));
        }
        let weight = wrong(&["--gpus", "0", "--weight", "3"]);
        assert!(weight.is_some_and(|why| why.starts_with("--gpus restricts")));
        for words in [&["--gpus", "0", "--memory-limit", "none"][..], &["--pinned", "none"]] {
            assert_eq!(wrong(words), None);
        }
    }

    /// Two caps were changed and a third one was refused: all are set back, or the rest is named.
    #[test]
    fn what_came_before_a_refusal_is_set_back() {
        let view = View {
            rows: ["a", "a"].map(|name| slice(name, 1, None, true, 0)).into(),
            ..View::default()
        };
        let rows: Vec<&Row> = view.rows.iter().collect();
        let asked = options("a", "--memory", "2GiB").expect("options");
        let made = || {
            let steps = memory::steps(&asked, &view, ("a", &rows)).expect("steps");
            let told = |is_same, text: &str| Told {
                what: "memory",
                gpu: None,
                values: [1.into(), 2.into()],
                is_same,
                text: text.to_owned(),
            };
            let told = [told(false, "one"), told(false, "two")];
            steps.into_iter().zip(told).collect::<Vec<_>>()
        };
        let mut left = Vec::new();
        let why = undo(made(), |_| Ok(()), &mut left, anyhow!("no room"));
        assert_eq!(
            (why.to_string().as_str(), left.len()),
            ("no room; nothing was changed: what came before it was set back", 0)
        );
        let tries = std::cell::Cell::new(0);
        let second_fails = |_: &Step| {
            tries.set(tries.get() + 1);
            if tries.get() == 2 { bail!("promised") } else { Ok(()) }
        };
        let why = undo(made(), second_fails, &mut left, anyhow!("no room")).to_string();
        assert!(why.starts_with("no room; ") && why.ends_with("set back: promised"), "{why}");
        // The last change goes back first, so the first one is left.
        assert_eq!(left.iter().map(|it| it.text.as_str()).collect::<Vec<_>>(), ["one"]);
        // With --json they are a document, too, and nothing is said where nothing is left.
        let left = json_text(&view, "a", &left, false).expect("one is left");
        let left: Value = serde_json::from_str(&left).expect("JSON");
        assert_eq!((&left["container"], &left["changes"][0]["text"]), (&json!("a"), &json!("one")));
        assert_eq!(json_text(&view, "a", &[], false), None);
        assert!(json_text(&view, "a", &[], true).is_some());
        let why = undo(Vec::new(), |_| Ok(()), &mut Vec::new(), anyhow!("no room"));
        assert_eq!(why.to_string(), "no room");
    }
}
