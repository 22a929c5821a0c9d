//! `gpuslice-hook [--runtime-dir DIR] [--allow-cgpu-disable] [createRuntime|prestart|poststop]`

use std::io::Write;
use std::process::ExitCode;

#[global_allocator]
static HEAP: gpuslice_hook::Heap = gpuslice_hook::Heap::new();

fn main() -> ExitCode {
    let done = gpuslice_hook::Args::parse(std::env::args_os().skip(1))
        .and_then(|args| gpuslice_hook::run(&args, std::io::stdin().lock()));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The runtime shows a failed hook's stderr to the user; if it cannot be written, the exit
            // status still reports the failure.
            let _ = writeln!(std::io::stderr(), "gpuslice: {error}");
            ExitCode::FAILURE
        }
    }
}
