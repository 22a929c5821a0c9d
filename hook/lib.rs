//! The OCI hook: gives a container that asks for a slice its slice, before its first process runs.
//!
//! ```text
//! stdin: state ─┐
//!               ├─> ask (pure) ──> grant (daemon) ──> plan (pure) ──> apply (file descriptors only)
//! config.json ──┘        └─ asks for nothing: exit 0 at once
//! ```
//! It runs as root beside images nobody trusts, so: it is static and reads no environment; both
//! inputs are capped; nothing of the image is ever a *source*; no path into the image is used as a
//! string, every component is opened below the last one's descriptor; and a container that asked
//! for a slice and cannot have it does not start.

#![deny(missing_docs)]

mod apply;
mod args;
mod ask;
mod cgpu;
mod error;
mod grant;
mod input;
mod plan;
mod sys;

pub use args::{Args, Stage};
pub use ask::Ask;
pub use error::Error;
pub use input::{Config, State};

use std::io::Read;
use std::path::Path;

/// Runs the hook for one stage of one container.
///
/// # Errors
/// Whatever keeps a container that asked for a slice from getting it; its text is one line for the
/// person who started the container.
pub fn run(args: &Args, stdin: impl Read) -> Result<(), Error> {
    let state = State::read(stdin)?;
    let config = Config::read(Path::new(&state.bundle))?;
    let Some(ask) = Ask::of(&config, args.allow_cgpu_disable)? else {
        return Ok(());
    };
    let container = state.container_id()?;
    match args.stage {
        Stage::Poststop => grant::dismiss(&args.runtime_dir, container),
        Stage::CreateRuntime => start(args, &state, &config, &ask),
    }
}

fn start(args: &Args, state: &State, config: &Config, ask: &Ask) -> Result<(), Error> {
    let container = state.container_id()?;
    let granted = grant::admit(&args.runtime_dir, container, ask)?;
    let mounted = plan::Plan::of(&granted)
        .and_then(|plan| apply::apply(&plan, state.host_pid()?, &config.rootfs(&state.bundle)));
    if mounted.is_err() {
        // The container will not start; what it was promised goes back. The first error counts.
        let _ = grant::dismiss(&args.runtime_dir, container);
    }
    mounted
}
