//! The rules of the tree as tests, which spare a reviewer's repetitions.
//!
//! Each test lists every place that breaks its rule. The rules themselves are in CONTRIBUTING.md.

mod circles;
mod edges;
mod judges;
mod source;
mod words;

use source::{Source, all_sources, root};
use std::io::{ErrorKind, Write};
use std::process::{Command, Output};

/// Runs cargo in the workspace. `None`, with the reason printed past the harness's capture, where the
/// build's cargo is in another user's home.
fn cargo(arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root()).args(arguments).env_remove("RUSTFLAGS");
    match command.output() {
        // In another user's home, which may be hidden altogether.
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound) => {
            let what = arguments[0];
            let line = format!("SKIP cargo {what}: this user cannot run the cargo of this build\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            None
        }
        output => Some(output.expect("cargo runs")),
    }
}

/// Included by the build scripts of the shim's libraries; it talks to cargo.
const BUILD_PART: &str = "shim/cdylib.rs";

/// Fails with one line per broken place.
fn none(rule: &str, broken: Vec<String>) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

#[test]
fn formatted() {
    let arguments = ["fmt", "--all", "--check", "--", "--files-with-diff"];
    let Some(output) = cargo(&arguments) else {
        return;
    };
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "not formatted; run cargo fmt --all:\n{said}");
}

#[test]
fn files_and_functions_are_short() {
    let mut broken = Vec::new();
    for source in all_sources() {
        let lines = source.text.lines().count();
        if lines > 600 {
            broken.push(format!("{}: {lines} lines, at most 600", source.path));
        }
        for function in source.functions() {
            if function.lines >= 70 {
                let at = format!("{}:{}", source.path, function.line);
                broken.push(format!("{at}: {} has {} lines", function.name, function.lines));
            }
        }
    }
    none("a file has at most 600 lines and a function fewer than 70", broken);
}

/// rustfmt breaks code at column 100; comments may be a little wider.
#[test]
fn comments_end_by_column_120() {
    let mut broken = Vec::new();
    for source in all_sources() {
        for (line, text) in (1..).zip(source.text.lines()) {
            if text.trim_start().starts_with("//") && text.chars().count() > 120 {
                broken.push(format!("{}:{line}", source.path));
            }
        }
    }
    none("a comment is at most 120 columns wide", broken);
}

#[test]
fn every_file_says_what_it_is_for() {
    // A part of several build scripts is included, and cannot have an inner comment.
    let silent = |source: &Source| {
        let opening = if source.path == BUILD_PART { "//" } else { "//!" };
        !source.text.trim_start().starts_with(opening)
    };
    let broken = all_sources().into_iter().filter(silent).map(|source| source.path).collect();
    none("a Rust file opens with a //! comment", broken);
}

#[test]
fn nothing_unfinished() {
    let words =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("#[ig", "nore")];
    let mut broken = Vec::new();
    for source in all_sources() {
        for (number, line) in source.text.lines().enumerate() {
            if let Some(word) = words.iter().find(|word| line.contains(*word)) {
                broken.push(format!("{}:{}: {word}", source.path, number + 1));
            }
        }
    }
    none("nothing is left for later in the code", broken);
}

/// What runs in a tenant's process never prints, never ends it, never panics on purpose.
/// The simulated driver ends it only by the signal by which a card's driver does.
#[test]
fn tenants_are_left_alone() {
    let words =
        ["println!", "print!(", "process::exit", "process::abort", "libc::exit", "libc::abort"];
    let mut broken = Vec::new();
    for source in all_sources() {
        let inside = source.path.starts_with("shim/") || source.path.starts_with("sim/");
        if !inside
            || source.path.contains("/tests/")
            || source.path.ends_with("build.rs")
            || source.path == BUILD_PART
        {
            continue;
        }
        for (number, line) in source.code_lines() {
            if let Some(word) = words.iter().find(|word| line.contains(*word)) {
                broken.push(format!("{}:{number}: {word}", source.path));
            }
        }
    }
    none("shim and simulated driver neither print nor end the process", broken);
}

/// A wake-up can be lost with the process that owes it, so every sleep has a limit.
#[test]
fn every_futex_wait_has_a_limit() {
    let (mut broken, mut found) = (Vec::new(), 0);
    for source in all_sources() {
        if source.path.starts_with("tests/tidy") {
            continue;
        }
        for call in source.text.split("libc::FUTEX_WAIT,").skip(1) {
            found += 1;
            let call = call.split(')').next().unwrap_or_default();
            if !call.contains("&raw const time") {
                broken.push(source.path.clone());
            }
        }
    }
    assert!(found > 0, "no futex is waited for at all");
    none("a futex is waited for without a time limit", broken);
}

/// For those of all packages cargo would build every library again, with other features: `tests/run` has it run one
/// package's.
#[test]
fn code_in_comments_is_in_one_package() {
    let mut broken = Vec::new();
    for source in all_sources().iter().filter(|source| !source.path.starts_with("src/nvabi/")) {
        let mut is_inside = false;
        for (number, line) in source.text.lines().enumerate() {
            let comment =
                ["///", "//!"].iter().find_map(|mark| line.trim_start().strip_prefix(mark));
            if let Some(kind) = comment.and_then(|words| words.trim_start().strip_prefix("```")) {
                is_inside = !is_inside;
                if is_inside && kind != "text" {
                    broken.push(format!("{}:{}", source.path, number + 1));
                }
            }
        }
    }
    none("code in a comment that no test runs; make it ```text, or a unit test", broken);
}

#[test]
fn unsafe_code_has_named_rooms() {
    for lib in ["src/wire/lib.rs", "src/engine/lib.rs", "tests/world/lib.rs", "k8s/lib.rs"] {
        let text = source::read(lib);
        assert!(text.contains("#![forbid(unsafe_code)]"), "{lib} must forbid unsafe code");
    }
    for lib in ["src/wire/lib.rs", "src/engine/lib.rs", "src/nvabi/lib.rs"] {
        assert!(source::read(lib).contains("#![no_std]"), "{lib} must be no_std");
    }
}

#[test]
fn the_changelog_knows_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    let known = source::read("CHANGELOG.md").contains(&format!("## {version}"));
    assert!(known, "CHANGELOG.md has no section for {version}");
}

/// What the documents name is there: a promise's test, a room's first file, `file::test`.
#[test]
fn documents_name_existing_files() {
    let tops = ["src/", "tests/", "shim/", "sim/", "hook/", "k8s/", "packaging/"];
    let mut broken = Vec::new();
    for document in
        ["README.md", "ARCHITECTURE.md", "SPECIFICATION.md", "SECURITY.md", "CONTRIBUTING.md"]
    {
        let text = source::read(document);
        let mut found = 0;
        for path in text.split('`').skip(1).step_by(2) {
            let is_path =
                tops.iter().any(|top| path.starts_with(top)) && !path.contains([' ', '*', '$']);
            if !is_path || path.ends_with("/foo.rs") {
                continue;
            }
            found += 1;
            let (path, test) = path.split_once("::").map_or((path, None), |(p, t)| (p, Some(t)));
            let lacks = |test| !source::read(path).contains(&format!("fn {test}()"));
            if !root().join(path).exists() || test.is_some_and(lacks) {
                broken.push(format!("{document}: {path}"));
            }
        }
        assert!(found > 0 || document == "README.md", "{document} names no file");
    }
    none("a document names a file that does not exist", broken);
}

/// The tests that a promise names without a file are there.
#[test]
fn promises_name_existing_tests() {
    let sources = all_sources();
    let exists = |name: &str| {
        let begins = format!("fn {name}(");
        sources.iter().any(|source| source.text.contains(&begins))
    };
    let (mut found, mut broken) = (0, Vec::new());
    for row in source::read("SPECIFICATION.md").lines().filter(|line| line.starts_with('|')) {
        let shown_by = row.trim_end_matches(['|', ' ']).rsplit(" | ").next().unwrap_or_default();
        for name in shown_by.split('`').skip(1).step_by(2) {
            let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if name.contains('_') && name.chars().all(is_letter) {
                found += 1;
                broken.extend((!exists(name)).then(|| name.to_owned()));
            }
        }
    }
    assert!(found > 20, "{found} names of tests in SPECIFICATION.md");
    none("SPECIFICATION.md names a test that does not exist", broken);
}

/// Each guarantee of SECURITY.md is shown by rows of SPECIFICATION.md that are there, or by a file.
#[test]
fn guarantees_are_shown() {
    let (text, promises) = (source::read("SECURITY.md"), source::read("SPECIFICATION.md"));
    let rows = text.lines().skip_while(|line| !line.ends_with("| shown by |")).skip(2);
    let (mut found, mut broken) = (0, Vec::new());
    for row in rows.take_while(|line| line.starts_with('|')) {
        found += 1;
        let shown_by = row.trim_end_matches(['|', ' ']).rsplit(" | ").next().unwrap_or_default();
        for part in shown_by.split([',', ';']).map(str::trim) {
            let is_known = part.starts_with('`') || promises.contains(&format!("\n| {part} |"));
            broken.extend((!is_known).then(|| row.to_owned()));
        }
    }
    assert!(found > 20, "{found} guarantees");
    none("SECURITY.md names a row of SPECIFICATION.md that does not exist", broken);
}

/// SPECIFICATION W17 states how many parsers have a fuzz target.
#[test]
fn promises_know_the_fuzz_targets() {
    let call = concat!("fuzz!", "(\"");
    let targets: usize = all_sources().iter().map(|it| it.text.matches(call).count()).sum();
    let promise = format!("{targets} targets of `gpuslice_fuzz::fuzz!`");
    assert!(source::read("SPECIFICATION.md").contains(&promise), "there are {promise}");
}

/// A number as the documents write it.
fn grouped(number: usize) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", grouped(number / 1000), number % 1000),
    }
}

/// SPECIFICATION W5 states how many of numba-cuda's tests have an outcome, pass, and run in `make test`, and how many
/// fields are compared.
#[test]
fn promises_know_the_programs() {
    let outcomes = source::read("tests/programs/outcomes.txt");
    let lines = outcomes.lines().filter(|line| !line.starts_with('#'));
    let tests: Vec<_> = lines.filter_map(|line| line.split_once(' ')).collect();
    let pass = tests.iter().filter(|(_, outcome)| *outcome == "pass").count();
    let after = |file: &str, begin: &str, end: char| {
        let text = source::read(file);
        let (_, rest) = text.split_once(begin).unwrap_or_else(|| panic!("{begin} in {file}"));
        rest.split(end).next().unwrap_or_default().to_owned()
    };
    let kernels = after("tests/programs/suites.py", "KERNELS = [", ']');
    let kernels = kernels.split('"').skip(1).step_by(2).map(|name| format!("cudapy.test_{name}."));
    let modules: Vec<String> = kernels.chain(["cudadrv.".to_owned()]).collect();
    let is_run = |name: &str| modules.iter().any(|module| name.starts_with(module.as_str()));
    let run = tests.iter().filter(|(name, _)| is_run(name)).count();
    let fields = after("tests/programs/same_answers.py", "FIELDS = ", '\n');
    let promises = source::read("SPECIFICATION.md");
    for words in [
        format!("own {} tests", grouped(tests.len())),
        format!("where {} pass", grouped(pass)),
        format!("runs {} of them", grouped(run)),
        format!("size: {fields} fields"),
    ] {
        assert!(promises.contains(&words), "there are: {words}");
    }
}

/// The texts that list the policies say what [`gpuslice_wire::policy`] says.
#[test]
fn documents_know_the_policies() {
    use gpuslice_wire::policy::{BadPolicy, Policy};
    let (configuration, promises) = ("packaging/gpusliced.toml", "SPECIFICATION.md");
    let mut broken = Vec::new();
    for policy in Policy::ALL {
        let row = format!("#   {:12}  {}\n", format!("\"{policy}\""), policy.rules().summary);
        if !source::read(configuration).contains(&row) {
            broken.push(format!("{configuration}: {row}"));
        }
        if !source::read(promises).contains(&format!("`{policy}` (")) {
            broken.push(format!("{promises}: `{policy}`"));
        }
    }
    let list = BadPolicy.to_string();
    let list = list.strip_prefix("a policy is ").and_then(|list| list.split_once(", or its"));
    let list = list.expect("the list of names").0;
    if !source::read("README.md").contains(list) {
        broken.push(format!("README.md: {list}"));
    }
    none("a text about policies differs from their table", broken);
}
