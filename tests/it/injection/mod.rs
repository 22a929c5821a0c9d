//! Every way for a program to reach its driver, and its outcome under every injection method.
//!
//! A shim is as strong as the routes around it. One table ([`ROUTES`]) lists the routes and, for each
//! injection method, today's outcome: *caught* (an allocation beyond the slice's cap was refused),
//! *open* (it succeeded), *nothing* (this way leads to no driver) or *crash*. A static program crashes: thread-local
//! variables of a library that it opens are not there, so SIGSEGV ends it in the driver or the shim. The dynamic linker
//! is the real one; the programs are `tests/apps/injection`, run by a shell. A cell that changes fails the test,
//! whether it got worse or better, because the promise has changed.
//!
//! The driver's directory stands for the system's library directory: a clean environment keeps
//! `LD_LIBRARY_PATH`, as a real one would keep the loader's cache, and the simulated GPU's variable.

mod enter;
mod programs;

use crate::harness::bundle::{Bundle, hook, printed};
use crate::harness::node::Node;
use crate::harness::{is_root, skip};
use gpuslice_wire::units::{Bytes, GIB};
use programs::Home;
use std::collections::BTreeMap;
use std::process::{Command, Output};

use Got::{Caught, Crash, Nothing, Open};

/// Outcome of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Got {
    Caught,
    Open,
    Nothing,
    Crash,
}

/// How the program was injected; also the column of [`ROUTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Injection {
    /// No slice: shows that each route reaches the driver.
    Bare,
    Preload,
    /// `gpuslice run` as root.
    Mount,
    /// `gpuslice run` as an ordinary user, in a user namespace.
    User,
    /// Both methods, as the hook applies them.
    Container,
}

/// A route to the driver: its name, its shell command, its outcome for each [`Injection`], in that order.
struct Route(&'static str, &'static str, [Got; 5]);

/// `$W` is the programs' directory, `$D` the driver's, `$F` its file's name, `$N` a size beyond the
/// cap, `$KEEP` the variables that a system would put into a clean environment.
#[rustfmt::skip]
const ROUTES: [Route; 21] = [
    Route("linked to the driver",    "$W/linked needed $N",                        [Open,    Caught,  Caught,  Caught,  Caught]),
    Route("dlopen by SONAME",        "$W/way soname $N",                           [Open,    Caught,  Caught,  Caught,  Caught]),
    Route("RTLD_DEEPBIND",           "$W/way deep $N",                             [Open,    Caught,  Caught,  Caught,  Caught]),
    Route("a linked library",        "$W/way plugin $N $W/plugin.so",              [Open,    Caught,  Caught,  Caught,  Caught]),
    Route("the same, DEEPBIND",      "$W/way deepplugin $N $W/plugin.so",          [Open,    Caught,  Caught,  Caught,  Caught]),
    Route("libc's own dlsym",        "$W/way dlvsym $N",                           [Open,    Caught,  Caught,  Caught,  Caught]),
    Route("walk of its symbols",     "$W/way walk $N",                             [Open,    Caught,  Caught,  Caught,  Caught]),
    Route("unversioned name",        "$W/way unversioned $N",                      [Open,    Caught,  Caught,  Caught,  Caught]),
    Route("dlmopen",                 "$W/way newspace $N",                         [Open,    Caught,  Caught,  Caught,  Caught]),
    Route("dlmopen, linked library", "$W/way newplugin $N $W/plugin.so",           [Open,    Caught,  Caught,  Caught,  Caught]),
    Route("path of the driver",      "$W/way path $N $D/libcuda.so.1",             [Open,    Open,    Caught,  Caught,  Caught]),
    Route("path of its file",        "$W/way path $N $D/$F",                      [Open,    Open,    Caught,  Caught,  Caught]),
    Route("env -i",                  "env -i $KEEP $W/way soname $N",              [Open,    Open,    Caught,  Caught,  Caught]),
    Route("LD_PRELOAD removed",      "env -u LD_PRELOAD $W/way soname $N",         [Open,    Caught,  Caught,  Caught,  Caught]),
    Route("a new login",             "setsid -w env -i $KEEP sh -lc \"$W/way soname $N\"", [Open, Open, Caught,  Caught,  Caught]),
    Route("set-user-id program",     "$W/setuid path $N $D/libcuda.so.1",          [Open,    Open,    Caught,  Caught,  Caught]),
    Route("copy of the driver",      "cp $D/libcuda.so.1 $T/own.so && $W/way path $N $T/own.so", [Open, Open, Caught, Caught, Caught]),
    Route("driver brought along",    "$W/way path $N $W/brought.so",               [Open,    Open,    Open,    Open,    Open]),
    Route("CUDA compat directory",   "LD_LIBRARY_PATH=$W/compat $W/way soname $N", [Open,    Caught,  Caught,  Caught,  Caught]),
    Route("our private driver",      "$W/way path $N /run/gpuslice/driver/libcuda.so.1", [Nothing, Nothing, Open, Open,   Open]),
    Route("static program",          "$W/static soname $N",                        [Crash,   Crash,   Crash,   Crash,   Crash]),
];

const CAP: u64 = GIB;

/// A script that tries every way and prints one line for each.
fn script(home: &Home, keep: &str) -> String {
    let mut text = format!(
        "W={} D={} F={} T={} N={}\nKEEP='{keep}'\n",
        home.programs,
        home.driver,
        home.file,
        home.temporary,
        2 * CAP
    );
    for Route(name, command, _) in ROUTES {
        let exit = "got=\"$got exit $?\"";
        text.push_str(&format!("got=$({command} 2>&1) || {exit}\necho \"{name}|$got\"\n"));
    }
    text
}

/// What a program's words mean; `None` of words that it never says of a route.
fn got(words: &str) -> Option<Got> {
    match words {
        "caught" => Some(Caught),
        "open" => Some(Open),
        " exit 139" => Some(Crash),
        _ => words.starts_with("nothing: no driver: ").then_some(Nothing),
    }
}

/// Compares a script's output with the injection method's column of the table.
fn judge(injection: Injection, output: &str) {
    let lines = output.lines().filter_map(|line| line.split_once('|'));
    let found: BTreeMap<&str, &str> = lines.collect();
    let mut wrong = Vec::new();
    for Route(name, _, expected) in ROUTES {
        let said = found.get(name).copied().unwrap_or("no answer");
        let expected = expected[injection as usize];
        if got(said) != Some(expected) {
            wrong.push(format!("{name}: {said}, expected {expected:?}"));
        } else if expected == Open && injection != Injection::Bare {
            eprintln!("open: {name}, {injection:?}");
        }
    }
    assert!(
        wrong.is_empty(),
        "{injection:?}: the table has changed:\n{}\nof\n{output}",
        wrong.join("\n")
    );
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A node whose driver is a world-readable directory of files, as a system's is.
fn node() -> (Node, Home) {
    let mut node = Node::new();
    let home = Home::make(node.root());
    node.start_daemon(&[]);
    programs::publish(node.root());
    (node, home)
}

/// The system's environment: its driver and the simulated GPU's device directory.
fn keep(node: &Node, home: &Home) -> String {
    let device = node.root().join("device");
    format!(
        "PATH=/usr/bin:/bin LD_LIBRARY_PATH={} GPUSLICE_SIM_DEVICE={}",
        home.driver,
        device.display()
    )
}

fn check_run(test: &str, injection: Injection, word: &str) {
    if !is_root() {
        return skip(test, "a set-user-id program of another user needs root");
    }
    let (node, home) = node();
    node.exceed("injection::ways");
    let mut run = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
    run.args(["run", "--quiet", "--memory", "1GiB", "--inject", word])
        .arg("--runtime-dir")
        .arg(node.runtime_dir())
        .args(["--", "sh", "-c", &script(&home, &keep(&node, &home))]);
    judge(injection, &text(&run.output().expect("gpuslice starts")));
}

#[test]
fn without_injection_every_way_leads_to_the_driver() {
    if !is_root() {
        return skip("bare", "a set-user-id program of another user needs root");
    }
    let (node, home) = node();
    let keep = keep(&node, &home);
    let mut sh = Command::new("env");
    sh.arg("-i").args(keep.split(' '));
    let output = sh.args(["sh", "-c", &script(&home, &keep)]).output();
    judge(Injection::Bare, &text(&output.expect("sh")));
}

#[test]
fn ways_under_preload_injection() {
    check_run("ways_under_preload_injection", Injection::Preload, "preload");
}

#[test]
fn ways_under_mount_injection() {
    check_run("ways_under_mount_injection", Injection::Mount, "mount");
}

#[test]
fn ways_of_an_ordinary_user() {
    let test = "ways_of_an_ordinary_user";
    if !is_root() {
        return skip(test, "switching to another user needs root");
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
    match enter::as_ordinary_user(root.path(), &home, &script) {
        Some(output) => judge(Injection::User, &text(&output)),
        None => skip(test, "this kernel gives ordinary users no namespaces"),
    }
}

/// A container: every way from its first process, and again from a new login with a clean
/// environment.
#[test]
fn ways_in_a_container() {
    let Some(hook) = hook("ways_in_a_container", "runc") else {
        return;
    };
    let (node, outside) = node();
    node.exceed("injection::ways");
    let bundle = Bundle::new(node.root(), "ways", "runc", node.runtime_dir())
        .annotation("gpuslice.io/memory", &Bytes(CAP).0.to_string())
        .command(&["/bin/sleep", "600"])
        .edit(|config| config["process"]["noNewPrivileges"] = false.into());
    let home = outside.inside(&bundle);
    let script = script(&home, "PATH=/bin");
    let mut running = bundle.started(&hook);
    let login = running.exec(&["/bin/sh", "-c", &script]);
    judge(Injection::Container, &printed(&login));
    drop(running);

    let bundle = Bundle::new(node.root(), "first", "runc", node.runtime_dir())
        .annotation("gpuslice.io/memory", &Bytes(CAP).0.to_string())
        .command(&["/bin/sh", "-c", &script])
        .edit(|config| config["process"]["noNewPrivileges"] = false.into());
    outside.inside(&bundle);
    judge(Injection::Container, &printed(&bundle.run(&hook)));
}
