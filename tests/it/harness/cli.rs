//! `gpuslice` beside a node's daemon.

use super::node::Node;
use super::schemas::assert_fits_its_own;
use serde_json::Value;
use std::process::{Command, Output, Stdio};

/// `gpuslice WORDS`, which asks the node's daemon.
pub fn command(node: &Node, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
    command.args(words).arg("--runtime-dir").arg(node.runtime_dir());
    command.env("GPUSLICE_SIM_DEVICE", node.root().join("device")).stdin(Stdio::null());
    command
}

/// The same, to its end.
pub fn gpuslice(node: &Node, words: &[&str]) -> Output {
    command(node, words).output().expect("gpuslice starts")
}

/// Its output; it must succeed.
pub fn must(node: &Node, words: &[&str]) -> String {
    let output = gpuslice(node, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Its output as JSON, which must fit its schema.
pub fn json(node: &Node, words: &[&str]) -> Value {
    let document = serde_json::from_str(&must(node, words)).expect("JSON");
    assert_fits_its_own(&document);
    document
}

/// Why it was refused, as it must be.
pub fn refused(node: &Node, words: &[&str]) -> String {
    refusal(&gpuslice(node, words))
}

/// The same of a command that has ended.
pub fn refusal(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    said(output)
}

/// What a program that has ended wrote to standard error.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A container's first slice, as `gpuslice ps --json` shows it.
pub fn shown(node: &Node, container: &str) -> Value {
    let all = json(node, &["ps", "--json"]);
    let slices = all["slices"].as_array().expect("a list");
    let found = slices.iter().find(|slice| slice["container"] == container);
    found.unwrap_or_else(|| panic!("no {container} in {all}")).clone()
}

/// What `gpuslice events` shows, oldest first.
pub fn events(node: &Node, words: &[&str]) -> Vec<Value> {
    let text = must(node, &[&["events", "--json"], words].concat());
    let events = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    events.inspect(assert_fits_its_own).collect()
}
