//! The shipped registrations, used as by an engine that reads them.

use crate::harness::bundle::{Bundle, hook};
use crate::harness::eventually;
use crate::harness::node::Node;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Stages of the OCI runtime specification.
const STAGES: [&str; 6] =
    ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

fn shipped(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/hooks").join(name);
    let text = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The `hooks` of a `config.json` that podman makes of a `hooks.d` file.
fn as_podman_reads(file: &Value) -> Value {
    assert_eq!(file["version"], "1.0.0");
    assert!(file["when"].get("always").is_none(), "with other conditions it means never");
    let stages = file["stages"].as_array().expect("a list").iter();
    let entry = |stage: &Value| (stage.as_str().expect("a name").into(), json!([file["hook"]]));
    Value::Object(stages.map(entry).collect())
}

#[test]
fn registrations_name_existing_stages_and_the_installed_hook() {
    let makefile = Path::new(env!("CARGO_MANIFEST_DIR")).join("Makefile");
    let makefile = fs::read_to_string(makefile).expect("the Makefile");
    let installed = |line: &str| {
        line.contains("$(PREFIX)/libexec/gpuslice ") && line.ends_with("/gpuslice-hook")
    };
    assert!(makefile.lines().any(installed), "the hook is installed elsewhere");
    for hooks in
        [shipped("oci-config.json")["hooks"].clone(), as_podman_reads(&shipped("gpuslice.json"))]
    {
        let hooks = hooks.as_object().expect("stages");
        assert!(hooks.keys().all(|stage| STAGES.contains(&stage.as_str())), "{hooks:?}");
        assert!(hooks.contains_key("createRuntime") && hooks.len() == 1, "{hooks:?}");
        for hook in hooks.values().flat_map(|list| list.as_array().expect("a list")) {
            assert_eq!(hook["path"], "/usr/libexec/gpuslice/gpuslice-hook");
            assert!(hook["env"].as_array().is_some_and(|env| !env.is_empty()));
        }
    }
}

/// The shipped text unchanged but for the paths of this test's hook and daemon.
#[test]
fn registrations_work() {
    for runtime in ["runc", "crun"] {
        let Some(hook) = hook("registrations_work", runtime) else {
            continue;
        };
        let node = Node::start();
        for (id, hooks) in [
            ("config", shipped("oci-config.json")["hooks"].clone()),
            ("hooksd", as_podman_reads(&shipped("gpuslice.json"))),
        ] {
            let (here, run) = (hook.clone(), node.runtime_dir().to_owned());
            let edit = move |config: &mut Value| {
                let mut hooks = hooks.clone();
                for entry in hooks.as_object_mut().expect("stages").values_mut() {
                    entry[0]["path"] = json!(here);
                    let words = entry[0]["args"].as_array_mut().expect("words");
                    words.splice(1..1, [json!("--runtime-dir"), json!(run)]);
                }
                config["hooks"] = hooks;
            };
            let running = Bundle::new(node.root(), id, runtime, node.runtime_dir())
                .annotation("gpuslice.io/memory", "1GiB")
                .command(&["/bin/sleep", "60"])
                .edit(edit)
                .started(&hook);
            eventually("the slice is there", || node.slice(id).is_some());
            drop(running);
            eventually("the slice is gone", || node.slice(id).is_none());
        }
    }
}
