//! OCI bundles for the demo's containers, and the runtime's command line.

use super::plan::Plan;
use super::rootfs;
use crate::node;
use anyhow::{Context, Result};
use gpuslice_host::{cgroup, layout};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Beginnings of the names of libraries that a driver loads for a program whose kernels are PTX. Of these the demo's
/// are; the hook brings `libcuda.so.1` alone.
const COMPILERS: [&str; 3] =
    ["libnvidia-ptxjitcompiler.so", "libnvidia-nvvm.so", "libnvidia-gpucomp.so"];

/// What a container gets of this machine's driver beside the hook's part, as from an NVIDIA container toolkit; nothing
/// of a simulated one.
#[derive(Clone, Debug, Default)]
pub struct Given {
    nodes: Vec<DeviceNode>,
    libraries: Vec<PathBuf>,
}

/// A device node of a driver.
#[derive(Clone, Debug)]
struct DeviceNode {
    path: PathBuf,
    major: u64,
    minor: u64,
}

impl Given {
    /// By the driver of this directory.
    ///
    /// # Errors
    /// A node or the directory cannot be examined.
    pub fn of(driver: &Path) -> Result<Given> {
        let common = layout::common_nodes().into_iter().map(PathBuf::from);
        let examined = layout::gpu_nodes().into_iter().chain(common).map(|path| {
            let rdev = fs::metadata(&path).with_context(|| path.display().to_string())?.rdev();
            let (major, minor) = (nix::sys::stat::major(rdev), nix::sys::stat::minor(rdev));
            Ok(DeviceNode { path, major, minor })
        });
        let nodes = examined.collect::<Result<_>>()?;
        let entries = fs::read_dir(driver).with_context(|| driver.display().to_string())?;
        let is_compiler = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            COMPILERS.iter().any(|start| name.starts_with(start))
        };
        let libraries = entries.flatten().map(|entry| entry.path()).filter(is_compiler).collect();
        Ok(Given { nodes, libraries })
    }
}

/// Writes `config.json`: annotations request the slice, the hook does the rest.
///
/// # Errors
/// The hook is missing, or the disk is full.
pub fn write(
    bundle: &Path,
    plan: &Plan,
    arguments: &[String],
    daemon: &Path,
    given: &Given,
) -> Result<()> {
    let hook = node::part("gpuslice-hook")?;
    let mut config = config(plan, arguments, &hook, daemon);
    give(&mut config, given);
    let text = serde_json::to_vec_pretty(&config)?;
    let path = bundle.join("config.json");
    fs::write(&path, text).with_context(|| path.display().to_string())
}

fn config(plan: &Plan, arguments: &[String], hook: &Path, daemon: &Path) -> Value {
    // An explicit environment, so that the caller's does not reach the hook.
    let hook = json!({ "path": hook, "env": [], "timeout": 10,
        "args": ["gpuslice-hook", "--runtime-dir", daemon, "createRuntime"] });
    let namespaces = ["pid", "mount", "ipc", "uts", "network"].map(|kind| json!({ "type": kind }));
    json!({
        "ociVersion": "1.0.2",
        "root": { "path": "rootfs", "readonly": false },
        "hostname": plan.name,
        "process": {
            "terminal": false, "cwd": "/", "args": arguments, "env": ["PATH=/"],
            "user": { "uid": 0, "gid": 0 }, "noNewPrivileges": true,
        },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
              "options": ["nosuid", "mode=755", "size=65536k"] },
        ],
        "annotations": annotations(plan),
        "hooks": { "createRuntime": [hook] },
        "linux": { "namespaces": namespaces, "cgroupsPath": format!("/{}", group(&plan.name)) },
    })
}

/// Gives a container the nodes, with the right to use them, and the libraries. Without nodes the runtime's defaults
/// hold.
fn give(config: &mut Value, given: &Given) {
    let mounts = given.libraries.iter().filter_map(|library| {
        let to = rootfs::library_dir()?.join(library.file_name()?);
        let options = ["bind", "ro", "nosuid", "nodev"];
        Some(json!({ "destination": to, "type": "bind", "source": library, "options": options }))
    });
    if let Some(all) = config["mounts"].as_array_mut() {
        all.extend(mounts);
    }
    let nodes = &given.nodes;
    if nodes.is_empty() {
        return;
    }
    let made = nodes.iter().map(|node| {
        json!({ "path": node.path, "type": "c", "major": node.major, "minor": node.minor,
            "fileMode": 0o666, "uid": 0, "gid": 0 })
    });
    let used = nodes.iter().map(|node| {
        json!({ "allow": true, "type": "c", "major": node.major, "minor": node.minor,
            "access": "rw" })
    });
    let all_denied = json!({ "allow": false, "access": "rwm" });
    let rules: Vec<Value> = std::iter::once(all_denied).chain(used).collect();
    config["linux"]["devices"] = made.collect();
    config["linux"]["resources"] = json!({ "devices": rules });
}

fn annotations(plan: &Plan) -> Value {
    let (kind, part) = match plan.share {
        Some(share) => ("gpuslice.io/share", share.get()),
        None => ("gpuslice.io/weight", plan.weight.get()),
    };
    let mut all = json!({
        "gpuslice.io/memory": plan.memory.0.to_string(),
        "gpuslice.io/name": plan.name,
        "gpuslice.io/priority": plan.class.name(),
        (kind): part.to_string(),
    });
    if let Some(limit) = plan.limit {
        all["gpuslice.io/memory-limit"] = limit.0.to_string().into();
    }
    all
}

/// The name of a container's control group.
pub fn group(name: &str) -> String {
    format!("gpuslice-{name}")
}

/// The runtime with its state in `root`. crun refuses machines that mount both cgroup
/// hierarchies; there it gets a private mount namespace without the newer one.
pub fn command(runtime: &str, root: &Path) -> Command {
    let mut command = Command::new(runtime);
    command.arg("--root").arg(root);
    let crun = Path::new(runtime).file_name().is_some_and(|name| name == "crun");
    if crun && cgroup::is_hybrid() {
        // SAFETY: the closure only makes system calls on constants.
        unsafe { command.pre_exec(cgroup::hide_unified) };
    }
    command
}

#[cfg(test)]
mod tests {
    use super::super::plan::Load;
    use super::*;
    use gpuslice_wire::units::Bytes;
    use oci_spec::runtime::Spec;

    /// A misspelt or misplaced field would be lost on the way through the specification's own types.
    #[test]
    fn the_configuration_is_of_the_oci_runtime_specification() {
        for plan in Plan::three(None, Load::default(), Bytes(8 << 30), 5) {
            let mut config =
                config(&plan, &["tenant".to_owned()], Path::new("/h"), Path::new("/d"));
            let control = DeviceNode { path: "/dev/nvidiactl".into(), major: 195, minor: 255 };
            let compiler = "/d/libnvidia-ptxjitcompiler.so.1".into();
            give(&mut config, &Given { nodes: vec![control], libraries: vec![compiler] });
            let linux = &config["linux"];
            assert_eq!(linux["devices"][0]["path"], "/dev/nvidiactl");
            let allowed = |rule: &Value| (rule["allow"].clone(), rule["minor"].clone());
            let rules = linux["resources"]["devices"].as_array().expect("rules");
            let rules: Vec<(Value, Value)> = rules.iter().map(allowed).collect();
            assert_eq!(rules, [(false.into(), Value::Null), (true.into(), 255.into())]);
            let mounts = config["mounts"].as_array().expect("mounts");
            assert_eq!(mounts.last().expect("three")["source"], "/d/libnvidia-ptxjitcompiler.so.1");
            let spec: Spec = serde_json::from_value(config.clone()).expect("a specification");
            assert_eq!(serde_json::to_value(spec).expect("JSON"), config);
        }
    }
}
