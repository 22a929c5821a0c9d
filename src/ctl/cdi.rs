//! `gpuslice cdi generate`: slices as devices of the Container Device Interface.
//!
//! An engine with CDI (podman, containerd from 1.7 on, CRI-O, Docker from 25 on) then grants a slice
//! with `--device gpuslice.io/slice=1of4` and needs no other configuration. A device adds the hook to
//! the container, with the request in the hook's arguments. The node's file holds that request; an
//! image cannot change it.

use crate::node;
use crate::out;
use crate::setup::file;
use crate::slice::{limit_below, parse_cap, parse_memory};
use anyhow::{Context, Result, bail};
use gpuslice_wire::policy::{Class, Gangs};
use gpuslice_wire::select::GpuSelector;
use gpuslice_wire::text::{Name, Selector};
use gpuslice_wire::units::{Percent, Weight};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// CDI version: the first in which a device's name may begin with a digit.
const VERSION: &str = "0.5.0";
/// The kind of gpuslice's devices.
const KIND: &str = "gpuslice.io/slice";
/// Devices generated without `--slice`.
const DEFAULT_SLICES: [&str; 4] =
    ["1of2:memory=1/2", "1of3:memory=1/3", "1of4:memory=1/4", "1of8:memory=1/8"];

/// Options of `gpuslice cdi`.
#[derive(clap::Args)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Generate the CDI specification that engines read
    Generate(Generate),
}

#[derive(clap::Args)]
struct Generate {
    /// Output file; engines read *.json in /etc/cdi [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Define a device, as NAME:memory=4GiB,weight=2, with the keys of the annotations
    /// [default: 1of2, 1of3, 1of4 and 1of8 of a GPU's memory]
    #[arg(long = "slice", value_name = "NAME:KEY=VALUE,…")]
    slices: Vec<Slice>,
    /// Runtime directory of gpusliced [default: /run/gpuslice]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slice {
    name: String,
    words: Vec<String>,
}

/// Runs `gpuslice cdi`.
///
/// # Errors
/// A slice is malformed or defined twice, the hook is not installed, the file cannot be written.
pub fn main(options: &Options) -> Result<ExitCode> {
    let Action::Generate(options) = &options.action;
    let mut slices = options.slices.clone();
    if slices.is_empty() {
        let parsed = DEFAULT_SLICES.iter().map(|text| text.parse().map_err(anyhow::Error::msg));
        slices = parsed.collect::<Result<_>>()?;
    }
    for (at, slice) in slices.iter().enumerate() {
        if slices[..at].iter().any(|other| other.name == slice.name) {
            bail!("two slices are called {}; give each device its own name", slice.name);
        }
    }
    let hook = node::part("gpuslice-hook")?.canonicalize().context("gpuslice-hook")?;
    let spec = spec(&slices, &hook, options.runtime_dir.as_deref());
    let text = format!("{}\n", serde_json::to_string_pretty(&spec)?);
    let Some(path) = &options.output else {
        out::line(text.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    };
    file::write(&file::real(path)?, &text)?;
    for slice in &slices {
        out::line(&format!("{KIND}={}  {}", slice.name, slice.words.join(" ")))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn spec(slices: &[Slice], hook: &Path, runtime_dir: Option<&Path>) -> Value {
    const STAGE: &str = "createRuntime";
    let hook_of = |slice: &Slice| {
        let mut args = vec!["gpuslice-hook".to_owned()];
        if let Some(dir) = runtime_dir {
            args.extend(["--runtime-dir".to_owned(), dir.display().to_string()]);
        }
        for word in &slice.words {
            args.extend(["--ask".to_owned(), word.clone()]);
        }
        args.push(STAGE.to_owned());
        json!({
            "hookName": STAGE, "path": hook, "args": args, "env": ["PATH=/usr/bin:/bin"],
            "timeout": 10,
        })
    };
    let device = |slice: &Slice| json!({ "name": slice.name, "containerEdits": { "hooks": [hook_of(slice)] } });
    let devices: Vec<Value> = slices.iter().map(device).collect();
    json!({ "cdiVersion": VERSION, "kind": KIND, "devices": devices })
}

impl std::str::FromStr for Slice {
    type Err = String;

    fn from_str(text: &str) -> Result<Slice, String> {
        let (name, words) = text.split_once(':').ok_or("a slice is NAME:memory=SIZE,…")?;
        let inner = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let ends = |c: char| c.is_ascii_alphanumeric();
        if !name.starts_with(ends) || !name.ends_with(ends) || !name.chars().all(inner) {
            return Err(format!(
                "{name:?} is not a device name; use letters and digits, with - _ . between them"
            ));
        }
        let mut all: Vec<String> = Vec::new();
        for piece in words.split(',') {
            match all.last_mut() {
                // The value of `gpus=0,1` contains a comma.
                Some(last) if !piece.contains('=') => *last = format!("{last},{piece}"),
                _ => all.push(piece.to_owned()),
            }
        }
        check(&all)?;
        let name = name.to_owned();
        Ok(Slice { name, words: all })
    }
}

/// Rejects requests that the hook would reject at container start.
fn check(words: &[String]) -> Result<(), String> {
    let mut seen: Vec<&str> = Vec::new();
    for word in words {
        let (key, value) = word.split_once('=').ok_or(format!("{word:?} is not KEY=VALUE"))?;
        let good = match key {
            "memory" | "memory-limit" => parse_cap(value)
                .map(drop)
                .map_err(|why| why.to_string()),
            "pinned-memory" => parse_memory(value)
                .map(drop)
                .map_err(|why| why.to_string()),
            "weight" => value
                .parse::<Weight>()
                .map(drop)
                .map_err(|why| why.to_string()),
            "share" | "share-limit" => value
                .parse::<Percent>()
                .map(drop)
                .map_err(|why| why.to_string()),
            "priority" => value
                .parse::<Class>()
                .map(drop)
                .map_err(|why| why.to_string()),
            "gang" => value
                .parse::<Gangs>()
                .map(drop)
                .map_err(|why| why.to_string()),
            "name" => Name::new(value).map(drop).map_err(|why| why.to_string()),
            "gpus" | "whole-gpus" => GpuSelector::parse(value)
                .map_err(|why| why.to_string())
                .and_then(|_| {
                    Selector::new(value)
                        .map(drop)
                        .map_err(|why| why.to_string())
                }),
            _ => Err(
                "unknown key; the keys are memory, memory-limit, pinned-memory, weight, share, share-limit, priority, gang, gpus, whole-gpus and name"
                    .to_owned(),
            ),
        };
        good.map_err(|why| format!("{word}: {why}"))?;
        if seen.contains(&key) {
            return Err(format!("{key} is given twice"));
        }
        seen.push(key);
    }
    if !seen.contains(&"memory") {
        return Err("a slice needs a memory cap; add memory=4GiB or memory=1/4".to_owned());
    }
    if seen.contains(&"whole-gpus") && !seen.contains(&"gpus") {
        return Err(
            "with whole-gpus, the slice's own GPUs must be named too; add gpus=0".to_owned()
        );
    }
    limits_hold(words)
}

/// Rejects a limit below what it is the limit of.
fn limits_hold(words: &[String]) -> Result<(), String> {
    let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let memory = |key: &str| value(key).and_then(|value| parse_cap(value).ok());
    let below = memory("memory-limit").zip(memory("memory"));
    if let Some(why) = below.and_then(|(limit, cap)| limit_below(limit, cap)) {
        return Err(why);
    }
    let percent = |key: &str| value(key).and_then(|value| value.parse::<Percent>().ok());
    match (percent("share"), percent("share-limit")) {
        (Some(share), Some(limit)) if limit < share => {
            let (share, limit) = (share.get(), limit.get());
            Err(format!("share-limit={limit} is below share={share}; raise the limit"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(text: &str) -> Result<Slice, String> {
        text.parse()
    }

    #[test]
    fn slices_are_words_of_annotations() {
        let words = slice("big:memory=4GiB,gpus=0,1,weight=2").expect("good").words;
        assert_eq!(words, ["memory=4GiB", "gpus=0,1", "weight=2"]);
        assert!(slice("a:memory=1GiB,gpus=0,whole-gpus=1,2").is_ok());
        assert!(slice("a:memory=1GiB,weight=2,share=25,share-limit=50").is_ok());
        assert!(slice("a:memory=1GiB,share-limit=50").is_ok());
        assert!(slice("a:memory=1GiB,memory-limit=1/2").is_ok(), "the daemon knows the GPU");
        assert!(slice("a:memory=1/4,memory-limit=1/2").is_ok());
        assert!(DEFAULT_SLICES.iter().all(|usual| slice(usual).is_ok()));
        for (bad, why) in [
            ("a:memory=8", "8B is less than 1MiB; did you mean 8GiB?"),
            ("a:memory=8GiB,memory-limit=16", "did you mean 16GiB?"),
            ("a:memory=8GiB,memory-limit=4GiB", "memory limit 4GiB is below the cap 8GiB"),
            ("a:memory=1/2,memory-limit=1/4", "memory limit 1/4 is below the cap 1/2"),
            ("1of4", "NAME:"),
            (":memory=1/4", "not a device name"),
            ("-a:memory=1/4", "not a device name"),
            ("a b:memory=1/4", "not a device name"),
            ("a:weight=2", "needs a memory cap"),
            ("a:memory=5/4", "two whole numbers"),
            ("a:memory=1GiB,memory=1GiB", "twice"),
            ("a:memory=1GiB,share=10,share-limit=9", "below share=10"),
            ("a:memory=1GiB,share-limit=0", "1 to 100"),
            ("a:memory=1GiB,share-limit=50,share-limit=60", "twice"),
            ("a:memory=1GiB,colour=red", "unknown"),
            ("a:memory=1GiB,whole-gpus=1", "must be named"),
            ("a:memory", "not KEY=VALUE"),
        ] {
            assert!(slice(bad).is_err_and(|said| said.contains(why)), "{bad}");
        }
    }

    /// The rules of CDI's own schema.
    #[test]
    fn the_file_is_what_engines_read() {
        let slices: Vec<Slice> =
            DEFAULT_SLICES.iter().filter_map(|usual| slice(usual).ok()).collect();
        let spec = spec(&slices, Path::new("/x/gpuslice-hook"), Some(Path::new("/r")));
        let (vendor, class) =
            spec["kind"].as_str().and_then(|kind| kind.split_once('/')).expect("two");
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        assert!(vendor.starts_with(|c: char| c.is_ascii_alphabetic()) && vendor.chars().all(plain));
        assert!(class.starts_with(|c: char| c.is_ascii_alphabetic()) && class.chars().all(plain));
        let devices = spec["devices"].as_array().expect("a list");
        assert_eq!(devices.len(), DEFAULT_SLICES.len());
        for device in devices {
            let hooks = device["containerEdits"]["hooks"].as_array().expect("a list");
            let [hook] = hooks.as_slice() else { panic!("{hooks:?}") };
            assert_eq!(hook["hookName"], "createRuntime");
            assert_eq!(hook["path"], "/x/gpuslice-hook");
            let args = hook["args"].as_array().expect("a list");
            assert_eq!(args.last(), Some(&"createRuntime".into()));
            assert_eq!(args[1..4], ["--runtime-dir", "/r", "--ask"]);
        }
    }
}
