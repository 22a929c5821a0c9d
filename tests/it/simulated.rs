//! The simulated GPU is asked for, shown as one, and made where no other user can have put something first.

use crate::harness::bundle::{Bundle, hook, printed};
use crate::harness::cli::{self, said};
use crate::harness::node::Node;
use crate::harness::{PATIENCE, is_root, skip, target_dir};
use gpuslice_wire::units::{Bytes, GIB};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

/// What a node without a driver says first.
const NO_DRIVER: &str = "no NVIDIA driver is loaded: there is neither /dev/nvidiactl nor /dev/dxg";

/// Whether this machine has a driver, with which nothing here can be shown; said.
fn has_driver(test: &str) -> bool {
    let nodes = ["/dev/nvidiactl", "/dev/dxg"];
    let has = nodes.iter().any(|node| Path::new(node).exists());
    if has {
        skip(test, "this machine has a driver");
    }
    has
}

/// Waits for a program that must end by itself.
fn ended(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child: Child = child.spawn().expect("it starts");
    let start = Instant::now();
    while child.try_wait().expect("wait").is_none() {
        if start.elapsed() > PATIENCE / 2 {
            let _ = child.kill();
            let output = child.wait_with_output().expect("output");
            panic!("it serves: {output:?}");
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.wait_with_output().expect("output")
}

#[test]
fn a_daemon_without_a_driver_does_not_start() {
    if has_driver("a_daemon_without_a_driver_does_not_start") {
        return;
    }
    let node = Node::new();
    let manager = UnixDatagram::bind(node.root().join("notify")).expect("a socket");
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_gpusliced"));
    daemon.arg("--runtime-dir").arg(node.runtime_dir());
    // That one is described is not that one is asked for.
    daemon.env("GPUSLICE_SIM", "mem=16GiB");
    daemon.env("GPUSLICE_SIM_DEVICE", node.root().join("device"));
    daemon.env("NOTIFY_SOCKET", node.root().join("notify"));
    let output = ended(&mut daemon);
    let error = said(&output);
    assert_eq!(output.status.code(), Some(69), "{error}");
    for words in [NO_DRIVER, "nvidia-smi", "driver_dir", "/sim"] {
        assert!(error.contains(words), "{words}: {error}");
    }
    let mut status = [0; 1024];
    manager.set_nonblocking(true).expect("a mode");
    let len = manager.recv(&mut status).expect("the manager is told");
    let status = String::from_utf8_lossy(&status[..len]).into_owned();
    assert!(status.contains("STATUS=no NVIDIA driver is loaded"), "{status}");
    assert!(!status.contains("READY=1"), "{status}");
    assert!(!node.runtime_dir().exists() && !node.root().join("device").exists());
}

#[test]
fn a_command_without_a_driver_is_told_how_to_simulate_one() {
    if has_driver("a_command_without_a_driver_is_told_how_to_simulate_one") {
        return;
    }
    let root = tempfile::tempdir().expect("a directory");
    let of_profile = |profile: &str, options: &[&str]| {
        let mut run = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
        run.args(["run", "--memory", "1GiB"]).args(options).env("GPUSLICE_SIM", profile);
        run.args(["--", "sh", "-c", "echo ran"]);
        // Not this user's daemon, if there is one.
        run.env("XDG_RUNTIME_DIR", root.path()).stdin(Stdio::null());
        run.env_remove("GPUSLICE_SIM_DEVICE");
        run.output().expect("it starts")
    };
    let run = |options: &[&str]| of_profile("", options);
    let bare = run(&[]);
    let error = said(&bare);
    assert_eq!(bare.status.code(), Some(1), "{bare:?}");
    assert!(error.contains(NO_DRIVER) && error.contains("--sim"), "{error}");
    assert!(bare.stdout.is_empty());
    let asked = run(&["--sim"]);
    assert_eq!(String::from_utf8_lossy(&asked.stdout), "ran\n", "{asked:?}");
    assert!(said(&asked).contains("(simulated GPU, profile kind)"), "{asked:?}");
    let strict = of_profile("profile=strict", &["--sim"]);
    assert!(said(&strict).contains("(simulated GPU, profile strict)"), "{strict:?}");
    let both = run(&["--sim", "--driver-dir", "/x"]);
    assert!(said(&both).contains("cannot be used with"), "{both:?}");
}

/// Each call of NVML takes 1 s, so the daemon needs 19 s until it answers.
#[test]
fn a_command_waits_for_a_driver_that_starts_slowly() {
    let root = tempfile::tempdir().expect("a directory");
    let mut run = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
    run.args(["run", "--memory", "1GiB", "--sim", "--", "echo", "ran"]);
    run.env("GPUSLICE_SIM", "nvml=1s").env("XDG_RUNTIME_DIR", root.path()).stdin(Stdio::null());
    let output = run.env_remove("GPUSLICE_SIM_DEVICE").output().expect("it starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ran\n", "{output:?}");
    assert!(said(&output).contains("has not answered for 10 s"), "{output:?}");
}

#[test]
fn a_demo_says_first_that_its_gpu_is_simulated_and_why() {
    if has_driver("a_demo_says_first_that_its_gpu_is_simulated_and_why") {
        return;
    }
    for asked in [false, true] {
        let place = tempfile::tempdir().expect("a directory");
        let mut demo = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
        demo.args(["demo", "--runtime", "none", "--seconds", "60"]);
        demo.args(asked.then_some("--sim")).env("TMPDIR", place.path());
        demo.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut demo = demo.spawn().expect("it starts");
        let mut first = String::new();
        let out = demo.stdout.as_mut().expect("piped");
        BufReader::new(out).read_line(&mut first).expect("a line");
        kill(Pid::from_raw(demo.id().cast_signed()), Signal::SIGINT).expect("it lives");
        demo.wait().expect("it ends");
        assert!(first.starts_with("simulated GPU, profile kind (driver of "), "{first}");
        assert_eq!(first.contains(NO_DRIVER), !asked, "{first}");
    }
}

#[test]
fn a_copy_under_another_name_is_no_disguise() {
    let node = Node::new();
    let dir = node.root().join("copy");
    fs::create_dir(&dir).expect("a directory");
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        fs::copy(node.root().join("driver").join(name), dir.join(name)).expect("a copy");
    }
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_gpusliced"));
    daemon.arg("--runtime-dir").arg(node.runtime_dir());
    daemon.arg("--driver-dir").arg(&dir);
    daemon.env("GPUSLICE_SIM_DEVICE", node.root().join("device"));
    let output = ended(&mut daemon);
    let error = said(&output);
    assert_eq!(output.status.code(), Some(69), "{error}");
    assert!(error.contains("is a copy of the simulated GPU's"), "{error}");
}

#[test]
fn whatever_shows_a_gpu_says_that_it_is_simulated() {
    let node = Node::start();
    let gpuslice = |words: &[&str]| {
        let output = cli::gpuslice(&node, words);
        String::from_utf8_lossy(&output.stdout).into_owned() + &said(&output)
    };
    assert!(gpuslice(&["ps"]).contains("whose GPUs are simulated"));
    node.must_admit("web", Bytes(GIB));
    let driver = node.root().join("driver");
    let driver = driver.to_str().expect("plain");
    for words in [
        &["ps"][..],
        &["ps", "--wide"],
        &["policy"],
        &["policy", "0", "weighted"],
        &["set", "web", "--memory", "2GiB"],
        &["doctor", "--driver-dir", driver],
        &["metrics"],
        &["run", "--memory", "1GiB", "--", "true"],
        // What is refused names the GPU as well.
        &["run", "--memory", "17GiB", "--", "true"],
        &["set", "web", "--memory", "17GiB"],
    ] {
        let told = gpuslice(words);
        assert!(told.contains("simulated"), "{words:?}: {told}");
    }
    let listed: Value = serde_json::from_str(&gpuslice(&["ps", "--json"])).expect("JSON");
    for kind in ["gpus", "slices"] {
        let rows = listed[kind].as_array().expect("a list");
        assert!(!rows.is_empty() && rows.iter().all(|row| row["simulated"] == true), "{rows:?}");
    }
    assert!(node.log().contains("2 simulated GPUs"), "{}", node.log());
}

/// Runs the daemon on the device's usual place, after `plant` was run in a /dev/shm of its own. There the node's
/// directory is at `place`.
fn where_planted(node: &Node, place: &Path, plant: &str) -> Output {
    let mut sh = Command::new("unshare");
    sh.args(["--mount", "--propagation", "private", "sh", "-ec"]);
    sh.arg(format!(
        "mount --bind \"$1\" \"$2\"; mount -t tmpfs -o mode=1777 tmpfs /dev/shm; cd /dev/shm; {plant}; \
         exec \"$0\" --runtime-dir \"$2\"/run --driver-dir \"$2\"/driver --ephemeral"
    ));
    sh.arg(env!("CARGO_BIN_EXE_gpusliced")).args([node.root(), place]);
    sh.env_remove("GPUSLICE_SIM_DEVICE").env_remove("GPUSLICE_SIM");
    ended(&mut sh)
}

#[test]
fn what_another_user_planted_leaves_roots_files_alone() {
    let test = "what_another_user_planted_leaves_roots_files_alone";
    if !is_root() {
        return skip(test, "a /dev/shm of one's own needs root");
    }
    if Path::new("/dev/gpuslice-sim").exists() {
        return skip(test, "this machine has a /dev/gpuslice-sim");
    }
    let (node, place) = (Node::new(), tempfile::tempdir().expect("a directory"));
    let secret = node.root().join("secret");
    fs::write(&secret, "root's own").expect("written");
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).expect("a mode");
    let (file, dir) = (place.path().join("secret"), place.path().display());
    let file = file.display();
    let links = "for name in vram0 locks exports control state.new; do \
                 ln -s \"$target\" gpuslice-sim-0/$name; done";
    for (plant, why) in [
        (format!("ln -s {file} gpuslice-sim-0"), "is a link or a file, not a directory"),
        (format!("ln -s {dir} gpuslice-sim-0"), "is a link or a file, not a directory"),
        (
            format!(
                "target={file}; mkdir gpuslice-sim-0; {links}; \
                 chown -h 4711 gpuslice-sim-0 gpuslice-sim-0/*"
            ),
            "belongs to user 4711, not to user 0",
        ),
        ("mkdir -m 777 gpuslice-sim-0".into(), "may be written by other users (mode 777)"),
    ] {
        let before = fs::read_dir(node.root()).expect("ours").count();
        let output = where_planted(&node, place.path(), &plant);
        let error = said(&output);
        assert_eq!(fs::read_to_string(&secret).ok().as_deref(), Some("root's own"), "{plant}");
        let mode = fs::metadata(&secret).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{plant}");
        assert_eq!(fs::read_dir(node.root()).expect("ours").count(), before, "{plant}");
        assert!(!output.status.success(), "{plant}: {error}");
        for words in ["/dev/shm/gpuslice-sim-0", why, "remove it"] {
            assert!(error.contains(words), "{plant}: {error}");
        }
    }
}

/// A container's processes have users of their own: they reach the device by their mount, and other
/// processes of the host do not.
#[test]
fn a_containers_other_user_has_the_device_by_its_mount() {
    for runtime in ["runc", "crun"] {
        let test = "a_containers_other_user_has_the_device_by_its_mount";
        let Some(hook) = hook(test, runtime) else {
            continue;
        };
        let node = Node::start();
        fs::set_permissions(node.root(), Permissions::from_mode(0o711)).expect("ours");
        let bundle = Bundle::new(node.root(), "user", runtime, node.runtime_dir())
            .annotation("gpuslice.io/memory", "1GiB")
            .command(&["/bin/tenant", "--step-mib", "64", "--no-launch", "--seconds", "0"])
            .edit(|config| config["process"]["user"] = json!({ "uid": 1000, "gid": 1000 }));
        bundle.add_program(&target_dir().join("tenant"), "bin/tenant");
        let told = printed(&bundle.run(&hook));
        let total = format!("\"total\":{GIB}");
        assert!(told.contains(&total), "{runtime}: {told}");
        let mut stranger = Command::new("setpriv");
        stranger.args(["--reuid", "1000", "--regid", "1000", "--clear-groups", "test", "-r"]);
        stranger.arg(node.root().join("device/node/state"));
        assert!(!stranger.status().expect("setpriv").success(), "{runtime}");
    }
}
