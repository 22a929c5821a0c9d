//! Which crate may depend on which, and that every dependency has its reason beside it.

use super::none;
use serde_json::Value;

/// Crate, its allowed dependencies within the house, and from outside.
const ALLOWED: [(&str, &[&str], &[&str]); 17] = [
    ("gpuslice-wire", &[], &[]),
    (
        "gpuslice-host",
        &["gpuslice-nvabi", "gpuslice-wire"],
        &["libc", "nix", "procfs", "rustix", "thiserror"],
    ),
    ("gpuslice-nvabi", &[], &[]),
    ("gpuslice-engine", &["gpuslice-wire"], &[]),
    ("gpuslice-hook", &["gpuslice-wire"], &["libc", "serde", "serde_json"]),
    ("gpuslice-shim", &["gpuslice-wire", "gpuslice-nvabi"], &["libc", "hashbrown"]),
    ("gpuslice-shim-preload", &["gpuslice-shim", "gpuslice-nvabi", "gpuslice-wire"], &["libc"]),
    ("gpuslice-shim-mount", &["gpuslice-shim", "gpuslice-nvabi", "gpuslice-wire"], &["libc"]),
    ("gpuslice-shim-nvml", &["gpuslice-shim", "gpuslice-nvabi", "gpuslice-wire"], &["libc"]),
    ("gpuslice-sim-device", &["gpuslice-nvabi"], &["caps", "libc"]),
    ("gpuslice-sim-cuda", &["gpuslice-sim-device", "gpuslice-nvabi"], &["libc"]),
    ("gpuslice-sim-nvml", &["gpuslice-sim-device", "gpuslice-nvabi"], &["libc"]),
    ("gpuslice-apps", &["gpuslice-nvabi"], &["libc"]),
    (
        "gpuslice-gpu",
        &[
            "gpuslice-apps",
            "gpuslice-host",
            "gpuslice-nvabi",
            "gpuslice-shim",
            "gpuslice-sim-device",
        ],
        &["libc", "nix"],
    ),
    (
        "gpuslice-bench",
        &["gpuslice-host", "gpuslice-nvabi", "gpuslice-wire", "gpuslice-sim-device"],
        &["libc", "nix", "serde_json", "tempfile"],
    ),
    ("gpuslice-fuzz", &[], &["bolero"]),
    ("gpuslice-world", &["gpuslice-wire", "gpuslice-engine"], &[]),
];

/// What the daemon's package, the CLI's and the Kubernetes agent's use of the house, and any crate from outside.
const NODE: [(&str, &[&str]); 3] = [
    (
        "gpuslice",
        &["gpuslice-wire", "gpuslice-host", "gpuslice-engine", "gpuslice-ctl", "gpuslice-nvabi"],
    ),
    ("gpuslice-ctl", &["gpuslice-wire", "gpuslice-host", "gpuslice-hook", "gpuslice-sim-device"]),
    ("gpuslice-k8s", &["gpuslice-wire", "gpuslice-host"]),
];

/// All of the workspace; none where cargo cannot be asked, which is printed.
fn packages() -> Vec<Value> {
    let arguments = ["metadata", "--no-deps", "--format-version=1", "--offline"];
    let Some(output) = super::cargo(&arguments) else {
        return Vec::new();
    };
    let value: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata's JSON");
    value["packages"].as_array().expect("packages").clone()
}

#[test]
fn dependencies_point_one_way() {
    let mut broken = Vec::new();
    for package in packages() {
        let name = package["name"].as_str().expect("name");
        let all = package["dependencies"].as_array().expect("dependencies");
        for dependency in all.iter().filter(|dependency| dependency["kind"].is_null()) {
            let on = dependency["name"].as_str().expect("name");
            let allowed = match ALLOWED.iter().find(|(package, ..)| *package == name) {
                Some((_, inside, outside)) => inside.contains(&on) || outside.contains(&on),
                None => {
                    let node = NODE.iter().find(|(package, _)| *package == name);
                    node.is_some_and(|(_, inside)| {
                        !on.starts_with("gpuslice") || inside.contains(&on)
                    })
                }
            };
            if !allowed {
                broken.push(format!("{name} -> {on}"));
            }
        }
    }
    none("an edge that the architecture does not have", broken);
}

#[test]
fn every_outside_dependency_has_a_reason() {
    let mut broken = Vec::new();
    for package in packages() {
        let manifest = package["manifest_path"].as_str().expect("path");
        let text = std::fs::read_to_string(manifest).expect("manifest");
        for section in text
            .split("\n[")
            .filter(|s| s.starts_with("dependencies]") || s.starts_with("dev-dependencies]"))
        {
            for line in section.lines().skip(1) {
                let outside = line.contains('=')
                    && !line.starts_with(['#', '['])
                    && !line.starts_with("gpuslice-");
                if outside && !line.contains('#') && !line.starts_with("libc") {
                    broken.push(format!("{manifest}: {line}"));
                }
            }
        }
    }
    none("a dependency without its reason beside it", broken);
}
