//! Usage accounting: compares the memory that NVML reports for each process with the memory it reserved.
//!
//! A shim sees the requests of its own process. Only NVML shows contexts, modules, the driver's own buffers
//! and programs that bypass the shim. So while slices exist, all GPUs are sampled every
//! `accounting_interval_ms`, and a single process at once when it asks. A child process takes the sample for
//! a thread ([`child`], [`thread`]), a pure function attributes it ([`attribute`]), and the engine charges it.
//!
//! If a sample is late, the next one is not started. A process that asked gets "unknown" after
//! [`ANSWER_WITHIN`]. A driver that hangs therefore delays accounting, never turns.

pub mod attribute;
pub mod child;
mod supervisor;
pub mod thread;

use crate::daemon::Daemon;
use crate::lingering::ClientHolder;
use crate::slab::Key;
use attribute::{Attached, SliceOwner, Unattributed};
use gpuslice_engine::Event;
use gpuslice_host::clock::now;
use gpuslice_host::process::own_pid_namespace;
use gpuslice_wire::frame::RequestId;
use gpuslice_wire::ids::{ClientId, GpuUuid, Lane};
use gpuslice_wire::limits::CLIENTS_MAX;
use gpuslice_wire::tenant::Reply;
use gpuslice_wire::units::{Bytes, Duration, Instant};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use thread::{NvmlAnswer, NvmlThread, Question, Sample, Ticket};

/// How long a process or a request waits for NVML before it is answered without it.
pub const ANSWER_WITHIN: Duration = Duration::from_millis(400);
/// How long the daemon's start waits for NVML's first answer.
const START_WITHIN: std::time::Duration = std::time::Duration::from_secs(10);
/// How long the daemon's end waits for each answer of NVML.
const END_WITHIN: std::time::Duration = std::time::Duration::from_secs(1);
/// A sample that takes longer is logged.
const LATE: Duration = Duration::from_millis(5_000);
/// Most unanswered questions; no more are asked.
const UNANSWERED_MAX: usize = 2 * CLIENTS_MAX;
/// How long NVML stays open after the last slice. Opening it takes milliseconds of CPU time, which would
/// delay the next container's start.
const KEPT_OPEN: Duration = Duration(30_000_000_000);
/// Longest time from the first slice to its first sample.
const FIRST_SAMPLE_WITHIN: Duration = Duration(1_000_000_000);
/// The inode of the initial pid namespace (linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// A `Measure` request that waits for NVML.
#[derive(Clone, Copy, Debug)]
struct PendingMeasure {
    ticket: Ticket,
    by: Instant,
    key: Key,
    client: ClientId,
    request: RequestId,
    lane: Lane,
}

/// The event loop's side of the accounting.
pub struct Accounting {
    questions: Option<Sender<Question>>,
    answers: Receiver<NvmlAnswer>,
    /// Written by the thread after each answer.
    pub notify: Arc<EventFd>,
    interval: Option<Duration>,
    next: Instant,
    asked: Option<Instant>,
    late: bool,
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
    pub fn new(library: &str, interval_ms: u64) -> io::Result<Accounting> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let notify = Arc::new(EventFd::from_flags(flags)?);
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
            asked: None,
            late: false,
            tickets: 0,
            unanswered: 0,
            waiting: VecDeque::new(),
            unattributed: Unattributed::default(),
            state: BTreeMap::new(),
            open: true,
            close_at: None,
        })
    }

    /// A new ticket.
    pub fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        self.tickets
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

    /// Asks on which GPUs the driver has limits, or why not; once, at the start.
    pub fn support(&mut self, gpus: &[GpuUuid]) -> BTreeMap<GpuUuid, Result<(), String>> {
        let gpus: Vec<_> = gpus.iter().map(|gpu| gpu.0).collect();
        let why = match self.ask(Question::Support { gpus: gpus.clone() }) {
            true => "NVML does not answer",
            false => "the driver directory has no NVML",
        };
        let answer = self.answers.recv_timeout(START_WITHIN);
        if answer.is_ok() {
            self.unanswered = self.unanswered.saturating_sub(1);
        }
        match answer {
            Ok(NvmlAnswer::Support(all)) => all
                .into_iter()
                .map(|(gpu, it)| (GpuUuid(gpu), it))
                .collect(),
            _ => gpus
                .into_iter()
                .map(|gpu| (GpuUuid(gpu), Err(why.to_owned())))
                .collect(),
        }
    }

    /// Whether the use that NVML reports for this GPU is charged.
    pub fn measures(&self, gpu: GpuUuid) -> bool {
        self.interval.is_some() && !self.late && matches!(self.state.get(&gpu), Some(Ok(())))
    }

    /// A container's slice ended.
    pub fn forget(&mut self, container: &gpuslice_wire::ids::ContainerId) {
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
}

/// A warning if NVML's pids differ from the pids of the daemon's peers.
pub fn pid_namespace_warning() -> Option<&'static str> {
    (own_pid_namespace()? != INITIAL_PID_NAMESPACE).then_some(
        "gpusliced is not in the host's pid namespace: it may not recognise the processes that NVML \
         reports; run it in the host's (--pid=host, hostPID: true)",
    )
}

impl Daemon {
    /// Answers a process's `Measure` when NVML has answered, or with "unknown".
    pub fn measure(&mut self, key: Key, client: ClientId, request: RequestId, lane: Lane) {
        let gpu = self
            .tenants
            .get(key)
            .and_then(|tenant| self.cgroup_limits.gpu_of(&tenant.container(), lane));
        let pid = self.tenants.get(key).map_or(0, crate::tenants::Tenant::pid);
        let asks_already = self.accounting.waiting.iter().any(|one| one.key == key);
        let ticket = self.accounting.ticket();
        let asked = match gpu {
            Some(gpu) if pid > 0 && !asks_already => self.accounting.ask(Question::Measure {
                ticket,
                gpu: gpu.0,
                pid,
            }),
            _ => false,
        };
        if !asked {
            let reply = Reply::Measured { lane, used: None };
            return self.reply_to(client, request, &reply);
        }
        self.accounting.waiting.push_back(PendingMeasure {
            ticket,
            by: now().plus(ANSWER_WITHIN),
            key,
            client,
            request,
            lane,
        });
    }

    /// Handles NVML's answers.
    pub fn read_nvml_answers(&mut self) {
        while let Some(answer) = self.accounting.try_receive() {
            match answer {
                NvmlAnswer::Measured { ticket, used } => self.measured(ticket, used.map(Bytes)),
                NvmlAnswer::Samples(samples) => self.account_samples(&samples),
                NvmlAnswer::Set { ticket, done } => self.limits_answered(ticket, done),
                NvmlAnswer::Support(_) => {} // too late: the start did not wait any longer
            }
        }
    }

    fn measured(&mut self, ticket: Ticket, used: Option<Bytes>) {
        let at = self
            .accounting
            .waiting
            .iter()
            .position(|one| one.ticket == ticket);
        let Some(one) = at.and_then(|at| self.accounting.waiting.remove(at)) else {
            return; // answered already with "unknown"
        };
        let (client, lane) = (one.client, one.lane);
        if let Some(used) = used {
            // Read its claims first: the memory it charged before it asked is part of the measured use.
            self.read_claims(one.key);
            let used = used.saturating_sub(self.granted_beside(client, lane));
            self.deliver(Event::Measured { client, lane, used });
        }
        self.reply_to(client, one.request, &Reply::Measured { lane, used });
    }

    /// Bytes granted to the same process through its other connections.
    fn granted_beside(&self, client: ClientId, lane: Lane) -> Bytes {
        let all = self.attached_processes();
        let Some(asks) = all.iter().find(|it| it.client == client) else {
            return Bytes::ZERO;
        };
        let same = |it: &&Attached| it.pid == asks.pid && it.container == asks.container;
        let others = all.iter().filter(same).filter(|it| it.client != client);
        let granted = others.map(|it| it.granted[usize::from(lane.0)]);
        granted.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    fn account_samples(&mut self, samples: &[Sample]) {
        self.accounting.asked = None;
        if std::mem::take(&mut self.accounting.late) {
            tracing::info!("NVML answers again");
        }
        let attached: Vec<Attached> = self.attached_processes();
        let owners: Vec<SliceOwner> = self.cgroup_limits.owners();
        self.read_all_claims();
        self.settle();
        for sample in samples {
            self.accounting.note(sample);
            let events = attribute::attribute(
                sample,
                &attached,
                &owners,
                &mut self.accounting.unattributed,
            );
            events.into_iter().for_each(|event| self.deliver(event));
        }
        self.update_all_limits();
    }

    /// All accounts in the ledger, with the pids of their processes.
    fn attached_processes(&self) -> Vec<Attached> {
        let known = self.clients.iter().flatten();
        let known = known.filter_map(|(client, holder)| {
            let (container, pid) = match *holder {
                ClientHolder::Connected(key) => {
                    let tenant = self.tenants.get(key)?;
                    (tenant.container(), tenant.pid())
                }
                // The pid of an ended process may belong to another one.
                ClientHolder::Lingering(key) => {
                    let absent = self.lingering.get(key)?;
                    (absent.container, absent.pid()?)
                }
            };
            Some(Attached {
                client: *client,
                container,
                pid,
                granted: self.engine.granted_to(*client)?,
            })
        });
        known.collect()
    }

    /// The earliest deadline of the accounting.
    pub fn accounting_deadline(&self) -> Option<Instant> {
        let sample = (self.slices.len() > 0)
            .then_some(())
            .and(self.accounting.interval);
        let sample = sample.map(|_| match self.accounting.asked {
            None => self.accounting.next,
            Some(asked) => asked.plus(LATE),
        });
        let sample =
            sample.filter(|_| !self.accounting.late && self.accounting.questions.is_some());
        let waiting = self.accounting.waiting.front().map(|one| one.by);
        [
            sample,
            waiting,
            self.cgroup_limits.deadline(),
            self.accounting.close_at,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what is due at `now`.
    pub fn run_due_accounting(&mut self, now: Instant) {
        while let Some(one) = self.accounting.waiting.front().copied()
            && one.by <= now
        {
            self.measured(one.ticket, None);
        }
        self.expire_limit_requests(now);
        self.sample_if_due(now);
        self.close_nvml_if_due(now);
    }

    fn sample_if_due(&mut self, now: Instant) {
        let Some(interval) = self.accounting.interval.filter(|_| self.slices.len() > 0) else {
            return;
        };
        if let Some(asked) = self.accounting.asked {
            if asked.plus(LATE) <= now && !self.accounting.late {
                self.accounting.late = true;
                tracing::error!(
                    "NVML has not answered for {} s; look for Xid errors in the kernel's log. LingerUntil it does, only reserved memory is charged",
                    LATE.0 / 1_000_000_000
                );
            }
            return;
        }
        if self.accounting.next <= now {
            self.accounting.next = now.plus(interval);
            let gpus = self
                .cgroup_limits
                .gpus()
                .into_iter()
                .map(|gpu| gpu.0)
                .collect();
            let limited = self.cgroup_limits.in_force().into_iter();
            let limited = limited.map(|(gpu, dir)| (gpu.0, dir)).collect();
            if self.accounting.ask(Question::Sample { gpus, limited }) {
                self.accounting.asked = Some(now);
            }
        }
    }

    /// At the daemon's end: waits for the answers about limits, at most [`END_WITHIN`] each.
    pub fn await_limit_answers(&mut self) {
        while self.awaits_limit_answers() {
            let Ok(answer) = self.accounting.answers.recv_timeout(END_WITHIN) else {
                tracing::error!("NVML does not answer; the driver's limits may stay in force");
                return;
            };
            if let NvmlAnswer::Set { ticket, done } = answer {
                self.limits_answered(ticket, done);
            }
        }
    }

    /// After the last slice: closes NVML [`KEPT_OPEN`] later to free its memory, unless each container's
    /// start needs it.
    pub fn close_nvml_when_idle(&mut self) {
        if self.slices.len() == 0 && self.accounting.open && !self.cgroup_limits.wanted() {
            self.accounting.close_at = Some(now().plus(KEPT_OPEN));
        }
    }

    fn close_nvml_if_due(&mut self, now: Instant) {
        if self.accounting.close_at.is_some_and(|at| at <= now) && self.slices.len() == 0 {
            self.accounting.close_at = None;
            self.accounting.ask(Question::Close);
            self.accounting.open = false;
        }
    }

    /// Delays the first sample after the first slice: the container's start needs the CPU, and uses no GPU yet.
    pub fn schedule_first_sample(&mut self) {
        let interval = self.accounting.interval.unwrap_or(FIRST_SAMPLE_WITHIN);
        let first = now().plus(Duration(interval.0.min(FIRST_SAMPLE_WITHIN.0)));
        self.accounting.next = self.accounting.next.max(first);
        self.accounting.close_at = None;
    }
}
