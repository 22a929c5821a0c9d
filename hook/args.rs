//! The hook's command line, as an administrator registers it with a runtime.

use crate::error::Error;
use std::path::PathBuf;

/// When the hook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The container's namespaces exist, its first process does not run yet. `prestart` is the
    /// older name; runtimes give both the same view.
    CreateRuntime,
    /// The container is gone.
    Poststop,
}

/// Parsed arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Args {
    /// The daemon's runtime directory.
    pub runtime_dir: PathBuf,
    /// Whether a container may opt out by `CGPU_DISABLE`; the node's choice, never the image's.
    pub allow_cgpu_disable: bool,
    /// The stage.
    pub stage: Stage,
}

impl Args {
    /// Parses the words after the program's name.
    ///
    /// # Errors
    /// An unknown word, a missing value or no stage.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Args, Error> {
        let (mut runtime_dir, mut allow, mut stage) = (PathBuf::from("/run/gpuslice"), false, None);
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--runtime-dir" => {
                    runtime_dir = words
                        .next()
                        .ok_or(Error::Usage("--runtime-dir needs a directory".into()))?
                        .into();
                }
                "--allow-cgpu-disable" => allow = true,
                "createRuntime" | "prestart" => stage = Some(Stage::CreateRuntime),
                "poststop" => stage = Some(Stage::Poststop),
                _ => return Err(Error::Usage(format!("unknown word {word:?}"))),
            }
        }
        let stage = stage.ok_or(Error::Usage("no stage is named".into()))?;
        Ok(Args {
            runtime_dir,
            allow_cgpu_disable: allow,
            stage,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, Error> {
        Args::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn words() {
        let args = parse("--runtime-dir /x createRuntime").expect("valid");
        assert_eq!(
            (args.runtime_dir, args.stage),
            ("/x".into(), Stage::CreateRuntime)
        );
        assert_eq!(
            parse("prestart").map(|args| args.stage).ok(),
            Some(Stage::CreateRuntime)
        );
        assert!(parse("--allow-cgpu-disable poststop").is_ok_and(|args| args.allow_cgpu_disable));
        for bad in ["", "start", "--runtime-dir", "createRuntime --x"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
