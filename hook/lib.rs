//! The OCI hook: sets up a container's requested slice before its first process runs.
//!
//! ```text
//! stdin: state ─┐
//!               ├─> ask (pure) ──> grant (daemon) ──> plan (pure) ──> apply (file descriptors only)
//! config.json ──┘        └─ no request: exit 0 at once
//! ```
//! It runs as root beside untrusted images, so: it is static and reads no environment; both inputs have
//! a size limit; no file of an image is ever a mount *source*; a path into an image is opened component
//! by component, each below the last one's descriptor; and a container that requested a slice and
//! cannot have it does not start.

#![deny(missing_docs)]

mod apply;
mod args;
mod ask;
mod cgpu;
mod claim;
mod config;
mod cover;
mod error;
#[cfg(test)]
mod fuzz;
mod grant;
mod json;
mod log;
mod nvidia;
mod place;
mod plan;
mod read;
mod request;
pub mod runtime;
mod state;
mod sys;
#[cfg(test)]
mod toctou;

pub use args::{Args, Stage};
pub use ask::Ask;
pub use config::Config;
pub use error::Error;
pub use state::State;
pub use sys::heap::Heap;

use gpuslice_wire::admin::Command;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::limits::CLAIMS_OF_CONTAINER_MAX;
use gpuslice_wire::owner::{ClaimId, Owner};
use std::io::Read;
use std::path::Path;

/// Time limit for the hook of a container that requests a slice, seconds. Waits for the daemon have
/// their own, shorter limits; this one is for volumes that do not answer.
const DEADLINE_S: u32 = 2;

/// Runs the hook for one stage of one container. It expects its own process: it closes descriptors from
/// 3 up, and a deadline ends the process.
///
/// # Errors
/// The reason why a container does not get its requested slice, as one line for the user.
pub fn run(args: &Args, stdin: impl Read) -> Result<(), Error> {
    let settled = sys::process::settle();
    settled.map_err(|error| Error::Input(format!("settling down: {error}")))?;
    let state = State::read(stdin)?;
    serve(args, &state).inspect_err(|error| log::note(state.id(), error))
}

fn serve(args: &Args, state: &State) -> Result<(), Error> {
    let config = Config::read(Path::new(&state.bundle))?;
    if config.is_sandbox(state.id()) {
        return Ok(());
    }
    let wish = Wish::of(args, &config)?;
    if matches!(wish, Wish::Nothing) {
        return Ok(());
    }
    sys::process::end_after(DEADLINE_S);
    match (state.stage_if(args.stage)?, wish) {
        (Stage::Poststop, _) => stop(args, state),
        (Stage::CreateRuntime, Wish::Elsewhere | Wish::Nothing) => Ok(()),
        (Stage::CreateRuntime, wish) => start(args, state, &config, &wish),
    }
}

/// What a container is to get from this call of the hook.
#[allow(clippy::large_enum_variant)] // one, on the stack
enum Wish {
    /// Nothing: it requests no slice.
    Nothing,
    /// Another call of the hook for this container, with a claim, gives it what it requests.
    Elsewhere,
    /// A slice of its own.
    Slice(Ask),
    /// A life in a claim: the claims of all its devices.
    Claims(Vec<ClaimId>),
}

impl Wish {
    /// The request of the container, or of the registration.
    fn of(args: &Args, config: &Config) -> Result<Wish, Error> {
        let stops = args.stage == Some(Stage::Poststop);
        let claims = config.claims()?;
        let why = "the container also requests a slice itself; use either the device, or annotations \
                   and variables";
        if let Some(own) = args.claim {
            if !stops && let Some((key, value)) = config.annotations().next() {
                return Err(Error::ask(key, value, why));
            }
            // With a claim, variables of the environment only inform. The first of our hooks acts for all.
            return Ok(match claims.first() {
                None => Wish::Claims(vec![own]),
                Some(first) if *first == own => Wish::Claims(claims),
                Some(_) => Wish::Elsewhere,
            });
        }
        if args.ask.is_empty() {
            if !claims.is_empty() {
                return Ok(Wish::Elsewhere);
            }
            let ask = Ask::of(config, args.allow_cgpu_disable)?;
            return Ok(ask.map_or(Wish::Nothing, Wish::Slice));
        }
        let ask = Ask::of_words(&args.ask)?;
        let own = || Ask::of(config, args.allow_cgpu_disable).map(|own| own.is_some());
        if !stops && (!claims.is_empty() || own()?) {
            return Err(Error::ask("gpuslice.io/slice", &args.ask.join(","), why));
        }
        Ok(Wish::Slice(ask))
    }

    /// The command that asks the daemon for it.
    fn command(&self, container: ContainerId, pid: u32, owner: Owner) -> Option<Command> {
        match self {
            Wish::Nothing | Wish::Elsewhere => None,
            Wish::Slice(ask) => Some(ask.admit(container, pid, owner)),
            Wish::Claims(named) => {
                let mut claims = [None; CLAIMS_OF_CONTAINER_MAX];
                for (place, claim) in claims.iter_mut().zip(named) {
                    *place = Some(*claim);
                }
                Some(Command::Join { container, claims, owner, pid })
            }
        }
    }
}

fn start(args: &Args, state: &State, config: &Config, wish: &Wish) -> Result<(), Error> {
    let (container, pid) = (state.container_id()?, state.host_pid()?);
    let by = grant::deadline();
    let Some(command) = wish.command(container, pid.unsigned_abs(), config.owner()) else {
        return Ok(());
    };
    let asked = grant::Asked::send(&args.runtime_dir, &command, by)?;
    // Runs while the daemon works. An error here is reported after its answer: see below.
    let found = apply::find(pid);
    let Some(granted) = asked.granted()? else {
        return Ok(()); // an earlier call has mounted everything
    };
    let mounted = plan::Plan::of(&granted).and_then(|plan| {
        claim::note(&plan.dir, Path::new(&state.bundle))
            .map_err(Error::mount("recording its owner"))?;
        apply::apply(&plan, found?, &config.rootfs(&state.bundle), args.allow_musl)
    });
    if mounted.is_err() {
        // The container will not start, so its slice is removed; at the latest the daemon does that when
        // the first process ends. The first error is returned.
        let _ = grant::dismiss(&args.runtime_dir, container, by);
    }
    mounted
}

fn stop(args: &Args, state: &State) -> Result<(), Error> {
    let container = state.container_id()?;
    if claim::is_anothers(&args.runtime_dir, container, Path::new(&state.bundle)) {
        return Ok(());
    }
    grant::dismiss(&args.runtime_dir, container, grant::deadline())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The registration of a slice or of a claim, called for a stage, beside an annotation of the container.
    fn wish(registered: &str, stage: &str) -> Result<Wish, Error> {
        let words = registered.split(' ').chain([stage]).map(Into::into);
        let text = br#"{"annotations":{"gpuslice.io/memory":"1GiB"}}"#;
        Wish::of(&Args::parse(words)?, &Config::parse(text)?)
    }

    /// A container that was refused is stopped, too.
    #[test]
    fn two_requests_are_refused_at_the_start_and_not_at_the_stop() {
        for registered in ["--ask memory=1GiB", "--claim c-1"] {
            assert!(matches!(wish(registered, "createRuntime"), Err(Error::Ask { .. })));
            assert!(matches!(wish(registered, "poststop"), Ok(Wish::Slice(_) | Wish::Claims(_))));
        }
    }
}
