//! The OCI runtime wrapper: for engines that let a runtime be chosen but no hook be added.
//!
//! ```text
//! engine ──> gpuslice-runtime create … ──exec──> runc create …
//!               └─ a container that requests a slice: its config.json gets the hook
//! ```
//! Every command of every container passes through it, so it does as little as possible. It forwards the
//! command line unchanged and examines only commands that create a container. Without a slice request
//! `config.json` is read and not written. The file is the engine's: only the missing bytes are added
//! (`edit.rs`), and it is replaced atomically.

mod command_line;
mod edit;
mod log;
mod settings;

use crate::ask::Ask;
use crate::config::Config;
use crate::error::Error;
use command_line::{CommandLine, Creation};
use edit::{Ours, with_hooks};
pub use settings::{FILE as SETTINGS_FILE, Settings};
use std::convert::Infallible;
use std::env;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, Command};

/// Tells the next runtime that gpuslice-runtime has been called. Each runtime of a chain execs the next,
/// so a second call in the same process means a loop.
const CALLED_VARIABLE: &str = "GPUSLICE_RUNTIME_CALLED";

/// Executes the next runtime with the same arguments.
///
/// # Errors
/// The reason why the container is not created; the runtime's log has it too.
pub fn run(words: &[OsString]) -> Result<Infallible, Error> {
    let known = CommandLine::parse(words);
    exec_next(words, &known).inspect_err(|error| {
        if let Some(file) = &known.log {
            // The caller has standard error as well.
            let _ = log::note(file, known.log_json, &format!("gpuslice: {error}"));
        }
    })
}

fn exec_next(words: &[OsString], known: &CommandLine) -> Result<Infallible, Error> {
    let me = process::id().to_string();
    let settings = Settings::read()?;
    let next = settings.next()?;
    if env::var_os(CALLED_VARIABLE).is_some_and(|called| *called == *me) {
        return Err(Error::Wrapper(format!(
            "gpuslice-runtime calls {}, which calls it again; name another runtime as \"runtimes\" in one of \
             their configurations",
            next.display()
        )));
    }
    if let Some(creation) = &known.creation {
        prepare(creation, &settings)?;
    }
    let mut runtime = Command::new(&next);
    let failed = runtime.args(words).env(CALLED_VARIABLE, me).exec();
    Err(Error::Wrapper(format!("starting {}: {failed}", next.display())))
}

/// Adds the hook for a container that requests a slice.
fn prepare(creation: &Creation, settings: &Settings) -> Result<(), Error> {
    let path = creation.bundle.join("config.json");
    if fs::metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        // The next runtime reports it in its own words.
        return Ok(());
    }
    let file = Config::bytes(&creation.bundle)?;
    let config = Config::parse(&file)?;
    if creation.id.to_str().is_some_and(|id| config.is_sandbox(id)) {
        return Ok(());
    }
    if Ask::of(&config, settings.allow_cgpu_disable)?.is_none() {
        return Ok(());
    }
    // runc's CRIU mounts what the checkpoint names, not what a hook has mounted, and crun calls no hook here.
    if creation.is_restored {
        return Err(Error::Wrapper(
            "a container that requests a slice cannot be restored: a checkpoint has neither its slice nor its GPU \
             memory; start it anew, or remove its request"
                .to_owned(),
        ));
    }
    let ours = Ours {
        hook: &settings.hook()?,
        runtime_dir: &settings.runtime_dir,
        allow_cgpu_disable: settings.allow_cgpu_disable,
        allow_musl: settings.allow_musl,
    };
    match with_hooks(&file, &ours)? {
        None => Ok(()),
        Some(edited) => replace(&path, &edited)
            .map_err(|error| Error::Wrapper(format!("writing {}: {error}", path.display()))),
    }
}

/// Replaces a file atomically by one with the same mode and owner. Not synced: after a power failure no
/// container needs it.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let old = fs::metadata(path)?;
    let new = path.with_file_name(format!(".config.json.gpuslice-{}", process::id()));
    let write = || {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        fchown(&file, Some(old.uid()), Some(old.gid()))?;
        file.set_permissions(old.permissions())?;
        fs::rename(&new, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&new)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It would run without its limits; one that asks for nothing is none of ours.
    #[test]
    fn a_container_that_asks_is_not_restored() {
        let bundle = tempfile::tempdir().expect("a directory");
        let config = |text: &str| fs::write(bundle.path().join("config.json"), text);
        let creation = |is_restored| Creation {
            bundle: bundle.path().to_owned(),
            id: "abc".into(),
            is_restored,
        };
        let settings = Settings { hook: Some("/bin/true".into()), ..Settings::default() };
        config(r#"{"annotations":{"other/x":"y"}}"#).expect("written");
        assert!(prepare(&creation(true), &settings).is_ok());
        let asks = r#"{"annotations":{"gpuslice.io/memory":"1GiB"}}"#;
        config(asks).expect("written");
        let refused = prepare(&creation(true), &settings).expect_err("no slice").to_string();
        assert!(refused.contains("cannot be restored"), "{refused}");
        let written = || fs::read_to_string(bundle.path().join("config.json")).expect("text");
        assert_eq!(written(), asks);
        prepare(&creation(false), &settings).expect("it gets the hook");
        assert!(written().contains("/bin/true"));
    }
}
