//! Each document of `--json` against its schema in `docs/schemas`, which is checked in: names, types, and no field more
//! or fewer.

use super::gpuslice;
use super::views::{node, run};
use crate::harness::node::Node;
use crate::harness::{eventually, names, schemas};
use gpuslice_wire::units::{Bytes, GIB};
use serde_json::Value;

/// The places in a schema that describe an object and do not refuse fields that they do not name.
fn open_objects(schema: &Value, at: &str) -> Vec<String> {
    let is_object = |it: &Value| {
        it == "object" || it.as_array().is_some_and(|all| all.iter().any(|it| it == "object"))
    };
    let describes = schema.get("properties").is_some_and(Value::is_object)
        || schema.get("type").is_some_and(is_object);
    let is_open = describes && schema["additionalProperties"] != false;
    let mut open: Vec<String> = is_open.then(|| at.to_owned()).into_iter().collect();
    let inside: Vec<(String, &Value)> = match schema {
        Value::Object(parts) => parts.iter().map(|(name, part)| (name.clone(), part)).collect(),
        Value::Array(parts) => {
            parts.iter().enumerate().map(|(at, part)| (at.to_string(), part)).collect()
        }
        _ => Vec::new(),
    };
    for (name, part) in inside {
        open.extend(open_objects(part, &format!("{at}/{name}")));
    }
    open
}

#[test]
fn no_schema_allows_other_fields() {
    let files = names(&schemas::directory());
    let open: Vec<String> = files
        .iter()
        .filter_map(|file| file.strip_suffix(".json"))
        .flat_map(|name| open_objects(&schemas::schema(name), name))
        .collect();
    assert!(files.len() >= 13, "{files:?}");
    assert_eq!(open, ["doctor/properties/facts"]);
}

/// Asserts that a document fits, and that the schema would object to a change of it.
pub fn assert_fits(name: &str, document: &Value) {
    schemas::assert_fits(name, document);
    let rules = schemas::rules(name);
    let mut more = document.clone();
    more["unheard_of"] = 1.into();
    assert!(!rules.is_valid(&more), "{name}: a further field");
    for field in document.as_object().expect("an object").keys() {
        let mut fewer = document.clone();
        fewer.as_object_mut().expect("an object").remove(field);
        let is_needed = schemas::schema(name)["required"]
            .as_array()
            .expect("a list")
            .iter()
            .any(|it| it == field);
        assert_eq!(rules.is_valid(&fewer), !is_needed, "{name}: without {field}");
    }
}

fn fits(node: &Node, name: &str, words: &[&str]) -> Value {
    let (fine, text) = run(node, words);
    assert!(fine, "{words:?}: {text}");
    let document = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    assert_fits(name, &document);
    document
}

#[test]
fn every_document_fits_its_schema() {
    let node = node();
    node.must_admit("other", Bytes(GIB));
    let gpus = fits(&node, "gpus", &["gpus", "--json"]);
    assert_eq!(gpus["gpus"].as_array().map(Vec::len), Some(2));
    fits(&node, "ps", &["ps", "--json"]);
    fits(&node, "ps", &["ps", "-o", "json"]);
    fits(&node, "explain", &["explain", "--json", "--seconds", "0.1"]);
    fits(&node, "explain", &["explain", "other", "--json", "--since-start"]);
    let set = fits(
        &node,
        "set",
        &[
            "set",
            "other",
            "--memory",
            "2GiB",
            "--weight",
            "3",
            "--share-limit",
            "50",
            "--priority",
            "high",
            "--json",
        ],
    );
    let changes = set["changes"].as_array().expect("a list");
    let what: Vec<&str> = changes.iter().filter_map(|it| it["what"].as_str()).collect();
    assert_eq!(what, ["memory", "weight", "share-limit", "priority"]);
    assert_eq!((&changes[0]["was"], &changes[0]["is"]), (&GIB.into(), &(2 * GIB).into()));
    fits(&node, "policy", &["policy", "--json"]);
    let changed = fits(&node, "policy", &["policy", "0", "preemptive", "--json"]);
    assert_eq!(
        (&changed["gpus"][0]["was"], &changed["gpus"][0]["policy"]),
        (&"soft".into(), &"preemptive".into())
    );
    eventually("a sample", || {
        let plot = fits(&node, "plot", &["plot", "--json"]);
        plot["series"][0]["samples"].as_array().is_some_and(|it| !it.is_empty())
    });
    fits(&node, "record", &["record", "--for", "100ms", "--json"]);
    let removed = fits(&node, "rm", &["rm", "other", "--json"]);
    assert_eq!(removed["removed"], serde_json::json!(["other"]));
    let (_, events) = run(&node, &["events", "--json"]);
    assert!(events.lines().count() > 5, "{events}");
    for event in events.lines() {
        assert_fits("event", &serde_json::from_str(event).expect("JSON"));
    }
}

#[test]
fn the_doctors_document_fits_its_schema() {
    let node = Node::start();
    let mut doctor = gpuslice();
    doctor.args(["doctor", "--json", "--driver-dir"]).arg(super::driver());
    // Not the user's own, which would outlive the test.
    doctor.env("GPUSLICE_SIM_DEVICE", node.root().join("device"));
    let output = doctor.arg("--runtime-dir").arg(node.runtime_dir()).output().expect("it starts");
    assert_fits("doctor", &serde_json::from_slice(&output.stdout).expect("JSON"));
}
