//! Coexistence of the shim with the program and other libraries of a process.
//!
//! The shim is loaded into every `sh` and `ls` of a slice, beside profilers, other allocators and
//! sanitizers. Each program is compared with the same program outside a slice: signals, threads,
//! descriptors, umask, output and exit status.

mod interposers;
mod unusual;

use crate::harness::node::Node;
use crate::harness::{is_root, skip, target_dir};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/apps");

/// The place where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Outside of any slice.
    Bare,
    Preload,
    Mount,
}

fn injection_methods() -> Vec<Place> {
    if is_root() {
        return vec![Place::Preload, Place::Mount];
    }
    skip("coexistence", "mount injection needs root");
    vec![Place::Preload]
}

/// Builds a program or library of these sources beside the node's driver, to which it is linked.
fn cc(node: &Node, name: &str, arguments: &[&str], sources: &[&str]) -> PathBuf {
    let out = node.root().join(name);
    cc_to(node, &out, arguments, sources);
    out
}

/// The same at that path.
fn cc_to(node: &Node, out: &Path, arguments: &[&str], sources: &[&str]) {
    let mut command = Command::new("cc");
    command.args(["-O1", "-o"]).arg(out).args(arguments);
    command.args(sources.iter().map(|source| format!("{SOURCES}/{source}")));
    command.arg(node.root().join("driver/libcuda.so.1"));
    let output = command.args(["-Wl,--allow-shlib-undefined", "-ldl"]).output();
    let output = output.expect("a C compiler");
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// The shim's library for preloading.
fn shim() -> PathBuf {
    target_dir().join("libgpuslice.so")
}

/// A command at that place, in a slice of 1 GiB.
fn at(node: &Node, place: Place, words: &[&str]) -> Command {
    at_with(node, place, &[], words)
}

/// The same in a slice with further options.
fn at_with(node: &Node, place: Place, options: &[&str], words: &[&str]) -> Command {
    let driver = node.root().join("driver");
    let mut command = match place {
        Place::Bare => Command::new(words[0]),
        Place::Preload | Place::Mount => Command::new(env!("CARGO_BIN_EXE_gpuslice")),
    };
    if place == Place::Bare {
        command.args(&words[1..]).env("LD_LIBRARY_PATH", &driver);
    } else {
        let method = if place == Place::Preload { "preload" } else { "mount" };
        command.args(["run", "--quiet", "--memory", "1GiB", "--inject", method]);
        command.arg("--runtime-dir").arg(node.runtime_dir());
        command.args(options).arg("--").args(words);
    }
    command.env("GPUSLICE_SIM_DEVICE", node.root().join("device"));
    command
}

fn run(node: &Node, place: Place, words: &[&str]) -> Output {
    at(node, place, words).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn word(path: &Path) -> &str {
    path.to_str().expect("plain")
}

/// Programs that never use CUDA behave as without the shim.
#[test]
fn programs_without_cuda_are_unchanged() {
    let node = Node::start();
    let look = "grep -E '^(Threads|Umask|Sig(Blk|Ign|Cgt)):' /proc/self/status; ls /proc/self/fd; umask; \
                echo words >&2; trap; exit 3";
    for words in [
        &["sh", "-c", look][..],
        &["ls", "/nonexistent"],
        &["ls", "/proc/self/task"],
        &["sleep", "0"],
        &["sh", "-c", "kill -TERM $$"],
    ] {
        let fields = |output: &Output| {
            let lines = text(&output.stdout);
            // The names of tasks are pids, so only their number counts.
            let shape = if words[1] == "/proc/self/task" {
                lines.lines().count().to_string()
            } else {
                lines
            };
            (shape, text(&output.stderr))
        };
        let bare = run(&node, Place::Bare, words);
        for method in injection_methods() {
            let slice = run(&node, method, words);
            assert_eq!(fields(&slice), fields(&bare), "{method:?}: {words:?}");
            let code = bare.status.code().unwrap_or(128 + 15);
            assert_eq!(slice.status.code(), Some(code), "{method:?}: {words:?}");
        }
    }
}

/// Before its first CUDA call a program is unchanged. After it, the program has no new signal handler
/// and no descriptor that another program would inherit.
#[test]
fn nothing_happens_before_the_first_call() {
    let node = Node::start();
    let program = cc(&node, "process_state", &[], &["coexistence/process_state.c"]);
    let lines = |place| {
        let output = run(&node, place, &[word(&program)]);
        assert!(output.status.success() && output.stderr.is_empty(), "{place:?}: {output:?}");
        let lines = text(&output.stdout);
        let [before, after] = lines.lines().collect::<Vec<_>>()[..] else {
            panic!("{place:?}: {lines}")
        };
        (before.to_owned(), after.to_owned())
    };
    let field = |line: &str, name: &str| {
        let found = line.split(' ').find_map(|word| word.strip_prefix(name));
        found.expect("a field").to_owned()
    };
    let bare = lines(Place::Bare);
    for method in injection_methods() {
        let slice = lines(method);
        assert_eq!(slice.0, bare.0, "{method:?}");
        for name in ["umask=", "inherited="] {
            assert_eq!(field(&slice.1, name), field(&bare.1, name), "{method:?}: {name}");
        }
        // Signals 32 and 33 are the C library's own, from the first thread on.
        let caught =
            |line| u64::from_str_radix(&field(line, "caught="), 16).expect("hex") & !(3 << 31);
        assert_eq!(caught(&slice.1), caught(&bare.1), "{method:?}");
    }
}
