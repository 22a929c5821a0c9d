//! The NVML shim, from outside, over a library of C that knows one device and three processes.

#[path = "../../suite/built.rs"]
mod built;
#[path = "../../suite/daemon/mod.rs"]
#[allow(dead_code)] // what only the driver's tests look at
mod daemon;
#[path = "../../suite/elf.rs"]
#[allow(dead_code)] // what only the driver's tests look at
mod elf;

use daemon::Daemon;
use gpuslice_nvabi::NVML;
use std::collections::BTreeSet;
use std::process::Command;
use tempfile::TempDir;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/apps/stub");
const CAP: u64 = 256 << 20;

fn library() -> std::path::PathBuf {
    built::built("gpuslice-shim-nvml", "libgpuslice_nvml.so")
}

fn cc(args: &[&str]) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(&compiler).args(args).status().expect("a C compiler");
    assert!(status.success(), "{compiler} {args:?}");
}

/// The program `nvml_probe.c` over `nvml.c`, through the shim, in a slice or not.
fn probe(socket: Option<&std::path::Path>) -> Vec<String> {
    let home = TempDir::new().expect("a directory");
    let at = |name: &str| home.path().join(name).to_str().expect("plain").to_owned();
    let (stub, source) = (format!("{SOURCES}/nvml.c"), format!("{SOURCES}/nvml_probe.c"));
    let soname = "-Wl,-soname,libnvidia-ml.so.1";
    cc(&["-shared", "-fPIC", soname, "-o", &at("libnvidia-ml.so.1"), &stub]);
    cc(&["-o", &at("probe"), &source, "-ldl"]);
    let mut command = Command::new(at("probe"));
    command.env_clear().env("LD_PRELOAD", library()).env("GPUSLICE_DRIVER_DIR", home.path());
    command.envs(socket.map(|socket| ("GPUSLICE_SOCKET", socket)));
    let output = command.output().expect("the probe runs");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

#[test]
fn exports_all_of_nvml_and_nothing_else() {
    let table = NVML.iter();
    let expect: BTreeSet<String> = table.map(|row| row.name.to_owned()).collect();
    assert_eq!(elf::exports(&library()), expect);
    elf::is_lean(&library(), "libnvidia-ml.so.1", &[]);
}

#[test]
fn memory_and_processes_are_the_slices() {
    let home = TempDir::new().expect("a directory");
    let daemon = Daemon::start(home.path(), &[CAP]);
    daemon.state().attach_silent(64 << 20);
    let lines = probe(Some(&daemon.socket));
    assert_eq!(lines[0], format!("memory 0 {CAP} {} {}", CAP - (64 << 20), 64 << 20));
    assert_eq!(lines[1], format!("memory2 0 {CAP} {} {} 0", CAP - (64 << 20), 64 << 20));
    assert_eq!(lines[2], "count 7 1", "room for none: INSUFFICIENT_SIZE and the count");
    assert_eq!(lines[3], "compute 0 1 self");
    assert_eq!(lines[4], "compute1 0 1 self");
    assert_eq!(lines[5], "graphics 0 0 none");
    assert_eq!(lines[6], "utilization 0 1 self");
    assert_eq!(lines[7..10], ["accounting 0 1 self", "encoder 0 1 1 self", "past 0 6"]);
    assert_eq!(lines[10], "power 77", "not hooked: passes through, all arguments in place");
    assert_eq!(lines[11], "lacking 13");
    assert_eq!(daemon.state().attaches, 1);
    assert_eq!(daemon.state().reserves, 0);
}

#[test]
fn outside_of_a_slice_the_device_is_whole() {
    let lines = probe(None);
    assert_eq!(lines[0], "memory 0 1073741824 1063256064 10485760");
    assert_eq!(lines[2..4], ["count 7 3", "compute 0 3 self"]);
}
