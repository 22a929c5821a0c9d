//! Runs every image of the table with a traced hook.

use super::cases::{Case, Expected, FILES, LINKS, MOUNTS};
use super::image_builder::{Step, canary, chattr};
use super::snapshot::{snapshot, touched};
use super::trace::{Plan, findings, unsettled};
use crate::harness::bundle::{Bundle, hook, is_late};
use crate::harness::node::Node;
use crate::harness::process::private_mounts;
use crate::harness::{eventually, skip};
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The output of a container of the table: the first library its loader loads, its path to the daemon, and its mounts.
const LOOK: &str = "read line < /etc/ld.so.preload; echo $line; ls -d /run/gpuslice/tenant.sock; \
    cat /proc/self/mountinfo";
const OURS: &str = "/run/gpuslice/libgpuslice.so\n";

/// The finding that a trace is empty, in which nothing else can be found.
const NO_TRACE: &str = "the hook was not called, or not traced";
/// Starts of a container whose hook, which strace slows down, is late.
const TRACED_STARTS_MAX: usize = 6;

/// A traced hook and a runtime to call it, or `None` with a printed reason.
fn traced_hook(test: &str, runtime: &str) -> Option<PathBuf> {
    if Command::new("strace").arg("--version").output().is_err() {
        skip(test, "strace is not installed");
        return None;
    }
    hook(test, runtime)
}

/// Makes strace start the hook of the first stage.
fn trace_to(file: &Path) -> impl Fn(&mut Value) + 'static {
    let file = file.to_owned();
    move |config| {
        let entry = &mut config["hooks"]["createRuntime"][0];
        let mut words = vec![json!("strace")];
        for word in ["-f", "-qq", "-y", "-s", "4096", "-o"] {
            words.push(json!(word));
        }
        words.extend([json!(file), json!("--"), entry["path"].take()]);
        words.extend(entry["args"].as_array().expect("words")[1..].iter().cloned());
        *entry = json!({ "path": "/usr/bin/strace", "args": words, "env": [], "timeout": 20 });
    }
}

/// The paths of the host that the hook of a case may open.
fn plan(node: &Node, bundle: &Path, rootfs: PathBuf, id: &str) -> Plan {
    let mut reads: Vec<PathBuf> = ["libcuda.so.1", "libnvidia-ml.so.1"]
        .map(|name| node.root().join("driver").join(name))
        .into();
    let parts = ["libgpuslice.so", "libgpuslice_mount.so", "libgpuslice_nvml.so"];
    reads.extend(parts.map(|name| crate::harness::target_dir().join(name)));
    reads.extend([
        node.root().join("device/node"),
        node.inside(id),
        node.inside(id).join("ld.so.preload"),
        bundle.join("config.json"),
        bundle.to_owned(),
    ]);
    Plan {
        note: node.container_dir(id).join("container"),
        tenant: node.inside(id),
        socket: node.runtime_dir().join("admin.sock"),
        rootfs,
        reads,
    }
}

/// All deviations of a case from its expected result.
fn verdict(expected: Expected, output: &Output, shows_why: bool) -> Vec<String> {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let mut wrong = Vec::new();
    match expected {
        Expected::Works => {
            let whole = out.starts_with(OURS)
                && out.contains("/run/gpuslice/tenant.sock\n")
                && out.contains(" /dev/gpuslice-sim rw,nosuid,nodev,noexec");
            if !output.status.success() || !whole {
                wrong.push(format!("it should run in a slice: {err}{out}"));
            }
        }
        Expected::Refused(why) => {
            if output.status.success() {
                wrong.push(format!("it should not start: {out}"));
            } else if shows_why && !(err.contains("gpuslice: ") && err.contains(why)) {
                wrong.push(format!("it should say {why:?}: {err}"));
            }
        }
    }
    wrong
}

/// A container of the table with its canary, ready to run.
struct Trial<'a> {
    node: &'a Node,
    id: String,
    canary: PathBuf,
}

impl<'a> Trial<'a> {
    fn new(node: &'a Node, id: String) -> Trial<'a> {
        let canary = canary(&node.root().join(&id));
        Trial { node, id, canary }
    }

    fn dir(&self) -> PathBuf {
        self.node.root().join("bundle").join(&self.id)
    }

    fn bundle(&self, runtime: &'static str) -> Bundle {
        Bundle::new(self.node.root(), &self.id, runtime, self.node.runtime_dir())
            .annotation("gpuslice.io/memory", "64MiB")
            .command(&["/bin/sh", "-c", LOOK])
    }

    /// Runs it; returns its output, the hook's calls that are not in the plan, and whether the hook, which strace slows
    /// down, was late. The root is below the bundle.
    fn run(&self, bundle: Bundle, root: &str, hook: &Path) -> (Output, Vec<String>, bool) {
        let trace = self.node.root().join(format!("{}.trace", self.id));
        let mounts = self.node.host_mounts();
        let before = snapshot(&self.canary);
        let output = bundle.edit(trace_to(&trace)).start(hook).end();
        let touched = touched(&before, &snapshot(&self.canary));
        let touched = touched.iter().map(|path| format!("touched {}", path.display()));
        let leaked = self.node.host_mounts().into_iter().filter(|line| !mounts.contains(line));
        let leaked = leaked.map(|line| format!("on the host: {line}"));
        let calls = fs::read_to_string(&trace).unwrap_or_default();
        let plan = plan(self.node, &self.dir(), self.dir().join(root), &self.id);
        let mut strange = findings(&calls, &plan);
        if !calls.contains("execve(") {
            strange.push(NO_TRACE.to_owned());
        }
        strange.extend(unsettled(&calls));
        let strange = strange.iter().map(|line| format!("not in the plan: {line}"));
        let wrong = touched.chain(leaked).chain(strange).collect();
        eventually("the slice is gone", || self.node.slice(&self.id).is_none());
        let ends = ["no answer in time", "killed by SIGALRM"];
        let late = is_late(&output) || ends.iter().any(|end| calls.contains(end));
        (output, wrong, late)
    }
}

/// Runs a case until its hook is in time, a few times at most: what it finds in any run, and in the last one the
/// deviations from the expected result.
fn until_in_time(run: impl Fn(usize) -> (Vec<String>, Vec<String>, bool)) -> Vec<String> {
    let mut found = Vec::new();
    for start in 1.. {
        let (more, deviations, late) = run(start);
        found.extend(more);
        if !late || start == TRACED_STARTS_MAX {
            found.extend(deviations);
            break;
        }
    }
    found
}

fn try_all(test: &str, runtimes: &[&'static str], cases: &[Case]) {
    let mut wrong = Vec::new();
    for &runtime in runtimes {
        let Some(hook) = traced_hook(test, runtime) else {
            continue;
        };
        let node = Node::start();
        for (number, case) in cases.iter().enumerate() {
            let found = until_in_time(|start| {
                let trial = Trial::new(&node, format!("{test}-{runtime}{number}-{start}"));
                let lay = |bundle, lay: &Step| lay.onto(bundle, &trial.canary);
                let bundle = case.1.iter().fold(trial.bundle(runtime), lay);
                let (output, found, late) = trial.run(bundle, "rootfs", &hook);
                for path in ["etc/ld.so.preload", "etc"] {
                    chattr("-i", &trial.dir().join("rootfs").join(path));
                }
                (found, verdict(case.2, &output, runtime == "runc"), late)
            });
            let named = found.iter().map(|what| format!("{runtime}, {}: {what}", case.0));
            wrong.extend(named);
        }
    }
    assert!(wrong.is_empty(), "{} findings:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn links_in_images() {
    try_all("links_in_images", &["runc"], LINKS);
}

#[test]
fn files_in_images() {
    try_all("files_in_images", &["runc"], FILES);
}

#[test]
fn mounts_over_images() {
    try_all("mounts_over_images", &["runc", "crun"], MOUNTS);
}

/// SPECIFICATION W4 states their number. Mounts are tried under two runtimes, and count once.
#[test]
fn there_are_a_hundred_images() {
    const ROOTS: usize = 5;
    assert_eq!(LINKS.len() + FILES.len() + MOUNTS.len() + ROOTS, 100);
}

/// Root directories with unusual names, and one assembled from layers.
#[test]
fn roots_of_every_kind() {
    for runtime in ["runc", "crun"] {
        let Some(hook) = traced_hook("roots_of_every_kind", runtime) else {
            continue;
        };
        let node = Node::start();
        let long = "n".repeat(255);
        for (number, root) in ["new\nline", "sp ace", &long, "over"].into_iter().enumerate() {
            let found = until_in_time(|start| {
                let trial = Trial::new(&node, format!("roots-{runtime}{number}-{start}"));
                let bundle = trial.bundle(runtime);
                let (from, to) = (bundle.rootfs(), trial.dir().join(root));
                let bundle = match root {
                    "over" => layered(bundle, &trial.dir()),
                    _ => {
                        fs::rename(from, to).expect("ours");
                        bundle
                    }
                };
                let path = root.to_owned();
                let bundle = bundle.edit(move |config| config["root"]["path"] = json!(path));
                // As strace writes it.
                let written = root.replace('\n', "\\n");
                let (output, found, late) = trial.run(bundle, &written, &hook);
                (found, verdict(Expected::Works, &output, runtime == "runc"), late)
            });
            assert!(found.is_empty(), "{runtime}, {root:?}:\n{}", found.join("\n"));
        }
    }
}

/// A root assembled from the image and an empty layer, in the runtime's own mount namespace.
fn layered(bundle: Bundle, dir: &Path) -> Bundle {
    let at = |name: &str| dir.join(name);
    for name in ["over", "upper", "work"] {
        fs::create_dir(at(name)).expect("a directory");
    }
    let (lower, upper, work) = (at("rootfs"), at("upper"), at("work"));
    let (lower, upper, work) = (lower.display(), upper.display(), work.display());
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let over = at("over");
    bundle.surroundings(move || {
        private_mounts()?;
        let kind = Some("overlay");
        Ok(mount(kind, &over, kind, MsFlags::empty(), Some(options.as_str()))?)
    })
}

/// A root that is a link could be exchanged while the container is created.
#[test]
fn a_root_that_is_a_link_is_refused() {
    for runtime in ["runc", "crun"] {
        let Some(hook) = traced_hook("a_root_that_is_a_link_is_refused", runtime) else {
            continue;
        };
        let node = Node::start();
        let trial = Trial::new(&node, format!("link-{runtime}"));
        let bundle = trial.bundle(runtime);
        std::os::unix::fs::symlink("rootfs", trial.dir().join("link")).expect("a link");
        let bundle = bundle.edit(|config| config["root"]["path"] = json!("link"));
        let (output, mut found, _) = trial.run(bundle, "rootfs", &hook);
        // Runtimes may refuse it before they call a hook.
        found.retain(|what| !what.ends_with(NO_TRACE));
        assert!(!output.status.success(), "{runtime}: {output:?}");
        assert!(found.is_empty(), "{runtime}: {}", found.join("\n"));
    }
}
