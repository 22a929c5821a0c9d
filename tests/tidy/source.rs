//! Reads the tree's Rust files and finds their functions by indentation, which rustfmt guarantees.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A file's text; the test fails with its name if it is missing.
pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every file that git tracks, by its path from the root. None, with the reason printed, where git cannot be asked.
pub fn all_files() -> Vec<String> {
    let git = Command::new("git")
        .current_dir(root())
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .output();
    let listed = git.ok().filter(|output| output.status.success());
    let Some(output) = listed else {
        let line = "SKIP names and sentences of all files: git does not list them here\n";
        let _ = std::io::stderr().write_all(line.as_bytes());
        return Vec::new();
    };
    let text = String::from_utf8(output.stdout).expect("paths are UTF-8");
    let all = text.split_terminator('\0').map(str::to_owned);
    all.filter(|path| root().join(path).is_file()).collect()
}

/// One Rust file.
pub struct Source {
    /// Path from the root.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// One function.
pub struct Function {
    /// Its name.
    pub name: String,
    /// Line of its `fn`, from 1.
    pub line: usize,
    /// Lines from there to its closing brace.
    pub lines: usize,
}

/// Every Rust file of the tree.
pub fn all_sources() -> Vec<Source> {
    let mut all = Vec::new();
    for top in ["src", "hook", "k8s", "shim", "sim", "tests"] {
        collect(&root().join(top), &mut all);
    }
    assert!(all.len() > 40, "found only {} Rust files; is the tree whole?", all.len());
    all.sort_by(|a, b| a.path.cmp(&b.path));
    all
}

fn collect(dir: &Path, all: &mut Vec<Source>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
        let path = entry.expect("a directory entry").path();
        if path.is_dir() {
            if !path.ends_with("target") {
                collect(&path, all);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let short = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{short}: {error}"));
            all.push(Source { path: short, text });
        }
    }
}

impl Source {
    /// The file's functions.
    pub fn functions(&self) -> Vec<Function> {
        let lines: Vec<&str> = self.text.lines().collect();
        let mut all = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            let Some(name) = function_name(line) else {
                continue;
            };
            let indent = line.len() - line.trim_start().len();
            let closing = format!("{}}}", " ".repeat(indent));
            let end = lines[at..].iter().position(|later| {
                *later == closing
                    || (later.starts_with(&closing) && later.ends_with([',', ')', ';']))
            });
            let one_line = line.trim_end().ends_with([';', '}']);
            let length = if one_line { 1 } else { end.map_or(1, |end| end + 1) };
            all.push(Function { name: name.to_owned(), line: at + 1, lines: length });
        }
        all
    }

    /// Lines before the file's inline tests, without comments, numbered from 1.
    pub fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = self.text.find("#[cfg(test)]").unwrap_or(self.text.len());
        let lines = self.text[..end].lines().enumerate().map(|(at, line)| (at + 1, line));
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

/// `name` of a line that begins a function: `pub(crate) unsafe extern "C" fn name<…>(…`.
fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let words = ["pub", "pub(crate)", "pub(super)", "unsafe", "extern", "\"C\"", "const", "async"];
    let all_known = before.split_whitespace().all(|word| words.contains(&word));
    let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (all_known && !name.is_empty()).then_some(name)
}

#[test]
fn functions_are_found_and_measured() {
    let text = "impl A {\n    pub fn b(&self) -> u8 {\n        1\n    }\n}\n\nfn c() {}\n// fn d\n";
    let source = Source { path: "x.rs".into(), text: text.into() };
    let found: Vec<_> =
        source.functions().iter().map(|f| (f.name.clone(), f.line, f.lines)).collect();
    assert_eq!(found, [("b".to_owned(), 2, 3), ("c".to_owned(), 7, 1)]);
}
