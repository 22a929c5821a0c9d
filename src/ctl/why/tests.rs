//! Each reason from made-up snapshots, two seconds apart.

mod advice;

use super::*;
use crate::table::tests::{gpu, slice};
use crate::table::{DaemonState, Gpu, MemoryLimit, MemoryWait};
use crate::wall_time::WallTime;
use clap::Parser;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::policy::ClassCaps;
use gpuslice_wire::samples::Sample;
use gpuslice_wire::snapshot::TimeEnforcement;
use gpuslice_wire::units::Bytes;
use gpuslice_wire::waits::{WAITS_SHOWN, WaitBehind};
use std::path::Path;

const S: u64 = 1_000_000_000;
/// The begin of every account.
const SINCE: u64 = 10 * S;
/// The first and the second snapshot.
const FIRST: u64 = 100 * S;
const SECOND: u64 = 102 * S;

/// Parts in percent of the two seconds.
#[derive(Clone, Copy, Default)]
struct Parts {
    running: u64,
    waiting: u64,
    handover: u64,
    limited: u64,
    gang: u64,
    idle: u64,
    suspended: u64,
    absent: u64,
    /// Percent behind the container `b`, by cause.
    by_cause: [u64; 5],
}

fn time(container: &str, old: u64, parts: Parts) -> WallTime {
    // a life that says the opposite: 90 s in which it was mostly idle, and waited behind c
    let of = |percent: u64, before: u64| before * S + old * percent * 2 * S / 100;
    let mut behind = [WaitBehind::default(); WAITS_SHOWN];
    behind[0] = WaitBehind {
        container: ContainerId::new("c").ok(),
        total_ns: 9 * S,
        longest_ns: S,
        cause: WaitCause::Queue,
        by_cause_ns: [9 * S, 0, 0, 0, 0],
    };
    let by_cause_ns = parts.by_cause.map(|percent| of(percent, 0));
    behind[1] = WaitBehind {
        container: ContainerId::new("b").ok().filter(|_| old > 0),
        total_ns: by_cause_ns.iter().sum(),
        longest_ns: 3 * S / 2,
        cause: WaitCause::Queue,
        by_cause_ns,
    };
    WallTime {
        container: ContainerId::new(container).expect("an id"),
        gpu: GpuUuid([1; 16]),
        since_ns: SINCE,
        parts: [
            ("running", of(parts.running, 1)),
            ("waiting", of(parts.waiting, 9)),
            ("handover", of(parts.handover, 0)),
            ("limited", of(parts.limited, 0)),
            ("gang", of(parts.gang, 0)),
            ("idle", of(parts.idle, 80)),
            ("suspended", of(parts.suspended, 0)),
            ("absent", of(parts.absent, 0)),
        ],
        behind,
        others_ns: 0,
    }
}

/// A daemon, with the end and the length of its last absence.
fn daemon(started_ns: u64, (absent_until_ns, absent_ns): (u64, u64)) -> DaemonState {
    DaemonState { started_ns, absent_until_ns, absent_ns, class_caps: ClassCaps::ALL }
}

/// Two views of `a`, beside `b` and others that are busy; `change` alters the second one.
fn views(parts: Parts, change: impl Fn(&mut View)) -> (View, View) {
    let view = |now_ns, old| {
        let gpu_ns = old * parts.running * 2 * S / 100;
        let rows = vec![
            slice("a", 1, None, true, gpu_ns),
            slice("b", 3, None, true, 0),
            slice("c", 1, None, false, 0),
        ];
        let worked =
            |row: Row| Row { runnable_ns: if row.runnable != 0 { now_ns } else { 0 }, ..row };
        let rows = rows.into_iter().map(worked).collect();
        let daemon = daemon(S, (0, 0));
        View {
            now_ns,
            gpus: vec![Gpu { total: Bytes(4 << 30), ..gpu(1, 0) }],
            rows,
            times: vec![time("a", old, parts)],
            daemon: Some(daemon),
            ..View::default()
        }
    };
    let (before, mut now) = (view(FIRST, 0), view(SECOND, 1));
    change(&mut now);
    (before, now)
}

/// The reason for `a`'s state, and its words.
fn why(parts: Parts, change: impl Fn(&mut View)) -> (Why, Told) {
    let (before, now) = views(parts, change);
    let finding = decide(Some(&before), &now, &now.rows[0]);
    let told = words(&finding, &now);
    (finding.why, told)
}

/// What a finding about `a` says. A command that it suggests is one that `gpuslice` takes.
fn words(finding: &Finding, now: &View) -> Told {
    let told = finding.told(now, &now.rows[0]);
    for command in told.advice.iter().filter(|it| it.starts_with("gpuslice ")) {
        if let Err(error) = crate::Cli::try_parse_from(command.split(' ')) {
            panic!("{command}: {error}");
        }
    }
    told
}

const QUEUE: Parts = Parts {
    running: 25,
    waiting: 73,
    handover: 2,
    by_cause: [73, 0, 0, 0, 0],
    limited: 0,
    gang: 0,
    idle: 0,
    suspended: 0,
    absent: 0,
};

fn behind(by_cause: [u64; 5]) -> Parts {
    Parts { running: 8, waiting: 92, by_cause, ..Parts::default() }
}

fn parts(running: u64, rest: impl Fn(&mut Parts)) -> Parts {
    let mut parts = Parts { running, ..Parts::default() };
    rest(&mut parts);
    parts
}

fn no(_: &mut View) {}

/// Parts, a change of the second view, the reason, and a piece of the advice.
type Case = (Parts, fn(&mut View), Why, &'static str);

fn check(table: &[Case]) {
    for (parts, change, expected, command) in table {
        let (why, told) = why(*parts, change);
        assert_eq!(why, *expected, "{told:?}");
        assert!(told.advice.as_deref().unwrap_or("").contains(command), "{told:?}");
        assert!(!told.sentence.contains("starv") && told.sentence.is_ascii(), "{told:?}");
    }
}

#[test]
fn waiting_has_its_cause_and_its_command() {
    let longest = 3 * S / 2;
    let long = |cause| Why::Behind { container: "b".into(), cause, longest, late: 0 };
    let (kernels, drain) = (long(WaitCause::LongKernel), long(WaitCause::NoDrain));
    let (higher, gang) = (long(WaitCause::HigherClass), long(WaitCause::Gang));
    let last = "gpuslice set b --priority best-effort";
    let high: fn(&mut View) = |now| now.rows[1].class = Class::High;
    let lowest: fn(&mut View) = |now| now.rows[0].class = Class::BestEffort;
    let stopped: fn(&mut View) = |now| now.rows[1].time_enforcement = TimeEnforcement::Preempt;
    // it has a limit already that is no larger than what it is due; a share that no limit may be below
    let limited: fn(&mut View) = |now| {
        (now.rows[1].share_limit, now.rows[1].cap_ppm) = (Some(60), 600_000);
    };
    let shared: fn(&mut View) = |now| {
        (now.rows[1].share, now.rows[1].share_limit) = (Some(60), Some(60));
        now.rows[1].cap_ppm = 600_000;
    };
    check(&[
        (QUEUE, no, Why::Weight, "gpuslice set a --weight 2"),
        (behind([2, 0, 90, 0, 0]), no, kernels.clone(), "gpuslice set b --share-limit 75"),
        (behind([2, 0, 10, 80, 0]), no, drain, "preemption = \"probe\""),
        (behind([2, 0, 90, 0, 0]), limited, kernels.clone(), "gpuslice set b --share-limit 30"),
        (behind([2, 0, 90, 0, 0]), shared, kernels.clone(), "preemption = \"probe\""),
        (behind([2, 0, 90, 0, 0]), stopped, kernels, last),
        (behind([2, 85, 5, 0, 0]), high, higher, "gpuslice set a --priority high"),
        (behind([10, 0, 0, 0, 82]), no, gang.clone(), last),
        (behind([10, 0, 0, 0, 82]), lowest, gang, "gpuslice set a --priority normal"),
    ]);
}

#[test]
fn a_limit_and_a_share_are_told_from_a_weight() {
    let limited = parts(20, |it| it.limited = 80);
    let queued = Parts { running: 20, waiting: 80, by_cause: [80, 0, 0, 0, 0], ..QUEUE };
    let own: fn(&mut View) =
        |now| (now.rows[0].share_limit, now.rows[0].cap_ppm) = (Some(20), 200_000);
    let fair: fn(&mut View) =
        |now| (now.rows[0].cap_ppm, now.gpus[0].policy) = (62_500, Policy::Fair);
    let share: fn(&mut View) = |now| (now.rows[0].share, now.rows[0].weight) = (Some(25), None);
    let fixed: fn(&mut View) = |now| {
        (now.rows[0].share, now.rows[0].weight) = (Some(25), None);
        (now.rows[0].cap_ppm, now.gpus[0].policy) = (250_000, Policy::Fixed);
    };
    check(&[
        (limited, own, Why::Limit, "gpuslice set a --share-limit none"),
        (limited, fair, Why::PolicyLimit, "gpuslice policy 0 soft"),
        (limited, fixed, Why::PolicyLimit, "gpuslice set a --share-limit 50"),
        // where others take all the rest, the time until it is due again is waiting
        (queued, own, Why::Limit, "gpuslice set a --share-limit none"),
        (QUEUE, share, Why::Share, "gpuslice set a --weight 1"),
    ]);
}

#[test]
fn what_no_other_container_causes_blames_none() {
    let loads = parts(2, |it| (it.idle, it.waiting) = (90, 8));
    let native: fn(&mut View) = |now| now.gpus[0].policy = Policy::Native;
    check(&[
        (loads, no, Why::Idle, "more CPU"),
        (parts(0, |it| it.idle = 100), |now| now.rows[0].clients = 0, Why::NoProcess, ""),
        (parts(30, |it| it.absent = 70), no, Why::Away, "journalctl"),
        (parts(99, |it| it.idle = 1), no, Why::Nothing, ""),
        (parts(100, |_| ()), native, Why::NoTurns, "policy 0 soft"),
    ]);
}

/// A column that is too narrow loses the name first.
#[test]
fn a_reason_outlives_the_name_of_the_container_in_it() {
    let (_, told) = why(behind([0, 0, 92, 0, 0]), |now| {
        now.rows
            .iter_mut()
            .filter(|it| it.container == "b")
            .for_each(|it| it.name = "trainer".into());
    });
    let shown = [40, 21, 18, 15, 12, 6].map(|width| told.fitted(width));
    let whole = "trainer: long kernels";
    assert_eq!(
        shown,
        [
            whole,
            whole,
            "tra\u{2026}: long kernels",
            "long kernels",
            "long kernels",
            "long \u{2026}"
        ]
    );
}

/// What a limit above the cap means for a slice is told beside its reason; so is time suspended, once it is over.
#[test]
fn loans_and_past_suspensions_are_notes() {
    let parts = parts(50, |it| it.suspended = 50);
    let (found, told) = why(parts, |now| {
        let row = &mut now.rows[0];
        row.used = Bytes(3 << 30);
        let limit = MemoryLimit { limit: Bytes(2 << 30), wanted: Bytes(1 << 20) };
        now.limits.insert((row.container.clone(), row.gpu), limit);
    });
    assert_eq!(found, Why::Nothing);
    let notes = told.notes.join("; ");
    for said in ["more than its memory limit of 2GiB", "suspended for 1.0 s", "give back 1MiB"] {
        assert!(notes.contains(said), "{notes}");
    }
}

/// A suspended container has no other reason, whatever its account shows; and no command helps one that is on the way.
#[test]
fn a_suspended_container_is_told_to_be_resumed() {
    use gpuslice_wire::snapshot::SuspensionState::{Resuming, Suspended, Suspending};
    let refused = parts(0, |it| it.idle = 100);
    for (state, begins, command) in [
        (Suspending, "is being suspended: 768MiB move to the host", None),
        (Suspended, "is suspended, with 768MiB on the host", Some("gpuslice resume a")),
        (Resuming, "is being resumed: 768MiB move back", None),
    ] {
        for account in [QUEUE, refused, behind([2, 0, 90, 0, 0])] {
            let (found, told) = why(account, |now| {
                (now.rows[0].reserved, now.rows[0].denied_at_ns) = (Bytes(768 << 20), SECOND - S);
                now.suspensions.insert("a".into(), state);
            });
            assert_eq!((found, told.label.as_str()), (Why::Suspended(state), state.name()));
            assert!(told.sentence.starts_with(begins), "{told:?}");
            assert_eq!(told.advice.as_deref(), command, "{told:?}");
        }
    }
}

/// A frozen container may be charged for work that does not go on: that is no reason.
#[test]
fn a_frozen_container_is_told_to_have_a_larger_cap() {
    for account in [QUEUE, parts(100, |_| ()), behind([2, 0, 90, 0, 0])] {
        let (found, told) = why(account, |now| {
            now.rows[0].reserved = Bytes(768 << 20);
            now.frozen.insert("a".into());
        });
        assert_eq!((found, told.label.as_str()), (Why::Frozen, "frozen"));
        assert!(told.sentence.starts_with("is frozen: it holds 768MiB"), "{told:?}");
        assert_eq!(told.advice.as_deref(), Some("gpuslice set a --memory 768MiB"), "{told:?}");
    }
}

/// Of all that a container lost time to.
#[test]
fn the_reason_is_what_took_most() {
    for (most, name) in ["idle", "weight", "share-limit", "gang", "daemon-away"].iter().enumerate()
    {
        let of = |at: usize| if at == most { 40 } else { 15 };
        let lost = parts(0, |it| {
            [it.idle, it.waiting, it.limited, it.gang, it.absent] = [0, 1, 2, 3, 4].map(of);
            it.by_cause[0] = it.waiting;
        });
        assert_eq!(why(lost, no).0.name(), *name);
    }
}

/// Whatever else grows: a container that is idle most of the time is idle.
#[test]
fn an_idle_container_never_waits() {
    for waiting in 0..=50 {
        let idle = parts(100 - 50 - waiting, |it| {
            (it.idle, it.waiting, it.by_cause[2]) = (50, waiting, waiting);
        });
        assert_eq!(why(idle, no).0, Why::Idle, "{waiting} %");
    }
}

#[test]
fn a_refusal_is_the_reason_where_nothing_else_is() {
    let refused = |now: &mut View, ago: u64| now.rows[0].denied_at_ns = SECOND - ago * S;
    // refused again and again in the stretch, between pauses
    let again = |now: &mut View| {
        refused(now, 1);
        now.rows[0].denied += 1;
    };
    let (found, told) = why(parts(10, |it| it.idle = 90), again);
    assert_eq!(found, Why::Refused(S));
    assert_eq!(told.advice.as_deref(), Some("gpuslice set a --memory 1026MiB"), "{told:?}");
    assert!(
        told.sentence.contains("asked for 3MiB, and could get 1MiB; its cap is 1GiB"),
        "{told:?}"
    );
    let (_, told) = why(parts(10, |it| it.idle = 90), |now| {
        again(now);
        now.rows[0].denied_credit = Bytes(5 << 20);
    });
    assert!(told.sentence.ends_with("5MiB were unused credit of its other processes"), "{told:?}");
    // once, and nothing since
    let idle = parts(0, |it| it.idle = 100);
    assert_eq!(why(idle, |now| refused(now, 30)).0, Why::Refused(30 * S));
    // longer ago: its account was idle for 82 s, so that it worked after the earlier one of these
    assert_eq!(why(idle, |now| refused(now, 80)).0, Why::Refused(80 * S));
    assert_eq!(why(idle, |now| refused(now, 84)).0, Why::Idle);
    // once, and it works since: it probes how much there is
    let (found, told) = why(parts(10, |it| it.idle = 90), |now| refused(now, 30));
    assert_eq!((found, told.notes.len()), (Why::Idle, 1), "{told:?}");
    // it waits most of the time
    assert_eq!(why(QUEUE, again).0, Why::Weight);
    let full = |now: &mut View| {
        refused(now, 30);
        now.gpus[0].promised = now.gpus[0].total;
    };
    let advice = |change: &dyn Fn(&mut View)| {
        let changed = |now: &mut View| {
            full(now);
            change(now);
        };
        why(idle, changed).1.advice.unwrap_or_default()
    };
    let held = |now: &mut View| now.rows[1].reserved = Bytes(4 << 30);
    let whole = |now: &mut View| {
        now.rows.truncate(1);
        now.rows[0].cap = now.gpus[0].total;
    };
    assert!(
        advice(&held)
            .ends_with("left to promise: lower another container's cap, or use another GPU")
    );
    // within its cap: another slice has borrowed the memory
    let lent = |now: &mut View| {
        now.rows[1].used = Bytes(2 << 30);
        let limit = MemoryLimit { limit: Bytes(4 << 30), wanted: Bytes::ZERO };
        let (container, gpu) = (now.rows[1].container.clone(), now.rows[1].gpu);
        now.limits.insert((container, gpu), limit);
        now.rows[0].reserved = Bytes(512 << 20);
    };
    assert_eq!(advice(&lent), "gpuslice suspend b");
    let told = why(idle, |now| {
        full(now);
        lent(now);
    });
    assert!(told.1.sentence.ends_with("b has 1GiB beyond its own cap, and did not give it back"));
    // others leave memory unused, and no other slice has any
    assert_eq!(advice(&|_| ()), "gpuslice set a --memory-limit 1026MiB");
    assert_eq!(advice(&whole), "its cap is all of gpu 0: the program has to use less");
}

/// Its program stands in an allocation: that is not idleness.
#[test]
fn an_allocation_that_waits_for_lent_memory_is_the_reason() {
    let (found, told) = why(parts(0, |it| it.idle = 100), |now| {
        let of = |row: &Row| (row.container.clone(), row.gpu);
        let (own, other) = (of(&now.rows[0]), of(&now.rows[1]));
        let wait = MemoryWait { need: Bytes(512 << 20), since_ns: SECOND - 3 * S };
        now.waits.insert(own, wait);
        now.rows[1].used = Bytes(2 << 30);
        now.limits.insert(other, MemoryLimit { limit: Bytes(4 << 30), wanted: Bytes(512 << 20) });
    });
    assert_eq!((found.name(), told.label.as_str()), ("memory-lent", "memory lent"));
    assert_eq!(
        told.sentence,
        "waits for 512MiB within its cap since 3.0 s: b has 1GiB beyond its own, and is to give back what is missing"
    );
    assert_eq!(told.advice.as_deref(), Some("gpuslice suspend b"));
}

#[test]
fn a_restart_of_the_daemon_in_the_stretch_is_its_absence() {
    let (mut before, now) = views(parts(80, |_| ()), no);
    before.times[0].since_ns = S;
    before.now_ns = SINCE - 90 * S / 10;
    let finding = decide(Some(&before), &now, &now.rows[0]);
    let away = SINCE - before.now_ns;
    assert_eq!(finding.growth.absent, away);
    assert_eq!(finding.growth.wall, now.times[0].total() + away);
    // When the old daemon ended is not known.
    let told = words(&Finding { why: Why::Away, ..finding }, &now).sentence;
    assert!(
        told.starts_with(&format!("the daemon was away for up to {}", duration(away))),
        "{told}"
    );
    // and in it, if nothing else is notable
    let (found, told) = why(parts(99, |it| it.idle = 1), |now| {
        now.daemon = Some(daemon(SECOND - S, (0, 0)));
    });
    assert_eq!(found, Why::Away, "{told:?}");
    assert!(told.sentence.starts_with("the daemon was away, until 1.0 s ago"), "{told:?}");
    // The account after a restart has only the wait for processes to come back.
    let (_, told) = why(parts(60, |it| it.absent = 40), |now| {
        now.daemon = Some(daemon(SECOND - S, (0, 0)));
    });
    assert!(told.sentence.starts_with("the daemon was away, until 1.0 s ago"), "{told:?}");
    // before the stretch: a note
    let (found, told) = why(parts(99, |it| it.idle = 1), |now| {
        now.daemon = Some(daemon(SECOND - 6 * S, (0, 0)));
    });
    assert_eq!((found, told.notes.len()), (Why::Nothing, 1), "{told:?}");
    let (found, told) = why(QUEUE, |now| {
        let (absent_until_ns, absent_ns) = (SECOND - 5 * S, 3 * S);
        now.daemon = Some(daemon(S, (absent_until_ns, absent_ns)));
    });
    assert_eq!((found, told.notes.len()), (Why::Weight, 1), "{told:?}");
}

#[test]
fn the_other_gpu_of_a_gang_is_named() {
    let mut other = slice("a", 1, None, true, 0);
    other.gpu = GpuUuid([2; 16]);
    let (found, told) = why(parts(40, |it| it.gang = 60), |now| {
        let waits = Parts { running: 40, waiting: 60, by_cause: [60, 0, 0, 0, 0], ..QUEUE };
        let mut there = time("a", 1, waits);
        there.gpu = GpuUuid([2; 16]);
        there.behind.swap(0, 1);
        now.gpus.push(gpu(2, 7));
        now.times.push(there);
        now.rows.push(other.clone());
        now.rows.push(Row { gpu: other.gpu, ..slice("c", 1, None, true, 0) });
    });
    // `c` has 9 s there and `b` 1.2 s: the second view alone has that GPU, so its whole account counts
    let second = Some(GpuUuid([2; 16]));
    let behind = Some(("c".to_owned(), WaitCause::Queue));
    assert_eq!(found, Why::Gang { gpu: second, behind }, "{told:?}");
    assert_eq!(told.advice.as_deref(), Some("gpuslice set a --weight 2"));
    assert!(told.sentence.contains("gpu 7") && told.sentence.contains("which c has"), "{told:?}");
    // It has the first GPU for itself, and loses no time there: the second one is a note.
    let alone = |gang, waiting| {
        let (found, told) = why(parts(100, |_| ()), |now| {
            let by_cause = [0, 0, waiting, 0, 0];
            let waits = Parts { running: 100 - waiting, waiting, by_cause, ..QUEUE };
            let mut there = time("a", 1, waits);
            there.gpu = GpuUuid([2; 16]);
            now.gpus.push(gpu(2, 7));
            now.times.push(there);
            now.rows[0].gang = u32::from(gang);
            now.rows.push(Row { gang: u32::from(gang), ..other.clone() });
        });
        assert_eq!((found, told.advice), (Why::Nothing, None), "{}", told.sentence);
        (told.sentence, told.notes)
    };
    for waiting in [30, 92] {
        let (sentence, notes) = alone(true, waiting);
        assert!(sentence.contains("100 % of the time: nothing on this GPU keeps"), "{sentence}");
        assert!(notes.concat().contains("on gpu 7 of its gang, which c has"), "{notes:?}");
    }
    let (sentence, notes) = alone(false, 92);
    assert!(sentence.ends_with("nothing keeps it from more") && notes.is_empty(), "{sentence}");
}

#[test]
fn a_row_of_waits_without_a_predecessor_is_not_taken_for_new() {
    let row = |id: &str, total_ns: u64| WaitBehind {
        container: ContainerId::new(id).ok(),
        total_ns,
        longest_ns: 1,
        cause: WaitCause::Queue,
        by_cause_ns: [total_ns, 0, 0, 0, 0],
    };
    let (mut before, mut now) = views(QUEUE, no);
    before.times[0].behind = [row("c", 9 * S), row("d", 8 * S), row("e", 7 * S)];
    now.times[0].behind = [row("c", 9 * S + 5), row("f", 8 * S), row("d", 8 * S)];
    let growth = Growth::of(Some(&before), &now, &now.rows[0]).expect("an account");
    let grown: Vec<_> =
        growth.behind.iter().map(|it| (it.container.as_str(), it.by_cause[0])).collect();
    assert_eq!(grown, [("c", 5), ("f", S)]);
}

/// `a` has the GPU all the time, and so has `b`, of which one has overrun.
#[test]
fn work_beside_others_is_told_apart_from_an_own_gpu() {
    let all = Parts { running: 100, ..Parts::default() };
    let told = |own: Parts, other: Parts, late: [u64; 2]| {
        let (mut before, mut now) = views(own, |now| {
            (now.rows[0].late_turns, now.rows[1].late_turns) = (late[0], late[1]);
        });
        before.times.push(time("b", 0, other));
        now.times.push(time("b", 1, other));
        let finding = decide(Some(&before), &now, &now.rows[0]);
        (finding.why.clone(), words(&finding, &now))
    };
    let beside = Why::Beside { container: "b".into() };
    let (why, words) = told(all, all, [0, 1]);
    assert_eq!((why, words.label.as_str()), (beside.clone(), "beside b"));
    assert!(words.sentence.contains("beside b for 100 % of the time, whose kernels"), "{words:?}");
    let limit = "gpuslice set b --share-limit 75"; // what its weight of 3 gives it
    assert_eq!(words.advice.as_deref(), Some(limit));
    let (why, words) = told(all, all, [2, 1]);
    assert!(why == beside && words.sentence.contains("its own kernels"), "{words:?}");
    assert_eq!(words.advice, None);
    // It also waits, for less time than the other's work goes on beside its own.
    let waits = Parts { running: 88, waiting: 12, ..Parts::default() };
    assert_eq!(told(waits, all, [0, 1]).0, beside);
    let mostly = Parts { running: 40, waiting: 60, ..Parts::default() };
    assert_ne!(told(mostly, all, [0, 1]).0, beside);
    // turns one after the other, and open mode
    for running in [0, 5] {
        let other = Parts { running, idle: 100 - running, ..Parts::default() };
        assert_eq!(told(all, other, [0, 1]).0, Why::Nothing);
    }
}

/// Alone on a GPU a slice has it all the time. What it uses of that is NVML's figure, or is not known.
#[test]
fn a_slice_without_turns_is_said_to_use_what_nvml_shows() {
    let told = |load: Option<f64>| {
        let (found, told) = why(parts(100, |_| {}), |now| {
            now.rows.iter_mut().for_each(|row| row.gated = 0);
            now.loads.extend(load.map(|load| (GpuUuid([1; 16]), load)));
        });
        assert_eq!(found, Why::Nothing);
        told.sentence
    };
    let has = "has the GPU 100 % of the time for its launches, and";
    assert_eq!(told(Some(0.03)), format!("{has} uses 3 %: nothing keeps it from more"));
    let unknown = "what it uses of that is not known: nothing keeps it from more";
    assert_eq!(told(None), format!("{has} {unknown}"));
}

/// WAIT is all time with work and without the GPU, also where its own limit is the reason.
#[test]
fn a_limit_counts_as_waiting() {
    let all = |it: &mut Parts| {
        (it.waiting, it.handover, it.limited, it.gang, it.absent) = (19, 1, 66, 3, 5);
    };
    let (before, now) = views(parts(6, all), |_| {});
    let growth = Growth::of(Some(&before), &now, &now.rows[0]).expect("an account");
    assert!((growth.part(growth.waited()) - 0.89).abs() < 1e-9, "{growth:?}");
    // A sample's, of which `plot` shows the sum.
    let wait_us = [1, 2, 4, 5, 7];
    let sample = Sample {
        wait_us,
        handover_us: 1,
        limited_us: 66,
        gang_us: 3,
        absent_us: 5,
        ..Sample::default()
    };
    assert_eq!(sample.waited_us(), 89);
}
