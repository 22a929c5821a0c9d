//! Which requests of containers this node takes, and what NVIDIA's container toolkit makes of the same variables.
//!
//! From 1.20.1 on the toolkit has a hook that gives `NVIDIA_GPU_MEMORY_REQUEST` and `NVIDIA_GPU_MEMORY_LIMIT` to the
//! driver. A reader of both manuals has to know whose meaning holds: the toolkit's limit binds the driver, gpuslice's
//! the slice.

use super::{Check, there, wanted};
use crate::node;
use serde_json::Value;
use std::process::{Command, Stdio};

/// The toolkit's program that tells its version.
const PROGRAM: &str = "nvidia-ctk";
/// The first version whose hook reads the variables.
const READS_LIMITS: [u32; 3] = [1, 20, 1];

/// The checks, from the daemon's facts and the toolkit's answer.
pub fn of_requests(facts: &Value) -> Vec<Check> {
    let mut checks = vec![sources(facts)];
    if node::is_in_path(PROGRAM) {
        checks.push(toolkit(facts, &version()));
    }
    checks
}

/// Where containers may ask for a slice.
fn sources(facts: &Value) -> Check {
    let config = &facts["config"];
    let named = config["requests_from"].as_array().into_iter().flatten();
    let named: Vec<&str> = named.filter_map(Value::as_str).collect();
    let bounds = match named.iter().any(|name| *name != "annotations") {
        false => String::new(),
        true => {
            let gpus = match config["environment_gpus_max"].as_u64() {
                Some(1) | None => "one GPU".to_owned(),
                Some(gpus) => format!("{gpus} GPUs"),
            };
            let memory = config["environment_memory_max"].as_str();
            let memory =
                memory.map_or("all of its memory".to_owned(), |most| format!("at most {most}"));
            format!("; variables may ask for {gpus} and {memory}")
        }
    };
    let from = [named.join(", "), "CDI devices".to_owned()];
    let from: Vec<&str> = from.iter().map(String::as_str).filter(|it| !it.is_empty()).collect();
    there("requests", format!("taken from {}{bounds}", from.join(", ")))
}

/// What the toolkit prints about its version.
fn version() -> Result<String, String> {
    let mut command = Command::new(PROGRAM);
    let output = command.arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|why| why.to_string())?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// The toolkit's version, and who obeys the variables.
fn toolkit(facts: &Value, said: &Result<String, String>) -> Check {
    let words = said.as_ref().map(|text| text.split_whitespace().find_map(numbers));
    let (version, shown) = match words {
        Ok(Some(found)) => found,
        Ok(None) | Err(_) => {
            let why = said.as_ref().err().map_or("it names no version", String::as_str);
            let found = format!("{PROGRAM} --version: {why}");
            return wanted("toolkit", found, "install nvidia-container-toolkit again");
        }
    };
    let own = facts["config"]["requests_from"].as_array();
    let is_taken = own.is_some_and(|all| all.iter().any(|name| name == "nvidia"));
    let ours = match is_taken {
        true => "gpuslice makes it the slice's cap",
        false => "gpuslice refuses containers that set it (requests_from)",
    };
    let theirs = match version >= READS_LIMITS {
        true if facts["config"]["cgroup_limits"] == "off" => {
            "the toolkit's hook makes it a limit of the driver's, where that is r615 or later, and gpuslice sets none \
             (cgroup_limits is \"off\")"
        }
        true => {
            "the toolkit's hook makes it a limit of the driver's, where that is r615 or later; gpuslice sets the slice's \
             memory limit in the same place, and the smaller one holds"
        }
        false => "the toolkit does not read it",
    };
    there("toolkit", format!("{shown}; NVIDIA_GPU_MEMORY_LIMIT: {ours}, {theirs}"))
}

/// The numbers of a word such as `1.20.1` or `1.20.0-rc.2`, and the word.
fn numbers(word: &str) -> Option<([u32; 3], &str)> {
    let release = word.split(['-', '~', '+']).next()?;
    let mut parts = release.split('.').map(|part| part.parse().ok());
    let version = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some((version, word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sources_and_bounds() {
        let found = |config: Value| sources(&json!({ "config": config })).found;
        assert_eq!(found(json!({ "requests_from": [] })), "taken from CDI devices");
        assert_eq!(
            found(json!({ "requests_from": ["annotations"], "environment_gpus_max": 1 })),
            "taken from annotations, CDI devices"
        );
        assert_eq!(
            found(json!({ "requests_from": ["annotations", "nvidia"], "environment_gpus_max": 1 })),
            "taken from annotations, nvidia, CDI devices; variables may ask for one GPU and all of its memory"
        );
        let bounded = json!({
            "requests_from": ["cgpu"], "environment_gpus_max": 2, "environment_memory_max": "8GiB",
        });
        assert!(found(bounded).ends_with("variables may ask for 2 GPUs and at most 8GiB"));
    }

    #[test]
    fn the_toolkit_and_whose_setting_holds() {
        let says =
            |text: &str| Ok(format!("NVIDIA Container Toolkit CLI version {text}\ncommit: 1a2b\n"));
        let with = |from: &[&str], said: Result<String, String>| {
            toolkit(&json!({ "config": { "requests_from": from } }), &said)
        };
        let new = with(&["nvidia"], says("1.20.1"));
        assert!(new.ok && new.found.starts_with("1.20.1; "), "{new:?}");
        assert!(new.found.contains("slice's cap") && new.found.contains("limit of the driver's"));
        assert!(new.found.ends_with("and the smaller one holds"), "{new:?}");
        let off = json!({ "config": { "requests_from": ["nvidia"], "cgroup_limits": "off" } });
        assert!(toolkit(&off, &says("1.20.1")).found.contains("gpuslice sets none"));
        for old in ["1.17.4", "1.20.0", "1.20.0-rc.2"] {
            let old = with(&["annotations"], says(old)).found;
            assert!(
                old.contains("refuses containers") && old.contains("does not read it"),
                "{old}"
            );
        }
        let unknown = with(&[], Err("no such library".to_owned()));
        assert!(!unknown.ok && unknown.found.contains("no such library"), "{unknown:?}");
        assert!(!with(&[], Ok("version unknown".to_owned())).ok);
    }
}
