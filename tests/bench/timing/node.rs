//! A private node: a daemon, a simulated machine and tenants in slices; removed when dropped.

use crate::Error;
use gpuslice_sim_device::{ContextId, Machine, Role, now_ns};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for every start.
const PATIENCE: Duration = Duration::from_secs(30);

/// A node.
pub struct Node {
    dir: PathBuf,
    parts: PathBuf,
    tenants: Vec<Child>,
    gpus: usize,
    daemon: Child,
    /// The device, opened as an observer.
    pub machine: Machine,
}

/// A tenant's arguments: those of `gpuslice run`, and those of the tenant's program; or the name of another program of
/// the build and its arguments.
pub type Words<'a> = (&'a str, &'a str);

impl Node {
    /// A daemon that is ready, on `gpus` GPUs.
    pub fn start(parts: &Path, gpus: usize) -> Result<Node, Error> {
        Node::configured(parts, gpus, "")
    }

    /// The same, with this configuration text.
    pub fn configured(parts: &Path, gpus: usize, config: &str) -> Result<Node, Error> {
        Node::changed(parts, gpus, config, |_| ())
    }

    /// The same, with a change to the command that starts the daemon.
    pub fn changed(
        parts: &Path,
        gpus: usize,
        config: &str,
        change: impl FnOnce(&mut Command),
    ) -> Result<Node, Error> {
        let name = format!("gpuslice-bench-{}-{:?}", std::process::id(), Instant::now());
        let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
        let dir = Path::new("/dev/shm").join(name);
        std::fs::create_dir(&dir)?;
        std::fs::write(dir.join("config"), config)?;
        let mut command = daemon_command(parts, &dir, gpus)?;
        change(&mut command);
        let mut daemon = command.spawn()?;
        let ready =
            || std::fs::read_to_string(dir.join("log")).is_ok_and(|log| log.contains("ready"));
        if let Err(why) = until("the daemon is ready", ready) {
            let _ = daemon.kill();
            return Err(why);
        }
        let machine = Machine::open(&dir.join("device"), Role::Observer)?;
        Ok(Node { parts: parts.to_owned(), tenants: Vec::new(), gpus, machine, daemon, dir })
    }

    /// Kills the daemon.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn kill_daemon(&mut self) -> std::io::Result<()> {
        self.daemon.kill()?;
        self.daemon.wait().map(drop)
    }

    /// Starts a daemon after the one that was killed, with its configuration, and does not wait until it is ready.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_daemon(&mut self) -> std::io::Result<()> {
        self.daemon = daemon_command(&self.parts, &self.dir, self.gpus)?.spawn()?;
        Ok(())
    }

    /// The daemon's process id.
    pub fn daemon(&self) -> u32 {
        self.daemon.id()
    }

    /// Turns granted on this node so far.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn turns(&self) -> Result<u64, Error> {
        let now: serde_json::Value = serde_json::from_str(&self.gpuslice("ps --json")?)?;
        let slices = now["slices"].as_array().map_or(&[][..], Vec::as_slice);
        Ok(slices.iter().filter_map(|it| it["turns"].as_u64()).sum())
    }

    /// Runs `gpuslice WORDS` on this node to its end; returns its output.
    pub fn gpuslice(&self, words: &str) -> Result<String, Error> {
        let mut command = Command::new(self.parts.join("gpuslice"));
        command.args(words.split_whitespace());
        command.arg("--runtime-dir").arg(self.dir.join("run"));
        let output = command.stdin(Stdio::null()).output()?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                Err(format!("gpuslice {words}: {}", said.trim()).into())
            }
        }
    }

    /// Starts a tenant on GPU `gpu` and waits until it has its context there.
    pub fn tenant(&mut self, gpu: usize, (slice, program): Words<'_>) -> Result<ContextId, Error> {
        let before = self.contexts(gpu);
        let child = self.spawn(gpu, (slice, program), Stdio::null())?;
        self.tenants.push(child);
        let new = || {
            let now = self.contexts(gpu);
            now.into_iter().find(|id| !before.contains(id))
        };
        until("the tenant has a context", || new().is_some())?;
        new().ok_or_else(|| "the tenant's context is gone".into())
    }

    /// Starts a process in a slice that makes no context.
    ///
    /// # Errors
    /// The command does not start.
    pub fn process(&mut self, gpu: usize, words: Words<'_>) -> Result<(), Error> {
        let child = self.spawn(gpu, words, Stdio::null())?;
        self.tenants.push(child);
        Ok(())
    }

    /// Starts a process in a slice that makes no context; returns its output and its slice's socket. No other slice
    /// may begin or end meanwhile.
    ///
    /// # Errors
    /// It gets no slice.
    pub fn reporter(&mut self, words: Words<'_>) -> Result<(ChildStdout, PathBuf), Error> {
        let sockets = || -> BTreeSet<PathBuf> {
            let slices = std::fs::read_dir(self.dir.join("run/c")).into_iter().flatten().flatten();
            slices
                .map(|slice| slice.path().join("inside/tenant.sock"))
                .filter(|it| it.exists())
                .collect()
        };
        let before = sockets();
        let mut child = self.spawn(0, words, Stdio::piped())?;
        let output = child.stdout.take().ok_or("no output")?;
        let began = until("the slice has a socket", || sockets() != before);
        let new = sockets().difference(&before).next().cloned();
        self.tenants.push(child);
        began?;
        Ok((output, new.ok_or("the slice is gone")?))
    }

    /// Runs a tenant to its end; returns its output.
    pub fn told(&mut self, gpu: usize, words: Words<'_>) -> Result<String, Error> {
        let child = self.spawn(gpu, words, Stdio::piped())?;
        let output = child.wait_with_output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The build's programs.
    pub fn parts(&self) -> &Path {
        &self.parts
    }

    /// Where the daemon's sockets are.
    pub fn runtime_dir(&self) -> PathBuf {
        self.dir.join("run")
    }

    fn spawn(&self, gpu: usize, words: Words<'_>, to: Stdio) -> Result<Child, Error> {
        Ok(self.command(gpu, words).stdout(to).spawn()?)
    }

    /// The command that runs a program in a slice of its own on these GPUs: one, or a list with commas.
    pub fn command(&self, gpus: impl ToString, (slice, program): Words<'_>) -> Command {
        let mut command = Command::new(self.parts.join("gpuslice"));
        command.args(["run", "--quiet", "--memory", "1GiB", "--gpus"]);
        command.arg(gpus.to_string()).args(slice.split_whitespace());
        command.arg("--runtime-dir").arg(self.dir.join("run"));
        let mut words = program.split_whitespace().peekable();
        command.arg("--");
        match words.next_if(|word| !word.starts_with('-')) {
            Some(other) => command.arg(self.parts.join(other)),
            // One allocation that fits and one that does not, because this does not measure memory.
            None => command.arg(self.parts.join("tenant")).args(["--step-mib", "512"]),
        };
        command.args(words);
        command.env("GPUSLICE_SIM_DEVICE", self.dir.join("device"));
        command.stdin(Stdio::null());
        end_with_this(&mut command);
        command
    }

    fn contexts(&self, gpu: usize) -> Vec<ContextId> {
        self.machine.contexts(gpu).unwrap_or_default()
    }

    /// Starts a tenant that the caller waits for; its context too.
    pub fn started(&mut self, gpu: usize, words: Words<'_>) -> Result<(Child, ContextId), Error> {
        let before = self.contexts(gpu);
        let child = self.spawn(gpu, words, Stdio::piped())?;
        let new = || {
            let now = self.contexts(gpu);
            now.into_iter().find(|id| !before.contains(id))
        };
        until("the tenant has a context", || new().is_some())?;
        Ok((child, new().ok_or("the tenant's context is gone")?))
    }

    /// Device time of each live context so far, ns.
    pub fn busy(&self, contexts: &[ContextId]) -> Vec<u64> {
        let busy = |id: &ContextId| self.machine.context_info(*id).map_or(0, |info| info.busy_ns);
        contexts.iter().map(busy).collect()
    }

    /// The part of the device's time that each context gets over `length` from now on.
    pub fn parts_of(&self, contexts: &[ContextId], length: Duration) -> Vec<f64> {
        let (from, before) = (now_ns(), self.busy(contexts));
        std::thread::sleep(length);
        let (to, after) = (now_ns(), self.busy(contexts));
        let part = |(then, now): (&u64, &u64)| (now - then) as f64 / (to - from) as f64;
        before.iter().zip(&after).map(part).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.tenants.iter().for_each(interrupt);
        for child in &mut self.tenants {
            let _ = child.wait();
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// As Ctrl-C does: the command ends its program and removes its slice.
pub fn interrupt(child: &Child) {
    // SAFETY: a signal to a child that is not reaped yet.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) };
}

/// Waits for the end of `child`, calling `look` meanwhile. Returns what it printed, which may be more than a pipe
/// holds.
///
/// # Errors
/// Its output cannot be read.
pub fn watched(mut child: Child, mut look: impl FnMut()) -> Result<String, Error> {
    let output = child.stdout.take().ok_or("no output")?;
    let reader = std::thread::spawn(|| std::io::read_to_string(output));
    while child.try_wait()?.is_none() {
        look();
    }
    Ok(reader.join().map_err(|_| "the reader panicked")??)
}

/// The command that starts the daemon of a node in `dir`.
fn daemon_command(parts: &Path, dir: &Path, gpus: usize) -> std::io::Result<Command> {
    let mut command = Command::new(parts.join("gpusliced"));
    command.arg("--config").arg(dir.join("config"));
    command.arg("--runtime-dir").arg(dir.join("run"));
    command.arg("--driver-dir").arg(parts.join("sim"));
    command.arg("--ephemeral").stdin(Stdio::null());
    command.env("GPUSLICE_SIM", format!("devices={gpus},mem=64GiB"));
    command.env("GPUSLICE_SIM_DEVICE", dir.join("device"));
    command.stderr(File::create(dir.join("log"))?);
    end_with_this(&mut command);
    Ok(command)
}

/// Has a program end with this process, however that ends. The thread that starts it must live as long.
pub fn end_with_this(command: &mut Command) {
    // SAFETY: plain numbers.
    let ends = || match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(ends) };
}

fn until(what: &str, mut happens: impl FnMut() -> bool) -> Result<(), Error> {
    let start = Instant::now();
    while !happens() {
        if start.elapsed() > PATIENCE {
            return Err(format!("it never happened that {what}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
