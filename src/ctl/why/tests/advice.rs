//! What is advised where a rule of the GPU's time is the reason, and figures of the stretch.

use super::*;

/// Advice changes something under the policy that holds, and is no value that is there already.
#[test]
fn advice_about_turns_changes_something() {
    let queued = |by_b| Parts { by_cause: [by_b, 0, 0, 0, 0], ..QUEUE };
    let policy = |policy: Policy, label: &str, command: &str| {
        let (found, told) = why(queued(73), |now| now.gpus[0].policy = policy);
        assert_eq!(told.label, label, "{found:?}");
        assert_eq!(told.advice.as_deref(), Some(command), "{told:?}");
    };
    policy(Policy::Soft, "weight 1", "gpuslice set a --weight 2");
    policy(Policy::Preemptive, "preemptive", "gpuslice set a --share 75");
    type Rule = (fn(&mut View), Why, &'static str);
    let rules: [Rule; 6] = [
        // weights count for nothing beside shares of 100 %
        (
            |now| share(now, [(Some(40), None), (Some(60), None)]),
            Why::Share,
            "the shares on gpu 0 are 100 %",
        ),
        (
            |now| share(now, [(Some(40), Some(1)), (Some(60), None)]),
            Why::Share,
            "the shares on gpu 0 are 100 %",
        ),
        (
            |now| share(now, [(Some(20), None), (Some(60), None)]),
            Why::Share,
            "gpuslice set a --weight 1",
        ),
        // a weight that is the largest
        (
            |now| share(now, [(None, Some(1000)), (None, Some(1000))]),
            Why::Weight,
            "gpuslice set a --share 75",
        ),
        (
            |now| {
                share(now, [(None, Some(1000)), (None, Some(1000))]);
                (now.rows[0].share_limit, now.rows[0].cap_ppm) = (Some(50), 500_000);
            },
            Why::Weight,
            "no weight or share gives it more",
        ),
        // what a share may still reserve is less than it is due
        (
            |now| {
                share(now, [(None, Some(1000)), (None, Some(1000))]);
                now.rows[2].share = Some(60);
            },
            Why::Weight,
            "gpuslice set b --weight 500",
        ),
    ];
    for (change, expected, advice) in rules {
        let (found, told) = why(queued(73), change);
        assert_eq!(found, expected, "{told:?}");
        assert!(told.advice.as_deref().is_some_and(|it| it.starts_with(advice)), "{told:?}");
    }
    // the limit that a slice with long kernels has
    let (_, told) = why(behind([0, 0, 92, 0, 0]), |now| {
        (now.rows[1].class, now.rows[0].class) = (Class::High, Class::Normal);
        (now.rows[1].share_limit, now.rows[1].cap_ppm) = (Some(50), 500_000);
    });
    assert_eq!(told.advice.as_deref(), Some("gpuslice set b --share-limit 25"), "{told:?}");
}

/// A slice with long kernels gets more than its due, and waits for the rest of the time.
#[test]
fn a_slice_above_its_due_needs_no_larger_weight() {
    let above = Parts { running: 60, waiting: 40, by_cause: [40, 0, 0, 0, 0], ..QUEUE };
    let (why, told) = why(above, no);
    assert_eq!((why, told.advice), (Why::Weight, None), "{}", told.sentence);
}

/// A limit that was removed in the stretch is not the one that holds now.
#[test]
fn a_limit_that_no_longer_holds_is_said_to_be_past() {
    let (mut before, now) = views(parts(60, |it| it.limited = 40), no);
    let told = |before: &View| {
        let finding = decide(Some(before), &now, &now.rows[0]);
        assert_eq!(finding.why.name(), "share-limit");
        words(&finding, &now)
    };
    let unknown = told(&before);
    assert_eq!((unknown.label.as_str(), &unknown.advice), ("past limit", &None));
    (before.rows[0].share_limit, before.rows[0].cap_ppm) = (Some(20), 200_000);
    let known = told(&before);
    assert_eq!((known.label.as_str(), known.advice), ("past limit 20 %", None));
    assert!(known.sentence.contains("held back 40 % by a limit of 20 %"), "{}", known.sentence);
}

/// Late turns are those of the stretch, and the longest wait may be that for several kernels.
#[test]
fn late_turns_are_counted_in_the_stretch() {
    let (mut before, mut now) = views(behind([0, 0, 92, 0, 0]), no);
    (before.rows[1].late_turns, now.rows[1].late_turns) = (700, 702);
    let sentence = |before| words(&decide(before, &now, &now.rows[0]), &now).sentence;
    let told = sentence(Some(&before));
    assert!(told.ends_with("whose queued work lasts up to 1.5 s (2 late turns)"), "{told}");
}

/// Share and weight of `a` and `b`.
fn share(now: &mut View, all: [(Option<u32>, Option<u32>); 2]) {
    for (row, (share, weight)) in now.rows.iter_mut().zip(all) {
        (row.share, row.weight) = (share, weight);
    }
}

#[test]
fn a_hostile_name_is_not_in_a_command() {
    let (_, told) = why(behind([2, 0, 90, 0, 0]), |now| now.rows[1].name = "x; reboot".into());
    assert_eq!(told.advice.as_deref(), Some("gpuslice set b --share-limit 75"));
    assert!(told.sentence.contains("x; reboot"));
    let (_, told) = why(QUEUE, |now| {
        now.rows[0].name = "web".into();
        now.rows[2].container = "web-2".into();
    });
    assert_eq!(told.advice.as_deref(), Some("gpuslice set a --weight 2"), "web is also a prefix");
}

#[test]
fn a_proposed_command_finds_the_same_daemon() {
    let command = || Some("gpuslice set a --weight 2".to_owned());
    let with = |dir: &str| with_dir(command(), Some(Path::new(dir))).expect("a command");
    assert_eq!(with("/tmp/g 1"), "gpuslice set a --weight 2 --runtime-dir '/tmp/g 1'");
    assert_eq!(with("/run/x"), "gpuslice set a --weight 2 --runtime-dir /run/x");
    assert!(with("/tmp/$(reboot)'x").ends_with(r"--runtime-dir '/tmp/$(reboot)'\''x'"));
    assert_eq!(with_dir(command(), None), command());
    let sentence = || Some("no GPU setting helps".to_owned());
    assert_eq!(with_dir(sentence(), Some(Path::new("/run/x"))), sentence());
}
