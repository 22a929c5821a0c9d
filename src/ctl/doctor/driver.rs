//! The driver that was examined, and whether the daemon can have another one.

use super::{Check, Options, needed, text, there};
use serde_json::Value;

/// The driver, as `gpusliced --examine` finds it with the configuration that it was given.
pub fn of_facts(facts: &Value) -> Check {
    let driver = &facts["driver"];
    match text(&driver["error"]) {
        Some(why) => needed(
            "driver",
            why,
            "fix the driver; to simulate a GPU, use gpuslice run --sim, or set driver_dir in the \
             configuration to the directory that gpuslice sim libraries prints",
        ),
        None => {
            let dir = driver["dir"].as_str().unwrap_or_default();
            let simulated = driver["simulated"] == true;
            there("driver", format!("{dir}{}", if simulated { " (simulated)" } else { "" }))
        }
    }
}

/// A daemon that answers has a driver. If none was found here, it has another configuration than the one examined.
pub fn of_another_configuration(options: &Options, checks: &mut [Check]) {
    if options.config.is_some() || options.driver_dir.is_some() {
        return;
    }
    for check in checks.iter_mut().filter(|check| check.name == "driver" && !check.ok) {
        check.fix = "the daemon that answers has another driver than the one looked for here: name its configuration \
                     with --config FILE, or the driver's directory with --driver-dir DIR"
            .to_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_daemon_that_answers_has_another_driver() {
        let fix = |words: &[&str], driver: Value| {
            let words = [&["doctor"], words].concat();
            let command = <Options as clap::Args>::augment_args(clap::Command::new("doctor"));
            let matches = command.get_matches_from(words);
            let options = <Options as clap::FromArgMatches>::from_arg_matches(&matches);
            let mut checks = [of_facts(&json!({ "driver": driver }))];
            of_another_configuration(&options.expect("options"), &mut checks);
            checks[0].fix.clone()
        };
        let none = || json!({ "error": "no libcuda.so.1" });
        assert!(fix(&[], none()).contains("with --config FILE"));
        for named in ["--config", "--driver-dir"] {
            assert!(fix(&[named, "/x"], none()).starts_with("fix the driver"));
        }
        assert_eq!(fix(&[], json!({ "dir": "/lib", "error": null })), "");
    }
}
