//! `gpuslice-runtime ARG…`: an OCI runtime that calls runc, or another one, with the same arguments.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

#[global_allocator]
static HEAP: gpuslice_hook::Heap = gpuslice_hook::Heap::new();

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Err(error) = gpuslice_hook::runtime::run(&words);
    // The caller shows it to the user; the exit status reports the failure anyway.
    let _ = writeln!(std::io::stderr(), "gpuslice: {error}");
    ExitCode::FAILURE
}
