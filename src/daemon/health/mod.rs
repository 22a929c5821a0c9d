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
//! healthy. After any other the GPU is unhealthy until it has worked for `unhealthy_s` without another error, also
//! if the daemon is started again meanwhile ([`record`]). A GPU that the driver no longer finds is unhealthy until it
//! is found again. The engine gives no slices of an unhealthy GPU.
//!
//! Whether MPS uses a GPU is seen by the accounting ([`crate::accounting::mps`]).

pub mod record;
pub mod watcher;

use crate::gpu_table::GpuTable;
use crate::poll::{Source, Watch};
use gpuslice_host::clock::now;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::node::{Health, HealthState};
use gpuslice_wire::units::{Duration, Instant};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use record::{ErrorRecord, GpuFailure};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// Xids that report an error of a program: an illegal instruction or address (13, 31), the end of its channels
/// (43, 45), an error of the video decoder (68), a context switch that timed out (109). Device plugins of Kubernetes
/// ignore the same.
const OF_PROGRAMS: [u32; 6] = [13, 31, 43, 45, 68, 109];
/// Longest line of the child, bytes.
const LINE_BYTES_MAX: usize = 128;
/// Pause before a child that has ended is replaced, and before what could not be recorded is recorded.
const AGAIN_AFTER: Duration = Duration(5_000_000_000);

/// What the child tells of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Xid(u32),
    Ecc,
    Lost,
    Found,
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
    /// The beginning of the child's next line.
    line: Vec<u8>,
    /// When a child is started again.
    start_at: Option<Instant>,
    errors: BTreeMap<GpuUuid, GpuFailure>,
    record: ErrorRecord,
    /// When the record is written again, since that failed.
    record_at: Option<Instant>,
    /// GPUs that the driver does not find.
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
            line: Vec::new(),
            start_at: None,
            errors: BTreeMap::new(),
            record,
            record_at: None,
            lost: BTreeSet::new(),
            unserved: BTreeSet::new(),
        }
    }

    /// Starts to watch, if there is a library.
    pub fn start(&mut self) {
        if !self.library.as_os_str().is_empty() {
            self.start_child();
        }
    }

    /// Takes up the errors that an earlier daemon has recorded and from which the GPUs have not recovered. Returns
    /// whether there are any.
    pub fn restore(&mut self, gpus: &mut GpuTable) -> bool {
        let mut any = false;
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
        let started = self.spawn().and_then(|mut child| {
            let from = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
            crate::descriptors::stops_blocking(&from)?;
            self.watch.add(&from, Source::Health)?;
            Ok((child, from))
        });
        match started {
            Ok(child) => self.child = Some(child),
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
        let recovers = self.errors.values().map(|error| error.reported.plus(self.unhealthy));
        recovers.chain(self.start_at).chain(self.record_at).min()
    }

    /// Starts the child again, and lets GPUs recover, if that is due; returns whether a GPU's health changed.
    pub fn due(&mut self, now: Instant, gpus: &mut GpuTable) -> bool {
        if self.start_at.is_some_and(|at| at <= now) {
            self.start_child();
        }
        let due = self.errors.iter().filter(|(_, it)| it.reported.plus(self.unhealthy) <= now);
        let due: Vec<GpuUuid> = due.map(|(gpu, _)| *gpu).collect();
        for gpu in &due {
            self.errors.remove(gpu);
            if gpus.index(*gpu).is_some() {
                set(gpus, *gpu, HealthState::Healthy, 0);
            }
        }
        if !due.is_empty() || self.record_at.is_some_and(|at| at <= now) {
            self.keep(now);
        }
        !due.is_empty()
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
            Ok(len) => self.line.extend_from_slice(&part[..len]),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.end_child(),
        }
        let mut changed = false;
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            if let Some((gpu, news)) = parse(&line) {
                changed |= self.hear(gpus, gpu, news);
            }
        }
        if self.line.len() > LINE_BYTES_MAX {
            self.end_child();
        }
        changed
    }

    fn hear(&mut self, gpus: &mut GpuTable, gpu: GpuUuid, news: News) -> bool {
        if gpus.index(gpu).is_none() && news == News::Found && self.unserved.insert(gpu) {
            tracing::warn!(%gpu, "this GPU answers now and did not when gpusliced started: start gpusliced again to have slices of it; the slices that are there go on");
        }
        let is_news = match news {
            News::Found => self.lost.remove(&gpu),
            News::Lost => self.lost.insert(gpu),
            // Time ends an error, and not a loss.
            News::Xid(_) | News::Ecc => !self.lost.contains(&gpu),
        };
        if !is_news {
            return false;
        }
        let state = match news {
            News::Xid(xid) if OF_PROGRAMS.contains(&xid) => return false,
            News::Xid(_) => HealthState::Xid,
            News::Ecc => HealthState::Ecc,
            News::Lost => HealthState::Lost,
            News::Found => HealthState::Healthy,
        };
        let xid = if let News::Xid(xid) = news { xid } else { 0 };
        let health = set(gpus, gpu, state, xid);
        match state {
            HealthState::Xid | HealthState::Ecc => {
                self.errors.insert(gpu, GpuFailure { health, reported: now() });
            }
            _ => {
                let _ = self.errors.remove(&gpu);
            }
        }
        self.keep(now());
        true
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
fn parse(line: &[u8]) -> Option<(GpuUuid, News)> {
    let line = std::str::from_utf8(line).ok()?;
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let news = match words.get(1..)? {
        ["xid", number] => News::Xid(number.parse().ok()?),
        ["ecc"] => News::Ecc,
        ["lost"] => News::Lost,
        ["found"] => News::Found,
        _ => return None,
    };
    Some((words.first()?.parse().ok()?, news))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::{About, Gpu};
    use crate::poll::Poll;
    use gpuslice_wire::ids::NvmlIndex;
    use gpuslice_wire::units::Bytes;

    const GPU: GpuUuid = GpuUuid([7; 16]);

    #[test]
    fn lines_are_parsed_and_nonsense_is_not() {
        let line = |what: &str| parse(format!("{GPU} {what}\n").as_bytes()).map(|(_, news)| news);
        assert_eq!(line("xid 79"), Some(News::Xid(79)));
        assert_eq!(line("ecc"), Some(News::Ecc));
        assert_eq!((line("lost"), line("found")), (Some(News::Lost), Some(News::Found)));
        for bad in ["", "xid", "xid x", "xid 1 2", "xid 99999999999", "fine"] {
            assert_eq!(line(bad), None, "{bad}");
        }
        assert_eq!(parse(b"\xff lost"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn a_gpu_recovers_when_it_has_worked_long_enough() {
        let poll = Poll::new().expect("a poll");
        let place = tempfile::tempdir().expect("a place");
        let record = ErrorRecord::new(place.path().join("gpu_errors"));
        let mut health = HealthWatch::new(PathBuf::new(), 10, record, poll.watch());
        let mut gpus = table();
        for of_a_program in OF_PROGRAMS {
            assert!(!health.hear(&mut gpus, GPU, News::Xid(of_a_program)));
        }
        assert_eq!(gpus.unhealthy(&[GPU]), None);
        assert!(health.hear(&mut gpus, GPU, News::Xid(79)));
        assert!(gpus.unhealthy(&[GPU]).is_some_and(|text| text.contains("Xid 79")));
        let (early, late) = (now(), now().plus(Duration(11_000_000_000)));
        assert!(!health.due(early, &mut gpus) && gpus.unhealthy(&[GPU]).is_some());
        assert!(health.due(late, &mut gpus) && gpus.unhealthy(&[GPU]).is_none());
        // A lost GPU recovers when it is found, and not by time.
        assert!(health.hear(&mut gpus, GPU, News::Ecc) && health.hear(&mut gpus, GPU, News::Lost));
        assert!(!health.due(late, &mut gpus) && gpus.unhealthy(&[GPU]).is_some());
        assert!(!health.hear(&mut gpus, GPU, News::Xid(79)) && health.deadline().is_none());
        assert!(health.hear(&mut gpus, GPU, News::Found) && gpus.unhealthy(&[GPU]).is_none());
        // Another GPU answers for the first time.
        let other = GpuUuid([8; 16]);
        assert!(!health.hear(&mut gpus, other, News::Found) && health.unserved.contains(&other));
        // A child that starts finds all GPUs, which ends no error.
        assert!(health.hear(&mut gpus, GPU, News::Ecc));
        assert!(!health.hear(&mut gpus, GPU, News::Found) && gpus.unhealthy(&[GPU]).is_some());
    }

    /// The driver tells an error once, and the next daemon must know it for as long as the first would have.
    #[test]
    fn a_daemon_that_is_started_again_knows_the_errors() {
        let (poll, place) = (Poll::new().expect("a poll"), tempfile::tempdir().expect("a place"));
        let file = place.path().join("gpu_errors");
        let start = |unhealthy_s| {
            let record = ErrorRecord::new(file.clone());
            let mut health = HealthWatch::new(PathBuf::new(), unhealthy_s, record, poll.watch());
            let mut gpus = table();
            let known = health.restore(&mut gpus);
            assert_eq!(gpus.unhealthy(&[GPU]).is_some(), known);
            (health, gpus, known)
        };
        let (mut first, mut gpus, known) = start(1000);
        assert!(!known && first.hear(&mut gpus, GPU, News::Xid(79)));
        let (second, mut gpus, known) = start(1000);
        assert!(known && gpus.unhealthy(&[GPU]).is_some_and(|text| text.contains("Xid 79")));
        assert_eq!(gpus.take_changes().len(), 1);
        let (early, late) = (second.deadline(), first.deadline());
        assert!(early <= late.map(|at| at.plus(Duration(1_000_000_000))), "no later");
        // Of a GPU that is listed, and of one that is not at present. The clock on the wall has been set meanwhile.
        let (other, at) = (GpuUuid([8; 16]), now().0);
        std::fs::write(&file, format!("{GPU} ecc 5 {at}\n{other} xid 79 5 {at}\n")).expect("it");
        let (mut third, mut gpus, known) = start(1000);
        assert!(known && gpus.unhealthy(&[GPU]).is_some_and(|text| text.contains("memory")));
        third.keep(now());
        assert_eq!(third.record.read().len(), 2);
        assert!(third.due(now().plus(Duration(1_001_000_000_000)), &mut gpus) && !file.exists());
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
        assert!(health.hear(&mut gpus, GPU, News::Xid(79)) && !file.exists());
        let again = health.deadline().expect("a second try");
        assert!(
            again >= before.plus(AGAIN_AFTER)
                && again < before.plus(Duration(1_000 * 1_000_000_000))
        );
        assert!(!health.due(again, &mut gpus) && !file.exists(), "no room yet");
        std::fs::create_dir(&dir).expect("a directory");
        assert!(!health.due(again, &mut gpus) && !file.exists(), "not due");
        assert!(!health.due(again.plus(AGAIN_AFTER), &mut gpus) && record().read().len() == 1);
        assert_eq!(
            health.deadline(),
            health.errors.values().next().map(|it| it.reported.plus(health.unhealthy))
        );
    }

    fn table() -> GpuTable {
        let about = About::default();
        let (index, total) = (NvmlIndex(0), Bytes(1));
        GpuTable::new(vec![Gpu { uuid: GPU, index, total, no_slices: None, about }])
    }

    #[test]
    fn any_line_is_news_or_none() {
        gpuslice_fuzz::fuzz!("health", |bytes| {
            if let Some((gpu, news)) = parse(bytes) {
                let text = match news {
                    News::Xid(number) => format!("{gpu} xid {number}"),
                    News::Ecc => format!("{gpu} ecc"),
                    News::Lost => format!("{gpu} lost"),
                    News::Found => format!("{gpu} found"),
                };
                assert_eq!(parse(text.as_bytes()), Some((gpu, news)));
            }
        });
    }
}
