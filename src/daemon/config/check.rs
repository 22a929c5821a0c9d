//! Reads the configuration's text, and names every faulty line.
//!
//! The parser stops at its first error. So the lines of an error are blanked and the rest is parsed again, until
//! nothing is wrong with it. Where blanking a line cannot help, as after a bracket that is never closed, the last fault
//! tells that the other lines were not checked.

use super::DaemonConfig;
use std::path::Path;

/// A wrong line: its number, from 1, and what is wrong with it.
pub type Fault = (usize, String);

/// What the last fault ends with if the search ended there.
const UNCHECKED: &str = "; the other lines are not checked until this one is mended";
/// How the parser begins about a value that is no number and has no quotes, as `5s`.
const UNQUOTED: &str = "string values must be quoted";
/// How the parser names a key that it does not know, and the keys that it knows.
const UNKNOWN: &str = "unknown field `";
const KNOWN: &str = ", expected one of ";

/// One line for each fault.
pub fn listed(file: &Path, faults: &[Fault]) -> String {
    let one = |(line, what): &Fault| format!("{}:{line}: {what}", file.display());
    faults.iter().map(one).collect::<Vec<_>>().join("\n")
}

impl DaemonConfig {
    /// Parses a file's text; an error lists every wrong line.
    pub(super) fn parse(text: &str) -> Result<DaemonConfig, Vec<Fault>> {
        let (config, mut faults) = read(text);
        if let Some(config) = config {
            let wrong: Vec<usize> = faults.iter().map(|(line, _)| *line).collect();
            // A wrong line has its default here, which contradicts nothing.
            let told = config.contradictions().into_iter().filter(|(keys, _)| {
                !keys.iter().any(|key| lines_of(text, key).any(|line| wrong.contains(&line)))
            });
            let told = told.map(|(keys, what)| {
                let lines = keys.iter().flat_map(|key| lines_of(text, key));
                (lines.max().unwrap_or(1), what)
            });
            let told: Vec<Fault> = told.collect();
            faults.extend(told);
            if faults.is_empty() {
                return Ok(config);
            }
        }
        faults.sort();
        list_keys_once(&mut faults);
        Err(faults)
    }

    /// Settings that exclude each other: their keys, and why.
    fn contradictions(&self) -> Vec<([&'static str; 2], String)> {
        let mut all = Vec::new();
        let (min, max) = (self.turn_min_ms.get(), self.turn_max_ms.get());
        if min > max {
            let what = format!("turn_min_ms = {min} is above turn_max_ms = {max}");
            all.push((["turn_min_ms", "turn_max_ms"], what));
        }
        let seconds =
            [self.over_cap_freeze_s, self.over_cap_kill_s].map(|it| it.map(|it| it.get()));
        if let [Some(freeze), Some(kill)] = seconds
            && freeze > kill
        {
            let what = format!(
                "over_cap_freeze_s = {freeze} is above over_cap_kill_s = {kill}: processes are killed before they \
                 would be frozen"
            );
            all.push((["over_cap_freeze_s", "over_cap_kill_s"], what));
        }
        let keys = ["over_cap_freeze_s", "over_cap_kill_s"];
        for (key, _) in keys.into_iter().zip(seconds).filter(|(_, it)| it.is_some()) {
            if self.accounting_interval_ms.get() == 0 {
                let what = format!(
                    "{key} has no effect with accounting_interval_ms = 0: without samples no container is seen to be \
                     over its cap"
                );
                all.push(([key, "accounting_interval_ms"], what));
            }
        }
        all
    }
}

/// The configuration without its faulty lines, and these; none if lines were not checked.
fn read(text: &str) -> (Option<DaemonConfig>, Vec<Fault>) {
    let mut rest: Vec<&str> = text.split('\n').collect();
    let mut faults: Vec<Fault> = Vec::new();
    loop {
        let now = rest.join("\n");
        let error = match toml::from_str(&now) {
            Ok(config) => return (Some(config), faults),
            Err(error) => error,
        };
        let (first, last) = lines_of_error(&now, &error);
        // Its syntax alone: a number may be too large.
        let is_toml = |text: &str| toml::de::DeTable::parse(text).is_ok();
        let was_toml = is_toml(&now);
        // A line that was blanked, or that is well by itself, shows an error of another one.
        let line = rest.get(first).copied().unwrap_or_default();
        let is_new = !line.trim().is_empty();
        if is_new || faults.is_empty() {
            faults.push((first + 1, in_words(line, error.message())));
        }
        let says = |what| error.message().contains(what);
        let is_its_own = was_toml || !is_toml(line) || says("duplicate key");
        rest.iter_mut().take(last + 1).skip(first).for_each(|line| *line = "");
        let breaks = was_toml && !is_toml(&rest.join("\n"));
        if !is_new || !is_its_own || breaks || says("unclosed") {
            if let Some((_, what)) = faults.last_mut() {
                what.push_str(UNCHECKED);
            }
            return (None, faults);
        }
    }
}

/// The first and the last line of an error, from 0.
fn lines_of_error(text: &str, error: &toml::de::Error) -> (usize, usize) {
    let span = error.span().unwrap_or(0..0);
    let line = |at: usize| {
        let before = text.as_bytes().iter().take(at);
        before.filter(|byte| **byte == b'\n').count()
    };
    let first = line(span.start);
    (first, line(span.end.saturating_sub(1)).max(first))
}

/// A parser's message about a line in words for the person who wrote it, with the line's key.
fn in_words(line: &str, message: &str) -> String {
    let what = message.trim_end().replace('\n', "; ");
    let what = match what.split_once(" as i128, expected i64") {
        Some((integer, _)) => {
            let digits = integer.trim_start_matches(|c: char| !c.is_ascii_digit());
            format!("{} is too large a number", digits.trim_end_matches('`'))
        }
        None if what.starts_with(UNQUOTED) => {
            "a text needs quotes, and a number has no unit".into()
        }
        None => what.replace("i64", "a whole number").replace("a string", "a text in quotes"),
    };
    match line.split_once('=') {
        Some((key, _)) if !what.contains(key.trim()) && !what.starts_with(UNKNOWN) => {
            format!("{}: {what}", key.trim())
        }
        _ => what,
    }
}

/// Names the key that was probably meant by each unknown one. The list of all keys follows the first one that is like
/// none of them.
fn list_keys_once(faults: &mut [Fault]) {
    let mut is_listed = false;
    for (_, what) in faults {
        let parts = what.strip_prefix(UNKNOWN).and_then(|rest| rest.split_once(KNOWN));
        let Some((key, known)) = parts else { continue };
        let end = if what.ends_with(UNCHECKED) { UNCHECKED } else { "" };
        let key = key.trim_end_matches('`');
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        let words = match (close_to(key, &known), std::mem::replace(&mut is_listed, true)) {
            (Some(meant), before) => {
                is_listed = before;
                format!("unknown key `{key}`; did you mean `{meant}`?")
            }
            (None, true) => format!("unknown key `{key}`"),
            (None, false) => format!("unknown key `{key}`; the keys are {}", known.join(", ")),
        };
        *what = words + end;
    }
}

/// The one of these keys that `key` is most like, if it is like any: the beginning of it, or with few other letters.
fn close_to<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    let far = |it: &&str| distance(key, it);
    let begins = |it: &&&str| key.len() >= 4 && it.starts_with(key);
    let few = |it: &&&str| 3 * distance(key, it) <= key.len().min(it.len());
    known.iter().copied().filter(|it| begins(&it) || few(&it)).min_by_key(far)
}

/// How many bytes must be put in, left out or changed to make one text of the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (at, byte) in a.bytes().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], at + 1);
        for (to, other) in b.bytes().enumerate() {
            let changed = corner + usize::from(byte != other);
            corner = row[to + 1];
            row[to + 1] = changed.min(corner + 1).min(row[to] + 1);
        }
    }
    row[b.len()]
}

/// The lines that set `key`, from 1.
fn lines_of<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = usize> + 'a {
    let sets = move |line: &str| {
        line.split_once('=').is_some_and(|(it, _)| it.trim().trim_matches('"') == key)
    };
    text.lines().enumerate().filter(move |(_, line)| sets(line)).map(|(at, _)| at + 1)
}

#[cfg(test)]
mod tests;
