//! Calls of the hook: its names, its stages, its containers; and why it is safe to run beside untrusted
//! images.

use crate::harness::bundle::{Bundle, complaint, hook, printed};
use crate::harness::eventually;
use crate::harness::node::{Node, denied};
use gpuslice_wire::units::{Bytes, GIB};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const RUNTIMES: [&str; 2] = ["runc", "crun"];
const MEMORY: (&str, &str) = ("gpuslice.io/memory", "1GiB");

/// An image cannot inject code into a static program: it has no loader that reads `LD_PRELOAD`.
#[test]
fn the_hook_is_static() {
    const INTERPRETER: u32 = 3;
    let Some(hook) = hook("the_hook_is_static", "runc") else {
        return;
    };
    let elf = fs::read(hook).expect("a program");
    let half = |at: usize| usize::from(u16::from_le_bytes([elf[at], elf[at + 1]]));
    let headers = u64::from_le_bytes(elf[32..40].try_into().expect("8 bytes")) as usize;
    let (size, count) = (half(54), half(56));
    let kinds = (0..count).map(|n| &elf[headers + n * size..][..4]);
    assert!(count > 0 && kinds.clone().all(|kind| kind != INTERPRETER.to_le_bytes()));
}

/// The older stage's name, and one line of arguments for all stages as in podman's `hooks.d`.
#[test]
fn registrations() {
    for runtime in RUNTIMES {
        let Some(hook) = hook("registrations", runtime) else {
            continue;
        };
        let node = Node::start();
        let prestart = |config: &mut serde_json::Value| {
            let mut entry = config["hooks"]["createRuntime"].take();
            *entry[0]["args"].as_array_mut().expect("a list").last_mut().expect("a stage") =
                json!("prestart");
            config["hooks"] = json!({ "prestart": entry, "poststop": config["hooks"]["poststop"] });
        };
        let unnamed = |config: &mut serde_json::Value| {
            for stage in ["createRuntime", "poststop"] {
                let words = config["hooks"][stage][0]["args"].as_array_mut();
                words.expect("a list").pop();
            }
        };
        let bundle = |id: &str| {
            Bundle::new(node.root(), id, runtime, node.runtime_dir())
                .annotation(MEMORY.0, MEMORY.1)
                .command(&["/bin/sleep", "60"])
        };
        let older = bundle("older").edit(prestart).started(&hook);
        let plain = bundle("plain").edit(unnamed).started(&hook);
        for id in ["older", "plain"] {
            eventually("the slice is there", || node.slice(id).is_some());
        }
        drop((older, plain));
        for id in ["older", "plain"] {
            eventually("the slice is gone", || node.slice(id).is_none());
        }
    }
}

/// The stage after the start is too late: processes that run already would not be in the slice.
#[test]
fn too_late_is_no_start() {
    let Some(hook) = hook("too_late_is_no_start", "runc") else {
        return;
    };
    let node = Node::start();
    let bundle = Bundle::new(node.root(), "late", "runc", node.runtime_dir())
        .annotation(MEMORY.0, MEMORY.1)
        .edit(|config| {
            let mut entry = config["hooks"]["poststop"].clone();
            entry[0]["args"].as_array_mut().expect("a list").pop();
            let mut start = config["hooks"]["poststop"].clone();
            start[0]["args"] = json!(["gpuslice-hook", "poststop"]);
            config["hooks"] = json!({ "createRuntime": start, "poststop": entry });
        });
    let said = complaint(&bundle.run(&hook));
    assert!(said.contains("register the hook as createRuntime"), "{said}");
}

/// Ids are a runtime's own; the slice of the first container of an id stays when a second one,
/// refused, is cleaned up after.
#[test]
fn a_refused_namesake_takes_nothing_away() {
    for runtime in RUNTIMES {
        let Some(hook) = hook("a_refused_namesake_takes_nothing_away", runtime) else {
            continue;
        };
        let node = Node::start();
        let of = |root: &Path| {
            Bundle::new(root, "web", runtime, node.runtime_dir()).annotation(MEMORY.0, MEMORY.1)
        };
        let first = of(node.root()).command(&["/bin/sleep", "60"]).started(&hook);
        eventually("the slice", || node.slice("web").is_some());
        let elsewhere = node.root().join("elsewhere");
        let said = complaint(
            &of(&elsewhere)
                .edit(|config| {
                    let path =
                        config["linux"]["cgroupsPath"].as_str().map(|path| format!("{path}-2"));
                    config["linux"]["cgroupsPath"] = json!(path);
                })
                .run(&hook),
        );
        // crun does not print a hook's output.
        assert!(runtime == "crun" || said.contains("web"), "{said}");
        assert!(node.slice("web").is_some(), "{runtime}: the first container's slice is gone");
        denied(node.admit("web", Bytes(GIB)));
        drop(first);
        eventually("the slice is gone", || node.slice("web").is_none());
    }
}

/// A pod's sandbox carries the pod's annotations and runs nothing.
#[test]
fn a_sandbox_needs_no_slice() {
    let Some(hook) = hook("a_sandbox_needs_no_slice", "runc") else {
        return;
    };
    let root = tempfile::tempdir().expect("a directory");
    let pod = |id: &str, sandbox: &str| {
        Bundle::new(root.path(), id, "runc", Path::new("/nonexistent"))
            .annotation(MEMORY.0, MEMORY.1)
            .annotation("io.kubernetes.cri.container-type", "sandbox")
            .annotation("io.kubernetes.cri.sandbox-id", sandbox)
            .run(&hook)
    };
    printed(&pod("pause", "pause"));
    // Only for the sandbox itself; an image's annotations may claim to be one.
    complaint(&pod("web", "pause"));
}

/// The hook mounts paths of the daemon's answer, so it accepts only a daemon of root.
#[test]
fn another_users_daemon_is_not_asked() {
    let Some(hook) = hook("another_users_daemon_is_not_asked", "runc") else {
        return;
    };
    let root = tempfile::tempdir().expect("a directory");
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o777)).expect("ours");
    let become_user = |user: libc::uid_t| {
        let same = libc::uid_t::MAX;
        // SAFETY: three numbers; the bare system call changes this thread alone.
        let done = unsafe { libc::syscall(libc::SYS_setresuid, same, user, same) };
        assert_eq!(done, 0);
    };
    become_user(65_534);
    let _listener = crate::harness::wire::listen(&root.path().join("admin.sock"));
    become_user(0);
    let bundle = Bundle::new(root.path(), "foreign", "runc", root.path());
    let said = complaint(&bundle.annotation(MEMORY.0, MEMORY.1).run(&hook));
    assert!(said.contains("another user listens there"), "{said}");
}
