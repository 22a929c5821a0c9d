//! The driver that was examined, whether the daemon can have another one, and what its modules let GPUs do.

use super::{Check, Options, needed, text, there, wanted};
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

/// Whether GPUs may use pages of the host's memory by themselves, which count for no cap; if it is known.
pub fn hmm(facts: &Value) -> Option<Check> {
    let is_simulated = facts["driver"]["simulated"] == true;
    let permits = facts["kernel"]["hmm"].as_bool().filter(|_| !is_simulated)?;
    let found = "nvidia_uvm lets GPUs use pages of the host's memory by themselves (HMM): they count for no cap";
    let fix = "write the line \"options nvidia_uvm uvm_disable_hmm=1\" to /etc/modprobe.d/gpuslice-hmm.conf, and reboot";
    Some(match permits {
        true => wanted("hmm off", found.to_owned(), fix),
        false => {
            there("hmm off", "GPUs use no pages of the host's memory by themselves".to_owned())
        }
    })
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

    #[test]
    fn slices_work_where_hmm_is_permitted() {
        let hmm = |simulated: bool, permits: Option<bool>| {
            hmm(&json!({ "driver": { "simulated": simulated }, "kernel": { "hmm": permits } }))
        };
        let permitted = hmm(false, Some(true)).expect("known");
        assert!(!permitted.ok && !permitted.needed && permitted.fix.contains("uvm_disable_hmm=1"));
        assert!(hmm(false, Some(false)).expect("known").ok);
        assert_eq!((hmm(false, None), hmm(true, Some(true))), (None, None));
    }
}
