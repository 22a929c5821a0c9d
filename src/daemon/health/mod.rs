//! The health of GPUs: which of them no container may be given.
//!
//! # Problem
//! A GPU can fail while containers use it. No more containers may come there, and they may again when it works. The
//! driver reports critical errors (Xid) and uncorrectable memory errors as events, but nothing tells that a GPU has
//! recovered.
//!
//! # Idea
//! A child process waits for the events ([`watcher`]), because NVML may block or crash on a failing GPU. It is
//! started when the daemon begins to serve. Some Xids are a program's own errors ([`OF_PROGRAMS`]): the GPU stays
//! healthy. After any other the GPU is unhealthy until `unhealthy_s` have gone by without another error, also if the
//! daemon is started again meanwhile ([`record`]), and it is seen to answer then. A GPU that does not answer while
//! others do is lost, and unhealthy until it answers again. A child that tells nothing for [`SILENT_MAX`] hangs, and
//! another one is started. The engine gives no slices of an unhealthy GPU.
//!
//! Whether MPS uses a GPU is seen by the accounting ([`crate::accounting::mps`]).

pub mod record;
pub mod watcher;

use crate::gpu_table::GpuTable;
use crate::poll::{Source, Watch};
use gpuslice_host::clock::now;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::limits::GPUS_MAX;
use gpuslice_wire::node::{Health, HealthState};
use gpuslice_wire::units::{Duration, Instant};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use record::{ErrorRecord, GpuFailure};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// Xids that report an error of a program: an illegal instruction or address (13, 31), the end of its channels
/// (43, 45), an error of the video decoder (68), a context switch that timed out (109). Device plugins of Kubernetes
/// ignore the same.
const OF_PROGRAMS: [u32; 6] = [13, 31, 43, 45, 68, 109];
/// Longest line of the child, bytes: `works` and the UUIDs of all GPUs.
const LINE_BYTES_MAX: usize = 48 * (GPUS_MAX + 1);
/// Pause before a child that has ended is replaced, and before what could not be recorded is recorded.
const AGAIN_AFTER: Duration = Duration(5_000_000_000);
/// The child tells something once a second, and between two calls into NVML, each of which may take long.
const SILENT_MAX: Duration = Duration(60_000_000_000);
/// Killed children that have not ended; with so many, none is started.
const ABANDONED_MAX: usize = 4;

/// An error that the child tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Xid(u32),
    Ecc,
}

/// A line of the child.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Error(GpuUuid, News),
    /// All GPUs that answer.
    Works(Vec<GpuUuid>),
}

/// See the file's head.
#[derive(Debug)]
pub struct HealthWatch {
    watch: Watch,
    /// NVML's library; empty if there is none.
    library: PathBuf,
    unhealthy: Duration,
    child: Option<(Child, ChildStdout)>,
    /// Killed children that have not ended yet.
    abandoned: Vec<Child>,
    /// They are too many, which was told.
    is_stuck: bool,
    /// The beginning of the child's next line.
    line: Vec<u8>,
    /// When the child told something last.
    heard: Instant,
    /// When a child is started again.
    start_at: Option<Instant>,
    errors: BTreeMap<GpuUuid, GpuFailure>,
    record: ErrorRecord,
    /// When the record is written again, since that failed.
    record_at: Option<Instant>,
    /// GPUs that do not answer.
    lost: BTreeSet<GpuUuid>,
    /// GPUs that did not answer when the daemon started, and do now.
    unserved: BTreeSet<GpuUuid>,
}

impl HealthWatch {
    /// Watches nothing yet. A GPU is unhealthy for `unhealthy_s` seconds after an error.
    pub fn new(
        library: PathBuf,
        unhealthy_s: u64,
        record: ErrorRecord,
        watch: Watch,
    ) -> HealthWatch {
        HealthWatch {
            watch,
            library,
            unhealthy: Duration(unhealthy_s.saturating_mul(1_000_000_000)),
            child: None,
            abandoned: Vec::new(),
            is_stuck: false,
            line: Vec::new(),
            heard: Instant(0),
            start_at: None,
            errors: BTreeMap::new(),
            record,
            record_at: None,
            lost: BTreeSet::new(),
            unserved: BTreeSet::new(),
        }
    }

    fn has_nvml(&self) -> bool {
        self.library != Path::new("")
    }

    /// Starts to watch, if there is a library.
    pub fn start(&mut self) {
        if self.has_nvml() {
            self.start_child();
        }
    }

    /// Takes up the errors that an earlier daemon has recorded and from which the GPUs have not recovered. Returns
    /// whether there are any.
    pub fn restore(&mut self, gpus: &mut GpuTable) -> bool {
        let mut any = false;
        if !self.has_nvml() {
            return false; // No GPU would ever be seen to work.
        }
        for (gpu, failure) in self.record.read() {
            if failure.reported.plus(self.unhealthy) <= now() {
                continue;
            }
            // One that the driver does not list at present may be listed again.
            self.errors.insert(gpu, failure);
            if gpus.index(gpu).is_some() {
                gpus.restore_health(gpu, failure.health);
                tell(gpu, failure.health);
                any = true;
            }
        }
        any
    }

    /// Records the errors as they are now. If that fails, it is tried again.
    fn keep(&mut self, now: Instant) {
        let failed_before = self.record_at.take().is_some();
        match self.record.write(&self.errors) {
            Ok(()) if failed_before => tracing::info!("the errors of GPUs are recorded again"),
            Ok(()) => {}
            Err(why) => {
                self.record_at = Some(now.plus(AGAIN_AFTER));
                if !failed_before {
                    tracing::error!(
                        "{why}; a daemon that is started again will not know the errors of GPUs. Free some room, or make the \
                         directory writable: gpusliced tries again every 5 s"
                    );
                }
            }
        }
    }

    fn start_child(&mut self) {
        self.start_at = None;
        self.abandoned.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if self.abandoned.len() >= ABANDONED_MAX {
            if !std::mem::replace(&mut self.is_stuck, true) {
                tracing::error!(
                    "{ABANDONED_MAX} processes that watched the health of GPUs hang in the kernel: no more are started until one of them ends"
                );
            }
            self.start_at = Some(now().plus(AGAIN_AFTER));
            return;
        }
        self.is_stuck = false;
        let started = self.spawn().and_then(|mut child| {
            let from = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
            crate::descriptors::stops_blocking(&from)?;
            self.watch.add(&from, Source::Health)?;
            Ok((child, from))
        });
        match started {
            Ok(child) => (self.child, self.heard) = (Some(child), now()),
            Err(why) => {
                tracing::error!(%why, "the health of GPUs is not watched");
                self.start_at = Some(now().plus(AGAIN_AFTER));
            }
        }
    }

    #[allow(unsafe_code)]
    fn spawn(&self) -> io::Result<Child> {
        // This program, even if an upgrade has replaced its file.
        let mut command = Command::new("/proc/self/exe");
        command.arg("--watch-nvml").arg(&self.library);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // SAFETY: one system call between fork and exec.
        unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
        command.spawn()
    }

    /// The earliest deadline.
    pub fn deadline(&self) -> Option<Instant> {
        let silent = self.child.as_ref().map(|_| self.heard.plus(SILENT_MAX));
        silent.into_iter().chain(self.start_at).chain(self.record_at).min()
    }

    /// Starts the child again, replaces one that hangs, and records what could not be recorded, if that is due. Returns
    /// whether a GPU's health changed.
    pub fn due(&mut self, now: Instant, gpus: &mut GpuTable) -> bool {
        if self.start_at.is_some_and(|at| at <= now) {
            self.start_child();
        }
        let is_silent = |it: &HealthWatch| it.child.is_some() && it.heard.plus(SILENT_MAX) <= now;
        // What it told while the daemon itself stood still is read first.
        let changed = is_silent(self) && self.read(gpus);
        if is_silent(self) {
            tracing::error!(
                "the process that watches the health of GPUs hangs: until another one answers, errors are not seen, and no \
                 unhealthy GPU recovers; check that nvidia-smi works on this node"
            );
            self.end_child();
        }
        if self.record_at.is_some_and(|at| at <= now) {
            self.keep(now);
        }
        changed
    }

    /// Reads what the child tells; returns whether a GPU's health changed.
    pub fn read(&mut self, gpus: &mut GpuTable) -> bool {
        let mut part = [0; 512];
        let read = match &mut self.child {
            Some((_, from)) => from.read(&mut part),
            None => return false,
        };
        match read {
            Ok(0) => self.end_child(),
            Ok(len) => {
                self.heard = now();
                self.line.extend_from_slice(&part[..len]);
            }
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.end_child(),
        }
        let mut changed = false;
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            changed |= match parse(&line) {
                Some(Told::Error(gpu, news)) => self.failed(gpus, gpu, news),
                Some(Told::Works(all)) => self.work(gpus, &all, now()),
                None => false,
            };
        }
        if self.line.len() > LINE_BYTES_MAX {
            self.end_child();
        }
        changed
    }

    /// An error of a GPU. One of a GPU that is lost is no news: that it answers ends the loss, and not time.
    fn failed(&mut self, gpus: &mut GpuTable, gpu: GpuUuid, news: News) -> bool {
        let (state, xid) = match news {
            News::Xid(xid) if OF_PROGRAMS.contains(&xid) => return false,
            _ if self.lost.contains(&gpu) => return false,
            News::Xid(xid) => (HealthState::Xid, xid),
            News::Ecc => (HealthState::Ecc, 0),
        };
        let health = set(gpus, gpu, state, xid);
        self.errors.insert(gpu, GpuFailure { health, reported: now() });
        self.keep(now());
        true
    }

    /// `all`: the GPUs that answer `now`. Returns whether a GPU's health changed.
    fn work(&mut self, gpus: &mut GpuTable, all: &[GpuUuid], now: Instant) -> bool {
        for gpu in all {
            if gpus.index(*gpu).is_none() && self.unserved.insert(*gpu) {
                tracing::warn!(%gpu, "this GPU answers now and did not when gpusliced started: start gpusliced again to have slices of it; the slices that are there go on");
            }
        }
        let errors = self.errors.len();
        let unhealthy = self.unhealthy;
        let is_over = |it: &GpuFailure| it.reported.plus(unhealthy) <= now;
        let mut changes = Vec::new();
        for gpu in gpus.uuids() {
            let recovers = self.errors.get(&gpu).is_some_and(is_over);
            let state = match (all.contains(&gpu), self.lost.contains(&gpu)) {
                (false, false) => HealthState::Lost,
                (true, true) => HealthState::Healthy,
                (true, false) if recovers => HealthState::Healthy,
                _ => continue,
            };
            changes.push((gpu, state));
        }
        for (gpu, state) in &changes {
            set(gpus, *gpu, *state, 0);
            self.errors.remove(gpu);
            match state {
                HealthState::Lost => self.lost.insert(*gpu),
                _ => self.lost.remove(gpu),
            };
        }
        // One that the daemon does not serve need not be seen to answer.
        self.errors.retain(|gpu, it| gpus.index(*gpu).is_some() || !is_over(it));
        if self.errors.len() != errors {
            self.keep(now);
        }
        !changes.is_empty()
    }

    /// Ends a child that has closed its output or talks nonsense; another one follows.
    fn end_child(&mut self) {
        self.line.clear();
        if let Some((mut child, _)) = self.child.take() {
            let _ = child.kill();
            // It may be blocked in the kernel.
            self.abandoned.push(child);
            self.start_at = Some(now().plus(AGAIN_AFTER));
        }
    }
}

impl Drop for HealthWatch {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.child.take() {
            let _ = child.kill();
            let _ = child.try_wait();
        }
    }
}

fn set(gpus: &mut GpuTable, gpu: GpuUuid, state: HealthState, xid: u32) -> Health {
    let health = Health { state, xid, since: unix_now() };
    tell(gpu, health);
    gpus.set_health(gpu, health);
    health
}

fn tell(gpu: GpuUuid, Health { state, xid, since }: Health) {
    match state {
        HealthState::Healthy => tracing::info!(%gpu, "the GPU is healthy again"),
        _ => {
            tracing::warn!(%gpu, ?state, xid, since, "the GPU is unhealthy: no more slices of it are given; those that are there go on")
        }
    }
}

/// Seconds since 1970.
fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A line of the child; `None` for one that is not of the table in [`watcher`].
fn parse(line: &[u8]) -> Option<Told> {
    let line = std::str::from_utf8(line).ok()?;
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let (first, rest) = words.split_first()?;
    if *first == "works" {
        let all: Result<Vec<GpuUuid>, _> = rest.iter().map(|gpu| gpu.parse()).collect();
        return all.ok().map(Told::Works);
    }
    let news = match rest {
        ["xid", number] => News::Xid(number.parse().ok()?),
        ["ecc"] => News::Ecc,
        _ => return None,
    };
    Some(Told::Error(first.parse().ok()?, news))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::{About, Gpu};
    use crate::log_writer::tests::logged;
    use crate::poll::Poll;
    use gpuslice_wire::ids::NvmlIndex;
    use gpuslice_wire::units::Bytes;

    const GPU: GpuUuid = GpuUuid([7; 16]);

    #[test]
    fn lines_are_parsed_and_nonsense_is_not() {
        let line = |what: &str| parse(format!("{GPU} {what}\n").as_bytes());
        assert_eq!(line("xid 79"), Some(Told::Error(GPU, News::Xid(79))));
        assert_eq!(line("ecc"), Some(Told::Error(GPU, News::Ecc)));
        for bad in ["", "xid", "xid x", "xid 1 2", "xid 99999999999", "fine", "works"] {
            assert_eq!(line(bad), None, "{bad}");
        }
        let all = vec![GPU; GPUS_MAX];
        let works =
            format!("works {}\n", all.iter().map(|it| format!("{it} ")).collect::<String>());
        assert!(works.len() <= LINE_BYTES_MAX);
        assert_eq!(parse(works.as_bytes()), Some(Told::Works(all)));
        assert_eq!(parse(b"works"), Some(Told::Works(Vec::new())));
        assert_eq!((parse(b"works GPU-1"), parse(b"\xff ecc"), parse(b"")), (None, None, None));
    }

    #[test]
    fn a_gpu_recovers_when_it_is_seen_to_work_after_a_time_without_errors() {
        let poll = Poll::new().expect("a poll");
        let place = tempfile::tempdir().expect("a place");
        let record = ErrorRecord::new(place.path().join("gpu_errors"));
        let mut health = HealthWatch::new(PathBuf::new(), 10, record, poll.watch());
        let mut gpus = table();
        for of_a_program in OF_PROGRAMS {
            assert!(!health.failed(&mut gpus, GPU, News::Xid(of_a_program)));
        }
        assert_eq!(gpus.unhealthy(&[GPU]), None);
        assert!(health.failed(&mut gpus, GPU, News::Xid(79)));
        assert!(gpus.unhealthy(&[GPU]).is_some_and(|text| text.contains("Xid 79")));
        let first = health.errors[&GPU].reported;
        health.failed(&mut gpus, GPU, News::Xid(79));
        assert!(health.errors[&GPU].reported > first, "each error begins the time anew");
        let (early, late) = (now(), now().plus(Duration(11_000_000_000)));
        assert!(!health.work(&mut gpus, &[GPU], early) && gpus.unhealthy(&[GPU]).is_some());
        assert!(!health.due(late, &mut gpus));
        assert!(gpus.unhealthy(&[GPU]).is_some(), "time alone shows nothing");
        assert!(health.work(&mut gpus, &[GPU], late) && gpus.unhealthy(&[GPU]).is_none());
        // One that does not answer recovers when it does, and not by time.
        assert!(health.failed(&mut gpus, GPU, News::Ecc) && health.work(&mut gpus, &[], early));
        assert!(!health.work(&mut gpus, &[], late) && gpus.unhealthy(&[GPU]).is_some());
        assert!(!health.failed(&mut gpus, GPU, News::Xid(79)) && health.errors.is_empty());
        assert!(health.record.read().is_empty(), "the next daemon knows of no error either");
        assert!(health.work(&mut gpus, &[GPU], early) && gpus.unhealthy(&[GPU]).is_none());
        // Another GPU answers for the first time.
        let other = GpuUuid([8; 16]);
        let said = logged(|| {
            (0..3).for_each(|_| assert!(!health.work(&mut gpus, &[GPU, other], early)));
        });
        assert!(said.contains(&format!("gpu={other}")), "{said}");
        assert_eq!(said.matches("start gpusliced again to have slices of it").count(), 1, "{said}");
    }

    /// The driver tells an error once, and the next daemon must know it for as long as the first would have.
    #[test]
    fn a_daemon_that_is_started_again_knows_the_errors() {
        let (poll, place) = (Poll::new().expect("a poll"), tempfile::tempdir().expect("a place"));
        let file = place.path().join("gpu_errors");
        let start = |unhealthy_s| {
            let record = ErrorRecord::new(file.clone());
            let mut health =
                HealthWatch::new(PathBuf::from("nvml"), unhealthy_s, record, poll.watch());
            let mut gpus = table();
            let known = health.restore(&mut gpus);
            assert_eq!(gpus.unhealthy(&[GPU]).is_some(), known);
            (health, gpus, known)
        };
        let (mut first, mut gpus, known) = start(1000);
        assert!(!known && first.failed(&mut gpus, GPU, News::Xid(79)));
        let (mut second, mut gpus, known) = start(1000);
        assert!(known && gpus.unhealthy(&[GPU]).is_some_and(|text| text.contains("Xid 79")));
        assert_eq!(gpus.take_changes().len(), 1);
        let late = first.errors[&GPU].reported.plus(Duration(1_001_000_000_000));
        assert!(second.work(&mut gpus, &[GPU], late), "no later");
        assert!(first.failed(&mut table(), GPU, News::Xid(79)));
        // Of a GPU that is listed, and of one that is not at present. The clock on the wall has been set meanwhile.
        let (other, at) = (GpuUuid([8; 16]), now().0);
        std::fs::write(&file, format!("{GPU} ecc 5 {at}\n{other} xid 79 5 {at}\n")).expect("it");
        let (mut third, mut gpus, known) = start(1000);
        assert!(known && gpus.unhealthy(&[GPU]).is_some_and(|text| text.contains("memory")));
        third.keep(now());
        assert_eq!(third.record.read().len(), 2);
        assert!(
            third.work(&mut gpus, &[GPU], now().plus(Duration(1_001_000_000_000)))
                && !file.exists()
        );
        assert!(gpus.unhealthy(&[GPU]).is_none() && gpus.take_changes().len() == 2);
        std::fs::write(&file, format!("{GPU} ecc 5 0\n")).expect("written");
        assert!(!start(1).2, "it has recovered meanwhile");
    }

    /// A full disk has room again.
    #[test]
    fn errors_that_could_not_be_recorded_are_recorded_later() {
        let (poll, place) = (Poll::new().expect("a poll"), tempfile::tempdir().expect("a place"));
        let (dir, file) = (place.path().join("run"), place.path().join("run/gpu_errors"));
        let record = || ErrorRecord::new(file.clone());
        let mut health = HealthWatch::new(PathBuf::new(), 1000, record(), poll.watch());
        let (mut gpus, before) = (table(), now());
        assert!(health.failed(&mut gpus, GPU, News::Xid(79)) && !file.exists());
        let again = health.deadline().expect("a second try");
        assert!(
            again >= before.plus(AGAIN_AFTER)
                && again < before.plus(Duration(1_000 * 1_000_000_000))
        );
        assert!(!health.due(again, &mut gpus) && !file.exists(), "no room yet");
        std::fs::create_dir(&dir).expect("a directory");
        assert!(!health.due(again, &mut gpus) && !file.exists(), "not due");
        assert!(!health.due(again.plus(AGAIN_AFTER), &mut gpus));
        assert!(record().read().len() == 1 && health.deadline().is_none());
    }

    /// Of a daemon that stood still, the child is not late.
    #[test]
    fn a_child_of_which_something_is_unread_does_not_hang() {
        let (poll, place) = (Poll::new().expect("a poll"), tempfile::tempdir().expect("a place"));
        let record = ErrorRecord::new(place.path().join("gpu_errors"));
        let mut health = HealthWatch::new(PathBuf::new(), 1000, record, poll.watch());
        let (from, to) = nix::unistd::pipe().expect("a pipe");
        crate::descriptors::stops_blocking(&from).expect("ours");
        let child = Command::new("sleep").arg("600").spawn().expect("it starts");
        health.child = Some((child, ChildStdout::from(from)));
        nix::unistd::write(&to, b"works\n").expect("it fits");
        let (mut gpus, late) = (table(), now());
        health.heard = Instant(0);
        assert!(health.due(late, &mut gpus), "the GPU does not answer");
        assert!(health.child.is_some() && health.heard >= late);
        health.heard = Instant(0);
        assert!(!health.due(late, &mut gpus));
        assert!(health.child.is_none() && health.start_at.is_some(), "it hangs");
    }

    fn table() -> GpuTable {
        let about = About::default();
        let (index, total) = (NvmlIndex(0), Bytes(1));
        GpuTable::new(vec![Gpu { uuid: GPU, index, total, no_slices: None, about }])
    }

    #[test]
    fn any_line_is_news_or_none() {
        gpuslice_fuzz::fuzz!("health", |bytes| {
            if let Some(told) = parse(bytes) {
                let text = match &told {
                    Told::Error(gpu, News::Xid(number)) => format!("{gpu} xid {number}"),
                    Told::Error(gpu, News::Ecc) => format!("{gpu} ecc"),
                    Told::Works(all) => {
                        all.iter().fold("works".to_owned(), |text, gpu| format!("{text} {gpu}"))
                    }
                };
                assert_eq!(parse(text.as_bytes()), Some(told));
            }
        });
    }
}
