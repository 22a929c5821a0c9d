//! `gpuslice doctor`: how caps are enforced on this node, what is missing, and how to fix it.
//!
//! The facts come from `gpusliced --examine`, a child process, so that a broken driver breaks only the
//! child; this file judges them. Each check prints one line, `ok` or `missing`, and for a missing part
//! the command or configuration line that fixes it. The exit status is 1 if a part is missing that
//! slices need. A part that only a higher enforcement level needs is reported, but not needed.

mod cdi;
mod driver;
mod enforcement;
mod no_slices;
mod owners;
mod requests;

use crate::admin::Admin;
use crate::node;
use crate::out;
use crate::setup;
use crate::table::View;
use crate::why::quoted;
use anyhow::{Context, Result, bail};
use enforcement::{describe_memory, describe_time, of_slices};
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::snapshot::{MemoryEnforcement, TimeEnforcement};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Container engines and runtimes that can call the hook.
const RUNTIMES: [&str; 6] = ["docker", "podman", "containerd", "crio", "runc", "crun"];
/// Parts of an installation beside the two programs.
const PARTS: [&str; 5] = [
    "gpuslice-hook",
    "gpuslice-runtime",
    "libgpuslice.so",
    "libgpuslice_mount.so",
    "libgpuslice_nvml.so",
];

/// Requirements of the driver's limits.
const NO_CONTROLLER: &str = "the kernel offers neither dmem nor misc";
const NEWER_KERNEL: &str = "a kernel from 6.14 on with CONFIG_CGROUP_DMEM=y";
/// Install locations of the daemon's unit.
const UNITS: [&str; 3] = [
    "/usr/lib/systemd/system/gpusliced.service",
    "/usr/local/lib/systemd/system/gpusliced.service",
    "/etc/systemd/system/gpusliced.service",
];

/// Options of `gpuslice doctor`.
#[derive(clap::Args)]
pub struct Options {
    /// Print one JSON object: the checks and the facts behind them
    #[arg(long)]
    json: bool,
    /// Fail if any part is missing, also one that only some features need
    #[arg(long)]
    strict: bool,
    /// Fail if pods of Kubernetes could not get their claims, or another program offers the GPUs
    #[arg(long)]
    kubernetes: bool,
    /// Directory of the kubelet, for --kubernetes
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Configuration file of containerd [default: /etc/containerd/config.toml]
    #[arg(long, value_name = "FILE")]
    containerd_config: Option<PathBuf>,
    /// Configuration file of the daemon [default: /etc/gpuslice/gpusliced.toml if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of libcuda.so.1 and libnvidia-ml.so.1 [default: the system's]
    #[arg(long, value_name = "DIR")]
    driver_dir: Option<PathBuf>,
    /// Runtime directory of the daemon [default: /run/gpuslice as root]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

/// One check of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Check {
    /// Its subject.
    name: String,
    /// It passed.
    ok: bool,
    /// Slices need it.
    needed: bool,
    /// The finding.
    found: String,
    /// How to fix it, if it failed.
    fix: String,
}

/// Runs `gpuslice doctor`.
///
/// # Errors
/// The installation has no `gpusliced`, or `gpusliced --examine` fails.
pub fn main(options: &Options) -> Result<ExitCode> {
    let facts = examine(options)?;
    let dir = node::runtime_dir(options.runtime_dir.as_deref());
    let view = Admin::connect(&dir).and_then(|admin| admin.list());
    let mut checks = of_facts(&facts);
    checks.extend(of_installation(options));
    checks.extend(requests::of_requests(&facts));
    checks.extend(of_claims(options, &facts));
    checks.extend(options.kubernetes.then(|| owners::of_kubelet(&options.kubelet_dir)));
    checks.extend(of_required_limits(options, &facts));
    match view {
        Ok(list) => {
            driver::of_another_configuration(options, &mut checks);
            checks.push(there("daemon", format!("answers at {}", dir.display())));
            checks.extend(of_slices(&View::of(list)));
        }
        Err(why) => checks.push(wanted("daemon", format!("{why:#}"), how_to_start())),
    }
    let missing = checks.iter().any(|check| (check.needed || options.strict) && !check.ok);
    if options.json {
        out::line(&as_json(&checks, &facts).to_string())?;
    } else {
        for check in &checks {
            told(check).iter().try_for_each(|line| out::line(line))?;
        }
    }
    Ok(ExitCode::from(u8::from(missing)))
}

/// The command that starts the daemon here.
fn how_to_start() -> &'static str {
    let unit = UNITS.iter().any(|unit| Path::new(unit).exists());
    match unit && Path::new("/run/systemd/system").exists() {
        true => "systemctl enable --now gpusliced.socket gpusliced.service",
        false => "start gpusliced as root; gpuslice run starts a private one without",
    }
}

fn examine(options: &Options) -> Result<Value> {
    let mut command = Command::new(node::part("gpusliced")?);
    command.arg("--examine").stdin(Stdio::null());
    let named = [
        ("--config", &options.config),
        ("--driver-dir", &options.driver_dir),
        ("--runtime-dir", &options.runtime_dir),
    ];
    for (name, value) in named {
        if let Some(value) = value {
            command.arg(name).arg(value);
        }
    }
    let output = command.stderr(Stdio::piped()).output().context("gpusliced")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("gpusliced --examine ended with {}: {}", output.status, said.trim());
    }
    serde_json::from_slice(&output.stdout).context("cannot parse the output of gpusliced --examine")
}

fn check(name: &str, ok: bool, needed: bool, found: String, fix: &str) -> Check {
    Check {
        name: name.to_owned(),
        ok,
        needed,
        found,
        fix: if ok { String::new() } else { fix.to_owned() },
    }
}

fn there(name: &str, found: String) -> Check {
    check(name, true, true, found, "")
}

/// A missing part that slices need.
fn needed(name: &str, found: String, fix: &str) -> Check {
    check(name, false, true, found, fix)
}

/// A missing part that only some features need.
fn wanted(name: &str, found: String, fix: &str) -> Check {
    check(name, false, false, found, fix)
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Turns the facts about driver and kernel into checks.
fn of_facts(facts: &Value) -> Vec<Check> {
    let mut checks = vec![configuration(facts), driver::of_facts(facts), kernel(&facts["kernel"])];
    let nvml = &facts["nvml"];
    checks.push(match (text(&nvml["error"]), nvml.is_null()) {
        (None, false) => there(
            "nvml",
            format!(
                "{}, driver {}",
                nvml["version"].as_str().unwrap_or("of unknown version"),
                nvml["driver_version"].as_str().unwrap_or("of unknown version")
            ),
        ),
        (why, _) => wanted(
            "nvml",
            why.unwrap_or_else(|| "there is none without a driver".to_owned()),
            "run nvidia-smi and fix what it reports; the driver's package has libnvidia-ml.so.1",
        ),
    });
    checks.push(match text(&facts["pid_namespace"]) {
        None => there("processes", "gpusliced sees the host's pids".to_owned()),
        Some(why) => wanted("processes", why, "docker run --pid=host, or hostPID: true"),
    });
    checks.extend(driver::hmm(facts));
    checks.extend(no_slices::mps(facts));
    checks.extend(control_groups(facts));
    checks.push(time_enforcement(facts));
    for gpu in nvml["gpus"].as_array().into_iter().flatten() {
        checks.push(memory_enforcement(facts, gpu));
    }
    checks
}

fn configuration(facts: &Value) -> Check {
    match text(&facts["config"]["error"]) {
        None => there("configuration", "valid".to_owned()),
        Some(why) => {
            let file = quoted(facts["config"]["file"].as_str().unwrap_or("FILE"));
            needed("configuration", why, &format!("gpusliced --check {file} until it says ok"))
        }
    }
}

/// Kernel calls that the hook and the daemon need.
fn kernel(facts: &Value) -> Check {
    let release = facts["release"].as_str().unwrap_or("of unknown version");
    let absent = facts["absent"].as_array();
    let absent = absent.into_iter().flatten();
    let absent: Vec<String> = absent.filter_map(text).collect();
    match absent.is_empty() {
        true => there("kernel", release.to_owned()),
        false => needed(
            "kernel",
            format!("{release} lacks or forbids {}", absent.join(", ")),
            "a kernel from 5.12 on; in a container, a seccomp profile that allows them",
        ),
    }
}

fn control_groups(facts: &Value) -> Vec<Check> {
    let groups = &facts["cgroup"];
    let Some(mount) = groups["mount"].as_str() else {
        let fix = "boot with systemd.unified_cgroup_hierarchy=1";
        let found = "no unified hierarchy is mounted at /sys/fs/cgroup".to_owned();
        return vec![wanted("cgroup v2", found, fix)];
    };
    let mut checks = vec![there("cgroup v2", mount.to_owned())];
    if facts["driver"]["simulated"] == true {
        let found = "the simulated driver needs none".to_owned();
        checks.push(there("controller", found));
        return checks;
    }
    let Some(controller) = groups["controller"].as_str() else {
        checks.push(wanted("controller", format!("{NO_CONTROLLER} at {mount}"), NEWER_KERNEL));
        return checks;
    };
    let gaps = groups["gaps"].as_array();
    let gaps: Vec<&str> = gaps.into_iter().flatten().filter_map(Value::as_str).collect();
    if gaps.is_empty() {
        checks.push(there("controller", format!("{controller}, down to every slice's cgroup")));
    }
    for gap in gaps {
        let found = format!("{gap} does not delegate {controller} to the groups below it");
        let fix = format!("echo +{controller} > {gap}/cgroup.subtree_control");
        checks.push(wanted("controller", found, &fix));
    }
    checks
}

/// The memory enforcement level available on this GPU, and what the next level lacks.
fn memory_enforcement(facts: &Value, gpu: &Value) -> Check {
    let name = format!("gpu {}", gpu["index"]);
    if let Some(why) = text(&gpu["error"]) {
        let fix = "run nvidia-smi, and look for Xid errors in the kernel log (dmesg)";
        return needed(&name, why, fix);
    }
    if let Some(check) = no_slices::of_gpu(&name, facts, gpu) {
        return check;
    }
    let uuid = gpu["uuid"].as_str().unwrap_or_default();
    let measured = not_measured(facts, gpu);
    let unlimited = no_cgroup_limit(facts, gpu);
    let (level, next) = match (measured, unlimited) {
        (_, None) => (MemoryEnforcement::Driver, None),
        (None, why) => (MemoryEnforcement::Accounted, why),
        (why, _) => (MemoryEnforcement::Shim, why),
    };
    let profile = uuid.parse().ok().and_then(GpuUuid::profile);
    let mark = profile.map_or(String::new(), |profile| format!(" (simulated, profile {profile})"));
    let found = format!("{uuid}{mark}: {}", describe_memory(level));
    match next {
        None => there(&name, found),
        Some((why, fix)) => Check {
            // Caps are enforced; only the next level is missing.
            name,
            ok: true,
            needed: true,
            found: format!("{found}; the next level is not available: {why}"),
            fix,
        },
    }
}

/// How turns are enforced, and whether preemption is tried.
fn time_enforcement(facts: &Value) -> Check {
    let found = match facts["config"]["preemption"] == "probe" {
        true => format!(
            "{}, and {} on each GPU where a stop was seen to work; there hardware \
             time slices divide overlapping work by weight",
            describe_time(TimeEnforcement::Shim),
            describe_time(TimeEnforcement::Preempt),
        ),
        false => format!(
            "{}; preemption = \"probe\" in the configuration tries to preempt it on the GPU",
            describe_time(TimeEnforcement::Shim)
        ),
    };
    there("turns", found)
}

type Missing = Option<(String, String)>;

fn not_measured(facts: &Value, gpu: &Value) -> Missing {
    let why = |why: String, fix: &str| Some((why, fix.to_owned()));
    if facts["config"]["accounting_interval_ms"] == 0 {
        let found = "accounting_interval_ms is 0 in the configuration".to_owned();
        return why(found, "set accounting_interval_ms = 1000 and restart gpusliced");
    }
    if let Some(answer) = text(&gpu["processes"]) {
        return why(answer, "run nvidia-smi and fix what it reports");
    }
    let blind = text(&facts["pid_namespace"]);
    blind.and_then(|found| why(found, "docker run --pid=host, or hostPID: true"))
}

fn no_cgroup_limit(facts: &Value, gpu: &Value) -> Missing {
    let why = |why: &str, fix: &str| Some((why.to_owned(), fix.to_owned()));
    if let Some(answer) = text(&gpu["limits"]) {
        return why(&answer, "a driver from r615 on, with cgroup v2 and without MIG");
    }
    // Without a controller the driver still answers that no limit is set, which only shows that it
    // supports the call.
    if facts["driver"]["simulated"] != true && !facts["cgroup"]["controller"].is_string() {
        return why(NO_CONTROLLER, NEWER_KERNEL);
    }
    if facts["config"]["cgroup_limits"] == "off" {
        let fix = "set cgroup_limits = \"auto\" and restart gpusliced";
        return why("cgroup_limits is \"off\" in the configuration", fix);
    }
    if facts["root"] != true {
        return why("only root may set the driver's limits", "run gpusliced as root");
    }
    None
}

fn of_installation(options: &Options) -> Vec<Check> {
    let mut checks: Vec<Check> = Vec::new();
    let absent: Vec<&str> = PARTS.into_iter().filter(|name| node::part(name).is_err()).collect();
    checks.push(match absent.is_empty() {
        true => there("installation", "hook and shim are installed".to_owned()),
        false => needed(
            "installation",
            format!("{} not found", absent.join(", ")),
            "install the package again; from sources, make build",
        ),
    });
    let runtimes: Vec<&str> = RUNTIMES.into_iter().filter(|name| node::is_in_path(name)).collect();
    checks.push(match runtimes.is_empty() {
        false => there("runtimes", runtimes.join(", ")),
        true => wanted(
            "runtimes",
            "no container runtime in PATH".to_owned(),
            "install one, or use gpuslice run, which needs none",
        ),
    });
    let states = setup::states(options.runtime_dir.as_deref());
    checks.extend(states.into_iter().map(of_engine));
    checks
}

/// Claims are refused where the driver has to enforce every cap.
fn of_required_limits(options: &Options, facts: &Value) -> Option<Check> {
    let claims = options.kubernetes || facts["config"]["node_group"].is_string();
    (claims && facts["config"]["cgroup_limits"] == "require").then(|| {
        let found = "cgroup_limits is \"require\", with which no claim can be reserved".to_owned();
        needed("claims", found, "set cgroup_limits = \"auto\" and restart gpusliced")
    })
}

/// Whether pods get their claims. A node with a group of agents has them.
fn of_claims(options: &Options, facts: &Value) -> Option<Check> {
    let needed = options.kubernetes || facts["config"]["node_group"].is_string();
    let cdi_dir = facts["config"]["cdi_dir"].as_str();
    let config = options.containerd_config.as_deref();
    match (node::is_in_path("containerd"), node::is_in_path("crio")) {
        (true, _) => Some(cdi::of_containerd(config, cdi_dir, needed)),
        (false, false) if options.kubernetes => {
            let found = "neither containerd nor CRI-O is in PATH".to_owned();
            Some(self::needed("cdi", found, "install containerd from 1.7 on, or CRI-O"))
        }
        // CRI-O gives containers their CDI devices without being told to.
        (false, _) => None,
    }
}

/// Whether a container engine is set up for gpuslice.
fn of_engine(state: setup::State) -> Check {
    let setup::State { engine, ok, found } = state;
    let fix = format!("run gpuslice setup {engine} to give its containers slices");
    check(engine, ok, false, found, &fix)
}

fn told(check: &Check) -> Vec<String> {
    let state = if check.ok { "ok" } else { "missing" };
    let mut lines = vec![format!("{state:<8}{:<14} {}", check.name, check.found)];
    if !check.fix.is_empty() {
        lines.push(format!("{:<8}{:<14} -> {}", "", "", check.fix));
    }
    lines
}

fn as_json(checks: &[Check], facts: &Value) -> Value {
    let one = |check: &Check| {
        json!({
            "name": check.name, "ok": check.ok, "needed": check.needed,
            "found": check.found, "fix": check.fix,
        })
    };
    let checks: Vec<Value> = checks.iter().map(one).collect();
    out::document("doctor", 1, json!({ "checks": checks, "facts": facts }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node without a missing part.
    fn node() -> Value {
        json!({
            "root": true, "pid_namespace": null,
            "kernel": { "release": "6.14.0", "absent": [] },
            "config": { "error": null, "accounting_interval_ms": 1000, "cgroup_limits": "auto" },
            "driver": { "dir": "/lib", "simulated": false, "error": null },
            "nvml": {
                "library": "/lib/nvml", "error": null, "version": "13.615", "driver_version": "615",
                "gpus": [{
                    "index": 0, "uuid": "GPU-1", "memory": 1, "error": null, "processes": null,
                    "limits": null,
                }],
            },
            "cgroup": { "mount": "/cg", "controller": "dmem", "gaps": [] },
        })
    }

    #[test]
    fn a_bad_configuration_is_named_in_its_check() {
        let mut facts = node();
        facts["config"]["error"] = json!("/etc/my file.toml:2: no");
        facts["config"]["file"] = json!("/etc/my file.toml");
        let checks = of_facts(&facts);
        assert_eq!(checks[0].fix, "gpusliced --check '/etc/my file.toml' until it says ok");
    }

    fn gpu_of(facts: &Value) -> Check {
        let checks = of_facts(facts);
        checks.into_iter().find(|check| check.name == "gpu 0").expect("a GPU")
    }

    #[test]
    fn a_complete_node_misses_nothing() {
        let checks = of_facts(&node());
        assert!(checks.iter().all(|check| check.ok && check.fix.is_empty()), "{checks:?}");
        assert_eq!(gpu_of(&node()).found, "GPU-1: driver: the driver enforces caps");
    }

    #[test]
    fn the_enforcement_level_and_why_not_the_next() {
        let with = |path: &str, value: Value| {
            let mut facts = node();
            *facts.pointer_mut(path).expect("a fact") = value;
            gpu_of(&facts)
        };
        let old = with("/nvml/gpus/0/limits", json!("too old"));
        assert!(
            old.ok
                && old.found.contains(": accounted: ")
                && old.found.ends_with("not available: too old")
        );
        let off = with("/config/cgroup_limits", json!("off"));
        assert!(
            off.found.contains(": accounted: ") && off.fix.contains("cgroup_limits = \"auto\""),
            "{off:?}"
        );
        let user = with("/root", json!(false));
        assert!(user.found.contains(": accounted: ") && user.fix.contains("as root"), "{user:?}");
        let bare = with("/cgroup/controller", Value::Null);
        assert!(
            bare.found.contains(": accounted: ") && bare.found.ends_with("neither dmem nor misc"),
            "{bare:?}"
        );
        let lost = with("/nvml/gpus/0/error", json!("lost"));
        assert!(!lost.ok && lost.needed, "{lost:?}");
        let mut blind = node();
        blind["config"]["accounting_interval_ms"] = json!(0);
        blind["nvml"]["gpus"][0]["limits"] = json!("too old");
        let blind = gpu_of(&blind);
        assert!(blind.found.contains(": shim: ") && blind.fix.contains("= 1000"), "{blind:?}");
    }

    #[test]
    fn preemption_is_described_as_it_is_configured() {
        let mut facts = node();
        let turns = |facts: &Value| {
            let checks = of_facts(facts);
            checks.into_iter().find(|check| check.name == "turns").expect("turns").found
        };
        let off = turns(&facts);
        assert!(off.contains("preemption = \"probe\" in the configuration tries"), "{off}");
        facts["config"]["preemption"] = json!("probe");
        facts["driver"]["simulated"] = json!(true);
        let on = turns(&facts);
        assert!(on.contains("late work is preempted on the GPU on each GPU where"), "{on}");
        assert!(!on.contains("hardware)"), "{on}");
    }

    #[test]
    fn a_delegation_gap_is_named_with_its_fix() {
        let mut facts = node();
        facts["cgroup"]["gaps"] = json!(["/cg/pods"]);
        let checks = of_facts(&facts);
        let gap = checks.iter().find(|check| !check.ok).expect("a gap");
        assert_eq!(gap.fix, "echo +dmem > /cg/pods/cgroup.subtree_control");
        assert!(!gap.needed);
        let lines = told(gap);
        assert!(lines[0].starts_with("missing controller") && lines[1].contains("-> echo"));
        facts["cgroup"] = Value::Null;
        assert!(of_facts(&facts).iter().any(|check| check.name == "cgroup v2" && !check.ok));
    }

    #[test]
    fn a_kernel_that_lacks_a_call_is_too_old() {
        let mut facts = node();
        facts["kernel"]["absent"] = json!(["mount_setattr"]);
        let checks = of_facts(&facts);
        let kernel = checks.iter().find(|check| !check.ok).expect("a kernel");
        assert!(kernel.needed && kernel.found.contains("mount_setattr"));
        assert!(kernel.fix.contains("from 5.12 on"), "{kernel:?}");
    }

    #[test]
    fn without_a_driver_there_are_no_slices() {
        let mut facts = node();
        facts["driver"] = json!({ "error": "no libcuda.so.1" });
        facts["nvml"] = Value::Null;
        let checks = of_facts(&facts);
        let missing: Vec<&str> =
            checks.iter().filter(|check| !check.ok).map(|check| check.name.as_str()).collect();
        assert_eq!(missing, ["driver", "nvml"]);
        assert!(checks.iter().all(|check| check.ok || !check.fix.is_empty()), "{checks:?}");
        assert!(checks.iter().any(|check| check.needed && !check.ok));
    }
}
