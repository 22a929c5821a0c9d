//! Containers under real runtimes: who asks gets a slice or does not start; who does not ask is as if
//! we were not there.

mod libc;
mod places;
mod shipped;
mod stages;

use crate::harness::bundle::{Bundle, complaint, hook, printed};
use crate::harness::eventually;
use crate::harness::node::Node;
use gpuslice_wire::units::{Bytes, GIB};
use std::fs;
use std::path::Path;

const RUNTIMES: [&str; 2] = ["runc", "crun"];

#[test]
fn a_container_that_asks_gets_its_slice() {
    for runtime in RUNTIMES {
        let Some(hook) = hook("a_container_that_asks_gets_its_slice", runtime) else {
            continue;
        };
        let node = Node::start();
        let before = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let output = Bundle::new(node.root(), "asks", runtime, node.runtime_dir())
            .annotation("gpuslice.io/memory", "1GiB")
            .command(&["/bin/cat", "/proc/self/mountinfo"])
            .run(&hook);
        let mounts = printed(&output);
        let at = |path: &str| {
            let line = mounts
                .lines()
                .find(|line| line.split(' ').nth(4) == Some(path));
            line.unwrap_or_else(|| panic!("{runtime}: nothing at {path} in\n{mounts}"))
                .to_owned()
        };
        for path in [
            "/run/gpuslice",
            "/run/gpuslice/driver/libcuda.so.1",
            "/run/gpuslice/driver/libnvidia-ml.so.1",
            "/run/gpuslice/libgpuslice.so",
            "/etc/ld.so.preload",
        ] {
            assert!(
                at(path).contains(" ro,nosuid,nodev"),
                "{runtime}: {}",
                at(path)
            );
        }
        assert!(at("/dev/gpuslice-sim").contains(" rw,nosuid,nodev,noexec"));
        assert!(mounts.contains("/libcuda.so.1 ro,") && mounts.contains("/libnvidia-ml.so.1 ro,"));
        let after = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        assert_eq!(before, after, "{runtime}: a mount leaked to the host");
        eventually("the slice is gone", || node.slice("asks").is_none());
    }
}

#[test]
fn a_container_that_asks_for_nothing_needs_no_daemon() {
    for runtime in RUNTIMES {
        let Some(hook) = hook("a_container_that_asks_for_nothing_needs_no_daemon", runtime) else {
            continue;
        };
        let root = tempfile::tempdir().expect("a directory");
        let output = Bundle::new(root.path(), "plain", runtime, Path::new("/nonexistent"))
            .annotation("example.com/x", "y")
            .command(&["/bin/cat", "/proc/self/mountinfo"])
            .run(&hook);
        assert!(!printed(&output).contains("gpuslice.so"), "{runtime}");
    }
}

#[test]
fn no_daemon_no_start() {
    let Some(hook) = hook("no_daemon_no_start", "runc") else {
        return;
    };
    let root = tempfile::tempdir().expect("a directory");
    let bundle = Bundle::new(root.path(), "alone", "runc", &root.path().join("none"));
    let said = complaint(&bundle.annotation("gpuslice.io/memory", "1GiB").run(&hook));
    assert!(said.contains("is gpusliced running?"), "{said}");
}

/// A daemon that accepts and never answers costs the container its start, not the node its runtime.
#[test]
fn a_hung_daemon_is_a_clear_failure() {
    let Some(hook) = hook("a_hung_daemon_is_a_clear_failure", "runc") else {
        return;
    };
    let root = tempfile::tempdir().expect("a directory");
    let _listener = crate::harness::wire::listen(&root.path().join("admin.sock"));
    let bundle = Bundle::new(root.path(), "hung", "runc", root.path());
    let said = complaint(&bundle.annotation("gpuslice.io/memory", "1GiB").run(&hook));
    assert!(said.contains("no answer in time"), "{said}");
}

#[test]
fn malformed_wishes_do_not_start_and_leave_nothing() {
    let Some(hook) = hook("malformed_wishes_do_not_start_and_leave_nothing", "runc") else {
        return;
    };
    let node = Node::start();
    let memory = "gpuslice.io/memory";
    let wishes: [(&[(&str, &str)], &str); 11] = [
        (&[(memory, "0")], "at least one byte"),
        (&[(memory, "-1")], "a size is"),
        (&[(memory, "1e30")], "a size is"),
        (&[(memory, "8GB")], "write 8GiB"),
        (&[(memory, "17GiB")], "16GiB"),
        (
            &[(memory, "1GiB"), ("gpuslice.io/weight", "0")],
            "1 to 1000",
        ),
        (
            &[(memory, "1GiB"), ("gpuslice.io/weight", "1000000000")],
            "1 to 1000",
        ),
        (
            &[(memory, "1GiB"), ("gpuslice.io/share", "101")],
            "1 to 100",
        ),
        (&[(memory, "1GiB"), ("gpuslice.io/gpus", "7")], "7"),
        (
            &[(memory, "1GiB"), ("gpuslice.io/colour", "red")],
            "unknown annotation",
        ),
        (&[("gpuslice.io/weight", "2")], "needs a memory cap"),
    ];
    for (at, (annotations, expected)) in wishes.into_iter().enumerate() {
        let id = format!("bad{at}");
        let mut bundle = Bundle::new(node.root(), &id, "runc", node.runtime_dir());
        for (key, value) in annotations {
            bundle = bundle.annotation(key, value);
        }
        let said = complaint(&bundle.run(&hook));
        assert!(said.contains(expected), "{annotations:?}: {said}");
        assert_eq!(node.slice(&id), None);
    }
}

#[test]
fn the_same_container_twice() {
    let Some(hook) = hook("the_same_container_twice", "runc") else {
        return;
    };
    let node = Node::start();
    node.must_admit("twin", Bytes(GIB));
    let bundle = Bundle::new(node.root(), "twin", "runc", node.runtime_dir());
    let said = complaint(&bundle.annotation("gpuslice.io/memory", "1GiB").run(&hook));
    assert!(said.contains("twin"), "{said}");
}

#[test]
fn cgpus_variables_are_understood() {
    let Some(hook) = hook("cgpus_variables_are_understood", "runc") else {
        return;
    };
    let node = Node::start();
    let with = |id: &str, extra: &str| {
        Bundle::new(node.root(), id, "runc", node.runtime_dir())
            .variable("ALIYUN_COM_GPU_MEM_CONTAINER=4")
            .variable("ALIYUN_COM_GPU_MEM_DEV=15")
            .variable("ALIYUN_COM_GPU_SCHD_WEIGHT=3")
            .variable(extra)
            .command(&["/bin/sleep", "60"])
    };
    let running = with("cgpu", "A=b").start(&hook);
    eventually("the slice", || node.slice("cgpu").is_some());
    // floor(16384 MiB * 4 / 15) MiB
    assert_eq!(node.cap("cgpu"), Some(Bytes(4369 << 20)));
    drop(running);
    let said = complaint(&with("out", "CGPU_DISABLE=true").run(&hook));
    assert!(said.contains("CGPU_DISABLE"), "{said}");
    let allowed = with("out", "CGPU_DISABLE=true").hook_argument("--allow-cgpu-disable");
    let mounts = printed(
        &allowed
            .command(&["/bin/cat", "/proc/self/mountinfo"])
            .run(&hook),
    );
    assert!(!mounts.contains("gpuslice.so"));
}

#[test]
fn an_images_preload_list_is_kept() {
    let Some(hook) = hook("an_images_preload_list_is_kept", "runc") else {
        return;
    };
    let node = Node::start();
    let bundle = Bundle::new(node.root(), "merge", "runc", node.runtime_dir());
    fs::write(bundle.rootfs().join("etc/ld.so.preload"), "/opt/own.so").expect("a list");
    let output = bundle
        .annotation("gpuslice.io/memory", "1GiB")
        .command(&["/bin/cat", "/etc/ld.so.preload"])
        .run(&hook);
    assert_eq!(
        printed(&output),
        "/run/gpuslice/libgpuslice.so\n/opt/own.so"
    );
}
