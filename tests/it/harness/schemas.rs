//! The schemas of `--json` in `docs/schemas`.

use jsonschema::Validator;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The directory of the schemas.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schemas")
}

/// A schema by its name.
pub fn schema(name: &str) -> Value {
    let path = directory().join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{path:?}: {why}"));
    serde_json::from_str(&text).expect("JSON")
}

/// What judges documents by a schema. It is made once: some tests ask for a document again and again.
pub fn rules(name: &str) -> Arc<Validator> {
    static KNOWN: Mutex<BTreeMap<String, Arc<Validator>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let make = || Arc::new(jsonschema::validator_for(&schema(name)).expect("a schema"));
    Arc::clone(known.entry(name.to_owned()).or_insert_with(make))
}

/// Asserts that a document fits a schema and names it.
pub fn assert_fits(name: &str, document: &Value) {
    let wrong: Vec<String> = rules(name)
        .iter_errors(document)
        .map(|why| format!("{}: {why}", why.instance_path()))
        .collect();
    assert!(wrong.is_empty(), "{name}: {wrong:#?}\n{document}");
    assert_eq!(document["schema"], format!("gpuslice/{name}"), "{document}");
}

/// Asserts that a document fits the schema that it names, if it names one.
pub fn assert_fits_its_own(document: &Value) {
    if let Some(name) = document["schema"].as_str() {
        assert_fits(name.strip_prefix("gpuslice/").expect("a schema of ours"), document);
    }
}
