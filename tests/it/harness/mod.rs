//! A node of one's own: directories, a simulated GPU, a daemon; gone when the test ends.

pub mod agent;
pub mod agent_client;
pub mod browser;
pub mod bundle;
pub mod caps;
pub mod cli;
pub mod fuse;
pub mod node;
pub mod process;
pub mod profiles;
pub mod schemas;
pub mod wire;

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nothing that a test waits for takes this long, on a machine that does ten other things, too.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `happens` says so.
pub fn eventually(what: &str, happens: impl FnMut() -> bool) {
    within(PATIENCE, what, happens);
}

/// The same of what has another time. Between two looks this thread sleeps for four times the time that a look took: a
/// look that starts a program would use the processors that the other tests need.
pub fn within(time: Duration, what: &str, mut happens: impl FnMut() -> bool) {
    const SLEEP: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];
    let start = Instant::now();
    loop {
        let look = Instant::now();
        if happens() {
            return;
        }
        assert!(start.elapsed() < time, "never happened: {what}\n{}", process::of_this_test());
        std::thread::sleep((4 * look.elapsed()).clamp(SLEEP[0], SLEEP[1]));
    }
}

/// The names in a directory, in order; none if there is no such directory.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Programs of ours that were started with a path below `dir` among their arguments or variables: names and pids.
pub fn programs_of(dir: &Path) -> Vec<String> {
    let place = dir.to_str().expect("plain").as_bytes();
    let of = |pid: PathBuf| {
        let read = |name: &str| std::fs::read(pid.join(name)).unwrap_or_default();
        let name = String::from_utf8_lossy(&read("comm")).trim_end().to_owned();
        if !name.starts_with("gpuslice") && name != "tenant" {
            return None;
        }
        let words = [read("cmdline"), read("environ")].concat();
        let is_there = words.windows(place.len()).any(|part| part == place);
        is_there.then(|| format!("{name} {}", pid.display()))
    };
    let entries = std::fs::read_dir("/proc").expect("there").flatten();
    entries.filter_map(|entry| of(entry.path())).collect()
}

/// A number from the environment; larger ones make a soak test.
pub fn setting(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(otherwise, |text| text.parse().expect("a number"))
}

/// Where this build's programs and libraries are.
pub fn target_dir() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_gpusliced")).parent().expect("programs are in a directory")
}

/// A library of this build; it is built first if only the tests were.
pub fn library(name: &str, package: &str) -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    let path = target_dir().join(name);
    if !path.exists() {
        BUILT.get_or_init(|| build(&["gpuslice-sim-cuda", "gpuslice-sim-nvml"]));
    }
    assert!(path.exists(), "{} is not there after building {package}", path.display());
    path
}

fn build(packages: &[&str]) {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.arg("build").current_dir(env!("CARGO_MANIFEST_DIR"));
    if target_dir().ends_with("release") {
        cargo.arg("--release");
    }
    cargo.env("CARGO_TARGET_DIR", target_dir().parent().expect("the target directory"));
    for package in packages {
        cargo.args(["-p", package]);
    }
    assert!(cargo.status().expect("cargo runs").success(), "building {packages:?}");
}

/// Copies a program, by another process: one that another test forks while this process writes the copy would have it
/// open for writing, and until it executes its own program the copy could not be executed.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").args(["-L", "--"]).arg(from).arg(to).output();
    let copied = copied.expect("cp starts");
    assert!(copied.status.success(), "{} to {}: {copied:?}", from.display(), to.display());
}

/// A copy of what `make` makes at a path that it is given, once for a process of tests. The file it is copied from has
/// no name, so that nothing is left of it when the tests end.
pub fn copy_of(made: &OnceLock<File>, to: &Path, make: impl FnOnce(&Path)) {
    let file = made.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("made");
        make(&path);
        File::open(path).expect("made")
    });
    let from = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    copy_program(Path::new(&from), to);
}

/// Says that a test could not be done here, in a form that can be counted; written directly, because
/// the harness captures `eprintln!`.
pub fn skip(test: &str, why: &str) {
    let line = format!("SKIP {test}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Whether this process is root's, and may mount and become another user's.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Whether shares of programs that wait for their work can be judged: see [`go_before_other_work`]. Skips the test if
/// not.
pub fn can_go_before_other_work(test: &str) -> bool {
    let can = std::thread::spawn(go_before_other_work).join().is_ok_and(|done| done);
    if !can {
        skip(test, "only root has a priority above the machine's other work");
    }
    can
}

/// Gives this thread, and the processes that it starts, the lowest real-time priority. Only root may. Without it a
/// holder that waits for its work is late when the machine is busy, and loses time that it did not want to give up.
/// Returns whether it could be done.
pub fn go_before_other_work() -> bool {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: `priority` is ours; 0 is this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const priority) == 0 }
}

/// Reproducible noise (xorshift64*).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Below `limit`, or 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}
