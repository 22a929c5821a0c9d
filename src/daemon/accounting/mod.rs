//! Usage accounting: compares the memory that NVML reports for each process with the memory it reserved.
//!
//! A shim sees the requests of its own process. Only NVML shows contexts, modules, the driver's own buffers
//! and programs that bypass the shim. So while slices exist, their GPUs are sampled every
//! `accounting_interval_ms`, as are GPUs that MPS uses, and a single process at once when it asks. A child
//! process takes the sample for a thread ([`child`], [`thread`]), a pure function attributes it ([`attribute`]),
//! and the engine charges it. The samples also show whether MPS uses a GPU ([`mps`]).
//!
//! If a sample is late, the next one is not started. A process that asked waits for its answer, since a context whose
//! cost is unknown would be charged nothing. A child that hangs is replaced, and its questions are answered "unknown";
//! where many questions wait, a process gets that answer after [`MEASURED_WITHIN`]. A driver that hangs therefore
//! delays accounting and new contexts, never turns.

pub mod ask_nvml;
pub mod attribute;
pub mod child;
pub mod loads;
pub mod mps;
pub mod questions;
mod supervisor;
mod thread;

use crate::cgroup::Dir;
use crate::poll::{Source, Watch};
use crate::tasks::Measure;
use attribute::{Attached, SliceOwner, Unattributed};
use gpuslice_engine::Event;
use gpuslice_host::process::own_pid_namespace;
use gpuslice_wire::ids::{ClientId, ContainerId, GpuUuid};
use gpuslice_wire::limits::CLIENTS_MAX;
use gpuslice_wire::units::{Bytes, Duration, Instant};
use loads::Loads;
use mps::MpsWatch;
use nix::sys::eventfd::{EfdFlags, EventFd};
use questions::{DeviceUsage, Id, LimitSupport, NvmlAnswer, Question, Sample, Ticket};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use thread::NvmlThread;

/// How long a process that asked waits for NVML: longer than a child may hang ([`child::HUNG_AFTER`]).
const MEASURED_WITHIN: Duration = Duration::from_millis(15_000);
/// How long the daemon's start waits for NVML's first answer.
const START_WITHIN: std::time::Duration = std::time::Duration::from_secs(10);
/// How long the daemon's end waits for each answer of NVML.
const END_WITHIN: std::time::Duration = std::time::Duration::from_secs(1);
/// A sample that takes longer is logged.
const LATE: Duration = Duration::from_millis(5_000);
/// Most unanswered questions; no more are asked.
const UNANSWERED_MAX: usize = 2 * CLIENTS_MAX;
/// Time between two looks at devices for memory that becomes free.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// How long NVML stays open after the last slice. Opening it takes milliseconds of CPU time, which would
/// delay the next container's start.
const KEPT_OPEN: Duration = Duration(30_000_000_000);
/// Longest time from the first slice to its first sample.
const FIRST_SAMPLE_WITHIN: Duration = Duration(1_000_000_000);
/// The inode of the initial pid namespace (linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// What processes claim to have of GPUs, each with its pid: memory that NVML's figure does not show, and all of it.
pub type Claimed = BTreeMap<(GpuUuid, ClientId), (u32, [Bytes; 2])>;

/// A request that waits for NVML.
#[derive(Clone, Copy, Debug)]
struct PendingMeasure {
    ticket: Ticket,
    by: Instant,
    measure: Measure,
}

/// The event loop's side of the accounting.
pub struct Accounting {
    questions: Option<Sender<Question>>,
    answers: Receiver<NvmlAnswer>,
    /// Written by the thread after each answer, and where answers are left for later.
    notify: Arc<EventFd>,
    interval: Option<Duration>,
    next: Instant,
    /// A source of random moments: the secret of this process, and the samples so far.
    moments: RandomState,
    samples: u64,
    asked: Option<Instant>,
    /// Containers whose memory has returned to the GPU since the sample was asked for: it may not show that.
    returned: BTreeSet<ContainerId>,
    /// The same of the last sample.
    unshown: BTreeSet<ContainerId>,
    late: bool,
    /// The look at devices, while its answer is due: what processes claimed. And the earliest moment of the next.
    looking: Option<Claimed>,
    look_next: Instant,
    /// How much of the time kernels ran on GPUs.
    pub loads: Loads,
    /// The GPUs that MPS uses.
    pub mps: MpsWatch,
    /// GPUs of which NVML has told a process's figure.
    figured: BTreeSet<GpuUuid>,
    tickets: Ticket,
    unanswered: usize,
    waiting: VecDeque<PendingMeasure>,
    unattributed: Unattributed,
    /// By GPU: whether NVML reported its processes in the last sample, else the error.
    state: BTreeMap<GpuUuid, Result<(), String>>,
    open: bool,
    /// When NVML is closed, if there is no slice by then.
    close_at: Option<Instant>,
}

impl Accounting {
    /// Starts the thread that asks this NVML. With an empty path there is no NVML and no accounting.
    ///
    /// # Errors
    /// No descriptor or no thread left.
    pub fn new(library: &str, interval_ms: u64, watch: &Watch) -> io::Result<Accounting> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let notify = Arc::new(EventFd::from_flags(flags)?);
        watch.add_edge_triggered(&*notify, Source::Accounting)?;
        let (questions, asked) = channel();
        let (answer, answers) = channel();
        let thread_side = NvmlThread {
            library: library.into(),
            questions: asked,
            answers: answer,
            notify: Arc::clone(&notify),
        };
        let there = !library.is_empty();
        if there {
            let thread = std::thread::Builder::new().name("nvml".to_owned());
            thread.spawn(move || thread_side.serve())?;
        }
        let interval = (interval_ms > 0).then(|| Duration::from_millis(interval_ms));
        Ok(Accounting {
            questions: there.then_some(questions),
            answers,
            notify,
            interval,
            next: Instant(0),
            moments: RandomState::new(),
            samples: 0,
            asked: None,
            returned: BTreeSet::new(),
            unshown: BTreeSet::new(),
            late: false,
            looking: None,
            look_next: Instant(0),
            loads: Loads::default(),
            mps: MpsWatch::default(),
            figured: BTreeSet::new(),
            tickets: 0,
            unanswered: 0,
            waiting: VecDeque::new(),
            unattributed: Unattributed::default(),
            state: BTreeMap::new(),
            open: true,
            close_at: None,
        })
    }

    /// Whether NVML is asked for the memory in use on devices.
    pub fn sees_devices(&self) -> bool {
        self.interval.is_some() && self.questions.is_some()
    }

    /// When devices are looked at next, as memory there may be free from `due` on.
    pub fn look_at(&self, due: Instant) -> Option<Instant> {
        (self.sees_devices() && self.looking.is_none()).then(|| due.max(self.look_next))
    }

    /// Asks for the memory in use on these GPUs, of which processes claim so much, unless an answer is due.
    pub fn look(&mut self, now: Instant, gpus: &[GpuUuid], claimed: Claimed) {
        if self.looking.is_some() {
            return;
        }
        let gpus = gpus.iter().map(|gpu| gpu.0).collect();
        self.look_next = now.plus(LOOK_AGAIN_AFTER);
        self.looking = self.ask(Question::Devices { asked_ns: now.0, gpus }).then_some(claimed);
    }

    /// NVML has answered to that; returns what processes claimed at the question.
    pub fn looked(&mut self) -> Claimed {
        self.looking.take().unwrap_or_default()
    }

    /// Asks how much these GPUs are in use, unless that was asked just now.
    pub fn ask_loads(&mut self, now: Instant, gpus: &[GpuUuid]) {
        let asks = !gpus.is_empty() && self.loads.wants(now);
        let gpus = gpus.iter().map(|gpu| gpu.0).collect();
        if asks && self.ask(Question::Loads { gpus }) {
            self.loads.asked(now);
        }
    }

    /// NVML may have told what single processes use on a GPU.
    pub fn note_figures(&mut self, sample: &Sample) {
        let processes = sample.processes.iter().flatten();
        if processes.into_iter().any(|(_, process)| process.used.is_some()) {
            self.figured.insert(GpuUuid(sample.gpu));
        }
    }

    /// Whether NVML tells what single processes use on a GPU, now or at other times.
    pub fn tells_figures(&mut self, device: &DeviceUsage) -> bool {
        if device.processes.iter().flatten().any(|(_, figure)| figure.is_some()) {
            self.figured.insert(GpuUuid(device.gpu));
        }
        self.figured.contains(&GpuUuid(device.gpu))
    }

    /// A new ticket.
    pub fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        self.tickets
    }

    /// Whether there is an NVML to ask.
    pub fn has_nvml(&self) -> bool {
        self.questions.is_some()
    }

    /// Asks for the free memory of these GPUs; returns the ticket of the answer.
    pub fn ask_room(&mut self, gpus: Vec<GpuUuid>) -> Option<Ticket> {
        let (ticket, gpus) = (self.ticket(), gpus.into_iter().map(|gpu| gpu.0).collect());
        self.ask(Question::Room { ticket, gpus }).then_some(ticket)
    }

    /// Sends a question. Returns false without NVML, or with [`UNANSWERED_MAX`] questions unanswered.
    pub fn ask(&mut self, question: Question) -> bool {
        let answered = !matches!(question, Question::Close);
        if self.unanswered >= UNANSWERED_MAX {
            return false;
        }
        self.open |= answered;
        let sent = self.questions.as_ref().map(|to| to.send(question));
        let sent = matches!(sent, Some(Ok(())));
        self.unanswered += usize::from(sent && answered);
        sent
    }

    /// The next answer, if there is one.
    pub fn try_receive(&mut self) -> Option<NvmlAnswer> {
        let answer = self.answers.try_recv().ok()?;
        self.unanswered = self.unanswered.saturating_sub(1);
        Some(answer)
    }

    /// There may be more answers, which are taken after other sources were served.
    pub fn tell_of_more(&self) {
        // A full counter means that a notification is pending already.
        let _ = self.notify.write(1);
    }

    /// At the daemon's end: waits for the next answer, at most [`END_WITHIN`].
    pub fn await_answer(&mut self) -> Option<NvmlAnswer> {
        self.answers.recv_timeout(END_WITHIN).ok()
    }

    /// Asks on which GPUs the driver has limits, and waits for the answer; once, at the start.
    pub fn support(&mut self, gpus: &[GpuUuid]) -> Vec<(Id, LimitSupport)> {
        let gpus: Vec<Id> = gpus.iter().map(|gpu| gpu.0).collect();
        let silent = match self.ask(Question::Support { gpus: gpus.clone() }) {
            true => LimitSupport::Unknown("NVML does not answer".to_owned()),
            false => LimitSupport::Lacks("the driver directory has no NVML".to_owned()),
        };
        let answer = self.answers.recv_timeout(START_WITHIN);
        if answer.is_ok() {
            self.unanswered = self.unanswered.saturating_sub(1);
        }
        match answer {
            Ok(NvmlAnswer::Support(all)) => all,
            _ => gpus.into_iter().map(|gpu| (gpu, silent.clone())).collect(),
        }
    }

    /// Whether the use that NVML reports for this GPU is charged.
    pub fn measures(&self, gpu: GpuUuid) -> bool {
        self.interval.is_some() && !self.late && matches!(self.state.get(&gpu), Some(Ok(())))
    }

    /// A restored container with so many GPUs may have had unattributed memory.
    pub fn expect_unattributed(&mut self, container: ContainerId, gpus: usize) {
        self.unattributed.expect(container, gpus);
    }

    /// A container's slice ended.
    pub fn forget(&mut self, container: &ContainerId) {
        self.unattributed.forget(container);
    }

    /// Logs once when NVML stops or starts reporting a GPU's processes.
    fn note(&mut self, sample: &Sample) {
        let said = sample.processes.as_ref().map(drop).map_err(Clone::clone);
        let gpu = GpuUuid(sample.gpu);
        let known = self.state.get(&gpu);
        match (&said, known) {
            (Err(why), known) if known != Some(&said) => {
                tracing::warn!(%gpu, why, "NVML does not report the memory of processes; only reservations count");
            }
            (Ok(()), Some(Err(_))) => tracing::info!(%gpu, "NVML reports again"),
            _ => {}
        }
        self.state.insert(gpu, said);
    }

    /// Asks for the use of a process, one request at a time. Returns false if NVML cannot be asked.
    pub fn measure(&mut self, measure: Measure, gpu: Option<GpuUuid>, now: Instant) -> bool {
        let asks_already = |it: &PendingMeasure| it.measure.key == measure.key;
        let asks_already = self.waiting.iter().any(asks_already);
        let ticket = self.ticket();
        let asked = match gpu {
            Some(gpu) if measure.pid > 0 && !asks_already => {
                self.ask(Question::Measure { ticket, gpu: gpu.0, pid: measure.pid })
            }
            _ => false,
        };
        if asked {
            let by = now.plus(MEASURED_WITHIN);
            self.waiting.push_back(PendingMeasure { ticket, by, measure });
        }
        asked
    }

    /// The request with this ticket, unless it has been answered already.
    pub fn measured(&mut self, ticket: Ticket) -> Option<Measure> {
        let at = self.waiting.iter().position(|one| one.ticket == ticket)?;
        Some(self.waiting.remove(at)?.measure)
    }

    /// The next request that has waited for too long.
    pub fn expired(&mut self, now: Instant) -> Option<Measure> {
        let expired = self.waiting.pop_front_if(|one| one.by <= now)?;
        Some(expired.measure)
    }

    /// A container was resumed.
    pub fn returned(&mut self, container: ContainerId) {
        if self.asked.is_some() {
            self.returned.insert(container);
        }
    }

    /// NVML has answered with a sample.
    pub fn sampled(&mut self) {
        self.asked = None;
        if std::mem::take(&mut self.late) {
            tracing::info!("NVML answers again");
        }
        self.unshown = std::mem::take(&mut self.returned);
    }

    /// The events for the engine from one sample of a GPU. Of a container that was resumed meanwhile it tells nothing.
    pub fn attribute(
        &mut self,
        sample: &Sample,
        attached: &[Attached],
        owners: &[SliceOwner],
    ) -> Vec<Event> {
        self.note(sample);
        let shown = owners.iter().filter(|it| !self.unshown.contains(&it.container));
        attribute::attribute(sample, attached, shown, &mut self.unattributed)
    }

    /// Whether samples are taken: there are slices, or the end of MPS on a GPU is to be seen.
    pub fn takes_samples(&self, slices: usize) -> bool {
        slices > 0 || (self.mps.is_any() && self.interval.is_some())
    }

    /// The earliest deadline; `serves`: samples are taken.
    pub fn deadline(&self, serves: bool) -> Option<Instant> {
        let samples = serves && self.interval.is_some() && self.questions.is_some();
        let sample = (samples && !self.late).then(|| match self.asked {
            None => self.next,
            Some(asked) => asked.plus(LATE),
        });
        let waiting = self.waiting.front().map(|one| one.by);
        let close = self.close_at.filter(|_| !serves);
        [sample, waiting, close].into_iter().flatten().min()
    }

    /// Whether the next sample is due; logs once if the last one is late.
    pub fn is_sample_due(&mut self, now: Instant) -> bool {
        let Some(asked) = self.asked else {
            return self.interval.is_some() && self.next <= now;
        };
        if self.interval.is_some() && asked.plus(LATE) <= now && !self.late {
            self.late = true;
            tracing::error!(
                "NVML has not answered for {} s; look for Xid errors in the kernel's log. Until it does, only reserved memory is charged",
                LATE.0 / 1_000_000_000
            );
        }
        false
    }

    /// Asks for a sample of these GPUs and of these limited cgroups.
    pub fn sample(&mut self, now: Instant, gpus: &[GpuUuid], limited: Vec<(GpuUuid, Dir)>) {
        let interval = self.interval.unwrap_or(FIRST_SAMPLE_WITHIN);
        self.next = now.plus(about(interval, &self.moments, self.samples));
        self.samples += 1;
        let gpus = gpus.iter().map(|gpu| gpu.0).collect();
        let limited = limited.into_iter().map(|(gpu, dir)| (gpu.0, dir)).collect();
        let modes = self.mps.gpus().map(|gpu| gpu.0).collect();
        if self.ask(Question::Sample { gpus, limited, modes }) {
            self.asked = Some(now);
        }
    }

    /// After the last slice: closes NVML [`KEPT_OPEN`] later to free its memory.
    pub fn close_later(&mut self, now: Instant) {
        if self.open {
            self.close_at = Some(now.plus(KEPT_OPEN));
        }
    }

    /// Closes NVML if that is due, as there is no slice.
    pub fn close_if_due(&mut self, now: Instant) {
        if self.close_at.is_some_and(|at| at <= now) {
            self.close_at = None;
            self.ask(Question::Close);
            self.open = false;
        }
    }

    /// Delays the first sample after the first slice: the container's start needs the CPU, and uses no GPU yet.
    pub fn schedule_first_sample(&mut self, now: Instant) {
        let interval = self.interval.unwrap_or(FIRST_SAMPLE_WITHIN);
        let first = now.plus(Duration(interval.0.min(FIRST_SAMPLE_WITHIN.0)));
        self.next = self.next.max(first);
        self.close_at = None;
    }
}

/// The time to the next sample: from half to one and a half of the interval, at random. A program that knew the moment
/// could be granted, just then, the memory that it has without a request.
fn about(interval: Duration, moments: &RandomState, sample: u64) -> Duration {
    Duration(interval.0 / 2 + moments.hash_one(sample) % interval.0.max(1))
}

/// A warning if NVML's pids differ from the pids of the daemon's peers.
pub fn pid_namespace_warning() -> Option<&'static str> {
    (own_pid_namespace()? != INITIAL_PID_NAMESPACE).then_some(
        "gpusliced is not in the host's pid namespace: it may not recognise the processes that NVML \
         reports; run it in the host's (--pid=host, hostPID: true)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::Poll;
    use gpuslice_engine::Granted;
    use gpuslice_wire::ids::Lane;
    use questions::ProcessUsage;

    /// It was asked for before the resume, when the container's memory was on the host.
    #[test]
    fn a_sample_tells_nothing_of_a_container_that_was_resumed_meanwhile() {
        let watch = Poll::new().expect("a poll").watch();
        let mut accounting = Accounting::new("", 1000, &watch).expect("accounting");
        let ids = ["a", "b"].map(|id| ContainerId::new(id).expect("an id"));
        let gpu = GpuUuid([1; 16]);
        let owner = |container| SliceOwner {
            container,
            lane: Lane(0),
            gpu,
            cgroups: Vec::new(),
            limited_dir: None,
        };
        let attached = [0, 1].map(|at: u16| Attached {
            client: ClientId { slot: at, generation: 0 },
            container: ids[usize::from(at)],
            pid: 10 + u32::from(at),
            granted: Granted::default(),
        });
        let figure = |pid| (pid, ProcessUsage { used: Some(7), cgroup: None });
        let sample = Sample::of(gpu.0, Ok(BTreeMap::from([figure(10), figure(11)])));
        let mut told = |resumed: Option<ContainerId>, asked| {
            accounting.asked = asked;
            resumed.into_iter().for_each(|it| accounting.returned(it));
            accounting.sampled();
            let events = accounting.attribute(&sample, &attached, &ids.map(owner));
            let looked = events.into_iter().filter_map(|it| match it {
                Event::Looked { container, .. } => Some(container),
                _ => None,
            });
            looked.collect::<Vec<_>>()
        };
        assert_eq!(told(Some(ids[0]), Some(Instant(1))), [ids[1]]);
        assert_eq!(told(None, Some(Instant(2))), ids, "the next sample");
        assert_eq!(told(Some(ids[0]), None), ids, "asked for after the resume");
    }

    #[test]
    fn samples_come_at_moments_that_only_this_process_knows() {
        let mean = Duration::from_millis(1000);
        let times = |moments: &RandomState| -> Vec<u64> {
            (0..1000).map(|sample| about(mean, moments, sample).0).collect()
        };
        let (one, other) = (times(&RandomState::new()), times(&RandomState::new()));
        assert!(one.iter().all(|it| (mean.0 / 2..mean.0 * 3 / 2).contains(it)));
        let tenths: std::collections::BTreeSet<u64> =
            one.iter().map(|it| it * 10 / mean.0).collect();
        assert_eq!(tenths.len(), 10, "{tenths:?}");
        assert_ne!(one, other);
        assert_eq!(about(Duration(0), &RandomState::new(), 1), Duration(0));
    }
}
