//! The shim in one process with interposers, allocators and sanitizers.

use super::{Place, at, cc, injection_methods, run, shim, text, word};
use crate::harness::node::Node;
use crate::harness::{skip, target_dir};
use gpuslice_wire::units::GIB;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// More than a slice has.
fn much() -> String {
    (2 * GIB).to_string()
}

/// A profiler's interposer between the program and the shim sees the calls, and the cap holds; so it does
/// with the shim first in the list.
#[test]
fn an_interposer_before_or_after_the_shim() {
    let node = Node::start();
    let sources = ["injection/way.c", "injection/plugin.c"];
    let program = cc(&node, "linked", &["-DLINKED"], &sources);
    let tracer = cc(&node, "tracer.so", &["-shared", "-fPIC"], &["coexistence/tracer.c"]);
    let words = [word(&program), "needed", &much()];
    // `gpuslice run` puts the shim first in the list; env(1) puts the tool before it.
    let first = format!("LD_PRELOAD={}:{}", tracer.display(), shim().display());
    let alone = format!("LD_PRELOAD={}", tracer.display());
    let [before, beside] = [&first, &alone].map(|list| [&["env", list], &words[..]].concat());
    for (place, words, sees) in [(Place::Preload, &before, true), (Place::Mount, &beside, true)] {
        if !injection_methods().contains(&place) {
            continue;
        }
        let output = run(&node, place, words);
        assert_eq!(text(&output.stdout), "caught\n", "{place:?}: {output:?}");
        assert_eq!(text(&output.stderr).contains("tracer: 1"), sees, "{output:?}");
    }
    let mut after = at(&node, Place::Preload, &words);
    let output = after.env("LD_PRELOAD", &tracer).output().expect("it starts");
    assert_eq!(text(&output.stdout), "caught\n", "{output:?}");
    assert!(text(&output.stderr).contains("tracer: "), "it is loaded: {output:?}");
}

/// Allocates and frees every kind of memory in four threads, in this environment.
fn churns(node: &Node, place: Place, settings: &[&str]) {
    use std::io::Write;
    let churn = target_dir().join("churn");
    assert!(churn.exists(), "not built; run packaging/stage debug");
    let words = [&["env"], settings, &[word(&churn), "5", "4", "2097152", "8"]].concat();
    let mut command = at(node, place, &words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(b"go 200\ndrop\n").expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let said = text(&output.stdout);
    assert!(
        output.status.success()
            && said.starts_with("ready\ndid 800 ")
            && said.ends_with("dropped\n"),
        "{place:?} {settings:?}: {output:?}"
    );
}

#[test]
fn another_allocator() {
    let names = ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"];
    let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let found = names.iter().find_map(|name| {
        let paths = places.iter().map(|place| Path::new(place).join(name));
        paths.into_iter().find(|path| path.exists())
    });
    let Some(allocator): Option<PathBuf> = found else {
        return skip("another_allocator", "neither jemalloc, tcmalloc nor mimalloc is installed");
    };
    let node = Node::start();
    let lists = [
        format!("LD_PRELOAD={}:{}", allocator.display(), shim().display()),
        format!("LD_PRELOAD={}:{}", shim().display(), allocator.display()),
    ];
    for list in &lists {
        churns(&node, Place::Preload, &[list]);
    }
    if injection_methods().contains(&Place::Mount) {
        churns(&node, Place::Mount, &[&format!("LD_PRELOAD={}", allocator.display())]);
    }
}

/// A program with AddressSanitizer, which insists on being loaded first where it is a shared library.
#[test]
fn a_program_with_a_sanitizer() {
    let node = Node::start();
    let flags = ["-fsanitize=address", "-static-libasan"];
    let probe = Command::new("cc")
        .args(flags)
        .args(["-x", "c", "-", "-o"])
        .arg(node.root().join("empty"))
        .stdin(Stdio::null())
        .output();
    // An empty program has no main: the test is whether the runtime exists.
    let missing = |said: String| said.contains("asan") || said.contains("sanitize");
    if probe.is_ok_and(|output| missing(text(&output.stderr))) {
        return skip("a_program_with_a_sanitizer", "this compiler has no AddressSanitizer");
    }
    let sources = ["injection/way.c", "injection/plugin.c"];
    let within = cc(&node, "within", &[&flags[..], &["-DLINKED"]].concat(), &sources);
    let beside = cc(&node, "beside", &["-fsanitize=address", "-DLINKED"], &sources);
    let options = "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0";
    for method in injection_methods() {
        for program in [&within, &beside] {
            let words = ["env", options, word(program), "needed", &much()];
            let output = run(&node, method, &words);
            assert_eq!(text(&output.stdout), "caught\n", "{method:?}: {output:?}");
            assert!(output.stderr.is_empty(), "{method:?}: {output:?}");
        }
    }
}
