//! The manual page `gpusliced(8)`, from the description of the command line. `gpuslice manual` writes the others.

use crate::command_line::CommandLine;
use clap::CommandFactory;
use clap_mangen::Man;
use std::fs;
use std::io;
use std::path::Path;

/// Writes the page into a directory.
///
/// # Errors
/// It cannot be written.
pub fn write(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut page = Vec::new();
    let command = CommandLine::command();
    Man::new(command).section("8").manual("gpuslice").render(&mut page)?;
    fs::write(dir.join("gpusliced.8"), page)
}
