//! Containers under real runtimes: a container that asks for a slice gets it or does not start; one that does
//! not ask runs as without gpuslice.

mod libc;
mod places;
mod shipped;
mod stages;

use crate::harness::bundle::{Bundle, complaint, hook, printed};
use crate::harness::eventually;
use crate::harness::node::Node;
use gpuslice_wire::policy::Class;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::{Bytes, GIB, Percent, Weight};
use std::fs;
use std::path::Path;
use std::process::Output;

const RUNTIMES: [&str; 2] = ["runc", "crun"];
/// What shows that a container ran, also if its runtime failed afterwards.
const PRINTS: [&str; 2] = ["/bin/cat", "/proc/self/mountinfo"];

#[test]
fn a_container_that_asks_gets_its_slice() {
    for runtime in RUNTIMES {
        let Some(hook) = hook("a_container_that_asks_gets_its_slice", runtime) else {
            continue;
        };
        let node = Node::start();
        let before = node.host_mounts();
        let output = Bundle::new(node.root(), "asks", runtime, node.runtime_dir())
            .annotation("gpuslice.io/memory", "1GiB")
            .command(&["/bin/cat", "/proc/self/mountinfo", "/run/gpuslice/memory"])
            .run(&hook);
        let mounts = printed(&output);
        assert!(
            mounts.contains(" limit=1073741824 used=0 free=1073741824 wanted=0 "),
            "{runtime}: {mounts}"
        );
        let at = |path: &str| {
            let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some(path));
            line.unwrap_or_else(|| panic!("{runtime}: nothing at {path} in\n{mounts}")).to_owned()
        };
        for path in [
            "/run/gpuslice",
            "/run/gpuslice/driver/libcuda.so.1",
            "/run/gpuslice/driver/libnvidia-ml.so.1",
            "/run/gpuslice/libgpuslice.so",
            "/etc/ld.so.preload",
        ] {
            assert!(at(path).contains(" ro,nosuid,nodev"), "{runtime}: {}", at(path));
        }
        assert!(at("/dev/gpuslice-sim").contains(" rw,nosuid,nodev,noexec"));
        assert!(mounts.contains("/libcuda.so.1 ro,") && mounts.contains("/libnvidia-ml.so.1 ro,"));
        assert_eq!(before, node.host_mounts(), "{runtime}: a mount leaked to the host");
        eventually("the slice is gone", || node.slice("asks").is_none());
    }
}

#[test]
fn malformed_wishes_do_not_start_and_leave_nothing() {
    let Some(hook) = hook("malformed_wishes_do_not_start_and_leave_nothing", "runc") else {
        return;
    };
    let node = Node::start();
    let memory = "gpuslice.io/memory";
    const LIMIT_20: (&str, &str) = ("gpuslice.io/share-limit", "20");
    let wishes: [(&[(&str, &str)], &str); 14] = [
        (&[(memory, "0")], "at least one byte"),
        (&[(memory, "-1")], "a size is"),
        (&[(memory, "1e30")], "a size is"),
        (&[(memory, "8GB")], "write 8GiB"),
        (&[(memory, "17GiB")], "16GiB"),
        (&[(memory, "1GiB"), ("gpuslice.io/weight", "0")], "1 to 1000"),
        (&[(memory, "1GiB"), ("gpuslice.io/weight", "1000000000")], "1 to 1000"),
        (&[(memory, "1GiB"), ("gpuslice.io/share", "101")], "1 to 100"),
        (&[(memory, "1GiB"), ("gpuslice.io/share-limit", "0")], "1 to 100"),
        (&[(memory, "1GiB"), ("gpuslice.io/share-limit", "none")], "1 to 100"),
        (&[(memory, "1GiB"), ("gpuslice.io/share", "30"), LIMIT_20], "below the share of 30 %"),
        (&[(memory, "1GiB"), ("gpuslice.io/gpus", "7")], "7"),
        (&[(memory, "1GiB"), ("gpuslice.io/colour", "red")], "unknown annotation"),
        (&[("gpuslice.io/weight", "2")], "needs a memory cap"),
    ];
    for (at, (annotations, expected)) in wishes.into_iter().enumerate() {
        let id = format!("bad{at}");
        let mut bundle = Bundle::new(node.root(), &id, "runc", node.runtime_dir());
        bundle = bundle.command(&PRINTS);
        for (key, value) in annotations {
            bundle = bundle.annotation(key, value);
        }
        let said = complaint(&bundle.run(&hook));
        assert!(said.contains(expected), "{annotations:?}: {said}");
        assert_eq!(node.slice(&id), None);
    }
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
            .variable("ALIYUN_COM_GPU_SCHD_WEIGHT=1")
            .variable("NVIDIA_VISIBLE_DEVICES=all")
            .variable(extra)
            .command(&["/bin/sleep", "60"])
    };
    let running = with("cgpu", "A=b").started(&hook);
    eventually("the slice", || node.slice("cgpu").is_some());
    // floor(16384 MiB * 4 / 15) MiB
    assert_eq!(node.cap("cgpu"), Some(Bytes(4369 << 20)));
    assert_eq!(lanes(&node, "cgpu"), 1, "all is what images say");
    drop(running);
    let said = complaint(&with("out", "CGPU_DISABLE=true").run(&hook));
    assert!(said.contains("CGPU_DISABLE"), "{said}");
    let allowed = with("out", "CGPU_DISABLE=true").hook_argument("--allow-cgpu-disable");
    let mounts = printed(&allowed.command(&["/bin/cat", "/proc/self/mountinfo"]).run(&hook));
    assert!(!mounts.contains("gpuslice.so"));
}

/// The number of a container's GPUs.
fn lanes(node: &Node, container: &str) -> usize {
    let of = |row: &Snapshot| matches!(row, Snapshot::Slice { container: whose, .. } if whose.as_str() == container);
    node.admin().list().iter().filter(|row| of(row)).count()
}

/// A node whose daemon has this configuration.
fn configured(text: &str) -> Node {
    let mut node = Node::new();
    node.start_configured(text);
    node
}

const MEMORY: [&str; 2] = ["ALIYUN_COM_GPU_MEM_CONTAINER=4", "ALIYUN_COM_GPU_MEM_DEV=16"];

/// Runs a container of an image that has these variables in its `ENV`.
fn of_image(node: &Node, id: &str, hook: &Path, more: &[&str], ours: &[(&str, &str)]) -> Output {
    let mut bundle = Bundle::new(node.root(), id, "runc", node.runtime_dir());
    for entry in MEMORY.iter().chain(more) {
        bundle = bundle.variable(entry);
    }
    for (key, value) in ours {
        bundle = bundle.annotation(key, value);
    }
    bundle.run(hook)
}

/// A share, its limit and a weight in annotations are those of the slice; shares above 100 % are refused
/// with what is left.
#[test]
fn annotations_reserve_a_share_and_limit_it() {
    let Some(hook) = hook("annotations_reserve_a_share_and_limit_it", "runc") else {
        return;
    };
    let node = Node::start();
    let bundle = |id: &str, share: &str| {
        Bundle::new(node.root(), id, "runc", node.runtime_dir())
            .annotation("gpuslice.io/memory", "1GiB")
            .annotation("gpuslice.io/gpus", "0")
            .annotation("gpuslice.io/share", share)
            .annotation("gpuslice.io/share-limit", "80%")
            .annotation("gpuslice.io/weight", "3")
            .command(&["/bin/sleep", "60"])
    };
    let running = bundle("web", "60").started(&hook);
    eventually("the slice", || node.slice("web").is_some());
    let rows = node.admin().list();
    let got = rows.iter().find_map(|row| match *row {
        Snapshot::Slice { weight, share, share_limit, cap_ppm, .. } => {
            Some((weight, share, share_limit, cap_ppm))
        }
        _ => None,
    });
    let percent = |percent| Percent::new(percent).ok();
    assert_eq!(got, Some((Weight::new(3).ok(), percent(60), percent(80), 800_000)));
    let said = complaint(&bundle("more", "41").run(&hook));
    assert!(said.contains("share 41 % is above the 40 % that GPU 0 has left"), "{said}");
    assert_eq!(node.slice("more"), None);
    drop(running);
}

/// An image's `ENV` cannot claim the node: whole GPUs, high priority, all of the weight.
#[test]
fn an_images_environment_asks_for_no_more_than_memory() {
    let test = "an_images_environment_asks_for_no_more_than_memory";
    let Some(hook) = hook(test, "runc") else {
        return;
    };
    let node = Node::start();
    let (weight, high) = ("ALIYUN_COM_GPU_SCHD_WEIGHT=1000", "ALIYUN_COM_GPU_HIGH_PRIO=1");
    let sliced = "ALIYUN_COM_GPU_VISIBLE_DEVICES=0";
    for (at, (more, why)) in [
        (
            &[weight, high, sliced, "NVIDIA_VISIBLE_DEVICES=0,1"][..],
            "ALIYUN_COM_GPU_SCHD_WEIGHT=1000",
        ),
        (&[weight], "gpuslice.io/weight"),
        (&[high], "gpuslice.io/priority"),
        (&[sliced, "NVIDIA_VISIBLE_DEVICES=0,1"], "gpuslice.io/whole-gpus"),
        (&["NVIDIA_VISIBLE_DEVICES=0,1"], "asks for 2 GPUs, and may for 1"),
        (&["ALIYUN_COM_GPU_VISIBLE_DEVICES=0,1"], "environment_gpus_max"),
        (&["ALIYUN_COM_GPU_VISIBLE_DEVICES=all"], "environment_gpus_max"),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("image{at}");
        let said = complaint(&of_image(&node, &id, &hook, more, &[]));
        assert!(said.contains(why), "{more:?}: {said}");
        assert_eq!(node.slice(&id), None, "{more:?}");
    }
    // The orchestrator's request counts; the image adds nothing to it.
    let more = [weight, high, sliced, "NVIDIA_VISIBLE_DEVICES=0,1", "CGPU_DISABLE=true"];
    let bundle = Bundle::new(node.root(), "both", "runc", node.runtime_dir())
        .annotation("gpuslice.io/memory", "1GiB")
        .command(&["/bin/sleep", "60"]);
    let bundle = MEMORY.iter().chain(&more).fold(bundle, |bundle, entry| bundle.variable(entry));
    let running = bundle.started(&hook);
    eventually("the slice", || node.slice("both").is_some());
    let rows = node.admin().list();
    let plain = rows.iter().find_map(|row| match *row {
        Snapshot::Slice { cap, weight, class, .. } => Some((cap, weight.map(Weight::get), class)),
        _ => None,
    });
    assert_eq!(plain, Some((Bytes(GIB), Some(1), Class::Normal)));
    assert_eq!(lanes(&node, "both"), 1);
    drop(running);
}

/// The node decides which requests it accepts, and within which bounds.
#[test]
fn the_node_decides_which_requests_it_accepts() {
    let Some(hook) = hook("the_node_decides_which_requests_it_accepts", "runc") else {
        return;
    };
    let two = "NVIDIA_VISIBLE_DEVICES=0,1";
    let ours: (&str, &str) = ("gpuslice.io/memory", "1GiB");
    for (text, more, annotations, why) in [
        (
            "requests_from = [\"annotations\"]",
            &[][..],
            &[][..],
            Some("takes no requests from cGPU's variables"),
        ),
        ("requests_from = [\"annotations\"]", &[two], &[ours], None),
        ("requests_from = [\"cgpu\"]", &[], &[ours], Some("takes no requests from annotations")),
        ("requests_from = [\"cgpu\"]", &[], &[], None),
        ("requests_from = []", &[], &[ours], Some("ask by a CDI device")),
        ("environment_gpus_max = 2", &[two], &[], None),
        ("environment_memory_max = \"1/4\"", &[], &[], None),
        (
            "environment_memory_max = \"4095MiB\"",
            &[],
            &[],
            Some("and may for 4095MiB on this node"),
        ),
        ("environment_memory_max = \"1/5\"", &[], &[], Some("environment_memory_max")),
        ("environment_memory_max = \"1MiB\"", &[], &[ours], None),
    ] {
        let node = configured(text);
        let output = of_image(&node, "web", &hook, more, annotations);
        match why {
            None => assert!(output.status.success(), "{text}: {output:?}"),
            Some(why) => {
                let said = complaint(&output);
                assert!(said.contains(why), "{text}: {said}");
            }
        }
    }
    // Requests of the node's own file are accepted, whichever are accepted from containers.
    let node = configured("requests_from = []");
    let device = Bundle::new(node.root(), "cdi", "runc", node.runtime_dir());
    let device = device.hook_argument("--ask").hook_argument("memory=1GiB");
    printed(&device.run(&hook));
}

#[test]
fn nvidias_variables_ask_for_memory_alone() {
    let Some(hook) = hook("nvidias_variables_ask_for_memory_alone", "runc") else {
        return;
    };
    let limit = "NVIDIA_GPU_MEMORY_LIMIT=2048";
    let container = |node: &Node, id: &str, variables: &[&str]| {
        let bundle = Bundle::new(node.root(), id, "runc", node.runtime_dir());
        let bundle = bundle.command(&["/bin/sleep", "60"]);
        variables.iter().fold(bundle, |bundle, entry| bundle.variable(entry))
    };
    let node = Node::start();
    for (at, (variables, why)) in [
        (&["NVIDIA_GPU_MEMORY_REQUEST=4096", limit][..], "is below NVIDIA_GPU_MEMORY_REQUEST=4096"),
        (&["NVIDIA_GPU_MEMORY_REQUEST=1024"], "is no request without NVIDIA_GPU_MEMORY_LIMIT"),
        (&["NVIDIA_GPU_MEMORY_LIMIT=2Gi"], "not a whole number of MiB"),
        (&[limit, "NVIDIA_VISIBLE_DEVICES=0,1"], "asks for 2 GPUs, and may for 1"),
        (&[limit, MEMORY[0], MEMORY[1]], "a second request"),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("image{at}");
        let said = complaint(&container(&node, &id, variables).run(&hook));
        assert!(said.contains(why), "{variables:?}: {said}");
        assert_eq!(node.slice(&id), None, "{variables:?}");
    }
    let more = ["ALIYUN_COM_GPU_SCHD_WEIGHT=1000", "ALIYUN_COM_GPU_HIGH_PRIO=1"];
    let all = [&[limit, "NVIDIA_GPU_MEMORY_REQUEST=1024"][..], &more].concat();
    let running = container(&node, "kai", &all).started(&hook);
    eventually("the slice", || node.slice("kai").is_some());
    let got = node.admin().list().iter().find_map(|row| match *row {
        Snapshot::Slice { cap, weight, class, .. } => Some((cap, weight.map(Weight::get), class)),
        _ => None,
    });
    assert_eq!(got, Some((Bytes(GIB), Some(1), Class::Normal)));
    let grows = node.admin().list().iter().find_map(|row| match *row {
        Snapshot::MemoryLimit { limit, .. } => Some(limit),
        _ => None,
    });
    assert_eq!(grows, Some(Bytes(2 * GIB)));
    drop(running);

    for (text, why) in [
        (
            "requests_from = [\"annotations\", \"cgpu\"]",
            "takes no requests from NVIDIA's variables",
        ),
        ("requests_from = [\"annotations\"]", "ask by annotations or a CDI device"),
        ("environment_memory_max = \"1GiB\"", "and may for 1GiB on this node"),
    ] {
        let node = configured(text);
        let said = complaint(&container(&node, "web", &[limit]).run(&hook));
        assert!(said.contains(why), "{text}: {said}");
    }
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
    assert_eq!(printed(&output), "/run/gpuslice/libgpuslice.so\n/opt/own.so");
}
