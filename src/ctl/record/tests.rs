//! The figures of lines, pictures and traces, from turns that are known.

use super::timeline::timeline;
use super::trace::trace;
use super::*;
use crate::top::picture::assert_picture;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::text::Name;
use gpuslice_wire::turns::TURNS_OF_FRAME;

const MS: u64 = 1_000_000;
const BEGAN: u64 = 50_000 * MS;

/// Two slices take turns of 4 and 12 ms with drains of 0.3 ms on one GPU; one of them overruns once. A third has
/// another GPU alone.
fn rows() -> Vec<TurnRow> {
    let mut rows = Vec::new();
    let mut at = BEGAN;
    let row = |track, kind, from: u64, to: u64| TurnRow {
        track,
        kind,
        from_ns: from,
        to_ns: to,
        gpu_ns: to - from,
    };
    for round in 0..30 {
        for (track, length) in [(1, 4 * MS), (2, 12 * MS)] {
            rows.push(row(track, TurnKind::Turn, at, at + length));
            at += length;
            let drain = if round == 11 && track == 2 { 60 * MS } else { 300_000 };
            rows.push(row(track, TurnKind::Drain, at, at + drain));
            at += drain;
            if round == 11 && track == 2 {
                rows.push(row(track, TurnKind::Overrun, at, at + 40 * MS));
            }
        }
    }
    rows.push(row(3, TurnKind::Open, BEGAN + 100 * MS, BEGAN + 300 * MS));
    rows.push(row(3, TurnKind::Open, BEGAN - 100 * MS, BEGAN)); // another client's
    rows
}

fn recording() -> Recording {
    let mut recording = Recording::default();
    let track = |number, name: &str, gpu| Turns::Track {
        number,
        container: ContainerId::new(name).expect("an id"),
        name: Name::new(name).expect("a name"),
        gpu: GpuUuid([gpu; 16]),
    };
    recording.take(vec![track(1, "web", 1), track(2, "train", 1), track(3, "batch", 2)], BEGAN);
    for some in rows().chunks(TURNS_OF_FRAME) {
        let mut frame = [TurnRow::default(); TURNS_OF_FRAME];
        frame[..some.len()].copy_from_slice(some);
        recording.take(vec![Turns::Rows { count: some.len() as u32, rows: frame }], BEGAN);
    }
    let (now_ns, unix_ns) = (BEGAN + 560 * MS, 1_800_000_000_000 * MS);
    recording.take(vec![Turns::End { now_ns, unix_ns, last: 0, more: 0, dropped: 0 }], BEGAN);
    recording.gpus = [1, 2].map(|n| (GpuUuid([n; 16]), format!("gpu {}", n - 1))).to_vec();
    recording.finish();
    recording
}

/// What a container got is the sum of its rows, whichever way they are shown.
#[test]
fn the_sum_of_turns_is_what_was_charged() {
    let recording = recording();
    let charged = |track| -> u64 {
        let ours = rows().into_iter().filter(|it| it.track == track && it.from_ns >= BEGAN);
        ours.map(|it| it.gpu_ns).sum()
    };
    let shown = trace(&recording);
    for (at, track) in [(1, 1), (0, 2), (2, 3)] {
        assert_eq!(recording.sums(track).gpu_ns, charged(track), "{track}");
        assert_eq!(shown["otherData"]["slices"][at]["gpu_ns"], charged(track), "{track}");
        let events = shown["traceEvents"].as_array().expect("events");
        let bars = events.iter().filter(|it| it["ph"] == "X" && it["tid"] == track);
        let sums = bars.map(|it| (it["args"]["charged_ns"].as_u64(), it["dur"].as_f64()));
        let (sum, length) = sums.fold((0, 0.0), |(sum, length), (ns, us)| {
            (sum + ns.expect("a number"), length + us.expect("a number"))
        });
        assert_eq!((sum, (length * 1_000.0).round() as u64), (charged(track), charged(track)));
    }
    assert_eq!(
        recording.sums(2),
        Sums {
            turns: 30,
            gpu_ns: 30 * 12 * MS + 29 * 300_000 + 100 * MS,
            longest: 112 * MS,
            late: 29 * 300_000 + 100 * MS
        }
    );
    let told = lines(&recording, None);
    assert_eq!(told[1], "train                30     468 ms   84 %    112 ms    108 ms  gpu 0");
    assert!(told[2].starts_with("web                  30     129 ms   23 %"), "{told:#?}");
    assert_eq!(lines(&Recording::default(), None), ["no slice used a GPU in this time"]);
    let mut long = recording;
    let name = "tenant-with-a-very-long-name-7";
    long.tracks.values_mut().for_each(|it| it.name = name.to_owned());
    let of = |most| lines(&long, most)[1].split("  ").next().map(str::to_owned);
    assert_eq!((of(None).as_deref(), of(Some(90)).as_deref()), (Some(name), Some(name)));
    assert!(lines(&long, Some(80)).iter().all(|line| line.width() <= 80));
}

/// A question in the middle of a turn cuts it. The parts are joined again.
#[test]
fn a_question_does_not_divide_a_turn() {
    let mut recording = recording();
    let turns = recording.rows.len();
    let at = recording.rows.iter().position(|it| it.to - it.from == 12 * MS).expect("a turn");
    let whole = recording.rows[at];
    let middle = whole.from + 5 * MS;
    recording.rows[at] = Stretch { to: middle, gpu_ns: 5 * MS, ..whole };
    recording.rows.push(Stretch { from: middle, gpu_ns: 7 * MS, ..whole });
    recording.finish();
    assert_eq!((recording.rows.len(), recording.rows[at]), (turns, whole));
}

#[test]
fn a_timeline_has_each_turn_at_its_place() {
    let told = timeline(&recording());
    // web's first turn: 4 ms of 560 ms on 1,000 px
    assert!(
        told.contains(r#"<rect x="150" y="90" width="7.14" height="18""#)
            || told.contains(r#"<rect x="150" y="112" width="7.14" height="18""#),
        "{told}"
    );
    assert!(told.contains("turn of 4 ms at 0"), "{told}");
    assert!(
        told.contains("overrun of 40 ms at") && told.contains("open of 200 ms at 100 ms"),
        "{told}"
    );
    assert!(told.contains("30 turns, got 84 %, longest 112 ms"), "{told}");
    assert!(told.contains(">1 turn, got 36 %"), "{told}");
    // a long recording has fewer bars than turns, and all of their time
    let long = Recording { length: 600_000 * MS, ..recording() };
    assert!(timeline(&long).matches("<title>").count() < 20);
    assert_picture("record.svg", &told);
}
