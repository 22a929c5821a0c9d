//! `gpuslice explain` finds why a container is slow: each test makes one container slow in one way, and the answer
//! has that reason, the culprit, and a command that `gpuslice` takes.
//!
//! The reasons compete: the one that took most time of the stretch is answered. A pause of the machine makes any part
//! longer, so each test makes its own by far the largest.

use super::helpers::waits_in;
use super::wall_time::{self, culprit, largest, number};
use super::{Tenant, late_turns, must, node, put_in_slice, settles};
use crate::harness::cli;
use crate::harness::node::{Node, admit};
use crate::harness::process::KillOnDrop;
use crate::harness::{eventually, target_dir};
use gpuslice_sim_device::Machine;
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::units::{Bytes, GIB};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// `gpuslice explain WORDS` on this node.
fn command(node: &Node, words: &[&str]) -> Command {
    cli::command(node, &[&["explain"], words].concat())
}

/// Its answer about each of the container's GPUs.
fn answer(output: &Output) -> Vec<Value> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let slices = all["slices"].as_array().expect("a list").clone();
    slices.iter().for_each(|slice| eprintln!("{slice}"));
    slices
}

/// Its answer about the container `a`, which has one GPU.
fn explained(node: &Node) -> Value {
    in_seconds(node, "2")
}

/// The same, of so many seconds.
fn in_seconds(node: &Node, seconds: &str) -> Value {
    let words = ["a", "--json", "--seconds", seconds];
    answer(&command(node, &words).output().expect("it starts")).remove(0)
}

/// An answer that `fits`, as most of up to five do, or one that does not: a machine that stands still gives one stretch
/// another reason.
fn explained_as(node: &Node, fits: impl Fn(&Value) -> bool) -> Value {
    in_seconds_as(node, "2", fits)
}

/// The same, each of so many seconds.
fn in_seconds_as(node: &Node, seconds: &str, fits: impl Fn(&Value) -> bool) -> Value {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    while good.len() < 3 && bad.len() < 3 {
        let answer = in_seconds(node, seconds);
        if fits(&answer) {
            good.push(answer)
        } else {
            bad.push(answer)
        }
        if bad.is_empty() {
            break; // as on a machine that is not busy
        }
    }
    if good.len() > bad.len() { good.remove(0) } else { bad.remove(0) }
}

/// Asserts the reason, and runs the command that is suggested.
fn assert_why(node: &Node, answer: &Value, why: &str, try_this: &str) {
    assert_eq!(answer["why"], why, "{answer}");
    let whole = format!("{try_this} --runtime-dir {}", node.runtime_dir().display());
    assert_eq!(answer["try"], whole, "{answer}");
    let words: Vec<&str> = whole.split(' ').collect();
    assert_eq!(words[0], "gpuslice");
    let output = Command::new(env!("CARGO_BIN_EXE_gpuslice")).args(&words[1..]).output();
    let output = output.expect("it starts");
    assert!(output.status.success(), "{whole}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A program in a container's slice.
fn spawn(node: &Node, container: &str, program: &[&str]) -> KillOnDrop {
    let mut command = Command::new(program[0]);
    put_in_slice(command.args(&program[1..]), node, container).stdout(Stdio::null());
    KillOnDrop(command.spawn().expect("it starts"))
}

#[test]
fn a_small_weight() {
    let (node, machine) = node();
    must(&node, &["set", "b", "--weight", "4"]);
    let _heavy = Tenant::start(&node, &machine, "b", 500);
    let light = Tenant::start(&node, &machine, "a", 500);
    light.gets(&machine, Duration::from_millis(50));
    let answer = explained_as(&node, |it| it["why"] == "weight");
    assert_why(&node, &answer, "weight", "gpuslice set a --weight 2");
    assert!(answer["sentence"].as_str().is_some_and(|it| it.contains("most behind b")), "{answer}");
}

#[test]
fn a_hard_share_and_a_share_limit() {
    let (node, machine) = node();
    must(&node, &["set", "a", "--share", "20", "--share-limit", "20"]);
    let tenant = Tenant::start(&node, &machine, "a", 500);
    tenant.gets(&machine, Duration::from_millis(100));
    assert_why(&node, &explained(&node), "share-limit", "gpuslice set a --share-limit none");
    must(&node, &["policy", "all", "fixed"]);
    assert_why(&node, &explained(&node), "policy-limit", "gpuslice set a --share-limit 40");
}

#[test]
fn a_neighbours_long_kernels() {
    let (node, machine) = node();
    let _long = Tenant::with(&node, &machine, "b", 700_000, &["--batch", "1"]);
    let short = Tenant::with(&node, &machine, "a", 1_000, &["--batch", "1"]);
    short.gets(&machine, Duration::from_millis(200));
    let mut before = Value::Null;
    let fits = |it: &Value| it["why"] == "behind" && it["cause"] == "long-kernel";
    let (parts, time) = wall_time::parts(&node, "a", || before = explained_as(&node, fits));
    assert!(parts["waiting"] >= 250, "{parts:?}");
    let (container, longest, cause) = culprit(&time);
    assert_eq!((container, cause), ("b", "long-kernel"), "{time}");
    assert!(longest > Duration::from_millis(300), "{longest:?}");
    assert_eq!((&before["behind"], &before["cause"]), (&"b".into(), &"long-kernel".into()));
    assert_why(&node, &before, "behind", "gpuslice set b --share-limit 50");
    // It helps: the long one is at its limit, and the other one has the rest. A lower class of the long one does not.
    // While the daemon is away for a moment, the long one runs, and has less than its limit until that is made up for.
    std::thread::sleep(Duration::from_secs(3));
    let is_half = |it: &Value| {
        let part = it["time"]["running_ns"].as_f64().zip(it["wall_ns"].as_f64());
        part.is_some_and(|(running, wall)| (0.35..0.65).contains(&(running / wall)))
    };
    let after = in_seconds_as(&node, "8", is_half);
    assert!(is_half(&after), "{before} {after}");
}

/// Two kernels of 3 s are queued. After 2 s they are waited for no longer, and run on beside the other one's turns.
#[test]
fn a_neighbour_that_has_overrun() {
    let lasted = (0..5).any(|_| {
        let (node, machine) = node();
        is_beside_an_overrun(&node, &machine)
    });
    assert!(lasted, "the kernels never outlasted a look");
}

/// Sets the scene, and asserts the answer if the kernels that had overrun before the look outlasted it. Returns whether
/// they did: on a busy machine the other program and the command start late.
fn is_beside_an_overrun(node: &Node, machine: &Machine) -> bool {
    let long = Tenant::with(node, machine, "b", 3_000_000, &["--batch", "1"]);
    let short = Tenant::with(node, machine, "a", 1_000, &["--batch", "1"]);
    short.gets(machine, Duration::from_millis(200));
    // No turn after the first late one: the kernels that are queued are those of that turn.
    let is_first = late_turns(node, "b") == 1;
    let queued = machine.context_info(long.context).expect("alive");
    let answer = explained(node);
    if !is_first || long.completed(machine) >= queued.completed + queued.pending {
        return false;
    }
    assert_eq!(answer["behind"], "b", "{answer}");
    assert!(answer["sentence"].as_str().is_some_and(|it| it.contains("outlast its turns")));
    assert_why(node, &answer, "beside", "gpuslice set b --share-limit 50");
    true
}

#[test]
fn its_own_data_loading() {
    let (node, machine) = node();
    let _busy = Tenant::start(&node, &machine, "b", 500);
    let loader = Tenant::with(&node, &machine, "a", 2_000, &["--pause-us", "200000"]);
    loader.gets(&machine, Duration::from_millis(6));
    let (_, time) = settles(
        "a program that does not wait, though another container is always busy",
        || wall_time::parts_of_a_while(&node, "a"),
        |(parts, _)| largest(parts) == "idle" && parts["waiting"] + parts["handover"] < 200,
    );
    assert_eq!(culprit(&time).0, "b");
    let answer = explained_as(&node, |it| it["why"] == "idle");
    assert_eq!(answer["why"], "idle", "{answer}");
    assert!(answer["sentence"].as_str().is_some_and(|it| it.contains("no work for the GPU")));
    assert!(answer["try"].as_str().is_some_and(|it| it.contains("more CPU")), "{answer}");
}

/// A program that is refused memory, ends, and is started again.
#[test]
fn refused_memory() {
    let (node, machine) = node();
    let _busy = Tenant::start(&node, &machine, "b", 500);
    let tenant = target_dir().join("tenant");
    let again = "while :; do \"$0\" --no-launch --step-mib 512; sleep 0.1; done";
    let _starts = spawn(&node, "a", &["sh", "-c", again, &tenant.display().to_string()]);
    eventually("a refusal", || super::shown(&node, "a")["denied"].as_u64() > Some(0));
    let answer = explained_as(&node, |it| it["why"] == "memory-refused");
    assert_eq!(answer["why"], "memory-refused", "{answer}");
    let sentence = answer["sentence"].as_str().expect("a text");
    assert!(sentence.contains("was refused memory ") && sentence.contains("its cap is 1GiB"));
    let (try_this, _) =
        answer["try"].as_str().and_then(|it| it.split_once(" --runtime-dir ")).expect("a command");
    assert!(try_this.starts_with("gpuslice set a --memory "), "{try_this}");
    assert_why(&node, &answer, "memory-refused", try_this);
    assert!(node.cap("a") > Some(Bytes(GIB)), "{:?}", node.cap("a"));
}

#[test]
fn a_higher_class() {
    let (node, machine) = node();
    must(&node, &["set", "b", "--priority", "high"]);
    let _high = Tenant::start(&node, &machine, "b", 500);
    let low = Tenant::start(&node, &machine, "a", 500);
    low.gets(&machine, Duration::from_millis(10));
    let mut answer = Value::Null;
    let explain = || answer = explained_as(&node, |it| it["cause"] == "higher-class");
    let (parts, time) = wall_time::parts(&node, "a", explain);
    assert_eq!((largest(&parts), culprit(&time).0), ("waiting", "b"));
    // Not the longest single wait: a busy machine may stop the other program in the middle of its turn.
    let causes = time["behind"][0]["by_cause_ns"].as_object().expect("times by cause");
    let most = causes.iter().max_by_key(|(_, ns)| number(ns)).expect("five causes");
    assert_eq!(most.0, "higher-class", "{time}");
    assert_eq!((&answer["behind"], &answer["cause"]), (&"b".into(), &"higher-class".into()));
    assert_why(&node, &answer, "behind", "gpuslice set a --priority high");
}

/// A container with two GPUs, of which another container has one for its long kernels; the other one is its own, then
/// a third container uses it now and then.
#[test]
fn a_missing_partner_of_a_gang() {
    let (node, machine) = node();
    for (container, gpus) in [("c", "0,1"), ("d", "1")] {
        node.must_grant(&admit(container, gpus, MemoryAsk::Exactly(Bytes(GIB))));
    }
    must(&node, &["set", "d", "--weight", "9"]);
    let collectives = target_dir().join("collectives").display().to_string();
    let _gang = spawn(&node, "c", &[&collectives, "600"]);
    eventually("a gang", || super::shown(&node, "c")["gang"] == true);
    let tenant = target_dir().join("tenant").display().to_string();
    let long = ["--seconds", "600", "--step-mib", "512", "--kernel-us", "400000", "--batch", "1"];
    let device = ["--device", "1"];
    let _long = spawn(&node, "d", &[&[tenant.as_str()], &long[..], &device].concat());
    eventually("work of d", || super::bill(&node, "d") > Duration::from_millis(900));
    let ask = || {
        // Over several of the long kernels: of two seconds the gang may have more than half.
        let words = ["c", "--json", "--seconds", "6"];
        let answers = answer(&command(&node, &words).output().expect("it starts"));
        assert_eq!(answers.len(), 2);
        let there = answers.iter().find(|it| it["index"] == 1).expect("GPU 1");
        assert_eq!((&there["why"], &there["behind"]), (&"behind".into(), &"d".into()), "{there}");
        let here = answers.iter().find(|it| it["index"] == 0).expect("GPU 0");
        let said = here["sentence"].to_string() + &here["notes"].to_string();
        assert!(said.contains("gpu 1 (simulated) of its gang, which d has"), "{said}");
        (here.clone(), there["try"].as_str().expect("an advice").to_owned())
    };
    let (alone, _) = ask();
    let told = (&alone["why"], &alone["time"]["gang_ns"]);
    assert_eq!(told, (&"nothing".into(), &0.into()), "it has the GPU for itself: {alone}");
    let _now_and_then = Tenant::with(&node, &machine, "b", 500, &["--pause-us", "10000"]);
    let (here, there) = ask();
    assert!(here["time"]["gang_ns"].as_u64() > Some(1_000_000_000), "{here}");
    // What helps on the other GPU helps here: a lower class of the one with long kernels does not.
    assert_eq!((&here["try"], &here["cause"]), (&there.into(), &"long-kernel".into()), "{here}");
    assert_why(&node, &here, "gang", "gpuslice set d --share-limit 90");
}

/// The daemon stops for most of the stretch, or is killed and started again in it.
#[test]
fn an_absent_daemon() {
    let (mut node, machine) = node();
    let tenant = Tenant::start(&node, &machine, "a", 500);
    tenant.gets(&machine, Duration::from_millis(50));
    let watch = |node: &Node, seconds: &str| {
        let mut command = command(node, &["a", "--json", "--seconds", seconds]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.expect("it starts");
        let pid = Pid::from_raw(child.id().cast_signed());
        eventually("its first look", || waits_in(pid) == Some(libc::SYS_clock_nanosleep));
        child
    };
    let asked = watch(&node, "4");
    let begin = Instant::now();
    kill(node.pid(), Signal::SIGSTOP).expect("it lives");
    std::thread::sleep(Duration::from_secs(3));
    kill(node.pid(), Signal::SIGCONT).expect("it lives");
    assert!(node.containers().contains("a"), "it answers");
    let away = begin.elapsed().as_secs_f64();
    let frozen = answer(&asked.wait_with_output().expect("it ends")).remove(0);
    assert_eq!(frozen["why"], "daemon-away", "{frozen}");
    let sentence = frozen["sentence"].as_str().expect("a text");
    let told = sentence.strip_prefix("the daemon was away for ").and_then(|it| it.split_once(' '));
    let seconds = told.and_then(|it| it.0.parse::<f64>().ok());
    // Less the time until it is missed.
    assert!(seconds.is_some_and(|it| (2.0..away + 0.5).contains(&it)), "{sentence}; {away} s");

    // The next daemon starts later than it is asked.
    let asked = watch(&node, "3");
    node.end_daemon(Signal::SIGKILL);
    std::thread::sleep(Duration::from_secs(4));
    node.start_daemon(&[]);
    let killed = answer(&asked.wait_with_output().expect("it ends")).remove(0);
    assert_eq!(killed["why"], "daemon-away", "{killed}");
    // Later it is told beside whatever is the reason then.
    tenant.gets(&machine, Duration::from_millis(50));
    let later = explained(&node);
    let noted = later["notes"][0].as_str().is_some_and(|note| note.contains("was away until"));
    assert!(later["why"] == "daemon-away" || noted, "{later}");
}

/// A program that is alone takes no turns. With a short kernel now and then it always claims work, and uses little.
#[test]
fn a_program_alone_that_uses_little() {
    let (node, machine) = node();
    let alone = Tenant::with(&node, &machine, "a", 200, &["--batch", "1", "--pause-us", "10000"]);
    alone.gets(&machine, Duration::from_millis(10));
    let answer = explained(&node);
    let claimed = answer["time"]["running_ns"].as_f64().zip(answer["wall_ns"].as_f64());
    assert!(claimed.is_some_and(|(running, wall)| running > 0.5 * wall), "{answer}");
    assert!(answer["got"].as_f64().is_some_and(|got| got < 0.3), "{answer}");
    let gpus = cli::json(&node, &["gpus", "--json"]);
    assert!(gpus["gpus"][0]["busy"].as_f64().is_some_and(|busy| busy < 0.3), "{gpus}");
}

#[test]
fn the_text_for_people() {
    let (node, machine) = node();
    let _busy = Tenant::start(&node, &machine, "b", 500);
    let run = |words: &[&str]| {
        let output = command(&node, words).output().expect("it starts");
        let text = [&output.stdout[..], &output.stderr].concat();
        (output.status.success(), String::from_utf8(text).expect("text"))
    };
    // In so short a look, a program or a daemon that does not run for a moment is a reason.
    eventually("a look without a pause", || {
        let (fine, all) = run(&["--seconds", "0.5"]);
        let lines: Vec<&str> = all.lines().collect();
        assert!(fine && lines.len() == 2, "{all}");
        let has_the_gpu = lines[1].starts_with("b  gpu 0  has the GPU");
        assert!(!has_the_gpu || lines[0].starts_with("a  gpu 0  has no process"), "{all}");
        has_the_gpu
    });
    let (fine, one) = run(&["b", "--since-start"]);
    assert!(fine && one.starts_with("b, gpu 0 (simulated), "), "{one}");
    assert!(one.contains("\n  why:   ") && one.contains("\n  time:  "), "{one}");
    assert!(one.contains("note:  an allocation of "), "{one}");
    for (words, why) in [
        (&["nosuch"][..], "no slice is called \"nosuch\""),
        (&["--seconds", "0"], "not between 0.1 and 3600 seconds"),
        (&["--seconds", "x"], "not a number of seconds"),
        (&["--seconds", "1", "--since-start"], "cannot be used with"),
    ] {
        let (fine, said) = run(words);
        assert!(!fine && said.contains(why), "{words:?}: {said}");
    }
}
