//! Examines the node for `gpuslice doctor`: prints facts as one JSON object on standard output.
//!
//! The driver's library is loaded here and not in the CLI, so that a broken driver ends only this child
//! process, and the CLI reports it. Nothing is changed; a running daemon is not affected.

mod kernel;

use crate::accounting::ask_nvml::supports;
use crate::accounting::pid_namespace_warning;
use crate::claims::Directories;
use crate::command_line::CommandLine;
use crate::config::{CgroupLimitMode, DaemonConfig, PreemptionMode};
use crate::containers::Members;
use crate::mps::may_be_one_of;
use crate::nvml::Nvml;
use crate::paths::Paths;
use crate::state;
use gpuslice_host::cgroup;
use gpuslice_wire::ids::{GpuUuid, NvmlIndex};
use gpuslice_wire::text::is_seen;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Controllers that the driver's limits can use, the preferred one first.
const CONTROLLERS: [&str; 2] = ["dmem", "misc"];

/// All facts. An unknown fact is null, with the reason under `error` beside it.
pub fn facts(options: &CommandLine) -> Value {
    let config = DaemonConfig::load(options.config.as_deref());
    let wrong = config.as_ref().err().map(ToString::to_string);
    let config = config.unwrap_or_default();
    let paths = Paths::runtime_dir(options, &config);
    let paths = paths.and_then(|dir| Paths::find(options, &config, dir));
    let library = paths.as_ref().ok().map(|paths| paths.driver.nvml.as_str().to_owned());
    let slices =
        paths.as_ref().map_or_else(|_| Vec::new(), |it| Members::all_noted(&it.runtime_dir));
    json!({
        "root": nix::unistd::geteuid().is_root(),
        "pid_namespace": pid_namespace_warning(),
        "kernel": kernel::facts(),
        "mps": crate::mps::processes(|it| may_be_one_of(&slices, it)),
        "config": {
            "error": wrong,
            "file": DaemonConfig::file(options.config.as_deref()).map(|it| it.display().to_string()),
            "node_group": config.node_group,
            "cdi_dir": paths.as_ref().ok().map(|paths| {
                Directories::of(&config, &paths.runtime_dir).cdi.display().to_string()
            }),
            "requests_from": config.requests_from.iter().map(|it| it.0.name()).collect::<Vec<_>>(),
            "environment_gpus_max": config.environment_gpus_max.get(),
            "environment_memory_max": config.environment_memory_max.map(|most| most.0.to_string()),
            "accounting_interval_ms": config.accounting_interval_ms.get(),
            "preemption": match config.preemption {
                PreemptionMode::Off => "off",
                PreemptionMode::Probe => "probe",
            },
            "cgroup_limits": match config.cgroup_limits {
                CgroupLimitMode::Off => "off",
                CgroupLimitMode::Auto => "auto",
                CgroupLimitMode::Require => "require",
            },
        },
        "driver": match &paths {
            Err(why) => json!({ "error": why.to_string() }),
            Ok(paths) => json!({
                "dir": paths.driver.dir.display().to_string(),
                "simulated": paths.driver.is_simulated(),
                "error": null,
            }),
        },
        "nvml": library.as_deref().map_or(Value::Null, |library| nvml(library, &slices)),
        "cgroup": cgroups(paths.as_ref().ok().map(|paths| paths.runtime_dir.as_path())),
    })
}

fn nvml(library: &str, slices: &[Members]) -> Value {
    if library.is_empty() {
        return json!({ "error": "the driver directory has no libnvidia-ml.so.1" });
    }
    let nvml = match Nvml::open(Path::new(library)) {
        Ok(nvml) => nvml,
        Err(why) => return json!({ "library": library, "error": why }),
    };
    let count = match nvml.count() {
        Ok(count) => count,
        Err(why) => return json!({ "library": library, "error": why.to_string() }),
    };
    let gpus: Vec<Value> = (0..count).map(|index| gpu(&nvml, index, slices)).collect();
    json!({
        "library": library,
        "error": null,
        "version": nvml.version().ok(),
        "driver_version": nvml.driver_version().ok(),
        "gpus": gpus,
    })
}

fn gpu(nvml: &Nvml, index: u32, slices: &[Members]) -> Value {
    let asked = nvml.at(index).and_then(|device| {
        let (uuid, total) = (device.uuid()?, device.total()?);
        let no_slices = device.modes()?.no_slices(|it| may_be_one_of(slices, it));
        Ok((uuid, total, device.processes().err(), no_slices))
    });
    match asked {
        Err(why) => json!({ "index": index, "error": why.to_string() }),
        Ok((uuid, total, processes, no_slices)) => {
            let at = NvmlIndex(index);
            let no_slices = no_slices.map(|why| {
                json!({
                    "why": why.of(at).to_string(),
                    "end": why.end_command(at).map(|end| end.to_string()),
                    "sampled": why.is_sampled(),
                })
            });
            let limits = match uuid.parse::<GpuUuid>() {
                Ok(gpu) => supports(nvml, gpu).err(),
                Err(why) => Some(why.to_string()),
            };
            json!({
                "index": index, "uuid": uuid, "memory": total.0, "error": null,
                "processes": processes.map(|why| why.to_string()), "limits": limits,
                "no_slices": no_slices,
            })
        }
    }
}

/// The unified hierarchy: its mount point, its controllers, and the first group on the path to the
/// containers' groups that does not delegate the controller.
fn cgroups(runtime_dir: Option<&Path>) -> Value {
    let Some(mount) = cgroup::mount() else {
        return Value::Null;
    };
    let offered = words(&mount.join("cgroup.controllers"));
    let controller = CONTROLLERS.into_iter().find(|name| offered.iter().any(|o| o == name));
    let leaves = runtime_dir.map(leaves).unwrap_or_default();
    let gaps = controller.map(|name| {
        let gap = |leaf: &PathBuf| gap(&mount, leaf, name, words);
        let mut gaps: Vec<PathBuf> = leaves.iter().filter_map(gap).collect();
        gaps.sort();
        gaps.dedup();
        gaps
    });
    json!({
        "mount": mount,
        "controller": controller,
        "gaps": shown(gaps.unwrap_or_default()),
    })
}

/// Text for people: a path that is not UTF-8, or has characters that do not show, is escaped.
fn shown(paths: Vec<PathBuf>) -> Vec<String> {
    let plain = |text: &&str| text.chars().all(is_seen);
    let shown = |path: PathBuf| match path.to_str().filter(plain) {
        Some(text) => text.to_owned(),
        None => path.as_os_str().as_bytes().escape_ascii().to_string(),
    };
    paths.into_iter().map(shown).collect()
}

/// The cgroups of all recorded slices.
fn leaves(runtime_dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(runtime_dir.join("c")).into_iter().flatten().flatten();
    let records =
        all.filter_map(|entry| state::read_record(&entry.path().join(state::RECORD)).ok());
    let names = records.map(|record| cgroup::directory(Path::new(""), record.cgroup.as_bytes()));
    names.filter(|name| name.components().next().is_some()).collect()
}

fn words(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// The first group on the path to `leaf` that does not delegate the controller.
fn gap(
    mount: &Path,
    leaf: &Path,
    controller: &str,
    read: impl Fn(&Path) -> Vec<String>,
) -> Option<PathBuf> {
    let mut dir = mount.to_owned();
    for part in leaf.components() {
        let handed_on = read(&dir.join("cgroup.subtree_control"));
        if !handed_on.iter().any(|name| name == controller) {
            return Some(dir);
        }
        dir.push(part);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_group_that_does_not_delegate_is_named() {
        let on = |dirs: &'static [&'static str]| {
            move |file: &Path| {
                let dir = file.parent().expect("a directory").to_str().expect("text");
                match dirs.contains(&dir) {
                    true => vec!["cpu".to_owned(), "dmem".to_owned()],
                    false => vec!["cpu".to_owned()],
                }
            }
        };
        let find = |read: &dyn Fn(&Path) -> Vec<String>| {
            gap(Path::new("/cg"), Path::new("a/b/leaf"), "dmem", read)
        };
        assert_eq!(find(&on(&["/cg", "/cg/a", "/cg/a/b"])), None);
        assert_eq!(find(&on(&["/cg", "/cg/a/b"])), Some("/cg/a".into()));
        assert_eq!(find(&on(&[])), Some("/cg".into()));
    }
}
