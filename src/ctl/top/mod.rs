//! `gpuslice top`: slices and GPUs on a screen, once a second, with keys to change slices.
//!
//! `model` decides what a key does, `screen` draws; both are pure. This file owns the terminal and the connection.
//! Without a terminal, or on one that cannot move its cursor, it prints rows.

mod detail;
pub(crate) mod model;
#[cfg(test)]
pub(crate) mod picture;
mod screen;
mod terminal;

use crate::admin::Admin;
use crate::columns::{self, DropOrder};
use crate::elsewhere;
use crate::out;
use crate::ps;
use crate::set;
use crate::table::View;
use anyhow::{Context, Result, bail};
use gpuslice_wire::ids::ContainerId;
use model::{Field, Key, Model, Order, Processes};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use screen::Look;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Columns of the rows without a screen.
const PLAIN: &str = "NAME,GPU,PRIO,USED,CAP,DUE,GOT,WAIT,IDLE,WHY";

/// Options of `gpuslice top`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// Seconds between two looks, 0.1 to 3600
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_every)]
    every: Duration,
    /// Print rows instead of a screen, this many times
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

const HELP: &str = "\
Keys:
  q, Esc           end
  Up, Down, k, j   choose a slice
  Enter            show all about it: its reason, rules, processes, memory and waits; Up, Down scroll
  o                sort by the next column: NAME, WAIT, GOT, IDLE, MEM
  /                show only slices whose name or id has a text
  space            pause
  w, s, l, c, p    set weight, share, limit, cap or priority, after a question

Columns: * has the GPU now; MEM a bar of the memory held, as a part of the cap, and the cap; with a memory limit the bar
is a part of the limit, + is memory beyond the cap, and cap/limit follow; DUE the part of the GPU's time that it is due;
GOT the part that it got, as in gpuslice ps; WAIT the part of the time in which it had work and not the GPU, because of
others or of its limit; IDLE the part in which it had no work; WHY as gpuslice explain. The figures are those of about
two seconds; WHY, and the time of a slice in full, are of about five. NO_COLOR is respected.";

fn parse_every(text: &str) -> Result<Duration> {
    let seconds: f64 = text.parse().context("not a number of seconds")?;
    if !(0.1..=3600.0).contains(&seconds) {
        bail!("not between 0.1 and 3600 seconds");
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Whether the output is a terminal on which a screen can be drawn.
fn has_screen() -> bool {
    let term = std::env::var("TERM").unwrap_or_default();
    let both = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    both && !matches!(term.as_str(), "" | "dumb")
}

/// Runs `gpuslice top`.
///
/// # Errors
/// No daemon answers, or the terminal fails.
pub fn main(options: &Options) -> Result<ExitCode> {
    let admin = elsewhere::connect(options.runtime_dir.as_deref())?;
    let first = View::of(admin.list()?);
    if options.count.is_some() || !has_screen() {
        return print_rows(options, &admin, first);
    }
    let colour = std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty());
    terminal::restore_at_signals()?;
    let mut terminal = ratatui::try_init().context("the terminal cannot show a screen")?;
    let mut model = Model::new(first);
    model.given_dir.clone_from(&options.runtime_dir);
    let mut top = Top { admin, model, every: options.every };
    let done = top.run(&mut terminal, Look { colour });
    ratatui::restore();
    done.map(|()| ExitCode::SUCCESS)
}

/// Prints a table in each interval until its reader is gone, or as often as was asked.
fn print_rows(options: &Options, admin: &Admin, mut before: View) -> Result<ExitCode> {
    let shown = (columns::parse(PLAIN).map_err(anyhow::Error::msg)?, DropOrder::LastFirst);
    let mut left = options.count;
    while left != Some(0) {
        std::thread::sleep(options.every);
        let now = View::of(admin.list_again()?);
        if !out::line_is_read(&ps::lines((&before, &now), &shown).join("\n"))? {
            break;
        }
        before = now;
        left = left.map(|left| left - 1);
    }
    Ok(ExitCode::SUCCESS)
}

/// The connection and the screen's state.
struct Top {
    admin: Admin,
    model: Model,
    every: Duration,
}

impl Top {
    fn run(&mut self, terminal: &mut ratatui::DefaultTerminal, look: Look) -> Result<()> {
        let mut next = Instant::now();
        loop {
            if next <= Instant::now() {
                self.look();
                next = Instant::now() + self.every;
            }
            terminal.draw(|frame| screen::draw(frame, &self.model, look))?;
            if !event::poll(next.saturating_duration_since(Instant::now()))? {
                continue;
            }
            let Some(key) = key_of(&event::read()?) else {
                continue;
            };
            match self.model.press(key) {
                None => {}
                Some(Order::Quit) => return Ok(()),
                Some(Order::Set(container, field, value)) => {
                    self.set(&container, field, &value);
                    next = Instant::now();
                }
            }
        }
    }

    /// Takes in a view; a daemon that is gone is told, and asked again.
    fn look(&mut self) {
        let seen = self.ask().or_else(|_| {
            self.admin = self.admin.again()?;
            self.model.past.clear();
            self.model.processes = Processes::default();
            self.ask()
        });
        match seen {
            Ok(view) => self.model.see(view),
            Err(why) => self.model.message = format!("{why:#}"),
        }
    }

    /// Asks for the present view, and for what is new of the last minutes.
    fn ask(&mut self) -> Result<View> {
        if !self.model.is_paused {
            self.model.past.follow(&self.admin)?;
        }
        let view = View::of(self.admin.list()?);
        self.ask_for_processes(&view)?;
        Ok(view)
    }

    /// Asks for the processes of the selected slice. A daemon that does not tell them ends the connection.
    fn ask_for_processes(&mut self, view: &View) -> Result<()> {
        let chosen =
            self.model.container().filter(|it| view.rows.iter().any(|row| row.container == *it));
        let id = chosen.as_deref().and_then(|it| ContainerId::new(it).ok());
        let is_asked = !self.model.is_paused && !matches!(self.model.processes, Processes::NotTold);
        let (Some(container), true) = (id, is_asked) else {
            return Ok(());
        };
        self.model.processes = match self.admin.processes(container)? {
            Some(all) => Processes::Of(container.to_string(), all),
            None => {
                self.admin = self.admin.again()?;
                Processes::NotTold
            }
        };
        Ok(())
    }

    /// Changes a slice, and shows what was changed or why not.
    fn set(&mut self, container: &str, field: Field, value: &str) {
        let changed = || -> Result<Vec<String>> {
            let options = set::options(container, field.option(), value);
            let options = options.map_err(anyhow::Error::msg)?;
            let admin = self.admin.again()?;
            let view = View::of(admin.list()?);
            let mut told = Vec::new();
            set::change(&options, &admin, (&view, container), &mut told)?;
            Ok(set::lines(&view, container, &told))
        };
        self.model.message = match changed() {
            Ok(told) => told.join("; "),
            Err(why) => format!("{why:#}"),
        };
    }
}

/// The key of an event, if it is one that the model knows.
fn key_of(event: &Event) -> Option<Key> {
    let Event::Key(key) = event else {
        return None;
    };
    if key.kind == KeyEventKind::Release {
        return None;
    }
    match key.code {
        KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            Some(Key::Interrupt)
        }
        KeyCode::Char(c) => Some(Key::Char(c)),
        KeyCode::Enter => Some(Key::Enter),
        KeyCode::Esc => Some(Key::Escape),
        KeyCode::Backspace => Some(Key::Backspace),
        KeyCode::Up => Some(Key::Up),
        KeyCode::Down => Some(Key::Down),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
