//! The OCI runtime wrapper: for engines that let a runtime be chosen but no hook be added.
//!
//! ```text
//! engine ──> gpuslice-runtime create … ──exec──> runc create …
//!               └─ a container that asks for a slice: its config.json gets our hook
//! ```
//! It is on the way of every command of every container, so it stays out of it: the command line goes
//! on as it came, other commands look at nothing, and a container that asks for nothing has its file
//! unread by anybody else and unwritten. The file is the engine's; only its bytes that are missing are
//! added (`edit.rs`), and it is replaced in one step.

mod edit;
mod log;
mod settings;
mod words;

use crate::ask::Ask;
use crate::config::Config;
use crate::error::Error;
use edit::{Ours, with_hooks};
use settings::Settings;
use std::convert::Infallible;
use std::env;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, Command};
use words::{Creation, Words};

/// Says to whom it is handed on that we have been called. Each runtime of a chain becomes the next, so
/// that two of us with the same process are the same call, and would go on for ever.
const CALLED_VARIABLE: &str = "GPUSLICE_RUNTIME_CALLED";

/// Becomes the next runtime, with the words after the program's name.
///
/// # Errors
/// What keeps a container from being made; it is in the runtime's log too.
pub fn run(words: &[OsString]) -> Result<Infallible, Error> {
    let known = Words::parse(words);
    hand_on(words, &known).inspect_err(|error| {
        if let Some(file) = &known.log {
            // The caller has our standard error as well.
            let _ = log::note(file, known.log_json, &format!("gpuslice: {error}"));
        }
    })
}

fn hand_on(words: &[OsString], known: &Words) -> Result<Infallible, Error> {
    let me = process::id().to_string();
    let settings = Settings::read()?;
    let next = settings.next()?;
    if env::var_os(CALLED_VARIABLE).is_some_and(|called| *called == *me) {
        return Err(Error::Wrapper(format!(
            "gpuslice-runtime calls {}, which calls it again; name another one as \"runtimes\" in one of \
             their configurations",
            next.display()
        )));
    }
    if let Some(creation) = &known.creation {
        prepare(creation, &settings)?;
    }
    let mut runtime = Command::new(&next);
    let failed = runtime.args(words).env(CALLED_VARIABLE, me).exec();
    Err(Error::Wrapper(format!(
        "starting {}: {failed}",
        next.display()
    )))
}

/// Adds the hook of a container that asks for a slice.
fn prepare(creation: &Creation, settings: &Settings) -> Result<(), Error> {
    let path = creation.bundle.join("config.json");
    if fs::metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        // The next one says it in the words its caller knows.
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

/// Replaces a file in one step by one of the same mode and owner. Not synced: after a power cut there
/// is no container that would need it.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let old = fs::metadata(path)?;
    let new = path.with_file_name(format!(".config.json.gpuslice-{}", process::id()));
    let write = || {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(bytes)?;
        fchown(&file, Some(old.uid()), Some(old.gid()))?;
        file.set_permissions(old.permissions())?;
        fs::rename(&new, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&new)))
}
