//! Docker: a runtime in `/etc/docker/daemon.json`, and whether it is the default runtime.

use super::json;
use super::part::{NAME, Part, Wish, is_nvidia};
use anyhow::Result;
use jsonc_parser::json;
use serde::Deserialize;
use std::collections::BTreeMap;

const DEFAULT: &str = "default-runtime";

/// gpuslice's part of `daemon.json`.
pub struct Docker;

/// The keys that gpuslice reads. Errors contain line and column.
#[derive(Default, Deserialize)]
struct Daemon {
    runtimes: Option<BTreeMap<String, Runtime>>,
    #[serde(rename = "default-runtime")]
    default_runtime: Option<String>,
}

#[derive(Deserialize)]
struct Runtime {
    path: Option<String>,
}

fn shape(text: &str) -> Result<Daemon> {
    json::parse(text)?;
    match text.trim() {
        "" => Ok(Daemon::default()),
        text_of_object => Ok(serde_json::from_str(text_of_object)?),
    }
}

impl Daemon {
    fn path(&self, name: &str) -> Option<&str> {
        self.runtimes.as_ref()?.get(name)?.path.as_deref()
    }

    /// NVIDIA's runtime, under any name.
    fn nvidia(&self) -> Option<String> {
        let others = self.runtimes.iter().flatten().filter(|(name, _)| *name != NAME);
        let mut paths = others.filter_map(|(_, runtime)| runtime.path.as_deref());
        paths.find(|path| is_nvidia(path)).map(str::to_owned)
    }
}

impl Part for Docker {
    fn put(&self, text: &str, wish: &Wish) -> Result<String> {
        let shape = shape(text)?;
        let root = json::parse(text)?;
        let daemon = root.object_value_or_set();
        let program = shape.nvidia().unwrap_or_else(|| wish.program.clone());
        if shape.path(NAME) != Some(&program) {
            let runtimes = daemon.object_value_or_set("runtimes");
            let ours = runtimes.object_value_or_set(NAME);
            match ours.get("path") {
                Some(path) => path.set_value(json!(program)),
                None => {
                    ours.append("path", json!(program));
                }
            }
        }
        if wish.default && shape.default_runtime.as_deref() != Some(NAME) {
            match daemon.get(DEFAULT) {
                Some(default) => default.set_value(json!(NAME)),
                None => {
                    daemon.append(DEFAULT, json!(NAME));
                }
            }
        }
        Ok(root.to_string())
    }

    fn find(&self, text: &str) -> Result<Option<Wish>> {
        let shape = shape(text)?;
        let there = shape.runtimes.as_ref().is_some_and(|all| all.contains_key(NAME));
        Ok(there.then(|| Wish {
            program: shape.path(NAME).unwrap_or_default().to_owned(),
            default: shape.default_runtime.as_deref() == Some(NAME),
            cdi: false,
        }))
    }

    fn take_out(&self, text: &str, before: Option<&str>) -> Result<Option<String>> {
        let now = shape(text)?;
        let root = json::parse(text)?;
        let daemon = root.object_value_or_set();
        if now.default_runtime.as_deref() == Some(NAME) {
            let old = before.and_then(|before| shape(before).ok()?.default_runtime);
            let default = daemon.get(DEFAULT);
            match old.filter(|old| old != NAME) {
                Some(old) => {
                    default.into_iter().for_each(|prop| prop.set_value(json!(old.clone())))
                }
                None => default.into_iter().for_each(|prop| prop.remove()),
            }
        }
        if let Some(runtimes) = daemon.object_value("runtimes") {
            runtimes.get(NAME).into_iter().for_each(|ours| ours.remove());
            if runtimes.properties().is_empty() {
                daemon.get("runtimes").into_iter().for_each(|all| all.remove());
            }
        }
        Ok(Some(root.to_string()))
    }

    fn behind(&self, text: &str) -> Result<Option<String>> {
        Ok(shape(text)?.nvidia())
    }
}

#[cfg(test)]
mod tests {
    use super::super::part::{tests::round_trip, tests::wish, undo};
    use super::*;

    const USUAL: &str = "{\n    \"log-driver\": \"journald\",\n    \"mtu\": 1.50e3\n}\n";

    #[test]
    fn a_runtime_is_added_and_every_other_byte_stays() {
        let put = round_trip(&Docker, USUAL);
        let (head, _) = USUAL.rsplit_once("\n}").expect("an object");
        let ours = "    \"runtimes\": {\n        \"gpuslice\": {\n            \
                    \"path\": \"/usr/bin/gpuslice-runtime\"\n        }\n    }\n}\n";
        assert_eq!(put, format!("{head},\n{ours}"));
        for odd in ["", "{}", "{ }\n", "{\"a\":[1,2],\"runtimes\":{}}", "{\"runtimes\":null}"] {
            let put = round_trip(&Docker, odd);
            serde_json::from_str::<serde_json::Value>(&put).expect("JSON");
        }
    }

    #[test]
    fn what_others_wrote_since_stays() {
        let before =
            "{\"default-runtime\": \"crun\", \"runtimes\": {\"crun\": {\"path\": \"crun\"}}}";
        let put = Docker.put(before, &wish(true)).expect("good");
        let since = put.replacen('{', "{\"debug\": true, ", 1);
        let undone = undo(&Docker, &since, Some(before)).expect("good").expect("ours");
        assert!(!undone.exact);
        let expected = before.replacen('{', "{\"debug\": true, ", 1);
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(value(&undone.text.expect("a file")), value(&expected));
        // Without a backup the previous default is unknown.
        let undone = undo(&Docker, &since, None).expect("good").expect("ours");
        assert!(!undone.text.expect("a file").contains("default-runtime"));
    }

    #[test]
    fn nvidias_runtime_calls_ours_where_it_is_there() {
        let text = r#"{"runtimes": {"nvidia": {"path": "/opt/nvidia-container-runtime"}}}"#;
        let put = round_trip(&Docker, text);
        let found = Docker.find(&put).expect("good").expect("ours");
        assert_eq!(found.program, "/opt/nvidia-container-runtime");
        assert!(Docker.behind(text).expect("good").is_some());
        assert_eq!(Docker.behind(USUAL).expect("good"), None);
    }

    #[test]
    fn bad_files_are_refused_with_the_place() {
        for (bad, why) in [
            ("{\"runtimes\": []}", "line 1 column 13"),
            ("{\n\"runtimes\": {\"gpuslice\": 1}}", "line 2 column"),
            ("{\"default-runtime\": 1}", "line 1 column"),
            ("[]", "line 1 column"),
            ("{\"runtimes\": {}, \"runtimes\": {}}", "is given twice"),
        ] {
            let said = format!("{:#}", Docker.put(bad, &wish(false)).expect_err("refused"));
            assert!(said.contains(why), "{bad}: {said}");
        }
    }
}
