//! `gpuslice-hook [--runtime-dir DIR] [--allow-cgpu-disable] createRuntime|prestart|poststop`

use std::process::ExitCode;

fn main() -> ExitCode {
    let done = gpuslice_hook::Args::parse(std::env::args().skip(1))
        .and_then(|args| gpuslice_hook::run(&args, std::io::stdin().lock()));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The runtime shows a failed hook's stderr to the person who started the container.
            eprintln!("gpuslice: {error}");
            ExitCode::FAILURE
        }
    }
}
