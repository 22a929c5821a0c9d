//! Completion of words on the command line: names of slices and indices of GPUs, as the daemon has them now, and the
//! words that an option takes.
//!
//! A shell's completion file calls this program with the variable [`VARIABLE`] and the words so far. Options and
//! commands come from the same description as `--help`. A user that may not ask the daemon is offered no names.

use crate::admin::Admin;
use crate::columns::ALL;
use crate::node;
use crate::table::View;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use gpuslice_wire::admin::Command;
use gpuslice_wire::policy::{Class, Gangs, Policy};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The variable by which a shell asks for completions.
pub const VARIABLE: &str = "GPUSLICE_COMPLETE";
/// Time limit for the daemon's answer: a person waits.
const WITHIN: Duration = Duration::from_millis(300);

/// Completes a slice.
pub fn slices() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| candidates(current, slice_names))
}

/// Completes a GPU.
pub fn gpus() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| candidates(current, gpu_names))
}

/// Completes a priority.
pub fn priorities() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| words(current, Class::ALL.map(Class::name)))
}

/// Completes when GPUs are a gang.
pub fn gangs() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| words(current, Gangs::ALL.map(Gangs::name)))
}

/// Completes a policy.
pub fn policies() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| words(current, Policy::ALL.map(Policy::name)))
}

/// Completes the last one of several columns, or the only word for a format.
pub fn columns() -> ArgValueCompleter {
    ArgValueCompleter::new(columns_after)
}

fn columns_after(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    let (before, begun) = text.rsplit_once(',').map_or(("", &*text), |(all, last)| (all, last));
    let chosen: Vec<&str> = before.split(',').collect();
    let all = ALL.iter().map(|it| it.head);
    let heads = all.filter(|head| !chosen.iter().any(|it| it.eq_ignore_ascii_case(head)));
    match before {
        "" => words(OsStr::new(begun), heads.chain(["json", "wide"])),
        before => words(current, heads.map(|head| format!("{before},{head}"))),
    }
}

/// Those that begin with the word so far, in whatever case.
fn words<S: AsRef<str>>(
    current: &OsStr,
    all: impl IntoIterator<Item = S>,
) -> Vec<CompletionCandidate> {
    let begun = current.to_string_lossy().to_lowercase();
    let fits = |word: &S| word.as_ref().to_lowercase().starts_with(&begun);
    let fitting = all.into_iter().filter(fits);
    fitting.map(|word| CompletionCandidate::new(word.as_ref().to_owned())).collect()
}

fn candidates(
    current: &OsStr,
    names: fn(&View) -> Vec<(String, String)>,
) -> Vec<CompletionCandidate> {
    let dir = runtime_dir(&std::env::args_os().collect::<Vec<_>>());
    let answer = Admin::connect(&node::runtime_dir(dir.as_deref()))
        .and_then(|admin| admin.rows_within(&Command::List {}, WITHIN));
    let Ok(answer) = answer else { return Vec::new() };
    let begun = current.to_string_lossy();
    let names = names(&View::of(answer));
    let fitting = names.into_iter().filter(|(name, _)| name.starts_with(&*begun));
    fitting.map(|(name, help)| CompletionCandidate::new(name).help(Some(help.into()))).collect()
}

/// The runtime directory that the words so far name.
fn runtime_dir(words: &[OsString]) -> Option<PathBuf> {
    const OPTION: &str = "--runtime-dir";
    let named = words.windows(2).find(|pair| pair[0] == OPTION).map(|pair| pair[1].clone());
    let joined =
        words.iter().find_map(|word| word.to_str()?.strip_prefix(OPTION)?.strip_prefix('='));
    named.map(PathBuf::from).or(joined.map(|dir| Path::new(dir).to_owned()))
}

/// What to call each slice, and its GPU and cap.
fn slice_names(view: &View) -> Vec<(String, String)> {
    let mut names: Vec<(String, String)> = view
        .rows
        .iter()
        .map(|row| {
            let about = format!("{}, {} of memory", view.called(row.gpu), row.cap);
            (view.handle(&row.container), about)
        })
        .collect();
    // One of several GPUs is enough.
    names.dedup_by(|one, other| one.0 == other.0);
    names
}

/// Each GPU's index, and its product.
fn gpu_names(view: &View) -> Vec<(String, String)> {
    view.gpus.iter().map(|gpu| (gpu.index.to_string(), gpu.product.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::{gpu, slice};

    #[test]
    fn slices_are_offered_once_and_gpus_by_index() {
        let second = crate::table::Row {
            gpu: gpuslice_wire::ids::GpuUuid([2; 16]),
            ..slice("web", 1, None, true, 0)
        };
        let view = View {
            gpus: vec![gpu(1, 0), gpu(2, 1)],
            rows: vec![slice("web", 1, None, true, 0), second, slice("train", 1, None, true, 0)],
            ..View::default()
        };
        let names: Vec<String> = slice_names(&view).into_iter().map(|it| it.0).collect();
        assert_eq!(names, ["web", "train"]);
        assert_eq!(gpu_names(&view)[1], ("1".to_owned(), "NVIDIA H200".to_owned()));
    }

    #[test]
    fn columns_are_completed_one_after_the_other() {
        let of = |text: &str| -> Vec<String> {
            let all = columns_after(OsStr::new(text)).into_iter();
            all.map(|it| it.get_value().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(of("wa"), ["WAIT", "WANTED"]);
        assert_eq!(of("wi"), ["wide"]);
        assert_eq!(of("NAME,GOT,WA"), ["NAME,GOT,WAIT", "NAME,GOT,WANTED"]);
        assert!(of("NAME,N").is_empty(), "each column once");
    }

    #[test]
    fn the_runtime_directory_is_among_the_words() {
        let of =
            |words: &[&str]| runtime_dir(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of(&["gpuslice", "set", "--runtime-dir", "/d", "we"]), Some("/d".into()));
        assert_eq!(of(&["gpuslice", "set", "--runtime-dir=/d"]), Some("/d".into()));
        assert_eq!(of(&["gpuslice", "set", "--runtime-dir"]), None);
    }
}
