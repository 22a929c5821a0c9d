//! The last minutes and recorded turns: what `gpuslice plot` and `gpuslice record` show is what the tenants got.

use super::wall_time::number;
use super::{Tenant, bill, must, node, settles};
use crate::harness::cli::{json, refused};
use crate::harness::eventually;
use crate::harness::node::{Node, denied};
use gpuslice_wire::admin::{Answer, Command, Denial};
use gpuslice_wire::family::Family;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::Bytes;
use serde_json::Value;
use std::time::Duration;

/// The samples of a container in an answer of `gpuslice plot`, oldest first.
fn series(all: &Value, container: &str) -> Vec<Value> {
    let series = all["series"].as_array().expect("a list");
    let mut found = series.iter().filter(|it| it["container"] == container);
    found.next().map_or(Vec::new(), |it| it["samples"].as_array().expect("a list").clone())
}

/// The samples of a container, oldest first.
fn samples(node: &Node, container: &str) -> Vec<Value> {
    series(&json(node, &["plot", "--json"]), container)
}

const PARTS: [&str; 6] =
    ["running_us", "handover_us", "limited_us", "gang_us", "idle_us", "absent_us"];

/// The two slices, and what each is due of a second in which both have work, millionths.
const SLICES: [(&str, u64); 2] = [("a", 250_000), ("b", 750_000)];

/// What was charged to each slice, and the samples that were asked for after that.
struct Look {
    charged_us: [u64; 2],
    samples: [Vec<Value>; 2],
}

impl Look {
    fn at(node: &Node) -> Look {
        let charged_us = SLICES.map(|(container, _)| bill(node, container).as_micros() as u64);
        let all = json(node, &["plot", "--json"]);
        Look { charged_us, samples: SLICES.map(|(container, _)| series(&all, container)) }
    }

    /// Whether both had work in all of the second of this sample. Else turns may not divide all of it, and what was
    /// charged is cut down to what NVML shows.
    fn is_shared(&self, sample: &Value) -> bool {
        SLICES.iter().zip(&self.samples).all(|((_, due), all)| {
            let mut same = all.iter().filter(|it| it["unix_ns"] == sample["unix_ns"]);
            same.any(|it| number(&it["due_ppm"]).abs_diff(*due) < 10_000)
        })
    }
}

/// Asserts that each sample is as long as its parts, that they follow one another, and that what a slice got in a
/// shared second is what was charged to it. Returns how many shared seconds were compared.
///
/// The bills are read at other moments than the samples. But a look that does not show a sample yet read its bill
/// before that sample's end, and the look after the first one that shows it read its bill after that.
fn judge(looks: &[Look]) -> usize {
    let last = looks.last().expect("a look");
    let mut compared = 0;
    for (of, (container, _)) in SLICES.iter().enumerate() {
        let all = &last.samples[of];
        for sample in all {
            // nine sums are cut to µs
            let waits = sample["wait_us"].as_object().expect("causes");
            let parts: u64 = PARTS.iter().map(|part| number(&sample[*part])).sum();
            let parts = parts + waits.values().map(number).sum::<u64>();
            assert!(parts.abs_diff(number(&sample["length_us"])) <= 12, "{sample}");
        }
        for (at, two) in all.windows(2).enumerate() {
            let [before, sample] = two else { continue };
            let length = (number(&sample["unix_ns"]) - number(&before["unix_ns"])) / 1_000;
            assert!(length.abs_diff(number(&sample["length_us"])) <= 1, "{before} {sample}");
            let first = |at: usize| looks.iter().position(|it| it.samples[of].len() > at);
            let (Some(begin), Some(end)) = (first(at), first(at + 1)) else { continue };
            if begin == 0 || end + 1 == looks.len() || !last.is_shared(sample) {
                continue;
            }
            let charged = |look: usize| looks[look].charged_us[of];
            let least = charged(end - 1).saturating_sub(charged(begin + 1));
            let most = charged(end + 1) - charged(begin - 1);
            let got = number(&sample["got_us"]);
            assert!((least..=most).contains(&got), "{container}: {got} of {least} to {most}");
            compared += 1;
        }
    }
    compared
}

#[test]
fn the_last_minutes_show_what_each_slice_got() {
    let (node, machine) = node();
    must(&node, &["set", "b", "--weight", "3"]);
    let heavy = Tenant::start(&node, &machine, "b", 500);
    let light = Tenant::start(&node, &machine, "a", 500);
    light.gets(&machine, Duration::from_millis(10));
    let mut looks = Vec::new();
    // On a busy machine a program may have no work for a part of a second, and is due less of it.
    eventually("three seconds in which both had work all the time", || {
        looks.push(Look::at(&node));
        judge(&looks) >= 6
    });
    let sum = |container: &str| -> u64 {
        samples(&node, container).iter().map(|it| number(&it["got_us"])).sum()
    };
    let (light_got, heavy_got) = (sum("a"), sum("b"));
    // Equal parts would be wrong; on a busy machine the heavy one had no work for a part of the time.
    assert!(2 * heavy_got > 3 * light_got, "{light_got} {heavy_got}");
    let last = samples(&node, "a").pop().expect("a sample");
    assert!(number(&last["memory"]) >= 400 << 20, "{last}");
    drop(heavy);
    must(&node, &["rm", "--force", "b"]);
    // an ended slice is remembered, by its name too
    let lines = must(&node, &["plot", "--since", "1m"]);
    assert!(lines.contains("\n  a  ") && lines.contains("\n  b  "), "{lines}");
    assert!(must(&node, &["plot", "--slice", "b"]).contains("\n  b  "));
    let picture = node.root().join("out.svg").display().to_string();
    let table = node.root().join("out.csv").display().to_string();
    must(&node, &["plot", "-o", &picture]);
    must(&node, &["plot", "--slice", "a", "-o", &table]);
    let picture = std::fs::read_to_string(&picture).expect("a picture");
    assert!(picture.starts_with("<svg ") && picture.contains(">b</text>"), "{picture}");
    let table = std::fs::read_to_string(&table).expect("a table");
    assert!(
        table.lines().count() > 3 && table.lines().skip(1).all(|line| line.contains(",a,a,0,")),
        "{table}"
    );
}

/// What a program's memory is used for is in the answer; a container without a slice is refused by its name.
#[test]
fn a_program_is_shown_with_its_memory() {
    let (node, machine) = node();
    let tenant = Tenant::start(&node, &machine, "a", 500);
    let admin = node.admin();
    let ask = |container: &str| {
        let container = crate::harness::node::id(container);
        admin.0.send(9, &Command::Processes { container }).expect("the daemon reads");
    };
    ask("a");
    let (_, row, _) = admin.0.message::<Snapshot>().expect("a row");
    let Snapshot::Process { pid, name, used, families, contexts, launches, .. } = row else {
        panic!("a process, not {row:?}");
    };
    assert_eq!((pid, name.as_str(), contexts), (tenant.child.id(), "tenant", 1));
    let context = families[Family::Contexts as usize];
    assert!(context > Bytes::ZERO && used > context && launches > 0, "{row:?}");
    let others = families.iter().map(|it| it.0).sum::<u64>() - context.0;
    assert_eq!(others, 0, "it makes plain allocations: {row:?}");
    let end = admin.0.message::<Snapshot>().expect("the end").1;
    assert!(matches!(end, Snapshot::End { .. }), "{end:?}");
    ask("nosuch");
    let (why, text) = denied(admin.0.message::<Answer>().expect("an answer").1);
    assert_eq!(why, Denial::NoSuchSlice);
    assert!(text.contains("nosuch"), "{text}");
}

/// What a recording shows that a busy machine disturbs.
#[derive(Debug)]
struct Recorded {
    fewest_turns: u64,
    /// Recorded of the length, %.
    busy: u64,
    /// Of b in the time of both, recorded and billed, %.
    shares: [u64; 2],
    /// No stretch overlaps another one: of programs that the machine holds up work may end beside turns.
    are_exclusive: bool,
}

/// Whether no two stretches of these kinds overlap.
fn are_exclusive(events: &[Value], kinds: &[&str]) -> bool {
    let is_meant = |it: &&Value| kinds.iter().any(|kind| it["name"] == *kind);
    let stretches = events.iter().filter(|it| it["ph"] == "X").filter(is_meant);
    let number = |it: &Value| it.as_f64().expect("a number");
    let mut stretches: Vec<(f64, f64)> =
        stretches.map(|it| (number(&it["ts"]), number(&it["dur"]))).collect();
    stretches.sort_by(|a, b| a.0.total_cmp(&b.0));
    stretches.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0 + 0.01)
}

/// Records, and asserts what holds on any machine.
fn recorded(node: &Node) -> Recorded {
    let file = node.root().join("turns.json").display().to_string();
    let before = ["a", "b"].map(|it| bill(node, it));
    must(node, &["record", "--for", "1500ms", "-o", &file]);
    let after = ["a", "b"].map(|it| bill(node, it));
    let text = std::fs::read_to_string(&file).expect("a trace");
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    let about = &trace["otherData"];
    let length = number(&about["length_ns"]);
    assert!(length >= 1_500_000_000, "{about}");
    assert_eq!(about["dropped"], 0);
    let slices = about["slices"].as_array().expect("a list");
    let of = |name: &str| slices.iter().find(|it| it["container"] == name).expect("a slice");
    let got = ["a", "b"].map(|it| number(&of(it)["gpu_ns"]));
    let grown = [0, 1].map(|at| (after[at] - before[at]).as_nanos() as u64);
    assert!(got[0] <= grown[0] && got[1] <= grown[1], "{got:?} recorded of {grown:?}");
    let sum = got[0] + got[1];
    assert!(sum <= length, "{sum} of {length}");
    let events = trace["traceEvents"].as_array().expect("a list");
    assert!(are_exclusive(events, &["turn"]), "turns overlap");
    let share = |[a, b]: [u64; 2]| 100 * b / (a + b).max(1);
    Recorded {
        fewest_turns: ["a", "b"].map(|it| number(&of(it)["turns"])).into_iter().min().expect("two"),
        busy: 100 * sum / length,
        shares: [share(got), share(grown)],
        are_exclusive: are_exclusive(events, &["turn", "drain", "overrun", "open"]),
    }
}

#[test]
fn a_recording_has_the_turns_of_a_stretch() {
    let (node, machine) = node();
    must(&node, &["set", "b", "--weight", "3"]);
    let _heavy = Tenant::start(&node, &machine, "b", 500);
    let light = Tenant::start(&node, &machine, "a", 500);
    light.gets(&machine, Duration::from_millis(50));
    settles(
        "a recording",
        || recorded(&node),
        |it| {
            // Both were billed a little longer than they were recorded.
            let shares = it.shares[0].abs_diff(it.shares[1]) <= 10;
            it.fewest_turns > 20 && it.busy >= 80 && shares && it.are_exclusive
        },
    );
    let picture = node.root().join("turns.svg").display().to_string();
    must(&node, &["record", "--for", "2s", "-o", &picture]);
    let picture = std::fs::read_to_string(&picture).expect("a picture");
    assert!(picture.contains("turns of ") && picture.contains(">a</text>"), "{picture}");
    let told = must(&node, &["record", "--for", "2s"]);
    assert!(told.starts_with("NAME ") && told.contains("\na "), "{told}");
}

#[test]
fn bad_words_are_refused() {
    let node = Node::start();
    for (words, why) in [
        (&["plot", "--since", "soon"][..], "not a time as 30s or 5m"),
        (&["plot", "--since", "1h"], "the daemon remembers 10m"),
        (&["plot", "-o", "out.png"], ".svg for a picture or in .csv"),
        (&["plot", "--slice", "nosuch"], "no slice was called \"nosuch\""),
        (&["plot", "-o", "/nosuch/out.svg"], "/nosuch is no directory"),
        (&["record", "--for", "1h"], "not between 10ms and 60s"),
        (&["record", "-o", "out.csv"], ".svg for a picture or in .json"),
    ] {
        let said = refused(&node, words);
        assert!(said.contains(why), "{words:?}: {said}");
    }
    assert_eq!(must(&node, &["plot"]), "no slice has used a GPU in this time\n");
    assert_eq!(must(&node, &["record", "--for", "10ms"]), "no slice used a GPU in this time\n");
}
