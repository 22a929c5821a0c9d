//! Concurrent commands without a node daemon share one daemon, which ends with the last command, however
//! each of them ends.

use super::misuse::pid;
use super::{driver, gpuslice, ps_at, tenant};
use crate::harness::cli::said;
use crate::harness::names;
use crate::harness::process::{KillOnDrop, child_named};
use crate::harness::{Random, eventually, programs_of};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The commands' temporary directory, a GPU of 16 GiB, and their output.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().expect("a directory"));
        for dir in ["tmp", "said"] {
            fs::create_dir(place.path(dir)).expect("made");
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, options: &[&str], script: &str) -> Command {
        let mut run = gpuslice();
        run.args(["run", "--inject", "preload", "--driver-dir"]).arg(driver());
        run.args(options).args(["--", "sh", "-c", script]).arg(self.path("said"));
        run.env("TMPDIR", self.path("tmp")).env("GPUSLICE_SIM", "mem=16GiB");
        run.env_remove("GPUSLICE_SIM_DEVICE");
        run.stdout(Stdio::piped()).stderr(Stdio::piped());
        run
    }

    /// A command that runs until it is ended.
    fn started(&self, name: &str, options: &[&str]) -> Running {
        let script = format!("touch $0/{name}; exec sleep 600");
        let options = [&["--name", name][..], options].concat();
        let mut child = self.run(&options, &script).spawn().expect("it starts");
        eventually("the command runs", || {
            let ended = child.try_wait().expect("wait");
            assert!(ended.is_none(), "{name} ended: {ended:?}");
            self.path("said").join(name).exists()
        });
        Running(KillOnDrop(child))
    }

    fn output(&self, options: &[&str]) -> Output {
        self.run(options, "true").output().expect("it starts")
    }

    /// Directories of daemons.
    fn daemons(&self) -> Vec<PathBuf> {
        let tmp = self.path("tmp");
        names(&tmp).iter().map(|name| tmp.join(name)).collect()
    }

    /// The slices of the one daemon, by name.
    fn slices(&self) -> Vec<Value> {
        let [daemon] = &self.daemons()[..] else { panic!("one daemon, not {:?}", self.daemons()) };
        let mut slices = ps_at(daemon)["slices"].as_array().expect("a list").clone();
        slices.sort_by_key(|slice| slice["name"].to_string());
        slices
    }

    fn slice_names(&self) -> Vec<String> {
        let slices = self.slices();
        let names = slices.iter().filter_map(|slice| slice["name"].as_str());
        names.map(str::to_owned).collect()
    }

    /// No process of ours, no directory of a daemon, and no simulated GPU that one of these commands made.
    fn assert_nothing_left(&self, of: &[u32]) {
        eventually("nothing is left", || {
            let left = names(Path::new("/dev/shm"));
            let its = |name: &&String| {
                of.iter().any(|pid| name.starts_with(&format!("gpuslice-sim-{pid}-")))
            };
            let is_empty = self.daemons().is_empty() && left.iter().find(its).is_none();
            is_empty && programs_of(&self.path("tmp")).is_empty()
        });
    }
}

/// A command that runs until it is ended.
pub(super) struct Running(pub KillOnDrop);

impl Running {
    fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn end(mut self, signal: Signal) {
        kill(pid(&self.0), signal).expect("it lives");
        self.0.wait().expect("it ends");
    }
}

#[test]
fn caps_add_up_and_weights_count() {
    let place = Place::new();
    let one = place.started("one", &["--memory", "10GiB"]);
    let refused = place.output(&["--memory", "10GiB"]);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(said(&refused).contains("6GiB"), "what is left: {}", said(&refused));
    let two = place.started("two", &["--memory", "6GiB", "--weight", "3"]);
    // a look without a directory asks another daemon, and names this one, if it answers within 0.2 s
    let mut look = gpuslice();
    look.arg("ps").env("TMPDIR", place.path("tmp")).env_remove("XDG_RUNTIME_DIR");
    let here = format!("2 with --runtime-dir {}", place.daemons()[0].display());
    eventually("the private daemons are named", || {
        let other = said(&look.output().expect("it starts"));
        other.contains("in private daemons of gpuslice run: ") && other.contains(&here)
    });
    let slices = place.slices();
    let weights: Vec<_> = slices.iter().map(|slice| &slice["weight"]).collect();
    assert_eq!((slices.len(), weights), (2, vec![&Value::from(1), &Value::from(3)]));

    // The one that started the daemon ends first.
    let pids = [one.id(), two.id()];
    one.end(Signal::SIGTERM);
    eventually("its slice is gone", || place.slice_names() == ["two"]);
    assert!(place.output(&["--memory", "10GiB"]).status.success());
    assert_eq!(place.slice_names(), ["two"]);
    two.end(Signal::SIGTERM);
    assert_eq!(place.daemons(), Vec::<PathBuf>::new(), "the last one waits for that");
    place.assert_nothing_left(&pids);
}

/// `gpuslice ps` needs the directory, which users cannot guess.
#[test]
fn a_command_reports_its_daemons_directory() {
    let place = Place::new();
    let one = place.started("one", &["--memory", "5GiB"]);
    let two = said(&place.output(&["--memory", "5GiB"]));
    let daemons = place.daemons();
    let said = format!("private daemon at {},", daemons[0].display());
    assert!(daemons.len() == 1 && two.contains(&said), "{two}");
    one.end(Signal::SIGTERM);
}

#[test]
fn a_command_that_is_killed_takes_its_slice_with_it_and_nothing_else() {
    let place = Place::new();
    let [one, two, three] =
        ["one", "two", "three"].map(|name| place.started(name, &["--memory", "5GiB"]));
    let pids = [one.id(), two.id(), three.id()];
    one.end(Signal::SIGKILL);
    eventually("its slice is gone", || place.slice_names() == ["three", "two"]);
    assert!(place.output(&["--memory", "6GiB"]).status.success());
    three.end(Signal::SIGKILL);
    eventually("its slice is gone", || place.slice_names() == ["two"]);
    two.end(Signal::SIGKILL);
    place.assert_nothing_left(&pids);
}

/// A process that a command left behind, killed when dropped.
struct Left(Pid);

impl Drop for Left {
    fn drop(&mut self) {
        // Ended if the test failed.
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

/// The slice of a command lasts until the processes that it left on the GPU have ended too.
#[test]
fn processes_that_a_command_leaves_behind_keep_its_slice() {
    let place = Place::new();
    let script = "\"$1\" --seconds 600 >/dev/null 2>&1 & echo $$ $! >$0/left; \
                  until [ -e $0/end ]; do sleep 0.05; done; exit 7";
    let mut run = place.run(&["--name", "left", "--memory", "10GiB"], script);
    let mut run = Running(KillOnDrop(run.arg(tenant()).spawn().expect("it starts")));
    let is_attached = |slice: &Value| slice["clients"] == 1;
    eventually("the tenant is attached", || {
        place.path("said/left").exists() && place.slices().first().is_some_and(is_attached)
    });
    let pids = fs::read_to_string(place.path("said/left")).expect("two numbers");
    let (shell, left) = pids.trim().split_once(' ').expect("two numbers");
    let left = Left(Pid::from_raw(left.parse().expect("a number")));
    fs::write(place.path("said/end"), "").expect("written");
    let shell = Path::new("/proc").join(shell);
    eventually("the command ended", || !shell.exists());
    // Its memory is promised to no other command.
    let refused = place.output(&["--memory", "10GiB"]);
    assert!(said(&refused).contains("6GiB"), "{}", said(&refused));
    assert!(!refused.status.success() && place.slice_names() == ["left"]);
    assert!(run.0.try_wait().expect("wait").is_none(), "it waits");

    drop(left);
    assert_eq!(run.0.wait().expect("it ends").code(), Some(7));
    place.assert_nothing_left(&[run.id()]);
}

/// A signal ends that wait: the slice is gone, and the processes are not.
#[test]
fn a_signal_ends_the_slice_of_processes_that_a_command_left_behind() {
    let place = Place::new();
    let script = "\"$1\" --seconds 600 >/dev/null 2>&1 & echo $! >$0/left; \
                  until [ -e $0/end ]; do sleep 0.05; done; exit 7";
    let mut run = place.run(&["--name", "left", "--memory", "10GiB"], script);
    let mut run = Running(KillOnDrop(run.arg(tenant()).spawn().expect("it starts")));
    eventually("the tenant is attached", || {
        let is_attached = |slice: &Value| slice["clients"] == 1;
        place.path("said/left").exists() && place.slices().first().is_some_and(is_attached)
    });
    let pid_of_left = fs::read_to_string(place.path("said/left")).expect("a number");
    let left = Left(Pid::from_raw(pid_of_left.trim().parse().expect("a number")));
    let beside = place.started("beside", &["--memory", "1GiB"]);
    fs::write(place.path("said/end"), "").expect("written");
    let said = BufReader::new(run.0.stderr.take().expect("piped")).lines();
    let mut said = said.map(|line| line.expect("text"));
    assert!(said.any(|line| line.contains("interrupt to end it now")), "it waits");
    assert_eq!(place.slice_names(), ["beside", "left"]);

    kill(pid(&run.0), Signal::SIGTERM).expect("it lives");
    assert!(said.any(|line| line.contains("left 1 process on the GPU without a slice")));
    assert_eq!(run.0.wait().expect("it ends").code(), Some(7));
    assert_eq!(place.slice_names(), ["beside"]);
    assert!(place.output(&["--memory", "10GiB"]).status.success(), "its memory is promised anew");
    kill(left.0, None).expect("it lives");
    drop(left);
    beside.end(Signal::SIGTERM);
}

/// Running commands continue, and the next one starts another daemon in place of the killed one.
#[test]
fn a_daemon_that_is_killed_is_replaced() {
    let place = Place::new();
    let one = place.started("one", &["--memory", "5GiB"]);
    let daemon = child_named(Pid::from_raw(one.id().cast_signed()), "gpusliced");
    kill(daemon.expect("its daemon"), Signal::SIGKILL).expect("it lives");
    let two = place.started("two", &["--memory", "5GiB"]);
    assert_eq!(place.daemons().len(), 1);
    let first = one.id();
    one.end(Signal::SIGTERM);
    assert!(place.slice_names().contains(&"two".to_owned()));
    two.end(Signal::SIGTERM);
    assert_eq!(place.daemons(), Vec::<PathBuf>::new());
    // The killed daemon could not remove the first one's GPU.
    for name in names(Path::new("/dev/shm")) {
        if name.starts_with(&format!("gpuslice-sim-{first}-")) {
            fs::remove_dir_all(Path::new("/dev/shm").join(name)).expect("removed");
        }
    }
}

/// Twenty commands start, end and are killed in any order. Each runs with its requested memory or is
/// refused for lack of it: at no time do more of them run than fit.
#[test]
fn in_any_order_there_is_one_daemon_and_at_the_end_none() {
    let place = Place::new();
    let mut random = Random(0xDAE_0017);
    let script = "trap 'rmdir $0/run-$PPID; exit' EXIT TERM; mkdir $0/run-$PPID; \
                  echo $0/run-* >>$0/counts; sleep 0.$1 & wait";
    let mut running: Vec<Child> = Vec::new();
    let (mut pids, mut victims) = (Vec::new(), Vec::new());
    let (mut ran, mut refused, mut killed) = (0, 0, 0);
    for _ in 0..20 {
        let mut run = place.run(&["--memory", "6GiB"], script);
        run.arg(random.below(9).to_string());
        let child = run.spawn().expect("it starts");
        pids.push(child.id());
        running.push(child);
        std::thread::sleep(std::time::Duration::from_millis(random.below(150)));
        if random.below(4) == 0 {
            let mut victim = running.swap_remove(random.below(running.len() as u64) as usize);
            let _ = kill(pid(&victim), Signal::SIGKILL);
            victim.wait().expect("it ends");
            victims.push(victim.id());
            let counted = place.path("said").join(format!("run-{}", victim.id()));
            eventually("its command ends too", || !counted.exists());
            killed += 1;
        }
    }
    for child in running {
        let output = child.wait_with_output().expect("it ends");
        match output.status.success() {
            true => ran += 1,
            false => {
                assert!(said(&output).contains("has left"), "{}", said(&output));
                refused += 1;
            }
        }
    }
    place.assert_nothing_left(&pids);
    let counts = fs::read_to_string(place.path("said/counts")).expect("some ran");
    assert!(ran > 0 && ran + refused + killed == 20, "{ran} ran, {refused} were refused");
    for line in counts.lines() {
        // The memory of a killed command may be another one's before its shell has gone.
        let number = |path: &str| path.rsplit_once("run-").and_then(|(_, pid)| pid.parse().ok());
        let at_once = line.split(' ').filter_map(number).filter(|pid| !victims.contains(pid));
        assert!(at_once.count() <= 2, "6GiB of 16GiB each: {line}");
    }
}
