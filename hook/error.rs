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
    /// The runtime wrapper cannot do its part.
    Wrapper(String),
    /// The container asks for something malformed: annotation or variable, value, reason.
    Ask {
        /// Annotation or variable.
        key: String,
        /// What it says, shortened.
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

    /// A malformed wish; what an image may have written is cut.
    pub(crate) fn ask(key: &str, value: &str, why: impl ToString) -> Error {
        Error::Ask {
            key: key.chars().take(64).collect(),
            value: value.chars().take(64).collect(),
            why: why.to_string(),
        }
    }
}

/// Most of a message that is shown, characters.
const SHOWN_MAX: usize = 500;

/// Text that others had a hand in, fit for a log and a terminal: on one line, no control
/// characters, none that change the direction of what follows, and not endless.
struct Plain(String);

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars().take(SHOWN_MAX) {
            let directs = matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
            match c.is_control() || directs {
                true => write!(f, "{}", c.escape_unicode())?,
                false => write!(f, "{c}")?,
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
                 [--ask KEY=VALUE]… \
                 [createRuntime|prestart|poststop]"
            ),
            Error::Wrapper(why) => why.clone(),
            Error::Input(why) => format!("the runtime gave no usable container: {why}"),
            Error::Ask { key, value, why } => format!("{key}={value}: {why}"),
            Error::Daemon(why) => {
                format!("this container asks for a GPU slice, but {why}; is gpusliced running?")
            }
            Error::Denied(why) => format!("no GPU slice: {why}"),
            Error::Mount { doing, source } => {
                format!("putting the slice into the container: {doing}: {source}")
            }
        };
        Plain(text).fmt(f)
    }
}

impl std::error::Error for Error {}
