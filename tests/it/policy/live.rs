//! Policies, weights, shares and classes, changed while the tenants run.

use super::{Stage, is};
use nix::sys::signal::Signal;

/// Two busy tenants 1:3 and an idle one of weight 4 meet all six policies, one after the other, in an
/// order in which each differs from the one before.
#[test]
fn each_policy_divides_as_documented() {
    let stage = Stage::new();
    let light = stage.tenant("light", &[], &[]);
    let heavy = stage.tenant("heavy", &["--weight", "3"], &[]);
    let idle = stage.tenant("idle", &["--weight", "4"], &["--idle"]);
    let all = [&light, &heavy, &idle];
    let limited: [(&str, f64, f64); 4] = [
        ("preemptive", 1.0 / 3.0, 1.0 / 3.0),
        ("fair", 1.0 / 16.0, 1.0 / 16.0),
        ("weighted", 1.0 / 8.0, 3.0 / 8.0),
        ("fixed", 1.0 / 16.0, 3.0 / 16.0),
    ];
    for (policy, first, second) in limited {
        stage.must(&["policy", "0", policy]);
        stage.settles(policy, &all, |got| is(got[0], first) && is(got[1], second) && got[2] == 0.0);
        let ppm = stage.slice("heavy")["time_cap_ppm"].as_f64().expect("a limit");
        assert!((ppm / 1e6 - second).abs() < 1e-5, "{policy}: {ppm}");
        // GPU time that is due to no tenant stays unused.
        assert!(stage.parts(&all).iter().sum::<f64>() < first + second + 0.1);
    }
    stage.must(&["policy", "0", "soft"]);
    stage.settles("soft", &all, |got| {
        let ratio = got[1] / got[0];
        (2.0..4.5).contains(&ratio) && got[0] + got[1] > 0.7
    });
    assert_eq!(stage.slice("heavy")["time_cap_ppm"], 1_000_000);
    stage.must(&["policy", "0", "5"]);
    stage.settles("native", &all, |got| {
        let ratio = got[1] / got[0];
        (0.6..1.7).contains(&ratio) && got[0] + got[1] > 0.7
    });
    let turns = |name: &str| stage.slice(name)["turns"].as_u64();
    let before = (turns("light"), turns("heavy"));
    stage.parts(&all);
    assert_eq!((turns("light"), turns("heavy")), before, "native has no turns");
    let view = stage.ps();
    assert_eq!(view["gpus"][0]["policy"], "native");
    assert_eq!(view["gpus"][1]["policy"], "soft", "the other GPU keeps its own");
}

#[test]
fn a_weight_a_share_and_a_class_count_at_once() {
    let stage = Stage::new();
    let one = stage.tenant("one", &[], &[]);
    let other = stage.tenant("other", &["--weight", "3"], &[]);
    let both = [&one, &other];
    stage.settles("1:3", &both, |got| (2.0..4.5).contains(&(got[1] / got[0])));
    let told = stage.must(&["set", "one", "--weight", "9"]);
    assert!(told.contains("weight: 1 -> 9"), "{told}");
    stage.settles("9:3", &both, |got| (2.0..4.5).contains(&(got[0] / got[1])));
    stage.must(&["set", "one", "--priority", "best-effort"]);
    stage.settles("best effort", &both, |got| got[1] > 4.0 * got[0]);
    assert_eq!(stage.slice("one")["class"], "best-effort");
    stage.must(&["set", "one", "--priority", "high"]);
    stage.settles("high", &both, |got| got[0] > 4.0 * got[1] && got[1] > 0.0);
    stage.must(&["set", "one", "--priority", "normal", "--weight", "none", "--share", "20"]);
    stage.settles("share", &both, |got| is(got[0], 0.2) && got[1] > 0.5);
    let told = stage.must(&["set", "other", "--share-limit", "30"]);
    assert!(told.contains("share-limit: none -> 30%"), "{told}");
    stage.settles("limit", &both, |got| is(got[1], 0.3) && got[0] > 0.35);
    let told = stage.must(&["set", "one", "--share", "25", "--share-limit", "50"]);
    assert!(told.contains("share: 20% -> 25%"), "{told}");
    stage.settles("limits", &both, |got| is(got[1], 0.3) && is(got[0], 0.5));
    assert_eq!(stage.slice("one")["share_limit"], 50);
    assert_eq!(stage.slice("one")["time_cap_ppm"], 500_000);
    stage.must(&["set", "other", "--share-limit", "none"]);
    stage.must(&["set", "one", "--share-limit", "none"]);
    stage.must(&["set", "one", "--share", "none", "--weight", "3"]);
    stage.settles("3:3", &both, |got| (0.6..1.7).contains(&(got[0] / got[1])));
    let view = stage.slice("one");
    assert_eq!((&view["share"], &view["weight"]), (&serde_json::Value::Null, &3.into()));
}

/// A daemon that is killed and started again knows the policy of each GPU and the settings of each slice.
#[test]
fn a_restarted_daemon_goes_on_as_before() {
    let mut stage = Stage::new();
    let one = stage.tenant("one", &[], &[]);
    let two = stage.tenant("two", &["--weight", "2"], &[]);
    stage.must(&["policy", "0", "weighted"]);
    stage.must(&["policy", "1", "fixed"]);
    stage.must(&["set", "one", "--weight", "6", "--share-limit", "90"]);
    stage.must(&["set", "two", "--priority", "best-effort"]);
    let facts = |stage: &Stage| {
        let view = stage.ps();
        let (one, two) = (stage.slice("one"), stage.slice("two"));
        let keys = ["weight", "share", "share_limit", "class", "time_cap_ppm"];
        let of = |slice: &serde_json::Value| keys.map(|key| slice[key].clone());
        let policies = [0, 1].map(|gpu: usize| view["gpus"][gpu]["policy"].clone());
        (policies, of(&one), of(&two))
    };
    let before = facts(&stage);
    assert_eq!(before.0, ["weighted", "fixed"]);
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        stage.node.end_daemon(signal);
        stage.node.start_daemon(&[]);
        assert_eq!(facts(&stage), before, "after {signal}");
    }
    let ended = [one, two];
    stage.settles("6:2", &[&ended[0], &ended[1]], |got| is(got[0], 0.75));
}
