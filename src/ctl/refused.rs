//! Refusals of the daemon, in the words of the command that was refused.
//!
//! The daemon knows a container by its id, and not how its socket was named. A person typed a name, and perhaps
//! `--runtime-dir`: a command that a refusal proposes must work as it is printed.

use crate::why::{quoted, with_dir};
use anyhow::{Error, anyhow};
use std::path::Path;

/// The refusal with the container as it was `asked` for, and with the directory that was given.
pub fn reworded(why: &Error, (id, asked): (&str, &str), dir: Option<&Path>) -> Error {
    let command = |words: String| with_dir(Some(words.clone()), dir).unwrap_or(words);
    let resume = format!("gpuslice resume {}", quoted(asked));
    let mut text = format!("{why:#} ");
    for (theirs, ours) in [
        (format!("container {id} "), format!("container {asked} ")),
        (format!("gpuslice resume {id} "), command(resume) + " "),
        ("gpuslice ps ".to_owned(), command("gpuslice ps".to_owned()) + " "),
    ] {
        text = text.replace(&theirs, &ours);
    }
    anyhow!(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_what_was_typed() {
        let told = |why: &str, asked: &str, dir: Option<&str>| {
            reworded(&anyhow!(why.to_owned()), ("a", asked), dir.map(Path::new)).to_string()
        };
        assert_eq!(
            told("container a is suspended; gpuslice resume a ends that", "my web", Some("/d")),
            "container my web is suspended; gpuslice resume 'my web' --runtime-dir /d ends that"
        );
        assert_eq!(
            told("container a is not suspended; gpuslice ps shows which are", "a", Some("/d")),
            "container a is not suspended; gpuslice ps --runtime-dir /d shows which are"
        );
        let other = "no room; raise suspended_memory, or resume another one";
        assert_eq!(told(other, "web", Some("/d")), other);
    }
}
