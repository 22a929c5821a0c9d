//! Containers under real runtimes: who asks gets a slice or does not start; who does not ask is as if
//! we were not there; no image makes the hook touch anything of the host's.

mod places;
mod shipped;
mod stages;

use crate::harness::bundle::{Bundle, complaint, hook, printed};
use crate::harness::eventually;
use crate::harness::node::Node;
use gpuslice_wire::units::{Bytes, GIB};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

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

/// Waits until somebody opens a pipe for reading: opening a device file does something.
fn watch(pipe: PathBuf) -> JoinHandle<()> {
    let open = move || drop(File::options().write(true).open(pipe).expect("a pipe"));
    let watch = std::thread::spawn(open);
    std::thread::sleep(Duration::from_millis(20));
    watch
}

/// Nobody has opened the pipe, until we do.
fn unopened(watch: JoinHandle<()>, pipe: &Path) {
    assert!(!watch.is_finished(), "the hook opened an image's file");
    File::open(pipe).expect("the watcher waits");
    watch.join().expect("the watcher");
}

/// Links, pipes and directories where files belong: the container does not start, and what the
/// links lead to on the host is as it was.
#[test]
fn hostile_images_do_not_start() {
    let Some(hook) = hook("hostile_images_do_not_start", "runc") else {
        return;
    };
    let node = Node::start();
    let pipes = RefCell::new(Vec::new());
    let bait = node.root().join("bait");
    fs::write(&bait, "untouched").expect("bait");
    let link = |to: &Path| {
        let to = to.to_owned();
        move |at: &Path| symlink(&to, at).expect("a link")
    };
    let pipe = |at: &Path| {
        mkfifo(at, Mode::S_IRWXU).expect("a pipe");
        pipes.borrow_mut().push(at.to_owned());
    };
    let up = Path::new("../../../../../../../../../../..")
        .join(bait.strip_prefix("/").expect("absolute"));
    let magic = Path::new("/proc/1/root").join(bait.strip_prefix("/").expect("absolute"));
    type Lay<'a> = Box<dyn Fn(&Path) + 'a>;
    let variants: Vec<(&str, Lay)> = vec![
        ("etc/ld.so.preload", Box::new(link(&bait))),
        ("etc/ld.so.preload", Box::new(link(&up))),
        ("etc/ld.so.preload", Box::new(link(&magic))),
        ("etc/ld.so.preload", Box::new(link(Path::new("/dangling")))),
        ("etc/ld.so.preload", Box::new(pipe)),
        (
            "etc/ld.so.preload",
            Box::new(|at: &Path| fs::create_dir(at).expect("a directory")),
        ),
        ("run/gpuslice", Box::new(link(Path::new("/dangling/x")))),
        (
            "run/gpuslice",
            Box::new(|at: &Path| fs::write(at, "file").expect("a file")),
        ),
        ("run", Box::new(link(Path::new("/proc/1/root/tmp")))),
        ("etc", Box::new(link(Path::new("/proc/self/cwd")))),
        // A directory the container's loader would find its driver in, and we do not.
        ("usr/lib64", Box::new(link(Path::new("/proc/1/root/lib")))),
    ];
    for (at, (place, lay)) in variants.iter().enumerate() {
        let id = format!("hostile{at}");
        let bundle = Bundle::new(node.root(), &id, "runc", node.runtime_dir());
        let path = bundle.rootfs().join(place);
        let _ = fs::remove_dir(&path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        lay(&path);
        let opened = pipes.take().pop().map(watch);
        let said = complaint(&bundle.annotation("gpuslice.io/memory", "1GiB").run(&hook));
        assert!(
            said.contains("gpuslice: putting the slice"),
            "{place} {at}: {said}"
        );
        assert_eq!(
            fs::read_to_string(&bait).ok().as_deref(),
            Some("untouched"),
            "{place} {at}"
        );
        assert_eq!(
            node.slice(&id),
            None,
            "{place} {at}: the slice was not given back"
        );
        opened.into_iter().for_each(|watch| unopened(watch, &path));
    }
}
