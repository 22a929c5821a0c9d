//! The common suite: the same programs, driver and promises under each injection method.
//!
//! The driver is `tests/apps/stub/stub.c`, the program `probe.c` beside it. The preloaded shim is
//! loaded unchanged. The mount-injected shim names its driver and its socket by fixed absolute paths; a
//! copy of it with these paths exchanged for others of the same length needs no mount namespace (`parts`).

#[path = "built.rs"]
mod built;
pub mod cases;
pub mod daemon;
mod parts;

use built::built;
use daemon::Daemon;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// How the shim gets into a program.
#[allow(dead_code)] // each library's tests know one
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// `LD_PRELOAD`.
    Preload,
    /// Found in place of the driver's library.
    Mount,
}

impl Injection {
    /// The file that must hold the hooks' code, as the loader knows it.
    pub fn file(self) -> &'static str {
        match self {
            Injection::Preload => "libgpuslice.so",
            Injection::Mount => "libcuda.so.1",
        }
    }
}

/// A slice of its own: directories, driver, program, daemon.
pub struct Slice {
    /// The slice's daemon.
    pub daemon: Daemon,
    injection: Injection,
    home: TempDir,
    settings: Vec<(String, String)>,
}

impl Slice {
    /// A slice with these caps, one per lane, and a driver linked as NVIDIA's is: its calls to itself
    /// do not leave it.
    pub fn new(injection: Injection, caps: &[u64]) -> Slice {
        Slice::with_driver(injection, caps, "-Wl,-Bsymbolic")
    }

    /// A slice whose driver is linked with this option.
    pub fn with_driver(injection: Injection, caps: &[u64], option: &str) -> Slice {
        // Short, because padded paths must fit into the fixed ones.
        let home = tempfile::Builder::new().prefix("g").rand_bytes(5).tempdir_in("/tmp");
        let home = home.expect("a directory");
        let at = |name: &str| home.path().join(name).to_str().expect("plain").to_owned();
        for directory in ["d", "lib"] {
            std::fs::create_dir(at(directory)).expect("a directory");
        }
        parts::put(home.path(), option);
        if injection == Injection::Mount {
            parts::moved(home.path(), &home.path().join("lib/libcuda.so.1"));
            let link = home.path().join("lib/libcuda.so");
            std::os::unix::fs::symlink("libcuda.so.1", link).expect("a link");
        }
        let daemon = Daemon::start(home.path(), caps);
        Slice { daemon, injection, home, settings: Vec::new() }
    }

    /// Sets a variable of the stub for programs started from now on.
    pub fn set(&mut self, name: &str, value: impl ToString) {
        self.settings.push((name.into(), value.to_string()));
    }

    /// A program of the slice, by path.
    pub fn command(&self, program: &Path) -> Command {
        let at = |name: &str| self.home.path().join(name);
        let mut command = Command::new(program);
        command.env_clear().env("PLUGIN", at("plugin.so"));
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        match self.injection {
            Injection::Preload => {
                command.env("LD_PRELOAD", built("gpuslice-shim-preload", "libgpuslice.so"));
                command.env("GPUSLICE_SOCKET", &self.daemon.socket);
                command.env("GPUSLICE_DRIVER_DIR", at("d"));
            }
            Injection::Mount => {
                command.env("LD_LIBRARY_PATH", at("lib"));
            }
        }
        command
    }

    /// The probe with these steps.
    pub fn probe(&self, steps: &[&str]) -> Command {
        let mut command = self.command(&self.home.path().join("probe"));
        command.args(steps);
        command
    }

    /// What the probe prints for these steps, line by line. The daemon knows of its end: what it held is free.
    ///
    /// # Panics
    /// When it fails, or writes to standard error.
    pub fn run(&self, steps: &[&str]) -> Vec<String> {
        let mut probe = self.probe(steps);
        let piped = probe.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = piped.spawn().expect("the probe runs");
        let pid = child.id();
        let output = child.wait_with_output().expect("the probe runs");
        self.daemon.until("the probe's end", |state| !state.knows(pid));
        let error = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && error.is_empty(), "{}: {text}{error}", output.status);
        text.lines().map(str::to_owned).collect()
    }

    /// Starts the probe; steps `wait` stop it until [`Started::go_on`].
    pub fn start(&self, steps: &[&str]) -> Started {
        let mut command = self.probe(steps);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the probe runs");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Started { child, input, output }
    }
}

/// A probe that is running.
pub struct Started {
    /// The process.
    pub child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Started {
    /// Reads the lines up to the next `wait`, or to the end.
    pub fn lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).expect("readable") == 0 || line == "wait\n" {
                return lines;
            }
            lines.push(line.trim_end().to_owned());
        }
    }

    /// Reads the next line.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("readable");
        line.trim_end().to_owned()
    }

    /// Lets it go on after a `wait`.
    pub fn go_on(&mut self) {
        self.input.write_all(b"\n").expect("it waits");
    }

    /// Waits until it waits in another system call than the read of its input.
    ///
    /// # Panics
    /// After a minute.
    pub fn waits_for_no_input(&self) {
        let path = format!("/proc/{}/syscall", self.child.id());
        let waits = |text: &str| text.split(' ').next()?.parse::<u64>().ok().filter(|it| *it != 0);
        for _ in 0..6000 {
            if std::fs::read_to_string(&path).is_ok_and(|text| waits(&text).is_some()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("it never waits");
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
