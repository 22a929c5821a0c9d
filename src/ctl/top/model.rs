//! The state of `gpuslice top`: what was seen, what is selected, and what a key changes. Pure: views and keys in,
//! orders out.
//!
//! The figures of each slice are those of about two seconds. Its reason is decided over about five: of two reasons that
//! cost nearly the same, a shorter stretch would name another one at each look. A slice in full has the figures of
//! these five beside its reason. The model keeps the views. The last minutes, for the sparklines, are the daemon's.

use crate::past::{Past, part};
use crate::processes::Process;
use crate::set;
use crate::table::{Row, View};
use crate::why::{Finding, Growth, Told, decide, with_dir};
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::samples::Sample;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::PathBuf;

/// Views between which reasons are decided.
const VIEWS: usize = 6;
/// Views between which figures are measured.
const RECENT: usize = 3;

/// The order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Name,
    Wait,
    Got,
    Idle,
    Memory,
}

impl Sort {
    const ALL: [Sort; 5] = [Sort::Name, Sort::Wait, Sort::Got, Sort::Idle, Sort::Memory];

    /// The column's name.
    pub const fn name(self) -> &'static str {
        match self {
            Sort::Name => "NAME",
            Sort::Wait => "WAIT",
            Sort::Got => "GOT",
            Sort::Idle => "IDLE",
            Sort::Memory => "MEM",
        }
    }
}

/// A value of a slice that can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Weight,
    Share,
    Limit,
    Cap,
    Priority,
}

impl Field {
    const ALL: [(char, Field); 5] = [
        ('w', Field::Weight),
        ('s', Field::Share),
        ('l', Field::Limit),
        ('c', Field::Cap),
        ('p', Field::Priority),
    ];

    /// The option of `gpuslice set`.
    pub const fn option(self) -> &'static str {
        match self {
            Field::Weight => "--weight",
            Field::Share => "--share",
            Field::Limit => "--share-limit",
            Field::Cap => "--memory",
            Field::Priority => "--priority",
        }
    }

    /// The values that it takes.
    pub const fn values(self) -> &'static str {
        match self {
            Field::Weight => "1 to 1000, or none",
            Field::Share | Field::Limit => "1 to 100 percent, or none",
            Field::Cap => "a size as 8GiB, or a part as 1/4",
            Field::Priority => "high, normal or best-effort",
        }
    }
}

/// What the keys mean now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Move, sort, choose.
    List,
    /// One slice in full.
    Detail,
    /// The text that names must contain is typed.
    Filter,
    /// A new value is typed, for the container with this id.
    Edit(String, Field, String),
    /// That change waits for a `y`.
    Confirm(String, Field, String),
}

/// A key, as the model knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    /// Ctrl-C or Ctrl-D.
    Interrupt,
}

/// What the caller has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// End.
    Quit,
    /// `gpuslice set CONTAINER OPTION VALUE`.
    Set(String, Field, String),
}

/// A slice's figures of the last stretch.
pub struct Line<'a> {
    /// The slice.
    pub row: &'a Row,
    /// Why it is slow, with the figures of the last stretch.
    pub finding: Finding,
    /// Where the time went from which the reason was decided.
    pub judged: Growth,
    /// The reason in words.
    pub told: Told,
}

/// The processes of the selected slice.
#[derive(Clone, Debug, Default)]
pub enum Processes {
    /// Not asked yet.
    #[default]
    Unknown,
    /// Those of the container with this id.
    Of(String, Vec<Process>),
    /// The daemon does not tell them.
    NotTold,
}

/// See the file's head.
pub struct Model {
    views: VecDeque<View>,
    /// The last minutes.
    pub past: Past,
    /// What the keys mean.
    pub mode: Mode,
    /// The order of the rows.
    pub sort: Sort,
    /// What names must contain.
    pub filter: String,
    /// Views are not taken in.
    pub is_paused: bool,
    /// The row under the cursor: container and GPU, so that it stays when the order changes.
    selected: Option<(String, GpuUuid)>,
    /// A message for the last line.
    pub message: String,
    /// The runtime directory, if it was given: the commands that are proposed need it.
    pub given_dir: Option<PathBuf>,
    /// The processes of the selected slice.
    pub processes: Processes,
    /// The first line that is shown of a slice in full, within what the last drawing had room for.
    scroll: Cell<usize>,
}

impl Model {
    /// A model of the first view.
    pub fn new(first: View) -> Model {
        Model {
            views: VecDeque::from([first]),
            past: Past::default(),
            mode: Mode::List,
            sort: Sort::Name,
            filter: String::new(),
            is_paused: false,
            selected: None,
            message: String::new(),
            given_dir: None,
            processes: Processes::default(),
            scroll: Cell::new(0),
        }
    }

    /// Takes in the next view.
    pub fn see(&mut self, view: View) {
        if self.is_paused {
            return;
        }
        // A restart of the daemon is counted from the last look before it.
        let started = |view: &View| view.daemon.map(|it| it.started_ns);
        if started(self.now()) != started(&view) {
            self.views.drain(..self.views.len() - 1);
        }
        self.views.push_back(view);
        if self.views.len() > VIEWS {
            self.views.pop_front();
        }
    }

    /// Takes in a view, and no rates from the ones before: these are too old.
    pub fn see_anew(&mut self, view: View) {
        self.views = VecDeque::from([view]);
    }

    /// The last view.
    pub fn now(&self) -> &View {
        let at = self.views.len() - 1; // there is always one
        &self.views[at]
    }

    /// The view with which the last one is compared.
    pub fn before(&self) -> &View {
        &self.views[self.views.len().saturating_sub(RECENT)]
    }

    /// What a slice got of its GPU in each of the last `seconds` intervals, or another sum of its samples: parts, the
    /// oldest first.
    pub fn parts(&self, it: &Row, seconds: usize, of: fn(&Sample) -> u64) -> Vec<f64> {
        let is_it = |container: &str| container == it.container;
        let series = self.past.series.values().rfind(|at| at.gpu == it.gpu && is_it(&at.container));
        let samples = series.into_iter().flat_map(|it| &it.samples);
        let all: Vec<f64> = samples.map(|it| part(it, of(it))).collect();
        all[all.len().saturating_sub(seconds)..].to_vec()
    }

    /// What all slices got of a GPU in each of the last `seconds` intervals: parts, oldest first.
    pub fn busy(&self, gpu: GpuUuid, seconds: usize) -> Vec<f64> {
        let mut sums: BTreeMap<u64, f64> = BTreeMap::new();
        for sample in
            self.past.series.values().filter(|it| it.gpu == gpu).flat_map(|it| &it.samples)
        {
            *sums.entry(sample.end_ns).or_default() += part(sample, sample.got_us.into());
        }
        let all: Vec<f64> = sums.into_values().map(|sum| sum.min(1.0)).collect();
        all[all.len().saturating_sub(seconds)..].to_vec()
    }

    /// The rows that are shown, in order.
    pub fn lines(&self) -> Vec<Line<'_>> {
        let now = self.now();
        let filter = self.filter.to_lowercase();
        let is_meant = |row: &&Row| {
            row.name.to_lowercase().contains(&filter) || row.container.contains(&self.filter)
        };
        let known = |view| Some(view).filter(|_| self.views.len() > 1);
        let (first, before) = (known(&self.views[0]), known(self.before()));
        let line = |row| {
            let finding = decide(first, now, row);
            let told = finding.told(now, row);
            let Finding { growth, due, .. } = decide(before, now, row);
            let judged = finding.growth.clone();
            let finding = Finding { growth, due, ..finding };
            let advice = with_dir(told.advice, self.given_dir.as_deref());
            let told = Told { advice, ..told };
            Line { row, finding, judged, told }
        };
        let mut lines: Vec<Line<'_>> = now.rows.iter().filter(is_meant).map(line).collect();
        let permille = |it: &Line<'_>, ns: u64| (1_000.0 * it.finding.growth.part(ns)) as u64;
        lines.sort_by_key(|it| {
            let growth = &it.finding.growth;
            let figure = match self.sort {
                Sort::Name => 0,
                Sort::Wait => permille(it, growth.waited()),
                Sort::Got => (1_000.0 * growth.got.unwrap_or(0.0)) as u64,
                Sort::Idle => permille(it, growth.idle),
                Sort::Memory => it.row.used.0,
            };
            (Reverse(figure), it.row.name.clone(), now.index(it.row.gpu))
        });
        lines
    }

    /// The number of the selected row among these.
    pub fn selected(&self, lines: &[Line<'_>]) -> usize {
        let is_it = |line: &Line<'_>| {
            let it = self.selected.as_ref();
            it.is_some_and(|(container, gpu)| {
                line.row.container == *container && line.row.gpu == *gpu
            })
        };
        lines.iter().position(is_it).unwrap_or(0)
    }

    fn select(&mut self, step: isize) {
        let lines = self.lines();
        let last = lines.len().saturating_sub(1);
        let at = self.selected(&lines).saturating_add_signed(step).min(last);
        let chosen = lines.get(at).map(|it| (it.row.container.clone(), it.row.gpu));
        self.selected = chosen;
    }

    /// The lines that a screen with room for so many shows of `all`.
    pub fn visible(&self, all: usize, room: usize) -> Range<usize> {
        let first = self.scroll.get().min(all.saturating_sub(room));
        self.scroll.set(first);
        first..(first + room).min(all)
    }

    /// Id of the selected container.
    pub fn container(&self) -> Option<String> {
        let lines = self.lines();
        let line = lines.get(self.selected(&lines))?;
        Some(line.row.container.clone())
    }

    /// Handles a key.
    pub fn press(&mut self, key: Key) -> Option<Order> {
        self.message.clear();
        match (self.mode.clone(), key) {
            (_, Key::Interrupt) => Some(Order::Quit),
            (Mode::Filter, key) => {
                match key {
                    Key::Char(c) => self.filter.push(c),
                    Key::Backspace => drop(self.filter.pop()),
                    Key::Escape => {
                        self.filter.clear();
                        self.mode = Mode::List;
                    }
                    Key::Enter => self.mode = Mode::List,
                    Key::Up | Key::Down | Key::Interrupt => {}
                }
                None
            }
            (Mode::Edit(container, field, text), key) => {
                // A value that would be refused is no question.
                let parsed = set::options(&container, field.option(), &text);
                if let (Key::Enter, false, Err(why)) = (key, text.is_empty(), parsed) {
                    self.message = why;
                    return None;
                }
                self.mode = edited(container, field, text, key);
                None
            }
            (Mode::Confirm(container, field, text), key) => {
                self.mode = Mode::List;
                let is_sure = key == Key::Char('y');
                self.message = if is_sure { "" } else { "nothing was changed" }.to_owned();
                is_sure.then_some(Order::Set(container, field, text))
            }
            (Mode::Detail, Key::Escape | Key::Enter | Key::Char('q')) => {
                self.mode = Mode::List;
                None
            }
            (Mode::List, Key::Escape | Key::Char('q')) => Some(Order::Quit),
            (Mode::Detail, Key::Up | Key::Char('k')) => {
                self.scroll.set(self.scroll.get().saturating_sub(1));
                None
            }
            (Mode::Detail, Key::Down | Key::Char('j')) => {
                self.scroll.set(self.scroll.get() + 1);
                None
            }
            (Mode::List | Mode::Detail, key) => {
                self.command(key);
                None
            }
        }
    }

    /// A key that moves, sorts, or begins something.
    fn command(&mut self, key: Key) {
        let field = Field::ALL.into_iter().find(|(c, _)| key == Key::Char(*c));
        match (key, field) {
            (_, Some((_, field))) => match self.container() {
                Some(container) => self.mode = Mode::Edit(container, field, String::new()),
                None => self.message = "no slice is selected".to_owned(),
            },
            (Key::Up | Key::Char('k'), _) => self.select(-1),
            (Key::Down | Key::Char('j'), _) => self.select(1),
            (Key::Enter, _) => {
                self.select(0);
                self.scroll.set(0);
                self.mode = Mode::Detail;
            }
            (Key::Char('/'), _) => self.mode = Mode::Filter,
            (Key::Char(' '), _) => self.is_paused = !self.is_paused,
            (Key::Char('o'), _) => {
                let at = Sort::ALL.iter().position(|it| *it == self.sort).unwrap_or(0);
                self.sort = Sort::ALL[(at + 1) % Sort::ALL.len()];
            }
            _ => {}
        }
    }
}

/// A key while a value is typed.
fn edited(container: String, field: Field, mut text: String, key: Key) -> Mode {
    match key {
        Key::Char(c) => text.push(c),
        Key::Backspace => drop(text.pop()),
        Key::Escape => return Mode::List,
        Key::Enter if text.is_empty() => return Mode::List,
        Key::Enter => return Mode::Confirm(container, field, text),
        Key::Up | Key::Down | Key::Interrupt => {}
    }
    Mode::Edit(container, field, text)
}
