//! Processes of a test: the test program started again, told by the environment what to do.

// Each test program uses its own part of this.
#![allow(dead_code)]

use gpuslice_sim_device::{Config, Machine, Role, create, destroy};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

pub const ROLE: &str = "GPUSLICE_SIM_TEST_ROLE";
pub const DIR: &str = "GPUSLICE_SIM_TEST_DIR";

/// A device of its own for each test, removed at the end.
pub struct Device(pub PathBuf);

impl Device {
    pub fn new(name: &str, config: &str) -> Self {
        let device = Self::absent(name);
        create(&device.0, &Config::parse(config).unwrap()).unwrap();
        device
    }

    pub fn absent(name: &str) -> Self {
        let dir = format!("/dev/shm/gpuslice-sim-test-{}-{name}", std::process::id());
        Self(dir.into())
    }

    pub fn observe(&self) -> Machine {
        Machine::open(&self.0, Role::Observer).unwrap()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = destroy(&self.0);
    }
}

/// A process in a role; killed when dropped.
pub struct Actor {
    pub child: Child,
    out: BufReader<ChildStdout>,
}

impl Actor {
    pub fn start(device: &Path, role: &str) -> Self {
        Self::start_by(Command::new(std::env::current_exe().unwrap()), device, role)
    }

    pub fn start_by(mut command: Command, device: &Path, role: &str) -> Self {
        command.args(["--exact", "actor", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(DIR, device).stdout(Stdio::piped()).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// What the actor says after the mark that tells it from the test harness.
    pub fn says(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.out.read_line(&mut line).unwrap(), 0, "the actor said nothing");
            if let Some((_, said)) = line.split_once("ACTOR ") {
                return said.trim_end().to_string();
            }
        }
    }

    pub fn tell(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Tells the actor a line, and gives its answer.
    pub fn ask(&mut self, line: &str) -> String {
        let told = format!("{line}\n");
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(told.as_bytes()).unwrap();
        self.says()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reports a test that cannot run here; written directly, because the harness captures `println!`.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let line = format!("SKIP {}: {why}\n", thread.name().unwrap_or("a test"));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

pub fn say(text: &str) {
    println!("ACTOR {text}");
    std::io::stdout().flush().unwrap();
}

pub fn listen() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// The next line told, for actors that go on until their test ends.
pub fn heard() -> Option<String> {
    let mut line = String::new();
    let bytes = std::io::stdin().read_line(&mut line).unwrap();
    (bytes != 0).then(|| line.trim_end().to_string())
}
