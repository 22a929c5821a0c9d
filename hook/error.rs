//! Errors that keep a container from its slice, worded for the user who started it.

use gpuslice_wire::text::is_seen;
use std::fmt;
use std::io;

/// One line: which object, what is wrong, what to do next.
#[derive(Debug)]
pub enum Error {
    /// The hook was registered with wrong arguments.
    Usage(String),
    /// The runtime's state or the container's configuration is unusable.
    Input(String),
    /// The runtime wrapper cannot do its part.
    Wrapper(String),
    /// The container's request is malformed: annotation or variable, value, reason.
    Ask {
        /// Annotation or variable.
        key: String,
        /// Its value, shortened.
        value: String,
        /// The reason.
        why: String,
    },
    /// The daemon does not answer.
    Daemon(String),
    /// The daemon refused the request.
    Denied(String),
    /// A step of the mounts failed.
    Mount {
        /// The step.
        doing: String,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: names the step that failed.
    pub(crate) fn mount(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let doing = doing.into();
        move |source| Error::Mount { doing, source }
    }

    /// A malformed request; text that an image may have written is shortened.
    pub(crate) fn ask(key: &str, value: &str, why: impl ToString) -> Error {
        Error::Ask {
            key: key.chars().take(64).collect(),
            value: value.chars().take(64).collect(),
            why: why.to_string(),
        }
    }
}

/// Largest message shown, characters.
const SHOWN_MAX: usize = 500;

/// Untrusted text, made safe for a log and a terminal: one line of bounded length; control characters and invisible
/// ones are escaped.
struct Plain(String);

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars().take(SHOWN_MAX) {
            match is_seen(c) {
                false => write!(f, "{}", c.escape_unicode())?,
                true => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Error::Usage(why) => format!(
                "{why}; usage: gpuslice-hook [--runtime-dir DIR] [--allow-cgpu-disable] [--allow-musl] \
                 [--ask KEY=VALUE]… [--claim ID] \
                 [createRuntime|prestart|poststop]"
            ),
            Error::Wrapper(why) => why.clone(),
            Error::Input(why) => format!("invalid input from the container runtime: {why}"),
            Error::Ask { key, value, why } => format!("{key}={value}: {why}"),
            Error::Daemon(why) => {
                format!("this container requests a GPU slice, but {why}; is gpusliced running?")
            }
            Error::Denied(why) => format!("no GPU slice: {why}"),
            Error::Mount { doing, source } => {
                format!("mounting the slice into the container: {doing}: {source}")
            }
        };
        Plain(text).fmt(f)
    }
}

impl std::error::Error for Error {}
