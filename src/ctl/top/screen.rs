//! The screen of `gpuslice top`: a header for each GPU, a row for each slice, a last line for keys and messages. Pure:
//! a model in, cells out.
//!
//! 80 columns are the measure. A narrower terminal loses columns by their rank, a wider one gets longer names and
//! reasons and a sparkline for each slice. All widths are those that a terminal gives to a character.

use super::detail;
use super::model::{Field, Line as Slice, Mode, Model};
use crate::gpus::{Summary, summaries};
use crate::spark::{resampled, sparkline};
use crate::table::View;
use crate::text::{cut, wrapped};
use crate::why::percent;
use gpuslice_wire::policy::Class;
use gpuslice_wire::units::{Bytes, GIB};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use std::ops::Range;
use unicode_width::UnicodeWidthStr;

/// Cells of the memory bar, brackets included.
const BAR: usize = 8;
/// Slices have a sparkline from this width on.
const WITH_SPARKLINE: usize = 120;
/// Cells of a sparkline.
const SPARKLINE: usize = 20;
/// Its cells, and the seconds that it shows.
const SHORT: (usize, usize) = (SPARKLINE, 120);
/// The keys that change a slice. A no-break space keeps a key on the line of its word.
const SET_KEYS: &str = "set: w\u{a0}weight s\u{a0}share l\u{a0}limit c\u{a0}cap p\u{a0}priority";

/// The background of the row under the cursor.
pub const CHOSEN: Color = Color::Indexed(238);
/// Below the rows, a screen of this height shows the selected slice in full, if there is room.
const WITH_DETAIL: usize = 30;

/// How it is drawn.
#[derive(Clone, Copy)]
pub struct Look {
    /// Colours are allowed.
    pub colour: bool,
}

impl Look {
    fn colour(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    fn chosen(self) -> Style {
        match self.colour {
            true => Style::new().bg(CHOSEN),
            false => Style::new().add_modifier(Modifier::REVERSED),
        }
    }
}

/// What a column shows.
#[derive(Clone, Copy)]
enum Content {
    /// Text, which begins at the left.
    Text(fn(&View, &Slice<'_>) -> String),
    /// A part of the time, which ends at the right; `None` if it is not known.
    Part(fn(&Slice<'_>) -> Option<f64>),
}

/// A column: its heading, its width, and the rank by which it is dropped, the highest first.
#[derive(Clone, Copy)]
struct Column {
    head: &'static str,
    width: usize,
    rank: u8,
    content: Content,
}

impl Column {
    /// A text in the column's width.
    fn cell(&self, text: &str) -> String {
        fit(text, self.width, matches!(self.content, Content::Part(_))) + " "
    }

    fn text(&self, now: &View, it: &Slice<'_>) -> String {
        self.cell(&match self.content {
            Content::Text(text) => text(now, it),
            Content::Part(part) => {
                part(it).map_or("-".to_owned(), |part| format!("{:.0}%", 100.0 * part))
            }
        })
    }
}

const fn text(
    head: &'static str,
    (width, rank): (usize, u8),
    content: fn(&View, &Slice<'_>) -> String,
) -> Column {
    Column { head, width, rank, content: Content::Text(content) }
}

const fn part(head: &'static str, rank: u8, content: fn(&Slice<'_>) -> Option<f64>) -> Column {
    Column { head, width: 4, rank, content: Content::Part(content) }
}

/// Columns between NAME and WHY.
const COLUMNS: [Column; 7] = [
    text("GPU", (3, 5), |now, it| format!("{:>3}", now.index(it.row.gpu))),
    text("PRIO", (4, 6), |_, it| {
        match it.row.class {
            Class::High => "high",
            Class::Normal => "norm",
            Class::BestEffort => "best",
        }
        .to_owned()
    }),
    text("MEM", (BAR + 8, 4), memory),
    part("DUE", 3, |it| Some(it.finding.due)),
    part("GOT", 1, |it| it.finding.growth.got),
    part("WAIT", 0, |it| Some(it.finding.growth.part(it.finding.growth.waited()))),
    part("IDLE", 2, |it| Some(it.finding.growth.part(it.finding.growth.idle))),
];

/// The bar of the memory that a slice holds, and its cap. With a memory limit, the bar is as long as that, what is
/// borrowed is `+`, and both are told.
fn memory(now: &View, it: &Slice<'_>) -> String {
    let (cap, limit) = (it.row.cap, now.limit(it.row).limit);
    let held = it.row.used.0.saturating_add(it.row.untracked.0);
    let room = BAR - 2;
    let cells = |bytes: u64| {
        let part = bytes as f64 / limit.0.max(1) as f64;
        // A bar is full only where hardly anything is left, and empty only where nothing is held.
        ((part * room as f64).round() as usize).clamp(usize::from(bytes > 0), room)
    };
    let (full, own) = (cells(held), cells(held.min(cap.0)));
    let bar = "|".repeat(own) + &"+".repeat(full - own) + &" ".repeat(room - full);
    match limit > cap {
        true => {
            let exact = format!("{}/{}G", gib(cap), gib(limit));
            let whole = |size: Bytes| size.0.div_ceil(GIB);
            match exact.len() < BAR {
                true => format!("[{bar}] {exact}"),
                false => format!("[{bar}] {}/{}G", whole(cap), whole(limit)),
            }
        }
        false => match cap.to_string() {
            exact if exact.len() < BAR => format!("[{bar}] {exact}"),
            _ => format!("[{bar}] {}G", gib(cap)),
        },
    }
}

/// A text in exactly `width` cells.
fn fit(text: &str, width: usize, right: bool) -> String {
    let text = cut(text, width);
    let space = " ".repeat(width.saturating_sub(text.width()));
    if right { space + &text } else { text + &space }
}

/// The last `seconds` as a sparkline of `cells`.
pub(super) fn spark(parts: &[f64], (cells, seconds): (usize, usize)) -> String {
    sparkline(&resampled(parts, cells, seconds))
}

/// Draws the model.
pub fn draw(frame: &mut Frame<'_>, model: &Model, look: Look) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let mut lines = header(model, look, width, (height / 3).max(1));
    let lists = model.lines();
    let is_detail = matches!(model.mode, Mode::Detail);
    let mut shown = None;
    if is_detail {
        let all = detail::lines(model, &lists, look, width);
        // The footer names the lines that it leaves room for: the longest numbers give its height.
        let longest = footer(model, Some((all.len()..all.len(), all.len())));
        let below = wrapped(&longest, 0, width).len().min(height.div_ceil(2));
        let room = height.saturating_sub(lines.len() + below).max(1);
        let part = model.visible(all.len(), room);
        lines.extend(all[part.clone()].iter().cloned());
        shown = Some((part, all.len()));
    }
    let below = wrapped(&footer(model, shown), 0, width);
    let below = &below[..below.len().min(height.div_ceil(2))];
    if !is_detail {
        let room = height.saturating_sub(lines.len() + below.len() + 1);
        lines.extend(table(model, &lists, look, (width, room)));
        let full = detail::lines(model, &lists, look, width);
        let rest = height.saturating_sub(lines.len() + below.len());
        if height >= WITH_DETAIL && full.len() < rest && !lists.is_empty() {
            lines.push(Line::from(""));
            lines.extend(full);
        }
    }
    let last = if height > 1 { below.len() } else { 0 };
    lines.truncate(height - last.min(height));
    frame.render_widget(Paragraph::new(lines), area);
    let y = area.y + area.height.saturating_sub(last as u16);
    let bold = Style::new().add_modifier(Modifier::REVERSED);
    let below = below.iter().take(last).map(|it| Line::styled(fit(it, width, false), bold));
    let bottom = Rect { y, height: last as u16, ..area };
    frame.render_widget(Paragraph::new(below.collect::<Vec<_>>()), bottom);
}

/// A line for each GPU, `most` at most.
fn header(model: &Model, look: Look, width: usize, most: usize) -> Vec<Line<'static>> {
    let (before, now) = (model.before(), model.now());
    let all = summaries(before, now);
    let mut lines: Vec<Line<'static>> = Vec::new();
    for it in all.iter().take(most) {
        let text = gpu_line(model, it, width);
        let style = if it.busy.is_some_and(|busy| busy >= 0.9) {
            look.colour(Color::Yellow)
        } else {
            Style::new()
        };
        lines.push(Line::styled(fit(&text, width, false), style.add_modifier(Modifier::BOLD)));
    }
    if let (true, Some(last)) = (all.len() > most, lines.last_mut()) {
        *last = Line::from(format!("and {} more GPUs: gpuslice gpus", all.len() - most + 1));
    }
    lines
}

fn gpu_line(model: &Model, it: &Summary<'_>, width: usize) -> String {
    let (gpu, now) = (it.gpu, model.now());
    let holders = now.rows.iter().filter(|row| row.gpu == gpu.uuid && row.holds != 0);
    let holders: Vec<&str> = holders.map(|row| row.name.as_str()).take(3).collect();
    let product = gpu.product.trim_start_matches("NVIDIA ");
    let simulated = gpu.mark(" | ");
    let turn = match holders.is_empty() {
        true => String::new(),
        false => format!(" | * {}", holders.join(", ")), // marked so in their rows too
    };
    let busy = it.busy.map_or("-".to_owned(), percent);
    // A narrow screen cuts the end of the line.
    let state = it.marks(" | ") + &it.away(" | ");
    let [used, promised, total] = [it.used, gpu.promised, gpu.total].map(gib);
    if width < WITH_SPARKLINE {
        let short = cut(product, 14);
        return format!(
            "GPU{} {short} {} | mem {used} used, {promised} promised of {total} GiB{state} | busy {busy}{simulated}{turn}",
            gpu.index, gpu.policy
        );
    }
    let history = spark(&model.busy(gpu.uuid, SHORT.1), SHORT);
    let unpromised = gib(it.unpromised);
    format!(
        "GPU{} {product} {} | mem {used} used, {promised} promised, {unpromised} unpromised of {total} GiB{state} | busy {busy} {history}{simulated}{turn}",
        gpu.index, gpu.policy
    )
}

/// A size in GiB with one decimal at most.
fn gib(size: Bytes) -> String {
    let text = format!("{:.1}", size.0 as f64 / (1u64 << 30) as f64);
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// The columns that fit, and the widths of NAME and WHY.
fn layout(width: usize) -> (Vec<Column>, usize, usize) {
    let mut columns = COLUMNS.to_vec();
    let sum = |columns: &[Column]| columns.iter().map(|it| it.width + 1).sum::<usize>();
    // a mark, a name of 10 and a reason of 12 come before any column
    while sum(&columns) + 2 + 10 + 12 > width && !columns.is_empty() {
        let worst = columns.iter().map(|it| it.rank).max();
        columns.retain(|it| Some(it.rank) != worst);
    }
    let spark = if width >= WITH_SPARKLINE { SPARKLINE + 1 } else { 0 };
    let rest = width.saturating_sub(sum(&columns) + 2 + spark);
    let name = (rest * 2 / 5).clamp(1, 32);
    (columns, name, rest.saturating_sub(name))
}

/// The rows of the slices.
fn table(
    model: &Model,
    slices: &[Slice<'_>],
    look: Look,
    (width, room): (usize, usize),
) -> Vec<Line<'static>> {
    let (columns, name, why) = layout(width);
    let has_spark = width >= WITH_SPARKLINE;
    let mut head = format!("  {} ", fit("NAME", name, false));
    columns.iter().for_each(|it| head += &it.cell(it.head));
    if has_spark {
        head += &(fit("LAST 2 MIN", SPARKLINE, false) + " ");
    }
    head += &fit("WHY", why.saturating_sub(1), false);
    let underlined = Style::new().add_modifier(Modifier::UNDERLINED);
    let mut lines = vec![Line::styled(cut(&head, width), underlined)];
    if slices.is_empty() {
        let text =
            if model.filter.is_empty() { "no slices" } else { "no slice matches the filter" };
        lines.push(Line::from(format!("  {text}")));
        return lines;
    }
    let selected = model.selected(slices);
    // The last line counts the slices that have no room.
    let rows = if slices.len() > room && room > 1 { room - 1 } else { room.max(1) };
    let first = (selected + 1).saturating_sub(rows);
    for (at, it) in slices.iter().enumerate().skip(first).take(rows) {
        let mark = if it.row.holds != 0 { "* " } else { "  " };
        let mut start = format!("{mark}{} ", fit(&it.row.name, name, false));
        columns.iter().for_each(|column| start += &column.text(model.now(), it));
        if has_spark {
            let got = model.parts(it.row, SHORT.1, |it| it.got_us.into());
            start += &(spark(&got, SHORT) + " ");
        }
        let why = why.saturating_sub(1);
        let reason = fit(&it.told.fitted(why), why, false);
        let line = Line::from(vec![Span::raw(start), Span::styled(reason, reason_style(it, look))]);
        lines.push(if at == selected { line.style(look.chosen()) } else { line });
    }
    if rows < room {
        let hidden = [(first, "above"), (slices.len().saturating_sub(first + rows), "below")];
        let hidden = hidden.into_iter().filter(|(count, _)| *count > 0);
        let hidden: Vec<_> = hidden.map(|(count, place)| format!("{count} more {place}")).collect();
        lines.extend((!hidden.is_empty()).then(|| Line::from(format!("  {}", hidden.join(", ")))));
    }
    lines
}

pub(super) fn reason_style(it: &Slice<'_>, look: Look) -> Style {
    match it.finding.why.name() {
        "nothing" => look.colour(Color::Green),
        "idle" | "no-process" => look.colour(Color::Blue),
        "behind" | "beside" | "memory-refused" | "memory-lent" | "daemon-away" | "gang" => {
            look.colour(Color::Red)
        }
        _ => look.colour(Color::Yellow),
    }
}

/// The value that a container has now, as its option takes it; those of its GPUs, if they differ.
fn now_of(model: &Model, container: &str, field: Field) -> String {
    let number = |it: Option<u32>| it.map_or("none".to_owned(), |it| it.to_string());
    let rows = model.now().rows.iter().filter(|row| row.container == container);
    let mut values: Vec<String> = rows
        .map(|row| match field {
            Field::Weight => number(row.weight),
            Field::Share => number(row.share),
            Field::Limit => number(row.share_limit),
            Field::Cap => row.cap.to_string(),
            Field::Priority => row.class.to_string(),
        })
        .collect();
    values.dedup();
    values.join(", ")
}

/// Keys, a question or a message. `shown`: the lines of a slice in full that are on the screen, and their number.
fn footer(model: &Model, shown: Option<(Range<usize>, usize)>) -> String {
    let name = |container: &str| model.now().name(container);
    let keys = match shown {
        Some(_) => "Esc back  space pause",
        None => "q quit  Enter detail  o sort  / filter  space pause",
    };
    match &model.mode {
        Mode::Filter => format!("show names with: {}_", model.filter),
        Mode::Edit(container, field, text) => {
            let about = match model.message.as_str() {
                "" => {
                    format!(
                        "now {}; {}; Enter, Esc",
                        now_of(model, container, *field),
                        field.values()
                    )
                }
                why => why.to_owned(),
            };
            format!("set {} {} {text}_   ({about})", name(container), field.option())
        }
        Mode::Confirm(container, field, text) => {
            format!("set {} {} {text}: are you sure? (y/n)", name(container), field.option())
        }
        _ if !model.message.is_empty() => model.message.clone(),
        _ => {
            let paused = if model.is_paused { "PAUSED  " } else { "" };
            let filter = match model.filter.as_str() {
                "" => String::new(),
                text => format!("filter {text}  "),
            };
            let place = match shown {
                None => format!("by {}", model.sort.name()),
                Some((lines, all)) if lines.len() < all => {
                    format!("lines {}-{} of {all}  Up, Down scroll", lines.start + 1, lines.end)
                }
                Some(_) => "all lines".to_owned(),
            };
            format!("{paused}{filter}{place}  {keys}  {SET_KEYS}")
        }
    }
}
