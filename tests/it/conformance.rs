//! A slice behaves as a device of its size: the conformance program on a bare simulated GPU of 1 GiB,
//! and in a slice of 1 GiB of a larger one, by each injection method.
//!
//! The program's cases are in `tests/apps/conformance`; what one of them says of the bare device it
//! must say of the slice, also which of several right codes it was given. All of it holds on a kind driver and on a
//! strict one.

use crate::command::in_1gib;
use crate::harness::profiles::{simulated, strict};
use crate::harness::{is_root, skip, target_dir};
use gpuslice_nvabi::{DRIVER, Shim};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;

/// The cases that pass on the simulated driver: all but `vmm_place/on_another_device` (there is one).
/// SPECIFICATION M1 states the number.
const CASES: usize = 439;

/// A machine with that memory, on the driver of a profile.
type Machine = fn(&str) -> String;

const KIND: Machine = simulated;

/// The strict driver of this suite.
fn strict_one(memory: &str) -> String {
    strict(memory, "conformance")
}

/// One whose NVML says what was true some milliseconds ago, and does not list processes each time.
fn late_one(memory: &str) -> String {
    strict(memory, "conformance, late")
}

/// Cases that are skipped where NVML does not list the process.
const LISTS: [&str; 2] = ["exact/nvml_list_fill_free_ask", "exact/nvml_list_in_another_process"];

fn program() -> PathBuf {
    let program = target_dir().join("conformance");
    assert!(program.exists(), "not staged; run packaging/stage debug");
    program
}

/// Cases whose answers may differ: a slice refuses a size beyond its cap as out of memory, where the driver finds
/// another fault of the call, or gives managed memory on the host.
const SIZE_FIRST: [&str; 3] = ["alloc/old_names", "vmm/largest_number", "managed/over_the_device"];

/// The cases that passed, each with its answers where several are right; the test fails with the lines of those that
/// did not.
fn passed(output: &Output, way: &str) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let failed: Vec<&str> = text.lines().filter(|line| line.starts_with("FAIL ")).collect();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(failed.is_empty(), "{way}: {} cases fail:\n{}", failed.len(), failed.join("\n"));
    let total = text.lines().last().unwrap_or_default();
    assert!(output.status.success() && total.contains(" fail=0 "), "{way}: {total}\n{said}");
    let cases = text.lines().filter_map(|line| line.strip_prefix("pass "));
    let named =
        cases.map(|line| SIZE_FIRST.into_iter().find(|it| line.starts_with(it)).unwrap_or(line));
    named.map(str::to_owned).collect()
}

/// On a device of 1 GiB, without any of our libraries but the simulated driver: once on each machine.
fn bare(machine: Machine) -> BTreeSet<String> {
    static PASSED: Mutex<BTreeMap<String, BTreeSet<String>>> = Mutex::new(BTreeMap::new());
    let mut passed = PASSED.lock().expect("the other test's run failed, too");
    passed.entry(machine("mem=1GiB")).or_insert_with(|| run_bare(machine)).clone()
}

fn run_bare(machine: Machine) -> BTreeSet<String> {
    let root = tempfile::Builder::new().prefix("gpuslice-it-").tempdir_in("/dev/shm");
    let root = root.expect("a directory");
    let output = Command::new(program())
        .env("LD_LIBRARY_PATH", target_dir().join("sim"))
        .env("GPUSLICE_SIM", machine("mem=1GiB"))
        .env("GPUSLICE_SIM_DEVICE", root.path().join("device"))
        .stdin(Stdio::null())
        .output();
    passed(&output.expect("it starts"), "bare")
}

/// In a slice of 1 GiB of a device of 16 GiB.
fn sliced(method: &str, machine: Machine) -> BTreeSet<String> {
    let mut gpuslice = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
    let output = in_1gib(&mut gpuslice, method, &target_dir().join("sim"))
        .arg(program())
        .env("GPUSLICE_SIM", machine("mem=16GiB"))
        .env_remove("GPUSLICE_SIM_DEVICE")
        .stdin(Stdio::null())
        .output();
    passed(&output.expect("gpuslice starts"), method)
}

fn differences(bare: &BTreeSet<String>, slice: &BTreeSet<String>) -> Vec<String> {
    bare.symmetric_difference(slice).cloned().collect()
}

fn conforms(method: &str, machine: Machine) {
    if method == "mount" && !is_root() {
        return skip("conformance", "mount injection needs root");
    }
    let sliced = sliced(method, machine);
    let bare = bare(machine);
    let apart = differences(&bare, &sliced);
    assert!(apart.is_empty(), "{method}, {}: not the same cases: {apart:?}", machine(""));
    assert_eq!(bare.len(), CASES, "{}", machine(""));
}

#[test]
fn a_slice_by_preload_injection_conforms() {
    conforms("preload", KIND);
}

#[test]
fn a_slice_by_mount_injection_conforms() {
    conforms("mount", KIND);
}

#[test]
fn a_slice_by_preload_injection_conforms_on_a_strict_driver() {
    conforms("preload", strict_one);
}

#[test]
fn a_slice_by_mount_injection_conforms_on_a_strict_driver() {
    conforms("mount", strict_one);
}

/// A bare device is not exact there. A slice is: what a process asks of NVML is answered from the ledger.
#[test]
fn a_slice_conforms_where_nvml_is_late() {
    let sliced = sliced("preload", late_one);
    let apart = differences(&bare(KIND), &sliced);
    let others: Vec<&String> =
        apart.iter().filter(|case| !LISTS.contains(&case.as_str())).collect();
    assert!(others.is_empty(), "not the same cases: {others:?}");
}

/// Functions that the shim hooks and no case calls, by the beginnings of their names, and why.
const WITHOUT_A_CASE: [(&[&str], &str); 5] = [
    (&["cuMemcpy", "cuMemset", "cuLaunch", "cuStream", "cuEvent"], "work or its order"),
    (&["cuMemPrefetchBatch", "cuMemDiscardAnd", "cuMemBatchDecompress"], "work"),
    (&["cuGraphExecUpdate", "cuGraphExecNode", "cuGraphExecChild"], "other work of a graph"),
    (
        &["cuMemGetDefaultMemPool", "cuMemGetMemPool", "cuMemGetHandleForAddressRange"],
        "names memory that is there",
    ),
    (
        &["cuMulticast", "cuLogicalEndpoint", "cuFabric", "cuExternalMemoryGetMappedMipmapped"],
        "not of the simulated driver",
    ),
];

/// A function's name without the endings of its forms.
fn plain(name: &str) -> &str {
    let name = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    let is_version = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
    name.rsplit_once("_v").filter(|(_, version)| is_version(version)).map_or(name, |(name, _)| name)
}

/// A family of calls cannot be hooked without cases: each hooked function is called by one, or takes no memory.
#[test]
fn every_hooked_function_that_takes_memory_has_a_case() {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/apps/conformance");
    let files = std::fs::read_dir(sources).expect("the cases").flatten();
    let text: String =
        files.map(|it| std::fs::read_to_string(it.path()).expect("a source")).collect();
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = code.flat_map(|line| line.split(move |c: char| !is_name(c)));
    let called: BTreeSet<&str> = words.filter(|it| it.starts_with("cu")).map(plain).collect();
    let hooked = DRIVER.iter().filter(|it| it.shim == Shim::Hook).map(|it| plain(it.name));
    let uncalled: BTreeSet<&str> = hooked.filter(|name| !called.contains(name)).collect();
    let excepted: Vec<&str> = WITHOUT_A_CASE.iter().flat_map(|it| it.0).copied().collect();
    let is_excepted = |name: &&&str| excepted.iter().any(|begin| name.starts_with(begin));
    let missing: Vec<_> = uncalled.iter().filter(|name| !is_excepted(name)).collect();
    assert!(missing.is_empty(), "no case calls {missing:?}");
    let unneeded = |begin: &&&str| !uncalled.iter().any(|name| name.starts_with(**begin));
    let unneeded: Vec<_> = excepted.iter().filter(unneeded).collect();
    assert!(unneeded.is_empty(), "all of these have a case: {unneeded:?}");
}

/// Bad words are refused before anything runs.
#[test]
fn the_program_explains_its_options() {
    for (words, complaint) in
        [(&["--olny", "alloc"][..], "unknown option --olny"), (&["--only"][..], "--only needs")]
    {
        let output = Command::new(program()).args(words).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(said.contains(complaint), "{words:?}: {said}");
    }
}
