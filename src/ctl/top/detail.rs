//! One slice in full: why it is slow, its rules, its processes, what its memory is used for, and behind which
//! containers it waits. Sentences are wrapped, and a screen that is too small shows a part, which scrolls.

use super::model::{Line as Slice, Model, Processes};
use super::screen::{Look, reason_style, spark};
use crate::processes::{Process, families_of};
use crate::table::{MemoryLimit, Row, View};
use crate::text::{counted, wrapped};
use crate::why::{duration, percent};
use gpuslice_wire::samples::Sample;
use gpuslice_wire::units::Bytes;
use ratatui::style::Style;
use ratatui::text::Line;

/// Cells of a sparkline, and the seconds that it shows.
const SPARK: (usize, usize) = (60, 600);
/// Cells of the word before each sentence.
const INDENT: usize = 10;

/// The selected slice in full, in lines of `width` cells.
pub(super) fn lines(
    model: &Model,
    slices: &[Slice<'_>],
    look: Look,
    width: usize,
) -> Vec<Line<'static>> {
    let Some(it) = slices.get(model.selected(slices)) else {
        return vec![Line::from("no slice")];
    };
    let mut texts = summary(model, it, width);
    texts.extend(processes(model, it.row));
    texts.extend(waits(model, it.row));
    texts.extend(it.told.notes.iter().map(|note| format!("note      {note}")));
    let line = |text: String| {
        let is_reason = text.starts_with("why ");
        let style = if is_reason { reason_style(it, look) } else { Style::new() };
        let indent = if text.starts_with("  ") { 4 } else { INDENT };
        wrapped(&text, indent, width).into_iter().map(move |part| Line::styled(part, style))
    };
    texts.into_iter().flat_map(line).collect()
}

/// Its reason, its rules and its figures.
fn summary(model: &Model, it: &Slice<'_>, width: usize) -> Vec<String> {
    let (row, growth, now) = (it.row, &it.judged, model.now());
    let part = |ns: u64| percent(growth.part(ns));
    let optional = |value: Option<u32>| value.map_or("none".to_owned(), |it| it.to_string());
    vec![
        format!("{} ({}) on {}, {}", row.name, row.container, now.called(row.gpu), row.gpu),
        format!("why       {}", it.told.sentence),
        format!("try       {}", it.told.advice.as_deref().unwrap_or("-")),
        format!(
            "time      {}: {} {}, {} waiting, {} hand-over, {} limited, {} gang, {} idle, {}{} absent",
            duration(growth.wall),
            part(growth.running),
            if growth.is_open { "free to launch" } else { "running" },
            part(growth.waiting),
            part(growth.handover),
            part(growth.limited),
            part(growth.gang),
            part(growth.idle),
            match growth.suspended {
                0 => String::new(),
                ns => format!("{} suspended, ", part(ns)),
            },
            part(growth.absent)
        ),
        format!(
            "rules     weight {}, share {}, limit {}, {}{}",
            optional(row.weight),
            optional(row.share),
            optional(row.share_limit),
            row.class,
            if row.gang != 0 { ", gang" } else { "" }
        ),
        format!(
            "memory    {} used, {} untracked, {} reserved, peak {}, cap {}{}",
            row.used,
            row.untracked,
            row.reserved,
            row.peak,
            row.cap,
            beyond(now, row)
        ),
        format!(
            "pinned    {}, cap {}",
            row.pinned,
            row.pinned_cap.map_or("none".into(), |it: Bytes| it.to_string())
        ),
        format!(
            "work      {}, {}, {}",
            counted(row.launches, "launch"),
            counted(row.turns, "turn"),
            counted(row.late_turns, "late turn")
        ),
        format!("got       {}", last_minutes(model, row, width, |it| it.got_us.into())),
        format!("waited    {}", last_minutes(model, row, width, Sample::waited_us)),
    ]
}

/// The memory beyond the cap, where there may be some, and that on the host.
fn beyond(now: &View, row: &Row) -> String {
    let (MemoryLimit { limit, wanted }, away) = (now.limit(row), now.on_host(row));
    let mut all = String::new();
    if limit > row.cap {
        let borrowed = now.borrowed(row);
        all += &format!(", limit {limit}, {borrowed} borrowed, {wanted} wanted back");
    }
    if away > Bytes::ZERO {
        all += &format!(", {away} suspended");
    }
    all
}

/// A sparkline of ten minutes.
fn last_minutes(model: &Model, row: &Row, width: usize, of: fn(&Sample) -> u64) -> String {
    let cells = SPARK.0.min(width.saturating_sub(INDENT + " 10 min".len()).max(1));
    format!("{} 10 min", spark(&model.parts(row, SPARK.1, of), (cells, SPARK.1)))
}

/// Its processes on this GPU, those with most memory first, and what their memory together is used for.
fn processes(model: &Model, row: &Row) -> Vec<String> {
    let attached = format!("processes {}", row.clients);
    let all = match &model.processes {
        Processes::Of(container, all) if *container == row.container => all,
        Processes::NotTold => {
            return vec![format!(
                "{attached}; this daemon is older than gpuslice and does not list them"
            )];
        }
        _ => return vec![attached],
    };
    let mut here: Vec<&Process> = all.iter().filter(|it| it.gpu == row.gpu).collect();
    here.sort_by_key(|it| (std::cmp::Reverse(it.used), it.pid));
    let mut texts = Vec::new();
    if !here.is_empty() {
        texts.push(format!("families  {}", families_of(&here)));
    }
    texts.push(attached);
    texts.extend(here.iter().map(|it| format!("  {}", it.told())));
    texts
}

/// The containers behind which it waited most.
fn waits(model: &Model, row: &Row) -> Vec<String> {
    let now = model.now();
    let time = now.time(row).filter(|time| time.waits().next().is_some());
    let told = time.into_iter().flat_map(|time| time.waits()).map(|(container, wait)| {
        let name = now.name(container.as_str());
        let (total, longest) = (duration(wait.total_ns), duration(wait.longest_ns));
        format!("  {name}: {total} in all, {longest} at most ({})", wait.cause.name())
    });
    let head = time.map(|_| "waited behind".to_owned());
    head.into_iter().chain(told).collect()
}
