//! The hook's command line, as registered with a runtime.

use crate::error::Error;
use gpuslice_wire::owner::{BadClaimId, ClaimId};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// The word before a claim's id.
pub(crate) const CLAIM: &str = "--claim";

/// The stage in which the runtime calls the hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The container's namespaces exist; its first process does not run yet. `prestart` is the older
    /// name; runtimes treat both alike.
    CreateRuntime,
    /// The container has ended.
    Poststop,
}

/// Parsed arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Args {
    /// The daemon's runtime directory.
    pub runtime_dir: PathBuf,
    /// Whether a container may opt out by `CGPU_DISABLE`: the node decides, never the image.
    pub allow_cgpu_disable: bool,
    /// The registration's own request, as `key=value`: the slice of a CDI device.
    pub ask: Vec<String>,
    /// The claim in which the container is to live: that of a claim's CDI device.
    pub claim: Option<ClaimId>,
    /// Whether a container without glibc may have a slice, which only its static programs can use.
    pub allow_musl: bool,
    /// The stage; `None` takes it from the container's state.
    pub stage: Option<Stage>,
}

impl Args {
    /// Parses the words after the program's name.
    ///
    /// # Errors
    /// An unknown word, one that is not UTF-8, a relative directory, two stages.
    pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Args, Error> {
        let mut args = Args {
            runtime_dir: "/run/gpuslice".into(),
            allow_cgpu_disable: false,
            ask: Vec::new(),
            claim: None,
            allow_musl: false,
            stage: None,
        };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            match word.to_str() {
                Some("--runtime-dir") => {
                    args.runtime_dir = words.next().unwrap_or_default().into();
                    if !args.runtime_dir.is_absolute() {
                        let why = "--runtime-dir needs an absolute path";
                        return Err(Error::Usage(why.into()));
                    }
                }
                Some("--allow-cgpu-disable") => args.allow_cgpu_disable = true,
                Some("--ask") => match words.next().map(OsString::into_string) {
                    Some(Ok(word)) if word.contains('=') => args.ask.push(word),
                    _ => return Err(Error::Usage("--ask needs KEY=VALUE, as memory=1GiB".into())),
                },
                Some(CLAIM) if args.claim.is_none() => {
                    args.claim = Some(claim(&words.next().unwrap_or_default())?);
                }
                Some("--allow-musl") => args.allow_musl = true,
                Some("createRuntime" | "prestart") if args.stage.is_none() => {
                    args.stage = Some(Stage::CreateRuntime);
                }
                Some("poststop") if args.stage.is_none() => args.stage = Some(Stage::Poststop),
                _ => return Err(Error::Usage(format!("{word:?} is unknown or repeated"))),
            }
        }
        match args.claim.is_some() && !args.ask.is_empty() {
            true => Err(Error::Usage("--claim and --ask exclude each other".into())),
            false => Ok(args),
        }
    }
}

/// A claim's id from a command line.
fn claim(word: &OsStr) -> Result<ClaimId, Error> {
    let parsed = word.to_str().ok_or(BadClaimId).and_then(ClaimId::new);
    parsed.map_err(|why| Error::Usage(format!("{CLAIM}: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    fn parse(line: &str) -> Result<Args, Error> {
        Args::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn words() {
        let args = parse("--runtime-dir /x createRuntime").expect("valid");
        assert_eq!((args.runtime_dir, args.stage), ("/x".into(), Some(Stage::CreateRuntime)));
        assert_eq!(parse("prestart").ok().and_then(|args| args.stage), Some(Stage::CreateRuntime));
        assert!(parse("--allow-cgpu-disable poststop").is_ok_and(|args| args.allow_cgpu_disable));
        assert!(
            parse("--allow-musl").is_ok_and(|args| args.allow_musl && !args.allow_cgpu_disable)
        );
        assert!(parse("").is_ok_and(|args| args.stage.is_none()));
        let args = parse("--ask memory=1/4 --ask gpus=0,1 createRuntime").expect("valid");
        assert_eq!(args.ask, ["memory=1/4", "gpus=0,1"]);
        let claim = parse("--claim c-1 createRuntime").expect("valid").claim;
        assert_eq!(claim, ClaimId::new("c-1").ok());
        let huge = format!("--claim {} createRuntime", "a".repeat(10_240));
        for bad in [
            "--claim",
            "--claim ../x",
            "--claim -x",
            "--claim a/b",
            "--claim a --claim b",
            "--claim a --ask memory=1GiB",
            &huge,
            "--ask",
            "--ask memory",
            "start",
            "--runtime-dir",
            "--runtime-dir x poststop",
            "createRuntime --x",
            "createRuntime poststop",
            "createruntime",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let raw = OsString::from_vec(vec![0xff]);
        assert!(Args::parse([raw]).is_err());
    }
}
