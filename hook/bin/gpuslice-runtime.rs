//! `gpuslice-runtime WORD…`: an OCI runtime that calls runc, or another one, with the same words.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

#[global_allocator]
static HEAP: gpuslice_hook::Heap = gpuslice_hook::Heap::new();

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Err(error) = gpuslice_hook::runtime::run(&words);
    // The caller shows it to the person who started the container; the exit status says it anyway.
    let _ = writeln!(std::io::stderr(), "gpuslice: {error}");
    ExitCode::FAILURE
}
