//! Output of commands, also to a closed pipe: `gpuslice ps | head -1` is no error, and a command in a
//! slice must not fail because its messages about the slice have no reader.

use crate::text::{counted, cut, wrapped};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// The exit status for wrong words on the command line, as of those that the parser refuses.
pub const WRONG_WORDS: u8 = 2;

/// Prints one line. A closed pipe is not an error.
///
/// # Errors
/// The output cannot be written, usually because the disk is full.
pub fn line(text: &str) -> Result<()> {
    line_is_read(text).map(drop)
}

/// Prints one line; returns whether the output still has a reader.
///
/// # Errors
/// As [`line`].
pub fn line_is_read(text: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        done => done.map(|()| true).context("writing to standard output"),
    }
}

/// Prints a sentence; returns whether the output still has a reader. On a terminal it breaks between words, and goes on
/// `indent` cells from the left.
///
/// # Errors
/// As [`line`].
pub fn sentence(text: &str, indent: usize) -> Result<bool> {
    match terminal() {
        Some((width, _)) => line_is_read(&wrapped(text, indent, width).join("\n")),
        None => line_is_read(text),
    }
}

/// Prints a row of a table. Marks at its end that a terminal has no room for go below it.
///
/// # Errors
/// As [`line`].
pub fn row(text: &str) -> Result<()> {
    sentence(text, 4).map(drop)
}

/// A document of `--json`: an object with the name and the version of its schema in `docs/schemas`. A new field is no
/// new version; a field that goes or changes its meaning is one.
pub fn document(name: &str, version: u32, mut body: Value) -> Value {
    body["schema"] = format!("gpuslice/{name}").into();
    body["version"] = version.into();
    body
}

/// Columns and rows of the terminal that the output is; `None` if it is none.
pub fn terminal() -> Option<(usize, usize)> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let (width, height) = ratatui::crossterm::terminal::size().ok()?;
    (width > 0 && height > 0).then_some((width.into(), height.into()))
}

/// The lines that a terminal of this size shows at once, each in one of its own.
fn page(lines: &[String], (width, height): (usize, usize)) -> Vec<String> {
    let most = height.saturating_sub(1).max(1); // the cursor is below them
    let mut page: Vec<String> = lines.iter().take(most).map(|line| cut(line, width)).collect();
    if let (true, Some(last)) = (lines.len() > most, page.last_mut()) {
        *last =
            cut(&format!("and {} more", counted((lines.len() - most + 1) as u64, "line")), width);
    }
    page
}

/// Whether a terminal of this name moves its cursor where it is told to.
fn moves_cursor(term: Option<&OsStr>) -> bool {
    term.is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Draws a table over the previous one, of `drawn` lines, on a terminal that moves its cursor; below it
/// elsewhere. Returns whether the output still has a reader.
///
/// # Errors
/// The output cannot be written.
pub fn draw(lines: &[String], drawn: &mut usize) -> Result<bool> {
    // A line that the terminal wraps or scrolls away could not be drawn over.
    let lines = terminal().map_or_else(|| lines.to_vec(), |size| page(lines, size));
    let mut out = std::io::stdout().lock();
    let over = match *drawn {
        1.. if out.is_terminal() && moves_cursor(std::env::var_os("TERM").as_deref()) => {
            format!("\x1b[{drawn}A\x1b[J")
        }
        _ => String::new(),
    };
    *drawn = lines.len();
    match writeln!(out, "{over}{}", lines.join("\n")).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        done => done.map(|()| true).context("writing to standard output"),
    }
}

/// The name of a file for output, which ends in one of the two kinds, each with what it is.
///
/// # Errors
/// It ends otherwise; the text for the person.
pub fn named(text: &str, kinds: [(&str, &str); 2]) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let end = path.extension().and_then(|end| end.to_str());
    let [(one, is), (other, is_other)] = kinds;
    match end.is_some_and(|end| end == one || end == other) {
        true => Ok(path),
        false => Err(format!("the name ends in .{one} for {is} or in .{other} for {is_other}")),
    }
}

/// Checks that the directory of a file for output exists, before the work for it begins.
///
/// # Errors
/// It does not exist.
pub fn has_directory(path: Option<&Path>) -> Result<()> {
    match path.and_then(Path::parent) {
        Some(dir) if !(dir.as_os_str().is_empty() || dir.is_dir()) => {
            bail!("{} is no directory; nothing was written", dir.display())
        }
        _ => Ok(()),
    }
}

/// Writes a file whole or not at all: what was there stays if the disk is full. A device, a pipe or a link is
/// written in place.
///
/// # Errors
/// The file or its directory cannot be written.
pub fn file(path: &Path, text: &str) -> Result<()> {
    let named = || path.display().to_string();
    if fs::symlink_metadata(path).is_ok_and(|it| !it.is_file()) {
        return fs::write(path, text).with_context(named);
    }
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}", std::process::id()));
    let mut beside = File::create_new(&part).with_context(named)?;
    let whole = beside.write_all(text.as_bytes()).and_then(|()| fs::rename(&part, path));
    if whole.is_err() {
        let _nothing_to_remove = fs::remove_file(&part);
    }
    whole.with_context(named)
}

/// Prints a message to standard error; ignores failures.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "gpuslice: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicode_width::UnicodeWidthStr;

    #[test]
    fn a_page_fits_the_terminal() {
        let lines: Vec<String> = (0..30).map(|n| format!("{n}{}", "x".repeat(99))).collect();
        let shown = page(&lines, (80, 24));
        assert!(shown.len() == 23 && shown.iter().all(|line| line.width() <= 80), "{shown:?}");
        assert_eq!(shown[22], "and 8 lines more");
        assert_eq!(page(&lines[..3], (80, 24)).len(), 3);
        assert_eq!(page(&lines, (5, 1)), ["and …"]);
    }

    #[test]
    fn a_dumb_terminal_gets_no_escape_sequences() {
        let moves = |term: Option<&str>| moves_cursor(term.map(OsStr::new));
        assert_eq!(
            [None, Some(""), Some("dumb"), Some("xterm-256color")].map(moves),
            [false, false, false, true]
        );
    }

    #[test]
    fn a_file_is_written_whole_or_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.svg");
        let there = || fs::read_dir(dir.path()).expect("a directory").count();
        file(&path, "first").expect("written");
        file(&path, "second").expect("written");
        assert_eq!((fs::read_to_string(&path).expect("a file").as_str(), there()), ("second", 1));
        fs::create_dir(dir.path().join("d")).expect("a directory");
        let why = file(&dir.path().join("d"), "text").expect_err("a directory");
        assert!(format!("{why:#}").contains("/d: "), "{why:#}");
        assert!(file(&dir.path().join("none/a.svg"), "text").is_err());
        file(Path::new("/dev/null"), "text").expect("a device");
        assert_eq!(there(), 2);
    }
}
