//! A daemon with two simulated GPUs of 16 GiB.

use super::agent::Agent;
use super::caps::Caps;
use super::profiles::{simulated, strict};
use super::wire::{AdminClient, TenantClient};
use super::{PATIENCE, eventually, library};
use gpuslice_sim_device::{Config, Machine, Role};
use gpuslice_wire::admin::{Admission, Answer, Command as AdminCommand, Denial, MemoryAsk};
use gpuslice_wire::ids::{ContainerId, Lane};
use gpuslice_wire::owner::Owner;
use gpuslice_wire::policy::{Class, Gangs};
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::text::{Name, Selector};
use gpuslice_wire::units::Bytes;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What the simulated GPUs of a test are.
const GPUS: &str = "devices=2,mem=16GiB";

/// Directories and a daemon.
pub struct Node {
    root: TempDir,
    runtime_dir: PathBuf,
    /// What its simulated GPUs are.
    gpus: String,
    daemon: Option<Child>,
    caps: Mutex<Caps>,
}

impl Node {
    /// Directories without a daemon.
    pub fn new() -> Node {
        // In memory, as a driver's state and /run are: a store into a mapped page of a file waits for the disk.
        let root = tempfile::Builder::new().prefix("gpuslice-it-").tempdir_in("/dev/shm");
        let root = root.expect("a directory");
        let driver = root.path().join("driver");
        fs::create_dir(&driver).expect("a driver directory");
        for (name, real, package) in [
            ("libcuda.so.1", "libgpuslice_sim_cuda.so", "gpuslice-sim-cuda"),
            ("libnvidia-ml.so.1", "libgpuslice_sim_nvml.so", "gpuslice-sim-nvml"),
        ] {
            symlink(library(real, package), driver.join(name)).expect("a link");
        }
        let runtime_dir = root.path().join("run");
        Node { root, runtime_dir, gpus: simulated(GPUS), daemon: None, caps: Mutex::default() }
    }

    /// Directories and a daemon that is ready.
    pub fn start() -> Node {
        let mut node = Node::new();
        node.start_daemon(&[]);
        node
    }

    /// The same on the strict driver of a suite.
    pub fn start_strict(suite: &str) -> Node {
        let mut node = Node::new();
        node.gpus = strict(GPUS, suite);
        node.start_daemon(&[]);
        node
    }

    /// The same on these simulated GPUs.
    pub fn start_with(gpus: &str) -> Node {
        let mut node = Node::new();
        gpus.clone_into(&mut node.gpus);
        node.start_daemon(&[]);
        node
    }

    /// The test's own directory.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Where the daemon's sockets are.
    pub fn runtime_dir(&self) -> &Path {
        &self.runtime_dir
    }

    /// Other simulated GPUs, for the daemons from now on.
    pub fn set_gpus(&mut self, gpus: &str) {
        gpus.clone_into(&mut self.gpus);
    }

    /// Another runtime directory, from now on.
    pub fn set_runtime_dir(&mut self, dir: PathBuf) {
        self.runtime_dir = dir;
    }

    /// The command line of a daemon of this node.
    pub fn daemon_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpusliced"));
        command
            .arg("--runtime-dir")
            .arg(&self.runtime_dir)
            .arg("--driver-dir")
            .arg(self.root.path().join("driver"))
            .args(args)
            .env("GPUSLICE_SIM", &self.gpus)
            .env("GPUSLICE_SIM_DEVICE", self.root.path().join("device"))
            .stdin(Stdio::null());
        command
    }

    /// Starts a daemon and waits until it is ready.
    pub fn start_daemon(&mut self, args: &[&str]) {
        let command = self.daemon_command(args);
        self.start_command(command);
    }

    /// Starts a daemon with this configuration.
    pub fn start_configured(&mut self, text: &str) {
        let file = self.root().join("gpusliced.toml");
        fs::write(&file, text).expect("written");
        self.start_daemon(&["--config", file.to_str().expect("plain")]);
    }

    /// Starts a daemon that may have only this many descriptors.
    pub fn start_daemon_limited(&mut self, fds: u64) {
        let mut command = self.daemon_command(&[]);
        let limit = move || Ok(setrlimit(Resource::RLIMIT_NOFILE, fds, fds)?);
        // SAFETY: between fork and exec only one system call is made.
        unsafe { command.pre_exec(limit) };
        self.start_command(command);
    }

    /// Starts this daemon and waits until it is ready.
    pub fn start_command(&mut self, mut command: Command) {
        assert!(self.daemon.is_none(), "one daemon at a time");
        let log = File::options().append(true).create(true).open(self.log_path()).expect("a log");
        let from = self.log().len();
        let child = command.stderr(log).spawn().expect("gpusliced starts");
        self.daemon = Some(child);
        let start = Instant::now();
        while !self.log()[from..].contains("gpusliced ready: ") {
            let ended = self.daemon.as_mut().and_then(|child| child.try_wait().expect("wait"));
            assert!(ended.is_none(), "gpusliced ended with {ended:?}: {}", self.log());
            assert!(start.elapsed() < PATIENCE, "gpusliced is not ready: {}", self.log());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn log_path(&self) -> PathBuf {
        self.root.path().join("log")
    }

    /// What the daemons of this node wrote to standard error.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// The daemon's process.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.daemon.as_ref().expect("a daemon").id() as i32)
    }

    /// What the daemon has resident, KiB.
    pub fn rss_kib(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// A number of the daemon's `/proc/<pid>/status`.
    pub fn status(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("alive");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.trim_end_matches("kB").trim().parse().expect("a number")
    }

    /// Lets this test's containers have more than their caps: a case of the table in `caps.rs`.
    pub fn exceed(&self, case: &str) {
        self.caps.lock().expect("no test failed in it").exceed(case);
    }

    /// Ends the daemon by a signal.
    pub fn end_daemon(&mut self, signal: Signal) -> ExitStatus {
        self.end_daemon_after(signal, |_| ())
    }

    /// Kills the daemon after it has stood still for a while: what it was sent meanwhile is lost.
    pub fn end_daemon_unread(&mut self, still: Duration) -> ExitStatus {
        self.end_daemon_after(Signal::SIGKILL, |daemon| {
            kill(daemon, Signal::SIGSTOP).expect("it lives");
            std::thread::sleep(still);
        })
    }

    fn end_daemon_after(&mut self, signal: Signal, first: impl FnOnce(Pid)) -> ExitStatus {
        // It asks the daemon.
        self.caps.lock().expect("no test failed in it").note(self);
        first(self.pid());
        kill(self.pid(), signal).expect("it lives");
        self.daemon.take().expect("a daemon").wait().expect("it ends")
    }

    /// A new connection to the admin socket.
    pub fn admin(&self) -> AdminClient {
        self.try_admin().expect("the daemon answers")
    }

    /// The same of a daemon that may be gone.
    pub fn try_admin(&self) -> nix::Result<AdminClient> {
        AdminClient::connect(&self.runtime_dir.join("admin.sock"))
    }

    /// The containers that have a slice.
    pub fn containers(&self) -> BTreeSet<String> {
        let name = |row| match row {
            Snapshot::Slice { container, .. } => Some(container.to_string()),
            _ => None,
        };
        self.admin().list().into_iter().filter_map(name).collect()
    }

    /// A container's directory on the host.
    pub fn container_dir(&self, container: &str) -> PathBuf {
        self.runtime_dir.join("c").join(container)
    }

    /// The directory that a container sees at `/run/gpuslice`.
    pub fn inside(&self, container: &str) -> PathBuf {
        self.container_dir(container).join("inside")
    }

    /// A new connection to a container's socket, of the test's own process.
    pub fn tenant(&self, container: &str) -> TenantClient {
        TenantClient::connect(&self.socket(container)).expect("the daemon listens")
    }

    /// A process of its own with a connection to a container's socket. Its end refunds what it holds.
    pub fn process(&self, container: &str) -> TenantClient {
        let agent = Agent::start();
        let connection = agent.connect(&self.socket(container));
        TenantClient(connection, Some(agent))
    }

    /// This machine's mounts of this node, or of parts of a slice. Other tests mount what is theirs meanwhile.
    pub fn host_mounts(&self) -> Vec<String> {
        let all = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let root = self.root.path().to_str().expect("plain");
        let parts = ["ld.so.preload", "gpuslice-sim", "libcuda", "libnvidia-ml", "tenant.sock"];
        let is_ours = |line: &&str| line.contains(root) || parts.iter().any(|it| line.contains(it));
        all.lines().filter(is_ours).map(str::to_owned).collect()
    }

    /// A container's socket.
    pub fn socket(&self, container: &str) -> PathBuf {
        self.inside(container).join("tenant.sock")
    }

    /// Gives a container a slice of GPU 0.
    pub fn admit(&self, container: &str, cap: Bytes) -> Answer {
        self.admin().ask(&admit(container, "0", MemoryAsk::Exactly(cap)))
    }

    /// Gives a container a slice, or fails the test.
    pub fn must_admit(&self, container: &str, cap: Bytes) {
        self.must_grant(&admit(container, "0", MemoryAsk::Exactly(cap)));
    }

    /// The same of these GPUs, with something more in what is asked.
    pub fn must_admit_with(
        &self,
        container: &str,
        gpus: &str,
        cap: Bytes,
        change: impl FnOnce(&mut Admission),
    ) {
        let mut asked = admission(container, gpus, MemoryAsk::Exactly(cap));
        change(&mut asked);
        self.must_grant(&AdminCommand::Admit { asked });
    }

    /// Sends this `Admit`, and fails the test if it is denied.
    pub fn must_grant(&self, ask: &AdminCommand) {
        let answer = self.admin().ask(ask);
        assert!(is_admitted(&answer), "{answer:?}");
    }

    /// The simulated device, as an observer sees it.
    pub fn machine(&self) -> Machine {
        self.machine_as(Role::Observer)
    }

    /// The same in another role.
    pub fn machine_as(&self, role: Role) -> Machine {
        Machine::open(&self.root().join("device"), role).expect("the node's device")
    }

    /// The daemon's child processes, each with the option that says what it does. One that was just forked has the
    /// daemon's own command line; one that has ended, and that the daemon has not waited for yet, is not among them.
    pub fn children(&self) -> BTreeMap<String, Pid> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it lives");
        let of = |task: fs::DirEntry| fs::read_to_string(task.path().join("children"));
        let all = tasks.flatten().filter_map(|task| of(task).ok()).collect::<String>();
        let named = all.split_whitespace().filter_map(|pid| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let option = words.split(|byte| *byte == 0).nth(1).filter(|it| !it.is_empty())?;
            let option = String::from_utf8_lossy(option).into_owned();
            Some((option, Pid::from_raw(pid.parse().expect("a number"))))
        });
        named.collect()
    }

    /// Ends a container's slice.
    pub fn dismiss(&self, container: &str) -> Answer {
        self.admin().ask(&AdminCommand::Dismiss { container: id(container) })
    }

    /// A container's cap on its lane 0, what is reserved there, and its number of clients, as the daemon lists it.
    fn lane_0(&self, container: &str) -> Option<(Bytes, Bytes, u32)> {
        let container = id(container);
        self.admin().list().into_iter().find_map(|row| match row {
            Snapshot::Slice { container: it, lane: Lane(0), cap, reserved, clients, .. } => {
                (it == container).then_some((cap, reserved, clients))
            }
            _ => None,
        })
    }

    /// Reserved and number of clients of a container's lane 0.
    pub fn slice(&self, container: &str) -> Option<(Bytes, u32)> {
        self.lane_0(container).map(|(_, reserved, clients)| (reserved, clients))
    }

    /// A container's cap on its lane 0.
    pub fn cap(&self, container: &str) -> Option<Bytes> {
        self.lane_0(container).map(|(cap, ..)| cap)
    }

    /// Waits until a container has nothing reserved and no clients.
    pub fn wait_refunded(&self, container: &str) {
        eventually("a refund", || self.slice(container) == Some((Bytes::ZERO, 0)));
    }

    /// Waits until a container has no clients. A process that lives on and has memory on the GPU, which NVML may have
    /// shown by then, is charged for it still.
    pub fn wait_disconnected(&self, container: &str) {
        let clients = || self.slice(container).map(|(_, clients)| clients);
        eventually("the end of its connections", || clients() == Some(0));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let fails = std::thread::panicking();
        let exceeded = if fails {
            Vec::new()
        } else {
            self.caps.lock().expect("no test failed in it").exceeded(self)
        };
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        if fails {
            eprintln!("the daemon said:\n{}", self.log());
        }
        assert!(exceeded.is_empty(), "above the cap: {exceeded:?}");
    }
}

/// Arms these faults of a node's device.
pub fn faults(machine: &Machine, text: &str) {
    let config = Config::parse(&format!("fault={text}")).expect("a fault");
    machine.set_faults(config.faults);
}

/// A container's id.
pub fn id(container: &str) -> ContainerId {
    ContainerId::new(container).expect("an id")
}

/// An `Admit` with nothing special.
pub fn admit(container: &str, gpus: &str, memory: MemoryAsk) -> AdminCommand {
    admit_first(container, gpus, memory, 0)
}

/// The same of a container whose first process is `pid`.
pub fn admit_first(container: &str, gpus: &str, memory: MemoryAsk, pid: u32) -> AdminCommand {
    AdminCommand::Admit { asked: Admission { pid, ..admission(container, gpus, memory) } }
}

fn admission(container: &str, gpus: &str, memory: MemoryAsk) -> Admission {
    Admission {
        container: id(container),
        name: Name::EMPTY,
        gpus: Selector::new(gpus).expect("a selector"),
        whole: Selector::EMPTY,
        memory,
        memory_limit: None,
        weight: None,
        share: None,
        share_limit: None,
        class: Class::Normal,
        gang: Gangs::Auto,
        pinned: None,
        pid: 0,
        owner: Owner::default(),
    }
}

/// Whether a slice was given.
pub fn is_admitted(answer: &Answer) -> bool {
    matches!(answer, Answer::Admitted { .. })
}

/// The kind and text of a refusal.
pub fn denied(answer: Answer) -> (Denial, String) {
    match answer {
        Answer::Denied { why, text } => (why, text.as_str().to_owned()),
        other => panic!("not denied: {other:?}"),
    }
}
