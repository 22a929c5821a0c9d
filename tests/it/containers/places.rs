//! Mounting a slice: shared mounts, umasks, several versions of a driver. The hook never touches volumes and the
//! host's own directories. Unusual images are in `hostile/cases.rs`.

use crate::harness::bundle::{Bundle, complaint, hook, printed};
use crate::harness::node::Node;
use crate::harness::{eventually, names};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, umask};
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const MEMORY: (&str, &str) = ("gpuslice.io/memory", "1GiB");
const MOUNTS: [&str; 2] = ["/bin/cat", "/proc/self/mountinfo"];
const LIBRARIES: &str = "lib/x86_64-linux-gnu";

fn asking(node: &Node, id: &str, runtime: &'static str) -> Bundle {
    Bundle::new(node.root(), id, runtime, node.runtime_dir())
        .annotation(MEMORY.0, MEMORY.1)
        .command(&MOUNTS)
}

/// Mount points a container saw.
fn points(mountinfo: &str) -> Vec<&str> {
    let lines = mountinfo.lines();
    lines.filter_map(|line| line.split(' ').nth(4)).collect()
}

/// A volume with nothing in it.
fn volume(node: &Node, name: &str) -> PathBuf {
    let dir = node.root().join(name);
    fs::create_dir(&dir).expect("a volume");
    dir
}

/// As on a host run by systemd, where everything is shared.
fn share_everything() -> std::io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    for flag in [MsFlags::MS_PRIVATE, MsFlags::MS_SHARED] {
        mount(none, "/", none, MsFlags::MS_REC | flag, none)?;
    }
    Ok(())
}

#[test]
fn shared_mounts_carry_nothing_out() {
    let Some(hook) = hook("shared_mounts_carry_nothing_out", "runc") else {
        return;
    };
    for propagation in ["private", "rslave", "rshared"] {
        let node = Node::start();
        let bundle = asking(&node, "shared", "runc")
            .command(&["/bin/sleep", "60"])
            .surroundings(share_everything)
            .edit(move |config| config["linux"]["rootfsPropagation"] = json!(propagation));
        let cgroup = format!("{}\n", bundle.cgroup());
        let running = bundle.started(&hook);
        // The bundle's directory has the id in its name; the slice's mounts end in these.
        eventually("it runs", || {
            fs::read_dir(node.root().join("bundle/shared/state/shared")).is_ok()
                && node.slice("shared").is_some()
        });
        eventually("its program runs", || {
            fs::read_dir("/proc").expect("proc").flatten().any(|entry| {
                let read = |name| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
                read("comm") == "sleep\n" && read("cgroup").contains(&cgroup)
            })
        });
        let host = fs::read_to_string(format!("/proc/{}/mountinfo", running.pid())).expect("alive");
        assert!(host.contains(" shared:"), "{propagation}: nothing is shared");
        for name in ["/run/gpuslice ", "/ld.so.preload ", "/gpuslice-sim ", "/libcuda.so.1 "] {
            assert!(!host.contains(name), "{propagation}: {name} in\n{host}");
        }
    }
}

/// A stub file in a volume would show other containers an empty driver, for good.
#[test]
fn volumes_get_no_stub_files() {
    let Some(hook) = hook("volumes_get_no_stub_files", "runc") else {
        return;
    };
    let node = Node::start();
    let lib = volume(&node, "lib");
    let first = "/usr/lib/x86_64-linux-gnu";
    let bundle = asking(&node, "lib", "runc").mount(first, "bind", &lib, &["rbind"]);
    let mounts = printed(&bundle.run(&hook));
    assert!(mounts.contains(&format!("/{LIBRARIES}/libcuda.so.1 ")), "{mounts}");
    assert_eq!(names(&lib), [""; 0]);
}

/// `/run` often is a volume, in read-only containers in particular; the slice leaves only an empty directory in it.
#[test]
fn run_may_be_a_volume() {
    let Some(hook) = hook("run_may_be_a_volume", "runc") else {
        return;
    };
    let node = Node::start();
    let run = volume(&node, "volume");
    let bundle = asking(&node, "run", "runc").mount("/run", "bind", &run, &["rbind"]);
    assert!(points(&printed(&bundle.run(&hook))).contains(&"/run/gpuslice"));
    assert_eq!(names(&run), ["gpuslice"]);
    assert_eq!(names(&run.join("gpuslice")), [""; 0]);
}

#[test]
fn the_hosts_own_directories_are_left_alone() {
    let test = "the_hosts_own_directories_are_left_alone";
    let Some(hook) = hook(test, "runc") else {
        return;
    };
    let made = Path::new("/dev/gpuslice-sim");
    if made.exists() {
        crate::harness::skip(test, "this machine has a /dev/gpuslice-sim");
        return;
    }
    let node = Node::start();
    let bundle = asking(&node, "dev", "runc").edit(|config| {
        let mounts = config["mounts"].as_array_mut().expect("a list");
        mounts.retain(|mount| mount["destination"] != "/dev");
        mounts.push(json!({ "destination": "/dev", "type": "bind", "source": "/dev", "options": ["rbind"] }));
    });
    let output = bundle.run(&hook);
    let touched = fs::remove_dir(made).is_ok();
    assert!(!touched, "a directory was made in the host's /dev");
    let said = complaint(&output);
    assert!(said.contains("nothing is made in the container's /dev"), "{said}");
    eventually("no slice is left", || node.slice("dev").is_none());
}

fn keep_everything_to_oneself() -> std::io::Result<()> {
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
    Ok(())
}

/// A runtime's umask must not make the list unreadable: loaders would ignore it silently.
#[test]
fn an_ordinary_user_reads_the_list_whatever_the_mask() {
    for runtime in ["runc", "crun"] {
        let Some(hook) = hook("an_ordinary_user_reads_the_list_whatever_the_mask", runtime) else {
            continue;
        };
        let node = Node::start();
        let bundle = asking(&node, "mask", runtime)
            .command(&["/bin/cat", "/etc/ld.so.preload"])
            .surroundings(keep_everything_to_oneself)
            .edit(|config| config["process"]["user"] = json!({ "uid": 1000, "gid": 1000 }));
        assert_eq!(printed(&bundle.run(&hook)), "/run/gpuslice/libgpuslice.so\n", "{runtime}");
    }
}

/// Images built beside a driver keep an empty file of each version they met.
#[test]
fn every_version_of_the_driver_is_covered() {
    let Some(hook) = hook("every_version_of_the_driver_is_covered", "runc") else {
        return;
    };
    let node = Node::start();
    let bundle = asking(&node, "many", "runc");
    let lib = bundle.rootfs().join(LIBRARIES);
    let versions: Vec<String> = (0..9).map(|n| format!("libcuda.so.5{n}0.1")).collect();
    for name in &versions {
        fs::write(lib.join(name), "").expect("a file");
    }
    symlink(&versions[0], lib.join("libcuda.so.1")).expect("a link");
    let mounts = printed(&bundle.run(&hook));
    for name in &versions {
        let point = format!("/{LIBRARIES}/{name}");
        let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some(&point));
        let line = line.unwrap_or_else(|| panic!("nothing over {point} in\n{mounts}"));
        assert!(
            line.contains(" ro,nosuid,nodev") && line.contains("libgpuslice_mount.so"),
            "{line}"
        );
    }
    assert!(!points(&mounts).contains(&format!("/{LIBRARIES}/libcuda.so.1").as_str()));
}
