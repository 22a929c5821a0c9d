//! Calls hooks without a runtime: many at once, or with a daemon made by the test.

use crate::harness::bundle::{STARTS_MAX, hook, is_late, note_late};
use crate::harness::eventually;
use crate::harness::process::private_mounts;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A container in the state in which a runtime calls the hook: a process in its own mount namespace,
/// and an almost empty root directory.
pub struct Created {
    pub id: String,
    bundle: PathBuf,
    process: Child,
    hook: PathBuf,
    runtime_dir: PathBuf,
}

impl Created {
    /// `None`, with a printed reason, where that is impossible.
    pub fn new(
        test: &str,
        root: &Path,
        id: &str,
        runtime_dir: &Path,
        wish: &Value,
    ) -> Option<Created> {
        let hook = hook(test, "sleep")?;
        let bundle = root.join(id);
        for sub in ["etc", "run", "dev", "usr/lib64"] {
            fs::create_dir_all(bundle.join("rootfs").join(sub)).expect("a root filesystem");
        }
        let config = json!({ "root": { "path": "rootfs" }, "annotations": wish });
        fs::write(bundle.join("config.json"), config.to_string()).expect("config.json");
        let mut process = Command::new("sleep");
        process.arg("600").stdin(Stdio::null());
        // SAFETY: two system calls on constants.
        let process = unsafe { process.pre_exec(private_mounts) }.spawn().expect("sleep starts");
        Some(Created {
            id: id.to_owned(),
            bundle,
            process,
            hook,
            runtime_dir: runtime_dir.to_owned(),
        })
    }

    /// Calls the hook for a stage.
    pub fn call(&self, stage: &str) -> Child {
        self.command(stage).spawn().expect("the hook starts")
    }

    /// The state that the runtime passes to hooks.
    fn state(&self) -> File {
        File::open(self.bundle.join("state.json")).expect("a state")
    }

    /// The hook's call for a stage.
    pub fn command(&self, stage: &str) -> Command {
        let status = match stage {
            "poststop" => "stopped",
            _ => "creating",
        };
        let (pid, bundle) = (self.process.id(), &self.bundle);
        let state = json!({ "ociVersion": "1.0.2", "id": self.id, "pid": pid, "status": status, "bundle": bundle });
        fs::write(self.bundle.join("state.json"), state.to_string()).expect("a state");
        let mut command = Command::new(&self.hook);
        command.arg("--runtime-dir").arg(&self.runtime_dir).arg(stage).env_clear();
        command.stdin(self.state());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Calls it and waits for its end.
    pub fn called(&self, stage: &str) -> Output {
        self.call(stage).wait_with_output().expect("it ends")
    }

    /// The same of a daemon that answers: again if that was too late, as on a busy machine, after what a runtime does.
    pub fn served(&self, stage: &str) -> Output {
        let mut output = self.called(stage);
        for _ in 1..STARTS_MAX {
            if !is_late(&output) {
                break;
            }
            note_late(&self.id);
            self.gone();
            output = self.called(stage);
        }
        output
    }

    /// Calls it under strace, which traces only socket calls, and waits for its end. `inject` is
    /// strace's fault injection.
    pub fn traced(&self, stage: &str, trace: &Path, inject: Option<&str>) -> Output {
        let plain = self.command(stage);
        let mut command = Command::new("strace");
        command.args(["-qq", "-xx", "-e", "trace=network", "-o"]).arg(trace);
        if let Some(inject) = inject {
            command.args(["-e", inject]);
        }
        command.arg("--").arg(plain.get_program()).args(plain.get_args());
        command.stdin(self.state()).stdout(Stdio::null());
        command.output().expect("strace starts")
    }

    /// Calls `poststop` until it succeeds.
    pub fn gone(&self) {
        eventually("its end is heard", || self.called("poststop").status.success());
    }

    /// The mounts below its root.
    pub fn mounts(&self) -> Vec<String> {
        let info = format!("/proc/{}/mountinfo", self.process.id());
        let info = fs::read_to_string(info).expect("it lives");
        let root = format!("{}/", self.bundle.join("rootfs").display());
        let points = info.lines().filter_map(|line| line.split(' ').nth(4));
        points.filter_map(|at| at.strip_prefix(&root)).map(str::to_owned).collect()
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        let _ = self.process.kill().and_then(|()| self.process.wait());
    }
}

/// Whether its alarm has ended a hook.
pub fn has_alarm(output: &Output) -> bool {
    output.status.signal() == Some(libc::SIGALRM)
}

/// The hook's refusal. The hook ended by itself, not by its alarm, which prints nothing.
pub fn refusal(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("gpuslice: ") && said.lines().count() == 1, "{said:?}");
    said
}
