//! Output of commands, also to a closed pipe: `gpuslice ps | head -1` is no error, and a command in a
//! slice must not fail because its messages about the slice have no reader.

use anyhow::{Context, Result};
use serde_json::Value;
use std::io::{ErrorKind, IsTerminal, Write};

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

/// A document of `--json`: an object with the name and the version of its schema in `docs/schemas`. A new field is no
/// new version; a field that goes or changes its meaning is one.
pub fn document(name: &str, version: u32, mut body: Value) -> Value {
    body["schema"] = format!("gpuslice/{name}").into();
    body["version"] = version.into();
    body
}

/// Draws a table over the previous one, of `drawn` lines, on a terminal; below it elsewhere. Returns
/// whether the output still has a reader.
///
/// # Errors
/// The output cannot be written.
pub fn draw(lines: &[String], drawn: &mut usize) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    let over = match *drawn {
        1.. if out.is_terminal() => format!("\x1b[{drawn}A\x1b[J"),
        _ => String::new(),
    };
    *drawn = lines.len();
    match writeln!(out, "{over}{}", lines.join("\n")).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        done => done.map(|()| true).context("writing to standard output"),
    }
}

/// Prints a message to standard error; ignores failures.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "gpuslice: {text}");
}
