//! What can keep a container from its slice, in words for the person who started it.

use std::fmt;
use std::io;

/// One line: who, what, what to do next.
#[derive(Debug)]
pub enum Error {
    /// The hook was registered with wrong arguments.
    Usage(String),
    /// The runtime's state or the container's configuration is unusable.
    Input(String),
    /// The container asks for something malformed: annotation or variable, value, reason.
    Ask {
        /// Annotation or variable.
        key: String,
        /// What it says, shortened and escaped.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// The daemon cannot be asked.
    Daemon(String),
    /// The daemon said no.
    Denied(String),
    /// A step of the mounts failed.
    Mount {
        /// What was being done.
        doing: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: names the step that failed.
    pub(crate) fn mount(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let doing = doing.into();
        move |source| Error::Mount { doing, source }
    }

    /// A malformed wish; the value is shown escaped and cut, since an image wrote it.
    pub(crate) fn ask(key: &str, value: &str, why: impl ToString) -> Error {
        let value: String = value.escape_debug().take(64).collect();
        Error::Ask {
            key: key.into(),
            value,
            why: why.to_string(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(why) => write!(
                f,
                "{why}; usage: gpuslice-hook [--runtime-dir DIR] [--allow-cgpu-disable] createRuntime|prestart|poststop"
            ),
            Error::Input(why) => write!(f, "the runtime gave no usable container: {why}"),
            Error::Ask { key, value, why } => write!(f, "{key}={value}: {why}"),
            Error::Daemon(why) => write!(
                f,
                "this container asks for a GPU slice, but {why}; is gpusliced running?"
            ),
            Error::Denied(why) => write!(f, "no GPU slice: {why}"),
            Error::Mount { doing, source } => {
                write!(f, "putting the slice into the container: {doing}: {source}")
            }
        }
    }
}

impl std::error::Error for Error {}
