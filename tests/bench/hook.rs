//! The cost of hook and runtime wrapper at a container's start: without a request, with a slice, and a
//! whole `runc run /bin/true` with and without the hook. The wrapper's next runtime is `/bin/true`.
//!
//! `gpuslice-bench-hook DIR` expects the output of `packaging/stage release` in DIR, root and runc. It
//! starts its own daemon on the simulated GPU. Compared runs alternate, so that a machine that slows down
//! slows both; results are medians of the differences within a round. A hook's *body* is its time beyond
//! the start and exit of its program, which a call with invalid arguments measures. The exit status is 1
//! when a target is missed.

mod stats;

use serde_json::{Value, json};
use stats::{quantile, rounds};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 150;
/// Rounds for a single hook: it is short, so it needs more for the same precision.
const SPAWN_ROUNDS: usize = 300;
/// Mounts of a slice: tenant directory, driver, NVML, shim, device, two covers, preload list.
const MOUNTS: usize = 8;
const BODY_MS: f64 = 0.5;
const RUN_MS: f64 = 2.0;
/// Targets for the whole hook with the daemon's answer: median and p99.
const WHOLE_MS: (f64, f64) = (2.0, 10.0);
/// Target for the wrapper before the next runtime, for a container without a request.
const WRAPPER_MS: f64 = 0.3;

type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    let Some(parts) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: gpuslice-bench-hook DIRECTORY-OF-THE-PROGRAMS");
        return ExitCode::FAILURE;
    };
    if let Some(why) = missing(&parts) {
        eprintln!("hook not measured: {why}");
        println!("{}", json!({ "bench": "hook", "verdict": "skipped", "why": why }));
        return ExitCode::SUCCESS;
    }
    match Bench::new(parts).and_then(|bench| bench.rows()) {
        Ok(rows) => report(&rows),
        Err(error) => {
            eprintln!("gpuslice-bench-hook: {error}");
            ExitCode::FAILURE
        }
    }
}

fn missing(parts: &Path) -> Option<String> {
    let root =
        fs::metadata("/proc/self").ok().map(|meta| std::os::unix::fs::MetadataExt::uid(&meta));
    if root != Some(0) {
        return Some("containers need root".into());
    }
    if Command::new("runc").arg("--version").output().is_err() {
        return Some("runc is not installed".into());
    }
    let hook = parts.join("libexec/gpuslice-hook");
    (!hook.exists()).then(|| format!("{} is missing; run packaging/stage release", hook.display()))
}

/// A process's duration, ms: by the clock, and in processor time (which other programs on a busy machine
/// do not change).
#[derive(Clone, Copy)]
struct Took {
    clock: f64,
    cpu: f64,
}

/// A target, ms. The target for a hook with a slice is processor time: by the clock half of its body is
/// the wait for the daemon's answer.
#[derive(Clone, Copy)]
enum Target {
    Clock(f64),
    Cpu(f64),
}

/// One row of the report, ms.
struct Row {
    name: &'static str,
    /// The run it is compared with.
    against: &'static str,
    base: f64,
    added: f64,
    added_cpu: f64,
    target: Option<Target>,
    /// Median and p99 of the whole process by the clock, and their targets.
    whole: (f64, f64),
    whole_target: Option<(f64, f64)>,
}

/// Directories and a daemon; removed when dropped.
struct Bench {
    parts: PathBuf,
    /// Bundles and the root filesystem.
    dir: PathBuf,
    /// The daemon's, on a tmpfs as `/run` is.
    run: PathBuf,
    daemon: Child,
}

impl Bench {
    fn new(parts: PathBuf) -> Result<Bench> {
        let parts = parts.canonicalize().map_err(|e| format!("{}: {e}", parts.display()))?;
        let name = format!("gpuslice-bench-hook-{}", std::process::id());
        let (dir, run) = (std::env::temp_dir().join(&name), Path::new("/dev/shm").join(&name));
        let rootfs = dir.join("rootfs");
        for sub in ["proc", "dev", "run", "etc", "bin"] {
            fs::create_dir_all(rootfs.join(sub)).map_err(said)?;
        }
        fs::create_dir_all(&run).map_err(said)?; // the device is made in it, before the daemon makes its own
        // With more weight than what else runs, as the packaged unit gives the daemon.
        let mut daemon = Command::new("nice");
        daemon.args(["-n", "-15"]).arg(parts.join("gpusliced"));
        daemon.arg("--runtime-dir").arg(&run);
        daemon.arg("--driver-dir").arg(parts.join("sim"));
        daemon.env("GPUSLICE_SIM", "devices=1,mem=16GiB");
        daemon.env("GPUSLICE_SIM_DEVICE", run.join("device"));
        daemon.stdin(Stdio::null()).stderr(File::create(dir.join("log")).map_err(said)?);
        let daemon = daemon.spawn().map_err(|e| format!("gpusliced: {e}"))?;
        let bench = Bench { parts, dir, run, daemon };
        bench.copy_program("/bin/true")?;
        let start = Instant::now();
        while !bench.run.join("admin.sock").exists() {
            if start.elapsed() > Duration::from_secs(20) {
                let log = fs::read_to_string(bench.dir.join("log")).unwrap_or_default();
                return Err(format!("gpusliced does not start: {log}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(bench)
    }

    /// A program of this machine and the libraries it needs.
    fn copy_program(&self, program: &str) -> Result<()> {
        let listed = Command::new("ldd").arg(program).output().map_err(said)?.stdout;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let libraries = listed.split_whitespace().filter(|word| word.starts_with('/'));
        for file in libraries.chain([program]) {
            let to = self.dir.join("rootfs").join(&file[1..]);
            fs::create_dir_all(to.parent().unwrap_or(&to)).map_err(said)?;
            fs::copy(file, to).map_err(said)?;
        }
        Ok(())
    }

    fn rows(&self) -> Result<Vec<Row>> {
        let mut rows = self.spawns()?;
        rows.extend(self.wrapper()?);
        rows.push(self.slices()?);
        rows.extend(self.runs()?);
        Ok(rows)
    }

    /// The hook of a container without a request, against `/bin/true` and against itself.
    fn spawns(&self) -> Result<Vec<Row>> {
        let state = self.container("plain", 4711, &json!({}))?;
        let nothing = File::open("/dev/null").map_err(said)?;
        let (mut others, mut bare, mut hook) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds(SPAWN_ROUNDS) {
            others.push(timed(Command::new("/bin/true"), &nothing, true)?);
            bare.push(timed(self.hook("wrong"), &nothing, false)?);
            hook.push(timed(self.hook("createRuntime"), &state, true)?);
        }
        Ok(vec![
            row("asks for nothing", "/bin/true", &others, &hook, None),
            row("asks for nothing", "own start", &bare, &hook, Some(Target::Cpu(BODY_MS))),
        ])
    }

    /// The wrapper, against the runtime it calls.
    fn wrapper(&self) -> Result<Vec<Row>> {
        let settings = self.dir.join("runtime.json");
        fs::write(&settings, json!({ "runtimes": ["/bin/true"] }).to_string()).map_err(said)?;
        let nothing = File::open("/dev/null").map_err(said)?;
        self.container("unwrapped", 4711, &json!({}))?;
        let call = |verb: &str| {
            let mut command = Command::new(self.parts.join("libexec/gpuslice-runtime"));
            let bundle = self.dir.join("unwrapped");
            command.env("GPUSLICE_RUNTIME_CONFIG", &settings).arg(verb);
            command.arg("--bundle").arg(bundle).arg("unwrapped");
            command
        };
        let (mut bare, mut creates, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds(SPAWN_ROUNDS) {
            bare.push(timed(Command::new("/bin/true"), &nothing, true)?);
            creates.push(timed(call("create"), &nothing, true)?);
            starts.push(timed(call("start"), &nothing, true)?);
        }
        let target = Some(Target::Clock(WRAPPER_MS));
        Ok(vec![
            row("wrapper, asks for nothing", "its runtime", &bare, &creates, target),
            row("wrapper, another command", "its runtime", &bare, &starts, target),
        ])
    }

    /// The hook of a container with a slice, in a namespace as set up by a runtime.
    fn slices(&self) -> Result<Row> {
        let nothing = File::open("/dev/null").map_err(said)?;
        let (mut bare, mut hook) = (Vec::new(), Vec::new());
        for round in 0..rounds(SPAWN_ROUNDS / 3) {
            let id = format!("slice{round}");
            let mut container = self.namespace()?;
            let mounts = || fs::read_to_string(format!("/proc/{}/mountinfo", container.id()));
            let before = mounts().map_err(said)?.lines().count();
            let wish = json!({ "gpuslice.io/memory": "1GiB" });
            let state = self.container(&id, container.id(), &wish)?;
            bare.push(timed(self.hook("wrong"), &nothing, false)?);
            hook.push(timed(self.hook("createRuntime"), &state, true)?);
            let made = mounts().map_err(said)?.lines().count() - before;
            if made != MOUNTS {
                return Err(format!("the hook made {made} mounts instead of {MOUNTS}"));
            }
            let state = self.container(&id, 0, &wish)?;
            timed(self.hook("poststop"), &state, true)?;
            container.kill().and_then(|()| container.wait()).map_err(said)?;
        }
        let body = Some(Target::Cpu(BODY_MS));
        Ok(Row {
            whole_target: Some(WHOLE_MS),
            ..row("8 mounts, daemon included", "own start", &bare, &hook, body)
        })
    }

    /// `runc run` of a program that ends at once.
    fn runs(&self) -> Result<Vec<Row>> {
        let (nothing, wish) = (json!({}), json!({ "gpuslice.io/memory": "1GiB" }));
        let kinds = [(&nothing, false), (&nothing, true), (&wish, true)];
        let mut took = [const { Vec::new() }; 3];
        for round in 0..rounds(ROUNDS) + 3 {
            // The clean-up after a container, above all of its network, slows the next one's start, so all
            // six orders alternate.
            for place in 0..kinds.len() {
                let kind = (round + place * (1 + round % 2)) % kinds.len();
                let (wish, hooked) = kinds[kind];
                let one = self.run(&format!("k{kind}r{round}"), wish, hooked)?;
                // The first three warm the caches.
                if round >= kinds.len() {
                    took[kind].push(one);
                }
            }
        }
        let [without, idle, with] = took;
        Ok(vec![
            row(
                "runc run, asks for nothing",
                "no hook",
                &without,
                &idle,
                Some(Target::Clock(RUN_MS)),
            ),
            row("runc run, in a slice", "no hook", &without, &with, Some(Target::Clock(RUN_MS))),
        ])
    }

    fn hook(&self, stage: &str) -> Command {
        let mut command = Command::new(self.parts.join("libexec/gpuslice-hook"));
        command.arg("--runtime-dir").arg(&self.run).arg(stage).env_clear();
        command
    }

    /// A process in a mount namespace with the root filesystem in it, not yet its root.
    fn namespace(&self) -> Result<Child> {
        let script = "mount --bind \"$1\" \"$1\" && echo ready && exec sleep 60";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
        command.arg(self.dir.join("rootfs")).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("unshare: {e}"))?;
        let mut line = String::new();
        let out = child.stdout.as_mut().ok_or("no output")?;
        BufReader::new(out).read_line(&mut line).map_err(said)?;
        Ok(child)
    }

    /// A bundle and the state that a runtime would pass for it.
    fn container(&self, id: &str, pid: u32, annotations: &Value) -> Result<File> {
        let bundle = self.dir.join(id);
        fs::create_dir_all(&bundle).map_err(said)?;
        let config = config(&self.dir.join("rootfs"), id, annotations);
        fs::write(bundle.join("config.json"), config.to_string()).map_err(said)?;
        let status = if pid == 0 { "stopped" } else { "creating" };
        let state = json!({ "ociVersion": "1.0.2", "id": id, "pid": pid, "status": status, "bundle": bundle });
        let path = bundle.join("state.json");
        fs::write(&path, state.to_string()).map_err(said)?;
        File::open(path).map_err(said)
    }

    fn run(&self, id: &str, annotations: &Value, hooked: bool) -> Result<Took> {
        let bundle = self.dir.join(id);
        fs::create_dir_all(&bundle).map_err(said)?;
        let mut config = config(&self.dir.join("rootfs"), id, annotations);
        if hooked {
            let path = self.parts.join("libexec/gpuslice-hook");
            let words = [
                Path::new("gpuslice-hook"),
                Path::new("--runtime-dir"),
                &self.run,
                Path::new("createRuntime"),
            ];
            config["hooks"] =
                json!({ "createRuntime": [{ "path": path, "args": words, "env": [] }] });
        }
        fs::write(bundle.join("config.json"), config.to_string()).map_err(said)?;
        let mut command = Command::new("runc");
        command.arg("--root").arg(self.dir.join("state")).arg("run").arg("--bundle");
        command.arg(&bundle).arg(id);
        timed(command, &File::open("/dev/null").map_err(said)?, true)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.daemon.kill().and_then(|()| self.daemon.wait());
        let _ = (fs::remove_dir_all(&self.dir), fs::remove_dir_all(&self.run));
    }
}

fn said(error: io::Error) -> String {
    error.to_string()
}

fn config(rootfs: &Path, id: &str, annotations: &Value) -> Value {
    let namespaces = ["pid", "mount", "ipc", "uts", "network"].map(|kind| json!({ "type": kind }));
    json!({
        "ociVersion": "1.0.2", "root": { "path": rootfs },
        "process": { "cwd": "/", "args": ["/bin/true"], "env": ["PATH=/bin"],
                     "user": { "uid": 0, "gid": 0 }, "noNewPrivileges": true },
        "mounts": [{ "destination": "/proc", "type": "proc", "source": "proc" },
                   { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" }],
        "annotations": annotations,
        "linux": { "namespaces": namespaces,
                   "cgroupsPath": format!("/gpuslice-bench-{}-{id}", std::process::id()) },
    })
}

/// Time from the start of a process until its exit is observed.
fn timed(mut command: Command, stdin: &File, succeeds: bool) -> Result<Took> {
    let mut input = stdin.try_clone().map_err(said)?;
    input.seek(SeekFrom::Start(0)).map_err(said)?;
    command.stdin(input).stdout(Stdio::null());
    command.stderr(match succeeds {
        true => Stdio::inherit(),
        false => Stdio::null(),
    });
    let start = Instant::now();
    let child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    let mut status = 0;
    // SAFETY: all-zero is a valid rusage.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: our child, waited for here alone; both out-parameters are locals.
    let ended = unsafe { libc::wait4(child.id() as i32, &raw mut status, 0, &raw mut used) };
    let clock = start.elapsed().as_secs_f64() * 1e3;
    let ms = |time: libc::timeval| time.tv_sec as f64 * 1e3 + time.tv_usec as f64 / 1e3;
    match ended == child.id() as i32 && (status == 0) == succeeds {
        true => Ok(Took { clock, cpu: ms(used.ru_utime) + ms(used.ru_stime) }),
        false => Err(format!("{command:?} ended with {status:#x}")),
    }
}

fn row(
    name: &'static str,
    against: &'static str,
    base: &[Took],
    measured: &[Took],
    target: Option<Target>,
) -> Row {
    let pairs = || measured.iter().zip(base);
    Row {
        name,
        against,
        base: median(clock(base)),
        added: median(pairs().map(|(it, base)| it.clock - base.clock).collect()),
        added_cpu: median(pairs().map(|(it, base)| it.cpu - base.cpu).collect()),
        target,
        whole: (median(clock(measured)), quantile(&mut clock(measured), 0.99)),
        whole_target: None,
    }
}

fn clock(all: &[Took]) -> Vec<f64> {
    all.iter().map(|took| took.clock).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    quantile(&mut values, 0.5)
}

/// Prints the table to standard error and one JSON object to standard output.
fn report(rows: &[Row]) -> ExitCode {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    eprintln!(
        "medians of differences within a round; others wait too on a busy machine: load {load}"
    );
    eprintln!(
        "what                       against        ms  added ms  added cpu  ratio  whole     p99  promised"
    );
    let mut missed = false;
    let mut list = Vec::new();
    for row in rows {
        let ratio = (row.base + row.added) / row.base;
        let (held, target, of) = match row.target {
            None => (true, None, ""),
            Some(Target::Clock(target)) => (row.added <= target, Some(target), "clock"),
            Some(Target::Cpu(target)) => (row.added_cpu <= target, Some(target), "cpu"),
        };
        let (middle, high) = row.whole;
        let whole = row.whole_target.is_none_or(|(p50, p99)| middle <= p50 && high <= p99);
        let held = held && whole;
        missed |= !held;
        let promised = target.map_or("-".to_owned(), |target| {
            format!("{target:.1} {of}{}", if held { "" } else { "  MISSED" })
        });
        eprintln!(
            "{:<26} {:<10} {:>6.3} {:>+9.3} {:>+10.3} {ratio:>6.2} {middle:>6.3} {high:>7.3}  {promised}",
            row.name, row.against, row.base, row.added, row.added_cpu
        );
        list.push(json!({
            "what": row.name, "against": row.against, "base_ms": row.base, "added_ms": row.added,
            "added_cpu_ms": row.added_cpu, "ratio": ratio, "target_ms": target, "target_of": of,
            "whole_p50_ms": middle, "whole_p99_ms": high,
        }));
    }
    let verdict = if missed { "fail" } else { "pass" };
    println!("{}", json!({ "bench": "hook", "load": load, "rows": list, "verdict": verdict }));
    match missed {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}
