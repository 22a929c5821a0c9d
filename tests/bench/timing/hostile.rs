//! What honest neighbours keep while a container attacks the daemon.
//!
//! # Problem
//! An attack may cost a neighbour in three ways: its grants of memory take longer, its share of the GPU's time is
//! not kept, or the GPU idles. Other work on the machine does all of that too, so an attack's figures compare
//! with nothing but those of the same node a few seconds earlier and later.
//!
//! # Idea
//! Two tenants that are always busy divide the GPU 25:75, and a third neighbour asks for memory all the time. Windows
//! of time without the attacker and with it alternate. The attacker has weight 1 and begins anew in each of its
//! windows. Its processes have the processor time of one control group together, as those of a container have. What
//! they cost by computing alone is a row of its own, the first: the other rows compare with that one.

use crate::node::{Node, interrupt};
use crate::old_kernel::as_on_an_old_kernel;
use crate::{Error, Pace, Row, client::Client};
use gpuslice_sim_device::{ContextId, now_ns};
use gpuslice_wire::ids::Lane;
use gpuslice_wire::tenant::{Reply, Request};
use gpuslice_wire::units::{Bytes, MIB};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An attack.
#[derive(Clone, Copy)]
pub struct Attack {
    /// Name of its rows.
    pub name: &'static str,
    /// Its program: see [`attackers`](crate::attackers), or the one of [`liar`](crate::liar).
    program: &'static str,
    /// What its program is told.
    word: Word,
    /// Whether the daemon runs as on a kernel whose sockets cannot refuse descriptors.
    on_old_kernel: bool,
    /// GPUs of the node, all of which the attacker's slice has.
    gpus: usize,
}

/// What an attacker has to know.
#[derive(Clone, Copy)]
enum Word {
    Nothing,
    /// The socket of the neighbour that asks for memory.
    Socket,
    /// The address of the metrics.
    Metrics,
    /// The program that closes descriptors.
    Churn,
}

const fn attack(name: &'static str, program: &'static str) -> Attack {
    Attack { name, program, word: Word::Nothing, on_old_kernel: false, gpus: 1 }
}

/// All attacks; the first one only computes.
pub const ATTACKS: [Attack; 13] = [
    attack("hostile: 16 processes that compute", "attack compute"),
    Attack {
        on_old_kernel: true,
        ..attack("hostile: descriptors that linger", "attack descriptors")
    },
    Attack { word: Word::Socket, ..attack("hostile: another user connects", "attack strangers") },
    attack("hostile: connections without end", "attack connections"),
    attack("hostile: 16 processes that ring", "attack bells"),
    Attack { gpus: 16, ..attack("hostile: 254 that ring on 16 GPUs", "attack all-bells") },
    attack("hostile: a driver's file without answer", "attack fuse"),
    attack("hostile: attach and close", "attack attach-and-close"),
    Attack { word: Word::Metrics, ..attack("hostile: idle at the metrics", "attack scrapers") },
    Attack { word: Word::Churn, ..attack("hostile: closes descriptors", "attack closefrom") },
    attack("hostile: requests without end", "attack requests"),
    attack("hostile: 128 requests that wait", "attack waiters"),
    attack("hostile: runnable without work", "liar 1950 30"),
];

/// Percent that a neighbour keeps.
const KEPT: f64 = 95.0;
/// From an attacker's start until it counts, and from its end until the next window.
const SETTLES: Duration = Duration::from_millis(400);

/// Rows of one attack.
///
/// # Errors
/// A node does not work.
pub fn measure(parts: &Path, attack: Attack, pace: Pace) -> Result<Vec<Row>, Error> {
    let scene = Scene::start(parts, attack)?;
    let windows = if pace.is_quick() { 2 } else { 4 };
    let (mut quiet, mut beside) = (Side::default(), Side::default());
    for number in 0..windows {
        // In turn, so that a trend of the machine is in both alike.
        if number % 2 == 0 {
            scene.window(&mut quiet);
            scene.attacked(&mut beside)?;
        } else {
            scene.attacked(&mut beside)?;
            scene.window(&mut quiet);
        }
    }
    let named = |what: &str| format!("{}: {what}", attack.name.trim_start_matches("hostile: "));
    let together = 100.0 * beside.together() / quiet.together();
    let (now, then) = (beside.parts(), quiet.parts());
    let share = [0, 1].map(|at: usize| 100.0 * now[at] / then[at]);
    let before = Row::of(&named("grant, quiet"), "µs", quiet.grants, f64::INFINITY);
    let bound = before.high * 100.0 / KEPT;
    Ok(vec![
        Row::of(&named("grant, attacked"), "µs", beside.grants, bound),
        before,
        Row::least(&named("share"), "%", share.into(), KEPT),
        Row::least(&named("together"), "%", vec![together], KEPT),
    ])
}

/// What was measured without the attacker, or with it.
#[derive(Default)]
struct Side {
    /// Time of each grant, µs.
    grants: Vec<f64>,
    /// GPU time of the two busy tenants, ns.
    busy: [f64; 2],
    /// Length of all windows, ns.
    length: f64,
}

impl Side {
    /// Parts of the two in what both got.
    fn parts(&self) -> [f64; 2] {
        self.busy.map(|one| one / (self.busy[0] + self.busy[1]))
    }

    /// Part of the GPU's time that both got.
    fn together(&self) -> f64 {
        (self.busy[0] + self.busy[1]) / self.length
    }
}

/// A node with neighbours, and what an attack needs.
struct Scene {
    attack: Attack,
    busy: [ContextId; 2],
    /// When each grant was asked for, and how long it took, ns.
    grants: Arc<Mutex<Vec<(u64, u64)>>>,
    word: String,
    group: Option<Group>,
    exporter: Option<Child>,
    node: Node,
}

impl Scene {
    fn start(parts: &Path, attack: Attack) -> Result<Scene, Error> {
        // Of the node's rules all that stops work on the GPU, for the attack on that.
        let config = "preemption = \"probe\"\ndrain_max_ms = 200\n";
        let mut node = Node::changed(parts, attack.gpus, config, |command| {
            if attack.on_old_kernel {
                as_on_an_old_kernel(command);
            }
        })?;
        let (output, socket) = node.reporter(("", "gpuslice-bench-time asks"))?;
        let busy = ["--weight 25", "--weight 75"]
            .map(|weight| node.tenant(0, (weight, "--seconds 600 --kernel-us 500")));
        let [one, other] = busy;
        let (exporter, word) = match attack.word {
            Word::Nothing => (None, "-".to_owned()),
            Word::Socket => (None, socket.to_string_lossy().into_owned()),
            Word::Churn => (None, parts.join("churn").to_string_lossy().into_owned()),
            Word::Metrics => {
                let (child, address) = exporter(&node)?;
                (Some(child), address)
            }
        };
        let group = Group::new();
        if group.is_none() {
            eprintln!("no control group for processor time: each of its processes counts as one");
        }
        let busy = [one?, other?];
        Ok(Scene { attack, busy, grants: collected(output), word, group, exporter, node })
    }

    /// A window, and its part of what is measured.
    fn window(&self, side: &mut Side) {
        let (from, before) = (now_ns(), self.node.busy(&self.busy));
        std::thread::sleep(Duration::from_secs(2));
        let (to, after) = (now_ns(), self.node.busy(&self.busy));
        // The last grants are on their way to this process.
        std::thread::sleep(SETTLES);
        let mut grants = self.grants.lock().expect("no thread panics");
        let within = grants.drain(..).filter(|(at, _)| (from..to).contains(at));
        side.grants.extend(within.map(|(_, took)| took as f64 / 1e3));
        for (sum, (then, now)) in side.busy.iter_mut().zip(before.iter().zip(&after)) {
            *sum += (now - then) as f64;
        }
        side.length += (to - from) as f64;
    }

    /// The same with the attacker.
    fn attacked(&self, side: &mut Side) -> Result<(), Error> {
        let mut program = format!("gpuslice-bench-time {}", self.attack.program);
        if self.attack.program.starts_with("attack ") {
            let _ = write!(program, " {}", self.word);
        }
        let gpus: Vec<String> = (0..self.attack.gpus).map(|gpu| gpu.to_string()).collect();
        let mut command = self.node.command(gpus.join(","), ("--weight 1", &program));
        if let Some(Group(dir)) = &self.group {
            let procs = dir.join("cgroup.procs");
            // SAFETY: a write between fork and exec; this process holds no lock for it.
            unsafe { command.pre_exec(move || std::fs::write(&procs, "0")) };
        }
        let mut attacker = command.stdout(Stdio::null()).spawn()?;
        std::thread::sleep(SETTLES);
        self.window(side);
        let ended = attacker.try_wait()?;
        interrupt(&attacker);
        attacker.wait()?;
        self.group.as_ref().map_or(Ok(()), Group::end)?;
        std::thread::sleep(SETTLES);
        match ended {
            None => Ok(()),
            Some(status) => Err(format!("the attacker has ended: {status}").into()),
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Some(exporter) = &mut self.exporter {
            let _ = exporter.kill();
            let _ = exporter.wait();
        }
    }
}

/// A control group for processor time; removed when dropped.
struct Group(PathBuf);

impl Group {
    /// None where this user can make none, and processes of an attacker count one by one.
    fn new() -> Option<Group> {
        // Of the kernel's weights each is 1.25 times that of the next priority. A group's is that of one process.
        // SAFETY: plain numbers.
        let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let weight = |normal: f64| (normal / 1.25_f64.powi(nice)).round().max(2.0).to_string();
        let files = [("cpu", "cpu.shares", 1024.0), ("", "cpu.weight", 100.0)];
        files.iter().find_map(|(hierarchy, file, normal)| {
            let name = format!("gpuslice-bench-{}", std::process::id());
            let group = Group(Path::new("/sys/fs/cgroup").join(hierarchy).join(name));
            std::fs::create_dir(&group.0).ok()?;
            let file = std::fs::OpenOptions::new().write(true).open(group.0.join(file));
            file.and_then(|mut to| to.write_all(weight(*normal).as_bytes())).ok()?;
            Some(group)
        })
    }
}

impl Group {
    /// Ends all processes in it, and waits until they are gone.
    fn end(&self) -> Result<(), Error> {
        let procs = self.0.join("cgroup.procs");
        for _ in 0..100 {
            let all = std::fs::read_to_string(&procs)?;
            if all.is_empty() {
                return Ok(());
            }
            for process in all.lines().filter_map(|line| line.parse().ok()) {
                // SAFETY: a signal to a process in a group that only this bench fills.
                unsafe { libc::kill(process, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err("an attacker's process cannot be killed".into())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// The metrics of a node, and their address.
fn exporter(node: &Node) -> Result<(Child, String), Error> {
    let mut command = Command::new(node.parts().join("gpuslice"));
    command.args(["metrics", "--listen", "127.0.0.1:0", "--runtime-dir"]);
    let mut child = command.arg(node.runtime_dir()).stderr(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stderr.take().ok_or("no pipe")?).read_line(&mut line)?;
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    Ok((child, address.ok_or("no address")?.to_owned()))
}

/// Reads what the neighbour that asks for memory prints.
fn collected(output: ChildStdout) -> Arc<Mutex<Vec<(u64, u64)>>> {
    let all = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&all);
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let (at, took) = line.split_once(' ')?;
            to.lock().ok()?.push((at.parse().ok()?, took.parse().ok()?));
        }
        Some(())
    });
    all
}

/// The neighbour's program: asks for memory and gives it back, every 0.5 ms; prints when and how long it took, ns.
///
/// # Errors
/// The daemon refuses.
pub fn asks() -> Result<(), Error> {
    let client = Client::of_this_slice()?;
    let _attached = client.attach()?;
    let (lane, bytes, mut lines) = (Lane(0), Bytes(2 * MIB), String::new());
    for number in 1_u32.. {
        let at = now_ns();
        client.send(&Request::Reserve { lane, need: bytes, wish: bytes })?;
        let reply = client.hear()?.0;
        writeln!(lines, "{at} {}", now_ns() - at)?;
        if !matches!(reply, Reply::Reserved { .. }) {
            return Err(format!("{reply:?}").into());
        }
        client.send(&Request::Release { lane, bytes })?;
        if number % 100 == 0 {
            std::io::stdout().write_all(lines.as_bytes())?;
            lines.clear();
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}
