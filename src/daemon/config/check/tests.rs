//! Every wrong line is named, in words; the packaged file has the defaults.

use super::*;
use crate::config::Absolute;
use gpuslice_wire::policy::ClassCaps;

fn error(text: &str) -> (usize, String) {
    let faults = DaemonConfig::parse(text).expect_err("refused");
    assert_eq!(faults.len(), 1, "{faults:?}");
    faults[0].clone()
}

#[test]
fn every_wrong_line_is_named() {
    let text = "idle_us = 50\nperiod = 3\nwindow_us = -1\n\nturn_min_ms = 9\nturn_max_ms = 2\npolicy = \"x\"";
    let faults = DaemonConfig::parse(text).expect_err("refused");
    let lines: Vec<usize> = faults.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [2, 3, 6, 7], "{faults:?}");
    let faults = DaemonConfig::parse("turn_min_ms = 50\nturn_max_ms = 0").expect_err("refused");
    assert_eq!(faults.len(), 1, "one wrong line: {faults:?}");
    let faults = DaemonConfig::parse("requests_from = [\n\"x\",\n]\nperiod = 3");
    assert_eq!(faults.expect_err("refused").iter().map(|it| it.0).collect::<Vec<_>>(), [1, 4]);
}

/// A line that is no TOML, a number beyond 64 bits and a key that is there twice hide no other line.
#[test]
fn a_line_that_is_no_toml_hides_no_other() {
    let text = "reclaim_grace_s = 5s\nover_cap_kill_s = 86401\n\
                over_cap_freeze_s = 99999999999999999999999\nidle_us = 50\nidle_us = 60\n\
                suspended_memory = \"64\"\nreclaim_grace = 5\npolicy = soft\ncolour = 1";
    let faults = DaemonConfig::parse(text).expect_err("refused");
    let lines: Vec<usize> = faults.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [1, 2, 3, 5, 6, 7, 8, 9], "{faults:#?}");
    let said = |at: usize| faults[at].1.as_str();
    assert_eq!(said(0), "reclaim_grace_s: a text needs quotes, and a number has no unit");
    let large = "over_cap_freeze_s: 99999999999999999999999 is too large a number";
    assert_eq!(said(2), large);
    assert!(said(3).contains("duplicate key"), "{}", said(3));
    let tiny = "suspended_memory: 64B is less than 1MiB; did you mean 64GiB?";
    assert_eq!(said(4), tiny);
    assert_eq!(said(5), "unknown key `reclaim_grace`; did you mean `reclaim_grace_s`?");
    assert!(faults.iter().all(|(_, what)| !what.contains("not checked")), "{faults:#?}");
}

/// A line that shows the fault of an earlier one is not blamed twice, and the end of the search is told.
#[test]
fn what_ends_the_search_is_told() {
    for (line, text) in [
        (1, "colour = \"\"\"\n\"\"\""),
        (4, "policy = \"soft\"\nidle_us = [\n2,\nx"),
        (2, "idle_us = [\nperiod_ms = 16\nwindow_us = -1"),
        (2, "idle_us = \"\"\"\nx"),
    ] {
        let faults = DaemonConfig::parse(text).expect_err("refused");
        let is_said = faults[0].1.ends_with(UNCHECKED);
        assert!(faults.len() == 1 && faults[0].0 == line && is_said, "{text}: {faults:?}");
    }
}

#[test]
fn unknown_keys_are_listed_once() {
    assert!(error("a.b = 1").1.starts_with("unknown key `a`; the keys are "));
    let text = "over-cap-kill-s = 5\ncolour = 1\nsmell = 2\nsuspend_memory = \"1GiB\"";
    let faults = DaemonConfig::parse(text).expect_err("refused");
    let said: Vec<&str> = faults.iter().map(|(_, what)| what.as_str()).collect();
    assert_eq!(said[0], "unknown key `over-cap-kill-s`; did you mean `over_cap_kill_s`?");
    assert!(said[1].starts_with("unknown key `colour`; the keys are runtime_dir, driver_dir, "));
    assert_eq!(said[2], "unknown key `smell`");
    assert_eq!(said[3], "unknown key `suspend_memory`; did you mean `suspended_memory`?");
}

/// A size that no program can use lacks its unit; each key says what holds without it.
#[test]
fn sizes_have_a_floor_and_words_of_their_key() {
    for (key, without) in
        [("pinned_memory", "no cap"), ("suspended_memory", "half of the host's memory")]
    {
        let text = format!("{key} = \"0GiB\"");
        let zero = format!("{key}: the size is 0; omit the key for {without}");
        assert_eq!(error(&text), (1, zero));
    }
    for key in ["pinned_memory", "suspended_memory", "environment_memory_max"] {
        let tiny = format!("{key}: 64B is less than 1MiB; did you mean 64GiB?");
        assert_eq!(error(&format!("{key} = \"64\"")).1, tiny);
        assert!(DaemonConfig::parse(&format!("{key} = \"1MiB\"")).is_ok());
    }
}

#[test]
fn settings_that_exclude_each_other_are_refused() {
    let (line, what) = error("over_cap_kill_s = 5\nover_cap_freeze_s = 6");
    assert!(line == 2 && what.contains("over_cap_freeze_s = 6 is above over_cap_kill_s = 5"));
    for key in ["over_cap_freeze_s", "over_cap_kill_s"] {
        let (line, what) = error(&format!("accounting_interval_ms = 0\n\n{key} = 5"));
        assert!(line == 3 && what.starts_with(&format!("{key} has no effect")), "{what}");
    }
    for fine in [
        "over_cap_freeze_s = 5\nover_cap_kill_s = 5",
        "over_cap_freeze_s = 5",
        "accounting_interval_ms = 0\nover_cap_warn_s = 5",
    ] {
        assert!(DaemonConfig::parse(fine).is_ok(), "{fine}");
    }
}

#[test]
fn the_packaged_file_holds_exactly_the_defaults() {
    let packaged = include_str!("../../../../packaging/gpusliced.toml");
    assert_eq!(DaemonConfig::parse(packaged), Ok(DaemonConfig::default()));
    let plain: String = packaged
        .lines()
        .filter(|line| !line.starts_with("# ") && *line != "#")
        .map(|line| format!("{}\n", line.strip_prefix('#').unwrap_or(line)))
        .collect();
    let all = DaemonConfig::parse(&plain).expect("the commented examples are valid too");
    assert_eq!(all.runtime_dir, Some(Absolute("/run/gpuslice".into())));
    let DaemonConfig { over_cap_warn_s, accounting_interval_ms, .. } = DaemonConfig::default();
    assert_eq!((over_cap_warn_s.get(), accounting_interval_ms.get()), (10, 1_000));
}

#[test]
fn errors_name_the_line() {
    assert_eq!(error("\nperiod = 3\n").0, 2);
    let number = "suspended_memory: invalid type: integer `64`, expected a text in quotes";
    assert_eq!(error("suspended_memory = 64").1, number);
    assert!(error("\nperiod = 3\n").1.starts_with("unknown key `period`"));
    assert_eq!(
        error("idle_us = 50\nperiod_ms = 0"),
        (2, "period_ms: 0 is outside 2 to 1000".into())
    );
    assert_eq!(error("window_us = -1").1, "window_us: -1 is outside 10 to 1000000");
    let what = error("idle_us = 1.5").1;
    assert!(what.ends_with("expected a whole number"), "{what}");
    assert_eq!(error("\n\nruntime_dir = \"x\"").0, 3);
    assert_eq!(error("turn_min_ms = 9\nturn_max_ms = 3").0, 2);
    assert_eq!(error("period_ms = 30\nperiod_ms = 30").0, 2);
    assert_eq!(error("oversubscribe = 1").0, 1);
    assert!(error("policy = \"hard\"").1.contains("preemptive"));
    assert_eq!(error("slices_per_gpu = 0").1, "slices_per_gpu: 0 is outside 1 to 256");
    for key in ["high_cap", "normal_cap"] {
        for value in [19, 101] {
            let what = format!("{key}: {value} is outside 20 to 100");
            assert_eq!(error(&format!("{key} = {value}")).1, what);
        }
    }
    let caps = DaemonConfig::parse("high_cap = 20\nnormal_cap = 100").expect("both bounds");
    let caps = caps.engine();
    let ClassCaps { high, normal } = caps.class_caps;
    assert_eq!((high.get(), normal.get()), (20, 100));
    assert_eq!(error("\ncgroup_limits = \"maybe\"").0, 2);
    let unknown = error("\nrequests_from = [\"labels\"]");
    assert!(unknown.0 == 2 && unknown.1.contains("no source \"labels\""), "{unknown:?}");
    assert!(error("requests_from = \"cgpu\"").1.contains("requests_from"));
    assert!(error("environment_gpus_max = 0").1.contains("1 to 16"));
    for bad in ["0", "5/4", "all"] {
        let what = error(&format!("environment_memory_max = {bad:?}")).1;
        assert!(what.starts_with("environment_memory_max: "), "{what}");
    }
    assert!(error("pinned_memory = \"much\"").1.starts_with("pinned_memory: "));
    assert!(error("accounting_interval_ms = -1").1.contains("0 to 3600000"));
    assert_eq!(error("[x").0, 1);
}

#[test]
fn the_defaults_are_the_engines() {
    assert_eq!(DaemonConfig::default().engine(), gpuslice_engine::Config::default());
}

#[test]
fn an_endless_file_is_refused() {
    let error = DaemonConfig::read(Path::new("/dev/zero")).expect_err("refused");
    assert!(error.to_string().contains("longer than"), "{error}");
}

#[test]
fn an_empty_file_is_the_default() {
    assert_eq!(DaemonConfig::parse(""), Ok(DaemonConfig::default()));
}

/// Each fault names a line of the file, and the file is parsed in finite time.
#[test]
fn any_text_is_a_configuration_or_named_faults() {
    gpuslice_fuzz::fuzz!("daemon-config", |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Err(faults) = DaemonConfig::parse(text) {
            assert!(!faults.is_empty());
            let lines = text.split('\n').count();
            for (line, what) in faults {
                assert!(line <= lines && !what.is_empty(), "{line}: {what}");
            }
        }
    });
}
