//! Every way a program may go to its driver, through every door, and where it ends.
//!
//! A shim is worth what the ways around it leave. So there is one table of ways ([`WAYS`]) and, for
//! each door, where each of them ends today: *caught* (an allocation of more than the slice has was
//! refused), *open* (it was had) or *nothing* (no driver that way). Nobody edits the real dynamic
//! linker's answers: the programs are `tests/apps/doors`, run by a shell as a person would run
//! them. A cell that changes fails the test, whether it got worse or better: what is promised has
//! changed.
//!
//! The driver's directory stands for the system's: a clean environment keeps `LD_LIBRARY_PATH`, as
//! a real one would keep the loader's cache, and the simulated GPU's own variable.

mod enter;
mod programs;

use crate::harness::bundle::{Bundle, hook, printed};
use crate::harness::node::Node;
use crate::harness::{is_root, skip};
use gpuslice_wire::units::{Bytes, GIB};
use programs::Home;
use std::collections::BTreeMap;
use std::process::{Command, Output};

use Got::{Caught, Nothing, Open};

/// Where a way ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Got {
    Caught,
    Open,
    Nothing,
}

/// What a program stands behind; also the column of [`WAYS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    /// No slice: shows that each way is one.
    Bare,
    Preload,
    /// `gpuslice run` as root.
    Replace,
    /// `gpuslice run` as anybody, in a user namespace.
    User,
    /// Both doors, as the hook opens them.
    Container,
}

/// A way to the driver: its name, the shell's command, where it ends behind each [`Door`].
struct Way(&'static str, &'static str, [Got; 5]);

/// `$W` has the programs, `$D` the driver, `$F` its file's name, `$N` is more than the slice,
/// `$KEEP` what a system would give a clean environment.
#[rustfmt::skip]
const WAYS: [Way; 21] = [
    //                                                                              bare     preload  replace  user     container
    Way("linked to the driver",    "$W/linked needed $N",                          [Open,    Caught,  Caught,  Caught,  Caught]),
    Way("dlopen by SONAME",        "$W/way soname $N",                             [Open,    Caught,  Caught,  Caught,  Caught]),
    Way("RTLD_DEEPBIND",           "$W/way deep $N",                               [Open,    Caught,  Caught,  Caught,  Caught]),
    Way("a linked library",        "$W/way plugin $N $W/plugin.so",                [Open,    Caught,  Caught,  Caught,  Caught]),
    Way("the same, DEEPBIND",      "$W/way deepplugin $N $W/plugin.so",            [Open,    Caught,  Caught,  Caught,  Caught]),
    Way("libc's own dlsym",        "$W/way dlvsym $N",                             [Open,    Caught,  Caught,  Caught,  Caught]),
    Way("walk of its symbols",     "$W/way walk $N",                               [Open,    Caught,  Caught,  Caught,  Caught]),
    Way("unversioned name",        "$W/way unversioned $N",                        [Open,    Caught,  Caught,  Caught,  Caught]),
    Way("dlmopen",                 "$W/way newspace $N",                           [Open,    Caught,  Caught,  Caught,  Caught]),
    Way("dlmopen, linked library", "$W/way newplugin $N $W/plugin.so",             [Open,    Caught,  Caught,  Caught,  Caught]),
    Way("path of the driver",      "$W/way path $N $D/libcuda.so.1",               [Open,    Open,    Caught,  Caught,  Caught]),
    Way("path of its file",        "$W/way path $N $D/$F",                        [Open,    Open,    Caught,  Caught,  Caught]),
    Way("env -i",                  "env -i $KEEP $W/way soname $N",                [Open,    Open,    Caught,  Caught,  Caught]),
    Way("LD_PRELOAD removed",      "env -u LD_PRELOAD $W/way soname $N",           [Open,    Caught,  Caught,  Caught,  Caught]),
    Way("a new login",             "setsid -w env -i $KEEP sh -lc \"$W/way soname $N\"", [Open, Open, Caught,  Caught,  Caught]),
    Way("set-user-id program",     "$W/setuid path $N $D/libcuda.so.1",            [Open,    Open,    Caught,  Caught,  Caught]),
    Way("copy of the driver",      "cp $D/libcuda.so.1 $T/own.so && $W/way path $N $T/own.so", [Open, Open, Caught, Caught, Caught]),
    Way("driver brought along",    "$W/way path $N $W/brought.so",                 [Open,    Open,    Open,    Open,    Open]),
    Way("CUDA compat directory",   "LD_LIBRARY_PATH=$W/compat $W/way soname $N",   [Open,    Caught,  Caught,  Caught,  Caught]),
    Way("our private driver",      "$W/way path $N /run/gpuslice/driver/libcuda.so.1", [Nothing, Nothing, Open, Open,   Open]),
    Way("static program",          "$W/static soname $N",                          [Nothing, Nothing, Nothing, Nothing, Nothing]),
];

const CAP: u64 = GIB;

/// A script that goes every way and prints a line for each.
fn script(home: &Home, keep: &str) -> String {
    let mut text = format!(
        "W={} D={} F={} T={} N={}\nKEEP='{keep}'\n",
        home.programs,
        home.driver,
        home.file,
        home.temporary,
        2 * CAP
    );
    for Way(name, command, _) in WAYS {
        text.push_str(&format!("got=$({command} 2>&1)\necho \"{name}|$got\"\n"));
    }
    text
}

fn got(words: &str) -> Got {
    match words {
        "caught" => Caught,
        "open" => Open,
        _ => Nothing,
    }
}

/// Compares what a script printed with the door's column of the table.
fn judge(door: Door, output: &str) {
    let lines = output.lines().filter_map(|line| line.split_once('|'));
    let found: BTreeMap<&str, &str> = lines.collect();
    let mut wrong = Vec::new();
    for Way(name, _, expected) in WAYS {
        let said = found.get(name).copied().unwrap_or("no answer");
        let expected = expected[door as usize];
        if got(said) != expected {
            wrong.push(format!("{name}: {said}, expected {expected:?}"));
        } else if expected == Open && door != Door::Bare {
            eprintln!("open: {name}, {door:?}");
        }
    }
    assert!(
        wrong.is_empty(),
        "{door:?}: the table has changed:\n{}\nof\n{output}",
        wrong.join("\n")
    );
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A node whose driver is a directory of files, as a system's is, that everybody may read.
fn node() -> (Node, Home) {
    let mut node = Node::new();
    let home = Home::make(node.root());
    node.start_daemon(&[]);
    programs::publish(node.root());
    (node, home)
}

/// The system's environment: its driver, and which GPU is simulated.
fn keep(node: &Node, home: &Home) -> String {
    let device = node.root().join("device");
    format!(
        "PATH=/usr/bin:/bin LD_LIBRARY_PATH={} GPUSLICE_SIM_DEVICE={}",
        home.driver,
        device.display()
    )
}

fn through_run(test: &str, door: Door, word: &str) {
    if !is_root() {
        return skip(test, "a set-user-id program of somebody else needs root");
    }
    let (node, home) = node();
    let mut run = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
    run.args(["run", "--quiet", "--memory", "1GiB", "--door", word])
        .arg("--runtime-dir")
        .arg(node.runtime_dir())
        .args(["--", "sh", "-c", &script(&home, &keep(&node, &home))]);
    judge(door, &text(&run.output().expect("gpuslice starts")));
}

#[test]
fn every_way_leads_to_the_driver_when_there_is_no_door() {
    if !is_root() {
        return skip("bare", "a set-user-id program of somebody else needs root");
    }
    let (node, home) = node();
    let keep = keep(&node, &home);
    let mut sh = Command::new("env");
    sh.arg("-i").args(keep.split(' '));
    let output = sh.args(["sh", "-c", &script(&home, &keep)]).output();
    judge(Door::Bare, &text(&output.expect("sh")));
}

#[test]
fn ways_through_the_preload_door() {
    through_run("ways_through_the_preload_door", Door::Preload, "preload");
}

#[test]
fn ways_through_the_replacement_door() {
    through_run(
        "ways_through_the_replacement_door",
        Door::Replace,
        "replace",
    );
}

#[test]
fn ways_of_an_ordinary_user() {
    let test = "ways_of_an_ordinary_user";
    if !is_root() {
        return skip(test, "becoming somebody else needs root");
    }
    let root = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let home = Home::make(root.path());
    programs::install(root.path());
    programs::publish(root.path());
    let keep = format!(
        "PATH=/usr/bin:/bin LD_LIBRARY_PATH={} GPUSLICE_SIM_DEVICE=$GPUSLICE_SIM_DEVICE",
        home.driver
    );
    let script = script(&home, &keep).replacen("KEEP='", "KEEP=\"", 1);
    let script = script.replacen("'\n", "\"\n", 1);
    match enter::as_anybody(root.path(), &home, &script) {
        Some(output) => judge(Door::User, &text(&output)),
        None => skip(test, "this kernel gives ordinary users no namespaces"),
    }
}

/// A container: every way from its first process, and again from a new login, which inherits
/// nothing.
#[test]
fn ways_in_a_container() {
    let Some(hook) = hook("ways_in_a_container", "runc") else {
        return;
    };
    let (node, outside) = node();
    let bundle = Bundle::new(node.root(), "ways", "runc", node.runtime_dir())
        .annotation("gpuslice.io/memory", &Bytes(CAP).0.to_string())
        .command(&["/bin/sleep", "600"])
        .edit(|config| config["process"]["noNewPrivileges"] = false.into());
    let home = outside.inside(&bundle);
    let script = script(&home, "PATH=/bin");
    let mut running = bundle.start(&hook);
    let login = running.exec(&["/bin/sh", "-c", &script]);
    judge(Door::Container, &printed(&login));
    drop(running);

    let bundle = Bundle::new(node.root(), "first", "runc", node.runtime_dir())
        .annotation("gpuslice.io/memory", &Bytes(CAP).0.to_string())
        .command(&["/bin/sh", "-c", &script])
        .edit(|config| config["process"]["noNewPrivileges"] = false.into());
    outside.inside(&bundle);
    judge(Door::Container, &printed(&bundle.run(&hook)));
}
