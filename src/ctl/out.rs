//! What commands print, on outputs that may have lost their reader: `gpuslice ps | head -1` has read
//! enough, and a command in a slice must not fail because nobody reads what is said about the slice.

use anyhow::{Context, Result};
use std::io::{ErrorKind, IsTerminal, Write};

/// Prints one line. A reader that went away wants no more of it, which is no error.
///
/// # Errors
/// The output takes no more: a full disk, mostly.
pub fn line(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        done => done.context("writing to standard output"),
    }
}

/// Draws a table over the last one, of `drawn` lines, on a terminal; below it elsewhere. Whether
/// anybody looks.
///
/// # Errors
/// The output takes no more.
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

/// Says something to the person, if there is one.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "gpuslice: {text}");
}
