//! Processes that use CUDA in unusual ways: forks, `exec` in a thread, unloaded drivers, small stacks, sandboxes.
//!
//! Each case is a part of one C program, which must end as on a bare device of the slice's size, by both injection
//! methods, beside a container that always has work. README.md has these cases and the others of their kind, with
//! their tests.

use super::{Place, at, at_with, cc, cc_to, injection_methods, text, word};
use crate::harness::node::Node;
use crate::harness::{copy_of, eventually, target_dir};
use gpuslice_sim_device::{Machine, ProcessInfo};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

/// Bytes of the neighbour's context and of what it allocates.
const FILLED: u64 = 128 << 20;

/// A container that always has work, while this lives; its device, and its process when it had all its memory.
struct Neighbour(Child, Machine, ProcessInfo);

impl Neighbour {
    fn start(node: &Node, place: Place) -> Neighbour {
        let tenant = target_dir().join("tenant");
        assert!(tenant.exists(), "not built; run packaging/stage debug");
        let words = [word(&tenant), "--with-reader", "--kernel-us", "1000", "--most-mib", "64"];
        let mut command = at(node, place, &[&words[..], &["--seconds", "300"]].concat());
        let tenant = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let machine = node.machine();
        let filled = || machine.processes(0).ok()?.into_iter().find(|it| it.used_bytes >= FILLED);
        eventually("its memory", || filled().is_some());
        let first = filled().expect("just seen");
        let neighbour = Neighbour(tenant, machine, first);
        neighbour.goes_on();
        neighbour
    }

    /// It has its memory, and works.
    fn goes_on(&self) {
        let Neighbour(_, machine, first) = self;
        let all = || machine.processes(0).expect("a GPU").into_iter();
        let now = || all().find(|it| it.pid == first.pid).expect("it lives");
        let before = now();
        assert_eq!(before.used_bytes, first.used_bytes);
        eventually("the neighbour goes on", || now().busy_ns > before.busy_ns);
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // Without a reader it ends.
        drop(self.0.stdout.take());
        let _ = self.0.wait();
    }
}

fn program(node: &Node) -> PathBuf {
    static MADE: OnceLock<File> = OnceLock::new();
    let program = node.root().join("unusual");
    // It opens the driver by itself, so that it can close it again.
    let options = ["-Wall", "-Wextra", "-Wl,--as-needed"];
    copy_of(&MADE, &program, |to| cc_to(node, to, &options, &["coexistence/unusual.c"]));
    program
}

fn passes(what: &str, output: &Output) {
    let well = output.status.success() && text(&output.stdout) == "ok\n";
    assert!(well && output.stderr.is_empty(), "{what}: {output:?}");
}

/// One case bare and in slices, on nodes like this; `words` come before the program.
fn everywhere(gpus: &str, options: &[&str], words: &[&str], case: &str) {
    let node = Node::start_with(&format!("{gpus},mem=4GiB"));
    let program = program(&node);
    let words = [words, &[word(&program), case]].concat();
    let mut bare: Command = at(&node, Place::Bare, &words);
    bare.env("GPUSLICE_SIM", format!("{gpus},mem=1GiB"));
    bare.env("GPUSLICE_SIM_DEVICE", node.root().join("bare"));
    passes("bare", &bare.output().expect("it starts"));
    for method in injection_methods() {
        let neighbour = Neighbour::start(&node, method);
        let mut command = at_with(&node, method, options, &words);
        passes(&format!("{method:?}"), &command.output().expect("it starts"));
        neighbour.goes_on();
    }
}

macro_rules! cases {
    ($($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                everywhere("devices=1", &[], &[], stringify!($case));
            }
        )*
    };
}

cases! {
    fork_before_init
    fork_and_exec
    vfork_and_exec
    exec_in_thread
    unload
    signals
    small_stack
    exit_while_calling
    hundred_processes
    filtered_later
    filtered_before
}

#[test]
fn sixteen_gpus() {
    everywhere("devices=16", &["--gpus", "all"], &[], "all_devices");
}

/// The linker loads an auditor before all other libraries, and asks it about each of them.
#[test]
fn an_auditor_of_the_linker() {
    let node = Node::start();
    let options = ["-shared", "-fPIC", "-Wl,--as-needed"];
    let auditor = cc(&node, "audit.so", &options, &["coexistence/audit.c"]);
    everywhere("devices=1", &[], &["env", &format!("LD_AUDIT={}", word(&auditor))], "much");
}
