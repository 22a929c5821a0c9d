//! What commands print, on outputs that may have lost their reader: `gpuslice ps | head -1` has read
//! enough, and a command in a slice must not fail because nobody reads what is said about the slice.

use anyhow::{Context, Result};
use std::io::{ErrorKind, Write};

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

/// Says something to the person, if there is one.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "gpuslice: {text}");
}
