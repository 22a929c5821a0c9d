//! Objections to accounts of wall time.

use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::waits::{WaitBehind, WaitCause};

use super::*;

/// The figures of a row, ns.
#[derive(Clone, Copy)]
struct Parts {
    running: u64,
    waiting: u64,
    handover: u64,
    limited: u64,
    idle: u64,
    behind: [(u64, u64); 2],
}

fn row(n: usize, parts: Parts) -> Snapshot {
    let wait = |(n, total_ns): (u64, u64)| WaitBehind {
        container: (total_ns > 0).then(|| -> ContainerId { container(n) }),
        total_ns,
        longest_ns: total_ns,
        cause: WaitCause::Queue,
        by_cause_ns: [total_ns, 0, 0, 0, 0],
    };
    Snapshot::SliceTime {
        container: container(n as u64),
        gpu: gpu(0),
        lane: Lane(0),
        since_ns: 0,
        running_ns: parts.running,
        waiting_ns: parts.waiting,
        handover_ns: parts.handover,
        limited_ns: parts.limited,
        gang_ns: 0,
        idle_ns: parts.idle,
        suspended_ns: 0,
        absent_ns: 0,
        behind: [wait(parts.behind[0]), wait(parts.behind[1]), WaitBehind::default()],
        others_ns: 0,
    }
}

/// The first container has a turn of 8 ms, and has drained 1 ms later. The second one is runnable 3 ms after the
/// begin, and has the GPU for 1 ms. The third one is idle. An honest drain takes 0.1 ms.
fn told() -> Story {
    let all = [(1, 0, Class::Normal); 3];
    let mut story = Story::of(&all);
    story.says(0, runnable(0, 0), &[turn(0, 1, 8 * MS)]).expect("fine");
    story.then(3 * MS, &[]).expect("fine");
    story.says(1, runnable(0, 0), &[]).expect("fine");
    story.then(5 * MS, &[turn(0, 2, 8 * MS)]).expect("fine");
    story.then(MS, &[]).expect("fine");
    story.says(0, runnable(1, 1), &[turn(1, 1, 17 * MS)]).expect("fine");
    story.then(MS, &[]).expect("fine");
    story
}

const US: u64 = 1_000;
/// The second container's row.
const SECOND: Parts = Parts {
    running: MS,
    waiting: 5_900 * US,
    handover: 100 * US,
    limited: 0,
    idle: 3 * MS,
    behind: [(0, 5_900 * US), (0, 0)],
};

#[test]
fn to_no_split_that_is_right() {
    let story = told();
    assert_eq!(story.checkers.wall_time(&row(1, SECOND)), Ok(()));
    let (running, waiting) = (9 * MS, MS);
    let behind = [(1, MS), (0, 0)];
    let first = Parts { running, waiting, handover: 0, limited: 0, idle: 0, behind };
    assert_eq!(story.checkers.wall_time(&row(0, first)), Ok(()));
}

#[test]
fn to_a_wrong_split() {
    let story = told();
    let us = |us: u64| us * US;
    for (wrong, about) in [
        (Parts { idle: SECOND.idle + 1, ..SECOND }, "wall time"),
        (Parts { running: us(900), idle: us(3_100), ..SECOND }, "running"),
        // idle by itself looks like a wait
        (Parts { idle: 0, waiting: us(8_900), behind: [(0, us(8_900)), (0, 0)], ..SECOND }, "idle"),
        // a wait looks like idle by itself
        (Parts { idle: us(8_900), waiting: 0, behind: [(0, 0); 2], ..SECOND }, "idle"),
        (
            Parts {
                handover: us(1_000),
                waiting: us(5_000),
                behind: [(0, us(5_000)), (0, 0)],
                ..SECOND
            },
            "hand-over",
        ),
        (
            Parts {
                limited: us(900),
                waiting: us(5_000),
                behind: [(0, us(5_000)), (0, 0)],
                ..SECOND
            },
            "limited",
        ),
        (Parts { behind: [(2, us(5_900)), (0, 0)], ..SECOND }, "behind c2"),
        (Parts { behind: [(0, us(5_000)), (2, us(900))], ..SECOND }, "behind c0"),
        (Parts { behind: [(0, us(5_000)), (0, 0)], ..SECOND }, "waiting"),
    ] {
        objects(story.checkers.wall_time(&row(1, wrong)), about);
    }
}

/// Time that a row of its own could show is not hidden among others.
#[test]
fn to_a_culprit_that_is_not_named() {
    let story = told();
    let mut hidden = row(1, SECOND);
    if let Snapshot::SliceTime { behind, others_ns, .. } = &mut hidden {
        *others_ns = behind[0].total_ns;
        behind[0] = WaitBehind::default();
    }
    objects(story.checkers.wall_time(&hidden), "not shown is c0");
}
