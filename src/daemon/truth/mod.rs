//! The truth loop: what the driver itself says that processes have, against what they reserved.
//!
//! A shim sees what its process asks for. Contexts, modules, the driver's own buffers, and programs
//! that bypass the shim are seen by NVML alone; so while there are containers all GPUs are looked
//! at every `truth_interval_ms`, and one process at once when it asks. The look is taken
//! by a child process that a thread talks to ([`child`], [`thread`]), its meaning is a pure function
//! ([`judge`]), and the engine charges it.
//!
//! A look that has not come back when the next is due is waited for, and a process that asked is
//! told "unknown" after [`ANSWER_WITHIN`]: a driver that hangs costs knowledge, never turns.

pub mod child;
pub mod judge;
mod line;
pub mod thread;

use crate::daemon::Daemon;
use crate::leave::Holder;
use crate::poll::now;
use crate::slots::Key;
use gpuslice_engine::Event;
use gpuslice_wire::frame::RequestId;
use gpuslice_wire::ids::{ClientId, GpuUuid, Lane};
use gpuslice_wire::limits::CLIENTS_MAX;
use gpuslice_wire::tenant::Reply;
use gpuslice_wire::units::{Bytes, Duration, Instant};
use judge::{Attached, Owner, Strays};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use thread::{Asker, Fact, Look, Question, Ticket};

/// How long somebody waits for NVML before being told that it is not known.
pub const ANSWER_WITHIN: Duration = Duration::from_millis(400);
/// How long the start waits for NVML's first answer.
const START_WITHIN: std::time::Duration = std::time::Duration::from_secs(10);
/// How long the end waits for NVML's answer to each thing it was asked.
const END_WITHIN: std::time::Duration = std::time::Duration::from_secs(1);
/// A look that takes longer is worth a line in the log.
const LATE: Duration = Duration::from_millis(5_000);
/// Questions that may wait for a driver that hangs; more are not asked.
const UNANSWERED_MAX: usize = 2 * CLIENTS_MAX;
/// How long NVML is kept open when nobody has a slice any more. To open it takes milliseconds of a
/// processor, which the next container's start would be without.
const KEPT_OPEN: Duration = Duration(30_000_000_000);
/// The first look at the first container, at the latest.
const FIRST_LOOK: Duration = Duration(1_000_000_000);
/// The inode of the initial pid namespace (linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// A process that waits for its measure.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    ticket: Ticket,
    by: Instant,
    key: Key,
    client: ClientId,
    request: RequestId,
    lane: Lane,
}

/// The event loop's side of it.
pub struct Truth {
    questions: Option<Sender<Question>>,
    facts: Receiver<Fact>,
    /// Rung when there are facts.
    pub bell: Arc<EventFd>,
    interval: Option<Duration>,
    next: Instant,
    asked: Option<Instant>,
    late: bool,
    tickets: Ticket,
    unanswered: usize,
    waiting: VecDeque<Waiting>,
    strays: Strays,
    /// GPUs that answered the last look; of the others, what they said.
    state: BTreeMap<GpuUuid, Result<(), String>>,
    open: bool,
    /// When it is closed, if nobody has a slice by then.
    rest: Option<Instant>,
}

impl Truth {
    /// With the thread that asks this NVML; without one, nothing is known.
    ///
    /// # Errors
    /// No descriptor or no thread left.
    pub fn new(library: &str, interval_ms: u64) -> io::Result<Truth> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = Arc::new(EventFd::from_flags(flags)?);
        let (questions, asked) = channel();
        let (answer, facts) = channel();
        let asker = Asker {
            library: library.into(),
            questions: asked,
            facts: answer,
            bell: Arc::clone(&bell),
        };
        let there = !library.is_empty();
        if there {
            let thread = std::thread::Builder::new().name("nvml".to_owned());
            thread.spawn(move || asker.serve())?;
        }
        let interval = (interval_ms > 0).then(|| Duration::from_millis(interval_ms));
        Ok(Truth {
            questions: there.then_some(questions),
            facts,
            bell,
            interval,
            next: Instant(0),
            asked: None,
            late: false,
            tickets: 0,
            unanswered: 0,
            waiting: VecDeque::new(),
            strays: Strays::default(),
            state: BTreeMap::new(),
            open: true,
            rest: None,
        })
    }

    /// A ticket nobody had.
    pub fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        self.tickets
    }

    /// Asks; whether there is anybody to ask who does not owe too many answers already.
    pub fn ask(&mut self, question: Question) -> bool {
        let answered = !matches!(question, Question::Rest);
        if self.unanswered >= UNANSWERED_MAX {
            return false;
        }
        self.open |= answered;
        let sent = self.questions.as_ref().map(|to| to.send(question));
        let sent = matches!(sent, Some(Ok(())));
        self.unanswered += usize::from(sent && answered);
        sent
    }

    /// What NVML said, if anything.
    pub fn heard(&mut self) -> Option<Fact> {
        let fact = self.facts.try_recv().ok()?;
        self.unanswered = self.unanswered.saturating_sub(1);
        Some(fact)
    }

    /// On which GPUs the driver has limits, or why not. Asked once, at the start.
    pub fn support(&mut self, gpus: &[GpuUuid]) -> BTreeMap<GpuUuid, Result<(), String>> {
        let gpus: Vec<_> = gpus.iter().map(|gpu| gpu.0).collect();
        let silent = match self.ask(Question::Support { gpus: gpus.clone() }) {
            true => "NVML does not answer",
            false => "the driver directory has no NVML",
        };
        let answer = self.facts.recv_timeout(START_WITHIN);
        if answer.is_ok() {
            self.unanswered = self.unanswered.saturating_sub(1);
        }
        match answer {
            Ok(Fact::Support(all)) => all
                .into_iter()
                .map(|(gpu, it)| (GpuUuid(gpu), it))
                .collect(),
            _ => gpus
                .into_iter()
                .map(|gpu| (GpuUuid(gpu), Err(silent.to_owned())))
                .collect(),
        }
    }

    /// Whether what NVML shows of this GPU is charged.
    pub fn measures(&self, gpu: GpuUuid) -> bool {
        self.interval.is_some() && !self.late && matches!(self.state.get(&gpu), Some(Ok(())))
    }

    /// A container's slice ended.
    pub fn forget(&mut self, container: &gpuslice_wire::ids::ContainerId) {
        self.strays.forget(container);
    }

    /// Logs what changed about a GPU, once.
    fn note(&mut self, look: &Look) {
        let said = look.processes.as_ref().map(drop).map_err(Clone::clone);
        let gpu = GpuUuid(look.gpu);
        let known = self.state.get(&gpu);
        match (&said, known) {
            (Err(why), known) if known != Some(&said) => {
                tracing::warn!(%gpu, why, "NVML does not tell what processes have; only reservations count");
            }
            (Ok(()), Some(Err(_))) => tracing::info!(%gpu, "NVML tells again"),
            _ => {}
        }
        self.state.insert(gpu, said);
    }
}

/// Why pids of NVML cannot be those of the peers, if so.
pub fn blind() -> Option<&'static str> {
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
    (namespace != Path::new(INITIAL_PID_NAMESPACE)).then_some(
        "gpusliced is not in the host's pid namespace: processes that NVML shows may not be \
         recognised; run it with the host's (--pid=host, hostPID: true)",
    )
}

impl Daemon {
    /// A process asks what it has; it is told when NVML has answered, or that it is not known.
    pub fn measure(&mut self, key: Key, client: ClientId, request: RequestId, lane: Lane) {
        let gpu = self
            .tenants
            .get(key)
            .and_then(|tenant| self.walls.gpu_of(&tenant.container(), lane));
        let pid = self.tenants.get(key).map_or(0, crate::tenants::Tenant::pid);
        let asks_already = self.truth.waiting.iter().any(|one| one.key == key);
        let ticket = self.truth.ticket();
        let asked = match gpu {
            Some(gpu) if pid > 0 && !asks_already => self.truth.ask(Question::Measure {
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
        self.truth.waiting.push_back(Waiting {
            ticket,
            by: now().plus(ANSWER_WITHIN),
            key,
            client,
            request,
            lane,
        });
    }

    /// NVML answered something.
    pub fn truth_spoke(&mut self) {
        while let Some(fact) = self.truth.heard() {
            match fact {
                Fact::Measured { ticket, used } => self.measured(ticket, used.map(Bytes)),
                Fact::Round(looks) => self.looked(&looks),
                Fact::Set { ticket, done } => self.walls_set(ticket, done),
                Fact::Support(_) => {} // too late for the start, which went on without
            }
        }
    }

    fn measured(&mut self, ticket: Ticket, used: Option<Bytes>) {
        let at = self
            .truth
            .waiting
            .iter()
            .position(|one| one.ticket == ticket);
        let Some(one) = at.and_then(|at| self.truth.waiting.remove(at)) else {
            return; // told already that it is not known
        };
        let (client, lane) = (one.client, one.lane);
        if let Some(used) = used {
            // Its claims as of now: what it charged before it asked explains what is seen.
            self.read_claims(one.key);
            let used = used.saturating_sub(self.granted_beside(client, lane));
            self.tell(Event::Measured { client, lane, used });
        }
        self.reply_to(client, one.request, &Reply::Measured { lane, used });
    }

    /// What the same process was granted by its other connections.
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

    fn looked(&mut self, looks: &[Look]) {
        self.truth.asked = None;
        if std::mem::take(&mut self.truth.late) {
            tracing::info!("NVML answers again");
        }
        let attached: Vec<Attached> = self.attached_processes();
        let owners: Vec<Owner> = self.walls.owners();
        self.read_all_claims();
        self.settle();
        for look in looks {
            self.truth.note(look);
            let events = judge::judge(look, &attached, &owners, &mut self.truth.strays);
            events.into_iter().for_each(|event| self.tell(event));
        }
        self.walls_follow_all();
    }

    /// Whose memory is in the books, with their pids.
    fn attached_processes(&self) -> Vec<Attached> {
        let known = self.clients.iter().flatten();
        let known = known.filter_map(|(client, holder)| {
            let (container, pid) = match *holder {
                Holder::Tenant(key) => {
                    let tenant = self.tenants.get(key)?;
                    (tenant.container(), tenant.pid())
                }
                // The number of one that is gone may be another's.
                Holder::Absent(key) => {
                    let absent = self.absent.get(key)?;
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

    /// When something is due here.
    pub fn truth_deadline(&self) -> Option<Instant> {
        let look = (self.slices.len() > 0)
            .then_some(())
            .and(self.truth.interval);
        let look = look.map(|_| match self.truth.asked {
            None => self.truth.next,
            Some(asked) => asked.plus(LATE),
        });
        let look = look.filter(|_| !self.truth.late && self.truth.questions.is_some());
        let waiting = self.truth.waiting.front().map(|one| one.by);
        [look, waiting, self.walls.deadline(), self.truth.rest]
            .into_iter()
            .flatten()
            .min()
    }

    /// Time passed.
    pub fn truth_due(&mut self, now: Instant) {
        while let Some(one) = self.truth.waiting.front().copied()
            && one.by <= now
        {
            self.measured(one.ticket, None);
        }
        self.walls_due(now);
        self.look_if_due(now);
        self.rest_if_due(now);
    }

    fn look_if_due(&mut self, now: Instant) {
        let Some(interval) = self.truth.interval.filter(|_| self.slices.len() > 0) else {
            return;
        };
        if let Some(asked) = self.truth.asked {
            if asked.plus(LATE) <= now && !self.truth.late {
                self.truth.late = true;
                tracing::error!(
                    "NVML has not answered for {} s; look for Xid errors in the kernel's log. Memory that only it shows is not charged until it does",
                    LATE.0 / 1_000_000_000
                );
            }
            return;
        }
        if self.truth.next <= now {
            self.truth.next = now.plus(interval);
            let gpus = self.walls.gpus().into_iter().map(|gpu| gpu.0).collect();
            let walls = self.walls.standing().into_iter();
            let walls = walls.map(|(gpu, dir)| (gpu.0, dir)).collect();
            if self.truth.ask(Question::Round { gpus, walls }) {
                self.truth.asked = Some(now);
            }
        }
    }

    /// At the end: what is asked is waited for, but not for ever.
    pub fn truth_last(&mut self) {
        while self.walls_wait() {
            let Ok(fact) = self.truth.facts.recv_timeout(END_WITHIN) else {
                tracing::error!("NVML does not answer; limits of the driver may be left behind");
                return;
            };
            if let Fact::Set { ticket, done } = fact {
                self.walls_set(ticket, done);
            }
        }
    }

    /// Nobody has a slice any more: after a while NVML's own memory is given back, unless it is wanted the
    /// moment a container starts.
    pub fn truth_rests(&mut self) {
        if self.slices.len() == 0 && self.truth.open && !self.walls.wanted() {
            self.truth.rest = Some(now().plus(KEPT_OPEN));
        }
    }

    fn rest_if_due(&mut self, now: Instant) {
        if self.truth.rest.is_some_and(|at| at <= now) && self.slices.len() == 0 {
            self.truth.rest = None;
            self.truth.ask(Question::Rest);
            self.truth.open = false;
        }
    }

    /// The first container: there is nothing to be seen of it yet, and its start is to have the processor.
    pub fn truth_wakes(&mut self) {
        let interval = self.truth.interval.unwrap_or(FIRST_LOOK);
        let first = now().plus(Duration(interval.0.min(FIRST_LOOK.0)));
        self.truth.next = self.truth.next.max(first);
        self.truth.rest = None;
    }
}
