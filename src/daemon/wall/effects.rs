//! What follows from walls that were set, or could not be: answers to the hook and the CLI, and
//! what the truth loop puts right later.

use super::{After, Known, Pending, WallMode, Walls, cleared};
use crate::cgroup;
use crate::daemon::Daemon;
use crate::effects::{NOBODY, key_of};
use crate::nvml::{NO_LIMIT, NvmlError};
use crate::poll::now;
use crate::truth::ANSWER_WITHIN;
use crate::truth::thread::{Question, Step, Ticket};
use gpuslice_engine::{Event, Record, Token};
use gpuslice_nvabi::types::nvmlReturn_t;
use gpuslice_wire::admin::{Denial, MemoryAsk};
use gpuslice_wire::ids::{ContainerId, GpuUuid, Lane};
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::text::CgroupPath;
use gpuslice_wire::units::Instant;

/// How often, and how far apart, the end tries to remove what groups `gpuslice run` left.
const GROUPS_TRIES: u32 = 25;
const GROUPS_REST: std::time::Duration = std::time::Duration::from_millis(20);

impl Walls {
    /// Steps that end a slice's walls; the slice is forgotten here.
    fn end(&mut self, container: &ContainerId, record: Option<&Record>) -> Vec<Step> {
        match self.known.remove(container) {
            Some(known) => self.ending(&known),
            // Of an earlier life, and not taken up: it may have left some.
            None => record
                .map(|record| self.clearing(record))
                .unwrap_or_default(),
        }
    }

    /// Removes groups of `gpuslice run` that are empty at last.
    fn tidy(&mut self) {
        match &self.mount {
            Some(mount) => self
                .leftover
                .retain(|name| !cgroup::remove_own(mount, name.as_bytes())),
            None => self.leftover.clear(),
        }
    }

    fn ending(&self, known: &Known) -> Vec<Step> {
        let Some(dir) = self.dir(&known.cgroup) else {
            return Vec::new();
        };
        let walled = known
            .lanes
            .iter()
            .filter(|lane| !matches!(lane.2, super::Wall::None(_)));
        walled
            .flat_map(|(gpu, cap, _)| cleared(*gpu, &dir, cap.0))
            .collect()
    }
}

impl Daemon {
    fn set_walls(&mut self, container: ContainerId, steps: Vec<Step>, after: After) {
        let ticket = self.truth.ticket();
        self.walls.pending.push_back(Pending {
            ticket,
            by: now().plus(ANSWER_WITHIN),
            container,
            steps: steps.clone(),
            after,
        });
        if !self.truth.ask(Question::Set { ticket, steps }) {
            self.walls_set(ticket, Vec::new());
        }
    }

    /// The cgroup that is a container's own, by one of its processes; empty if it has none.
    pub fn cgroup_of(&self, container: &ContainerId, pid: u32) -> CgroupPath {
        cgroup::admitted(pid, self.walls.cgroups()).unwrap_or_else(|why| {
            tracing::info!(%container, %why, "no cgroup of its own: processes that bypass the shim are not seen");
            CgroupPath::EMPTY
        })
    }

    /// A new slice, on disk and open: its walls, then the answer.
    pub fn walls_admit(&mut self, token: Token, record: &Record) {
        let container = record.container;
        self.walls.tidy();
        match self.walls.learn(record, false) {
            steps if steps.is_empty() => self.walled(token, &container),
            steps => self.set_walls(container, steps, After::Admit(token)),
        }
    }

    /// A slice of an earlier life was taken up again.
    pub fn walls_restore(&mut self, record: &Record) {
        let steps = self.walls.learn(record, true);
        if !steps.is_empty() {
            self.set_walls(record.container, steps, After::Nothing);
        }
    }

    /// Answers an admission: all walls that there will be stand.
    fn walled(&mut self, token: Token, container: &ContainerId) {
        if self.slices.of(container).is_none() {
            let why = "the slice was ended while it was being made";
            return self.deny(key_of(token), Denial::Host, why);
        }
        match (self.walls.missing(container), self.walls.mode) {
            (Some(why), WallMode::Require) => {
                let text = format!(
                    "the driver does not hold the cap on {why}; gpuslice doctor says what is \
                     missing, or set wall = \"auto\" in gpusliced's configuration"
                );
                tracing::error!(%container, "{text}");
                self.deny(key_of(token), Denial::Host, &text);
                let (token, container) = (NOBODY, *container);
                self.tell_later(Event::Dismiss { token, container });
                return;
            }
            (Some(why), WallMode::Auto) if self.walls.wanted() => {
                tracing::warn!(%container, why, "the driver does not hold this slice's cap; the shim and NVML's measures do");
            }
            _ => {}
        }
        self.answer_admitted(key_of(token), container);
    }

    /// A slice has ended: its walls, then its record, then the answer.
    pub fn walls_dismiss(&mut self, token: Token, container: &ContainerId, known: bool) {
        self.truth.forget(container);
        let record = self.state.record(container);
        let steps = self.walls.end(container, record.as_ref());
        let after = After::Dismiss(token, known);
        match steps.is_empty() {
            true => self.walls_gone(token, container, known, record.as_ref()),
            false => self.set_walls(*container, steps, after),
        }
        self.truth_rests();
    }

    fn walls_gone(
        &mut self,
        token: Token,
        container: &ContainerId,
        known: bool,
        record: Option<&Record>,
    ) {
        let left = record.map(|record| record.cgroup);
        self.walls.leftover.extend(left);
        self.walls.tidy();
        self.forget_slice(token, container, known);
    }

    /// A cap is to change: where a wall stands lower, that one first.
    pub fn resize(&mut self, token: Token, container: ContainerId, lane: Lane, memory: MemoryAsk) {
        match self.walls.growing(&container, lane, memory) {
            Some(step) => {
                self.set_walls(container, vec![step], After::Grow(token, lane, memory));
            }
            None => self.resize_books(token, container, lane, memory),
        }
    }

    fn resize_books(
        &mut self,
        token: Token,
        container: ContainerId,
        lane: Lane,
        memory: MemoryAsk,
    ) {
        self.tell(Event::Resize {
            token,
            container,
            lane,
            memory,
        });
        // Also if it was refused: then the wall goes back to where it was.
        self.walls_follow(&container);
    }

    /// What is promised now; the wall of a lower cap follows.
    pub fn walls_resized(&mut self, record: &Record) {
        if let Some(known) = self.walls.known.get_mut(&record.container) {
            for (lane, promised) in known.lanes.iter_mut().zip(&record.lanes) {
                lane.1 = promised.cap;
            }
        }
    }

    fn walls_follow(&mut self, container: &ContainerId) {
        let asked = self
            .walls
            .pending
            .iter()
            .any(|one| one.container == *container);
        let steps = self.walls.following(container);
        if !asked && !steps.is_empty() {
            self.set_walls(*container, steps, After::Nothing);
        }
    }

    /// Walls that could not yet go down to their caps, or not be set.
    pub fn walls_follow_all(&mut self) {
        let all: Vec<ContainerId> = self.walls.known.keys().copied().collect();
        all.iter()
            .for_each(|container| self.walls_follow(container));
    }

    /// NVML answered for walls; without an answer for a step, it could not be asked.
    pub fn walls_set(&mut self, ticket: Ticket, done: Vec<Result<u64, NvmlError>>) {
        let at = self
            .walls
            .pending
            .iter()
            .position(|one| one.ticket == ticket);
        let Some(one) = at.and_then(|at| self.walls.pending.remove(at)) else {
            return;
        };
        let silent = Err(NvmlError {
            call: "NVML".to_owned(),
            answer: nvmlReturn_t::ERROR_UNINITIALIZED,
        });
        let done = done.into_iter().chain(std::iter::repeat(silent));
        let mut failed = None;
        for (step, done) in one.steps.iter().zip(done) {
            failed = failed.or(done.as_ref().err().cloned());
            match step.hard {
                NO_LIMIT => log_cleared(&one.container, step, done, self.walls.soft),
                _ => self.walls.set(&one.container, GpuUuid(step.gpu), done),
            }
        }
        self.after_walls(&one.container, one.after, failed);
    }

    fn after_walls(&mut self, container: &ContainerId, after: After, failed: Option<NvmlError>) {
        match after {
            After::Nothing => {}
            After::Admit(token) => self.walled(token, container),
            After::Dismiss(token, known) => {
                let record = self.state.record(container);
                self.walls_gone(token, container, known, record.as_ref());
            }
            After::Grow(token, lane, memory) => match failed {
                None => self.resize_books(token, *container, lane, memory),
                Some(why) => {
                    let text = format!("the driver keeps its limit: {why}; the cap is as it was");
                    self.deny(key_of(token), Denial::Host, &text);
                }
            },
        }
    }

    /// Whoever has waited long enough for NVML is answered without it. What it was asked is still
    /// done when it comes to it.
    pub fn walls_due(&mut self, now: Instant) {
        let silent = NvmlError {
            call: "NVML".to_owned(),
            answer: nvmlReturn_t::ERROR_TIMEOUT,
        };
        let mut over = Vec::new();
        for one in self.walls.pending.iter_mut().filter(|one| one.by <= now) {
            match std::mem::replace(&mut one.after, After::Nothing) {
                After::Nothing => {}
                after => over.push((one.container, after)),
            }
        }
        for (container, after) in over {
            tracing::warn!(%container, "NVML does not answer; going on without the driver's limit");
            self.after_walls(&container, after, Some(silent.clone()));
        }
    }

    /// Adds each cap's enforcement level to the engine's rows.
    pub fn set_memory_enforcement(&self, rows: &mut [Snapshot]) {
        for row in rows {
            if let Snapshot::Slice {
                container,
                lane,
                gpu,
                memory_enforcement,
                ..
            } = row
            {
                let measured = self.truth.measures(*gpu);
                *memory_enforcement = self.walls.memory_enforcement(container, *lane, measured);
            }
        }
    }

    /// The end of a daemon that leaves nothing: all walls are cleared, as far as NVML answers.
    pub fn walls_end(&mut self) {
        let all: Vec<ContainerId> = self.walls.known.keys().copied().collect();
        for container in all {
            self.walls
                .leftover
                .extend(self.walls.known.get(&container).map(|known| known.cgroup));
            let steps = self.walls.end(&container, None);
            if !steps.is_empty() {
                self.set_walls(container, steps, After::Nothing);
            }
        }
        self.truth_last();
        // Whoever was in them was asked to end when we were.
        for _ in 0..GROUPS_TRIES {
            self.walls.tidy();
            if self.walls.leftover.is_empty() {
                return;
            }
            std::thread::sleep(GROUPS_REST);
        }
    }

    /// Whether NVML was asked for walls and has not answered.
    pub fn walls_wait(&self) -> bool {
        !self.walls.pending.is_empty()
    }
}

/// A wall that could not be cleared is worth a line only where something stays behind.
fn log_cleared(container: &ContainerId, step: &Step, done: Result<u64, NvmlError>, soft: bool) {
    let Err(why) = done else { return };
    let gone = !step.dir.exists();
    match why.answer {
        nvmlReturn_t::ERROR_NOT_FOUND => {}
        _ if gone && !soft => {}
        _ if gone => {
            tracing::error!(%container, gpu = %GpuUuid(step.gpu), cgroup = %step.dir.display(), %why, "the cgroup was removed before its guarantee was cleared; the groups above it may keep it: look with nvidia-smi memory-limits");
        }
        _ => {
            tracing::error!(%container, gpu = %GpuUuid(step.gpu), cgroup = %step.dir.display(), %why, "the driver keeps the limit; clear it with nvidia-smi memory-limits");
        }
    }
}
