//! `gpuslice events`: what happened on this node lately, one line for each event.
//!
//! The daemon remembers a bounded number of events, and numbers them. This command asks for those after a number, so
//! that following is to ask again. Another daemon begins with 1: its start is a part of each answer.

use crate::admin::{Admin, EventsEnd};
use crate::elsewhere;
use crate::out;
use crate::rm::is_meant;
use crate::table::View;
use crate::text::{counted, cut, wrapped};
use crate::why::with_dir;
use anyhow::{Context, Result, bail};
use gpuslice_wire::admin::NO_CAP;
use gpuslice_wire::history::{EventKind, History, NO_GPU, NO_UID};
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::units::Bytes;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use unicode_width::UnicodeWidthStr;

/// Interval between two questions.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// Cells before an event's kind.
const BELOW_TIME: usize = "1970-01-01T00:00:00.000Z  ".len();

/// Options of `gpuslice events`.
#[derive(clap::Args)]
pub struct Options {
    /// Show events of the last stretch of time only: 30s, 10m, 2h
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Option<Duration>,
    /// Show events of this container only: its id, the beginning of that, or its name
    #[arg(long, value_name = "CONTAINER", add = crate::complete::slices())]
    slice: Option<String>,
    /// Print further events as they happen, until interrupted
    #[arg(long, short)]
    follow: bool,
    /// Print one JSON object per line; sizes in bytes, times in ns
    #[arg(long)]
    json: bool,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

/// An event as it is shown.
pub struct Shown {
    /// Its number.
    pub sequence: u64,
    unix_ns: u64,
    kind: EventKind,
    container: String,
    name: String,
    gpu: Option<GpuUuid>,
    pid: u32,
    uid: Option<u32>,
    login_uid: Option<u32>,
    count: u32,
    amounts: [u64; 2],
    text: String,
}

impl Shown {
    /// An event of an answer; none for the answer's end.
    pub fn of(row: History) -> Option<Shown> {
        match row {
            History::Entry {
                sequence,
                unix_ns,
                kind,
                container,
                name,
                gpu,
                pid,
                uid,
                login_uid,
                count,
                amounts,
                text,
            } => Some(Shown {
                sequence,
                unix_ns,
                kind,
                container: container.to_string(),
                name: name.to_string(),
                gpu: (gpu != NO_GPU).then_some(gpu),
                pid,
                uid: (uid != NO_UID).then_some(uid),
                login_uid: (login_uid != NO_UID).then_some(login_uid),
                count,
                amounts,
                text: text.to_string(),
            }),
            History::End { .. } => None,
        }
    }

    /// Whether `asked` names its container.
    fn is_of(&self, asked: &str) -> bool {
        !asked.is_empty() && (self.container.starts_with(asked) || self.name == asked)
    }

    fn time(&self) -> String {
        let time = UNIX_EPOCH + Duration::from_nanos(self.unix_ns);
        humantime::format_rfc3339_millis(time).to_string()
    }

    /// The details as a sentence.
    fn details(&self) -> String {
        let [first, second] = self.amounts;
        let ms = first / 1_000_000;
        match self.kind {
            EventKind::DaemonStarted => {
                format!("gpusliced {}, {} restored", self.text, counted(first, "slice"))
            }
            EventKind::SliceBegan => counted(first, "GPU"),
            EventKind::MemoryRefused => {
                let (what, unused) = self.text.split_once("; ").unwrap_or((&self.text, ""));
                let unused = if unused.is_empty() { "" } else { "; " }.to_owned() + unused;
                format!("asked for {} of {what}, {} left{unused}", Bytes(first), Bytes(second))
            }
            EventKind::Overrun => format!("not drained {ms} ms after its turn; others go on"),
            EventKind::Drained => format!("drained {ms} ms after its turn"),
            EventKind::Preempted => "its work was stopped on the GPU".to_owned(),
            EventKind::CapChanged => {
                let what = if self.text.is_empty() { "" } else { " of " };
                format!("{}{what}{} -> {}", cap(first), self.text, cap(second))
            }
            EventKind::GpuFailed => format!("{}; it takes no new slices", self.text),
            EventKind::GpuRecovered => "it is healthy again".to_owned(),
            EventKind::Suspended => {
                let more = if self.text.is_empty() { "" } else { "; " };
                format!("{} moved to the host{more}{}", Bytes(first), self.text)
            }
            EventKind::Resumed => format!("{} moved back to the GPU", Bytes(first)),
            EventKind::LimitChanged => {
                let by = if self.text.is_empty() { "" } else { ": " };
                format!("memory limit {} -> {}{by}{}", Bytes(first), Bytes(second), self.text)
            }
            EventKind::MemoryWanted => {
                format!("asked to give back {} of the memory beyond its cap", Bytes(first))
            }
            EventKind::OverCap => format!("{}; it gets no more", over(first, second)),
            EventKind::Frozen => format!("{}; its processes are frozen", over(first, second)),
            EventKind::Thawed => "it fits its cap, and its processes go on".to_owned(),
            EventKind::Killed => format!("{}; its processes were killed", over(first, second)),
            EventKind::SliceEnded
            | EventKind::SliceRefused
            | EventKind::Retuned
            | EventKind::NotMoved
            | EventKind::PolicySet => self.text.clone(),
        }
    }

    /// For people: one line, or in a terminal of `width` cells that is too narrow the details below the name.
    fn line(&self, view: &View, width: Option<usize>) -> String {
        let (begin, details) = (self.begin(), self.end(view));
        match width {
            Some(width) if begin.width() + 2 + details.width() > width => {
                let space = " ".repeat(BELOW_TIME.min(width / 2));
                let lines = wrapped(&format!("{space}{details}"), BELOW_TIME, width);
                format!("{}\n{}", cut(begin.trim_end(), width), lines.join("\n"))
            }
            _ => format!("{begin}  {details}"),
        }
    }

    /// When, what, and of which container.
    fn begin(&self) -> String {
        let name = match (self.name.as_str(), self.container.as_str()) {
            ("", "") => "-",
            ("", id) => id,
            (name, _) => name,
        };
        format!("{}  {:<14}  {name:<16}", self.time(), self.kind.name())
    }

    /// The GPU, the details, and the process that caused the event.
    fn end(&self, view: &View) -> String {
        let gpu = self.gpu.map_or(String::new(), |gpu| format!("{}: ", view.called(gpu)));
        let mut line = format!("{gpu}{}", self.details());
        let by = [
            (self.pid > 0).then(|| format!("pid {}", self.pid)),
            self.uid.map(|uid| format!("uid {uid}")),
            self.login_uid.filter(|login| self.uid != Some(*login)).map(|it| format!("login {it}")),
        ];
        let by: Vec<String> = by.into_iter().flatten().collect();
        if !by.is_empty() {
            line += &format!(" ({})", by.join(", "));
        }
        if self.count > 1 {
            line += &format!(" and {} like it before", self.count - 1);
        }
        line
    }

    /// One JSON object.
    pub fn json(&self) -> Value {
        let [first, second] = self.amounts;
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let mut value = json!({
            "sequence": self.sequence, "time": self.time(), "unix_ns": self.unix_ns,
            "event": self.kind.name(), "container": text(&self.container), "name": text(&self.name),
            "gpu": self.gpu.map(|gpu| gpu.to_string()), "pid": (self.pid > 0).then_some(self.pid),
            "uid": self.uid, "login_uid": self.login_uid, "count": self.count, "text": text(&self.text),
        });
        let names: &[&str] = match self.kind {
            EventKind::DaemonStarted => &["slices"],
            EventKind::SliceBegan => &["gpus"],
            EventKind::GpuFailed => &["xid"],
            EventKind::MemoryRefused => &["need", "left"],
            EventKind::Overrun | EventKind::Drained => &["after_ns"],
            EventKind::CapChanged => &["was", "cap"],
            EventKind::LimitChanged => &["was", "limit"],
            EventKind::Suspended | EventKind::Resumed | EventKind::MemoryWanted => &["bytes"],
            EventKind::OverCap | EventKind::Frozen | EventKind::Killed => &["held", "cap"],
            _ => &[],
        };
        for (name, amount) in names.iter().zip([first, second]) {
            let none = self.kind == EventKind::CapChanged && amount == NO_CAP.0;
            value[*name] = if none { serde_json::Value::Null } else { amount.into() };
        }
        out::document("event", 1, value)
    }
}

/// More on a GPU than the cap.
fn over(held: u64, cap: u64) -> String {
    format!("has {} on the GPU, above the {} that it may have", Bytes(held), Bytes(cap))
}

fn parse_since(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "not a time as 30s, 5m or 1h 30m".to_owned())
}

/// Runs `gpuslice events`.
///
/// # Errors
/// No daemon answers.
pub fn main(options: &Options) -> Result<ExitCode> {
    let mut admin = elsewhere::connect(options.runtime_dir.as_deref())?;
    let view = View::of(admin.list()?);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    let from = options.since.map_or(0, |since| now.saturating_sub(since).as_nanos());
    let mut after = 0;
    let mut daemon = None;
    let mut is_known = has_slice(&view, options.slice.as_deref());
    loop {
        let (rows, end) = match admin.events(after) {
            Ok(answer) => answer,
            Err(_) if options.follow => {
                admin = reconnect(&admin)?;
                continue;
            }
            Err(why) => return Err(why),
        };
        if daemon.is_some_and(|before| before != end.daemon_unix_ns) {
            (after, daemon) = (0, Some(end.daemon_unix_ns));
            continue;
        }
        (after, daemon) = (end.last, Some(end.daemon_unix_ns));
        let shown = rows.into_iter().filter_map(Shown::of);
        let is_new = |it: &Shown| u128::from(it.unix_ns) >= from;
        let is_asked = |it: &Shown| options.slice.as_ref().is_none_or(|asked| it.is_of(asked));
        let of_slice: Vec<Shown> = shown.filter(is_asked).collect();
        is_known |= !of_slice.is_empty();
        for event in of_slice.into_iter().filter(is_new) {
            let width = out::terminal().map(|(width, _)| width);
            let line = match options.json {
                true => event.json().to_string(),
                false => event.line(&view, width),
            };
            if !out::line_is_read(&line)? {
                return Ok(ExitCode::SUCCESS);
            }
        }
        if end.more {
            continue;
        }
        if !std::mem::replace(&mut is_known, true) {
            unknown(options)?;
        }
        if !options.follow {
            note_dropped(&end);
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(ASK_EVERY);
    }
}

/// Whether the slice that is asked for exists; without one, all are meant.
fn has_slice(view: &View, asked: Option<&str>) -> bool {
    asked.is_none_or(|asked| view.rows.iter().any(|row| is_meant(row, asked)))
}

/// Refuses a name that no slice has and no event is of. A slice that is followed may begin later.
fn unknown(options: &Options) -> Result<()> {
    let asked = options.slice.as_deref().unwrap_or_default();
    let list = with_dir(Some("gpuslice ps".to_owned()), options.runtime_dir.as_deref());
    let list = list.unwrap_or_default();
    if options.follow {
        out::note(&format!("no slice is called {asked:?} so far; {list} lists those of now"));
        return Ok(());
    }
    bail!(
        "no slice is called {asked:?}, and the daemon remembers no event of one; {list} lists those of now"
    )
}

/// Connects to the next daemon once it answers.
fn reconnect(admin: &Admin) -> Result<Admin> {
    out::note("the daemon is gone; waiting for the next one");
    for _ in 0..u32::MAX {
        std::thread::sleep(ASK_EVERY);
        if let Ok(next) = admin.again() {
            return Ok(next);
        }
    }
    bail!("no daemon came")
}

fn note_dropped(end: &EventsEnd) {
    if end.dropped > 0 {
        out::note(&format!("{} older events were dropped for newer ones", end.dropped));
    }
}

/// A cap in words.
fn cap(bytes: u64) -> String {
    if bytes == NO_CAP.0 { "no cap".to_owned() } else { Bytes(bytes).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, amounts: [u64; 2], text: &str) -> Shown {
        Shown {
            sequence: 1,
            unix_ns: 1_800_000_000_123_000_000,
            kind,
            container: "c1".into(),
            name: "web".into(),
            gpu: None,
            pid: 7,
            uid: None,
            login_uid: None,
            count: 1,
            amounts,
            text: text.into(),
        }
    }

    #[test]
    fn each_kind_has_its_details_in_both_forms() {
        let (mib, ms) = (1 << 20, 1_000_000);
        for (kind, amounts, text, said, key) in [
            (
                EventKind::DaemonStarted,
                [3, 0],
                "0.1.0",
                "gpusliced 0.1.0, 3 slices restored",
                "slices",
            ),
            (EventKind::SliceBegan, [2, 0], "", "2 GPUs", "gpus"),
            (EventKind::SliceBegan, [1, 0], "", "1 GPU ", "gpus"),
            (EventKind::GpuFailed, [79, 0], "Xid 79", "Xid 79; it takes no new slices", "xid"),
            (EventKind::GpuRecovered, [0, 0], "", "healthy again", "event"),
            (EventKind::Suspended, [3 * mib, 0], "", "3MiB moved to the host", "bytes"),
            (EventKind::Resumed, [mib, 0], "", "1MiB moved back", "bytes"),
            (EventKind::LimitChanged, [mib, 2 * mib], "", "limit 1MiB -> 2MiB", "limit"),
            (EventKind::MemoryWanted, [mib, 0], "", "give back 1MiB", "bytes"),
            (
                EventKind::OverCap,
                [3 * mib, mib],
                "",
                "3MiB on the GPU, above the 1MiB that it may have",
                "held",
            ),
            (EventKind::Frozen, [3 * mib, mib], "", "its processes are frozen", "cap"),
            (EventKind::Thawed, [0, 0], "", "its processes go on", "event"),
            (EventKind::Killed, [3 * mib, mib], "", "were killed", "held"),
            (
                EventKind::MemoryRefused,
                [3 * mib, mib],
                "GPU memory; 5MiB are unused credit of its other processes",
                "asked for 3MiB of GPU memory, 1MiB left; 5MiB are unused credit of its other",
                "left",
            ),
            (
                EventKind::MemoryRefused,
                [3 * mib, mib],
                "pinned host memory",
                "asked for 3MiB of pinned host memory, 1MiB left (pid",
                "need",
            ),
            (EventKind::Overrun, [2_000 * ms, 0], "", "not drained 2000 ms after", "after_ns"),
            (EventKind::CapChanged, [mib, 2 * mib], "", "1MiB -> 2MiB", "cap"),
            (EventKind::CapChanged, [NO_CAP.0, mib], "pinned", "no cap of pinned -> 1MiB", "cap"),
            (EventKind::SliceRefused, [0, 0], "no room", "no room", "text"),
        ] {
            let event = event(kind, amounts, text);
            let line = event.line(&View::default(), None);
            assert!(line.contains(said) && line.contains("web"), "{line}");
            assert!(line.starts_with("2027-01-15T08:00:00.123Z  "), "{line}");
            assert!(line.ends_with(" (pid 7)"), "{line}");
            let json = event.json();
            assert!(!json[key].is_null() && json["uid"].is_null(), "{json}");
            assert_eq!(
                (&json["event"], &json["time"]),
                (&json!(kind.name()), &json!(event.time()))
            );
        }
        let by =
            Shown { uid: Some(0), login_uid: Some(1000), ..event(EventKind::Retuned, [0; 2], "") };
        assert!(by.line(&View::default(), None).ends_with("(pid 7, uid 0, login 1000)"));
        let root = Shown { login_uid: Some(0), ..by };
        assert!(root.line(&View::default(), None).ends_with("(pid 7, uid 0)"));
        let many = Shown { count: 41, ..event(EventKind::Overrun, [0; 2], "") };
        assert!(many.line(&View::default(), None).ends_with("and 40 like it before"));
    }

    /// The schemas of `gpuslice events --json` and of `gpuslice web` have each kind of event, and its fields.
    #[test]
    fn the_schemas_have_each_kind() {
        let schemas = [
            (include_str!("../../docs/schemas/event.json"), ""),
            (include_str!("../../docs/schemas/web.json"), "/properties/events/items"),
        ];
        for (schema, place) in schemas {
            let schema: Value = serde_json::from_str(schema).expect("JSON");
            let known = &schema.pointer(place).expect("events")["properties"];
            let kinds = known["event"]["enum"].as_array().expect("a list");
            for kind in EventKind::ALL {
                let json = event(kind, [1, 2], "why").json();
                assert!(kinds.contains(&json["event"]), "{place}: no {kind:?}");
                let fields = json.as_object().expect("an object").keys();
                let unknown: Vec<_> = fields.filter(|it| known[it.as_str()].is_null()).collect();
                assert!(unknown.is_empty(), "{place}: {kind:?} has {unknown:?}");
            }
        }
    }

    #[test]
    fn what_a_terminal_has_no_room_for_is_below_the_name() {
        let long = "a-name-of-thirty-two-characters-";
        let event = Shown {
            name: long.into(),
            ..event(EventKind::MemoryRefused, [3 << 20, 1 << 20], "pinned host memory")
        };
        let lines = |width| {
            let told = event.line(&View::default(), Some(width));
            told.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(
            lines(80),
            [
                &format!("2027-01-15T08:00:00.123Z  memory-refused  {long}"),
                "                          asked for 3MiB of pinned host memory, 1MiB left (pid",
                "                          7)",
            ]
        );
        assert_eq!(lines(200).len(), 1);
        assert!(lines(40).iter().all(|line| line.width() <= 40), "{:#?}", lines(40));
    }

    #[test]
    fn a_name_without_a_slice_and_events_is_refused() {
        use clap::FromArgMatches as _;
        let options = |words: &[&str]| {
            let words = [&["events", "--slice", "nosuch", "--runtime-dir", "/d"], words].concat();
            let command = <Options as clap::Args>::augment_args(clap::Command::new("events"));
            Options::from_arg_matches(&command.get_matches_from(words)).expect("options")
        };
        let why = unknown(&options(&[])).expect_err("refused").to_string();
        assert!(why.contains("\"nosuch\"") && why.contains("ps --runtime-dir /d "), "{why}");
        assert!(unknown(&options(&["--follow"])).is_ok(), "it may begin later");
        let rows = vec![crate::table::tests::slice("web", 1, None, true, 0)];
        let view = View { rows, ..View::default() };
        let found = ["web", "we", "nosuch", ""].map(|asked| has_slice(&view, Some(asked)));
        assert_eq!((found, has_slice(&view, None)), ([true, true, false, false], true));
    }

    #[test]
    fn a_container_is_found_by_id_its_beginning_or_its_name() {
        let event = event(EventKind::SliceBegan, [1, 0], "");
        for (asked, is_found) in
            [("c1", true), ("c", true), ("web", true), ("we", false), ("", false)]
        {
            assert_eq!(event.is_of(asked), is_found, "{asked}");
        }
    }
}
