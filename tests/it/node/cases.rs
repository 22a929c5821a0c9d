//! A node with a simulated driver of the test's choice, and the CLI beside it.

use crate::harness::cli;
use crate::harness::eventually;
use crate::harness::node::{Node, admit_first, denied, is_admitted};
use crate::harness::wire::TenantClient;
use gpuslice_wire::admin::{Answer, Denial, MemoryAsk};
use gpuslice_wire::frame::Message;
use gpuslice_wire::units::Bytes;
use serde_json::Value;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

pub struct Case {
    pub node: Node,
    simulated: String,
    environment: Vec<(String, PathBuf)>,
}

impl Case {
    /// A daemon with this simulated GPU and this configuration.
    pub fn start(simulated: &str, configuration: &str) -> Case {
        Case::of(Node::new(), simulated, configuration, &[])
    }

    /// The same on this node, with variables for the daemon and its driver.
    pub fn of(
        node: Node,
        simulated: &str,
        configuration: &str,
        environment: &[(&str, &Path)],
    ) -> Case {
        fs::write(node.root().join("config"), configuration).expect("written");
        let mut case = Case {
            node,
            simulated: simulated.to_owned(),
            environment: environment
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        };
        case.start_again();
        case
    }

    /// Starts the daemon again beside another simulated machine, whose device has this name.
    pub fn start_beside(&mut self, simulated: &str, device: &str) {
        let config = self.node.root().join("config");
        let mut command = self.node.daemon_command(&["--config", config.to_str().expect("plain")]);
        command.env("GPUSLICE_SIM", simulated);
        command.env("GPUSLICE_SIM_DEVICE", self.node.root().join(device));
        self.node.start_command(command);
    }

    /// Starts the daemon again.
    pub fn start_again(&mut self) {
        let config = self.node.root().join("config");
        let config = config.to_str().expect("plain");
        let mut command = self.node.daemon_command(&["--config", config]);
        command.env("GPUSLICE_SIM", &self.simulated);
        command.envs(self.environment.iter().cloned());
        self.node.start_command(command);
    }

    /// Asks for a slice of GPU 0 for the container of this process: again, where NVML has not answered in time and the
    /// driver's limit is required.
    pub fn admit(&self, container: &str, cap: u64, process: u32) -> Answer {
        let ask = admit_first(container, "0", MemoryAsk::Exactly(Bytes(cap)), process);
        let mut answers = (0..10).map(|_| self.node.admin().ask(&ask));
        let late = |text: &str| text.contains("NVML has not answered yet");
        let says = |it: &Answer| !matches!(it, Answer::Denied { text, .. } if late(text.as_str()));
        answers.find(says).expect("an answer of NVML's")
    }

    pub fn must_admit(&self, container: &str, cap: u64, process: u32) {
        let answer = self.admit(container, cap, process);
        assert!(is_admitted(&answer), "{answer:?}");
    }

    /// Asserts a fact that NVML's answer has made. Where the daemon has gone on without NVML, which a busy machine did
    /// not let answer in time, the fact follows that answer.
    pub fn has<T: PartialEq + Debug>(&self, fact: impl Fn() -> T, wanted: T) {
        let found = fact();
        if found == wanted {
            return;
        }
        std::thread::sleep(Duration::from_millis(300)); // another thread writes the log
        let log = self.node.log();
        let late = log.contains("NVML does not answer; continuing without");
        assert!(late, "{found:?} and not {wanted:?}");
        eventually("what NVML's answer makes", || fact() == wanted);
    }

    /// Asserts a slice's memory enforcement, as soon as it must be known.
    pub fn is_enforced_by(&self, container: &str, level: &str) {
        self.has(|| self.row(container)["memory_enforcement"].clone(), level.into());
    }

    /// The text of a refusal.
    pub fn refusal(&self, container: &str, cap: u64, process: u32) -> String {
        let (why, text) = denied(self.admit(container, cap, process));
        assert_eq!(why, Denial::Host, "{text}");
        text
    }

    /// The CLI, asking this node's daemon.
    pub fn gpuslice(&self, arguments: &[&str]) -> Output {
        let mut command = cli::command(&self.node, arguments);
        command.env("GPUSLICE_SIM", &self.simulated).output().expect("gpuslice starts")
    }

    /// The output of the CLI, which must succeed.
    pub fn says(&self, arguments: &[&str]) -> String {
        let output = self.gpuslice(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// A slice as `gpuslice ps --json` shows it.
    pub fn row(&self, container: &str) -> Value {
        cli::shown(&self.node, container)
    }
}

/// The next message to a process.
pub fn reply_within_patience<M: Message>(client: &TenantClient) -> M {
    client.0.message::<M>().expect("an answer").1
}
