//! Sets, updates and clears cgroup limits, and answers the hook and the CLI when NVML has done so. Limits
//! that lag behind their caps are updated with every sample of the accounting.

use super::{After, CgroupLimitMode, CgroupLimits, LimitedSlice, Pending, clear_steps_for};
use crate::accounting::ANSWER_WITHIN;
use crate::accounting::thread::{Question, Step, Ticket};
use crate::cgroup;
use crate::daemon::Daemon;
use crate::executor::{NO_REPLY, key_of};
use crate::nvml::{NO_LIMIT, NvmlError};
use gpuslice_engine::{Event, Record, Token};
use gpuslice_host::clock::now;
use gpuslice_nvabi::types::nvmlReturn_t;
use gpuslice_wire::admin::{Denial, MemoryAsk};
use gpuslice_wire::ids::{ContainerId, GpuUuid, Lane};
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::text::CgroupPath;
use gpuslice_wire::units::Instant;

/// Attempts at shutdown to remove groups left by `gpuslice run`, and the pause between two.
const GROUPS_TRIES: u32 = 25;
const GROUPS_REST: std::time::Duration = std::time::Duration::from_millis(20);

impl CgroupLimits {
    /// Removes a slice; returns the steps that clear its limits.
    fn remove_slice(&mut self, container: &ContainerId, record: Option<&Record>) -> Vec<Step> {
        match self.known.remove(container) {
            Some(known) => self.clear_steps_of(&known),
            // A slice of an earlier daemon that was not restored may have left limits.
            None => record
                .map(|record| self.clear_steps(record))
                .unwrap_or_default(),
        }
    }

    /// Removes groups of `gpuslice run` that have become empty.
    fn remove_leftover_groups(&mut self) {
        match &self.mount {
            Some(mount) => self
                .leftover
                .retain(|name| !cgroup::remove_own(mount, name.as_bytes())),
            None => self.leftover.clear(),
        }
    }

    fn clear_steps_of(&self, known: &LimitedSlice) -> Vec<Step> {
        let Some(dir) = self.dir(&known.cgroup) else {
            return Vec::new();
        };
        let limited = known
            .lanes
            .iter()
            .filter(|lane| !matches!(lane.2, super::LimitState::Unavailable(_)));
        limited
            .flat_map(|(gpu, cap, _)| clear_steps_for(*gpu, &dir, cap.0))
            .collect()
    }
}

impl Daemon {
    fn request_limits(&mut self, container: ContainerId, steps: Vec<Step>, after: After) {
        let ticket = self.accounting.ticket();
        self.cgroup_limits.pending.push_back(Pending {
            ticket,
            by: now().plus(ANSWER_WITHIN),
            container,
            steps: steps.clone(),
            after,
        });
        if !self.accounting.ask(Question::Set { ticket, steps }) {
            self.limits_answered(ticket, Vec::new());
        }
    }

    /// The container's own cgroup, found through one of its processes; empty if it has none.
    pub fn cgroup_of(&self, container: &ContainerId, pid: u32) -> CgroupPath {
        cgroup::admitted(pid, self.cgroup_limits.cgroups()).unwrap_or_else(|why| {
            tracing::info!(%container, %why, "the container has no cgroup of its own: processes that bypass the shim are not attributed to it");
            CgroupPath::EMPTY
        })
    }

    /// Sets the limits of a new slice, whose record is on disk and whose socket listens; then answers.
    pub fn limit_new_slice(&mut self, token: Token, record: &Record) {
        let container = record.container;
        self.cgroup_limits.remove_leftover_groups();
        match self.cgroup_limits.add_slice(record, false) {
            steps if steps.is_empty() => self.answer_limited(token, &container),
            steps => self.request_limits(container, steps, After::Admit(token)),
        }
    }

    /// Sets the limits of a slice restored from its record.
    pub fn limit_restored_slice(&mut self, record: &Record) {
        let steps = self.cgroup_limits.add_slice(record, true);
        if !steps.is_empty() {
            self.request_limits(record.container, steps, After::Nothing);
        }
    }

    /// Answers an admission once NVML has set or refused each limit.
    fn answer_limited(&mut self, token: Token, container: &ContainerId) {
        if self.slices.of(container).is_none() {
            let why = "the slice was removed before its limits were set";
            return self.deny(key_of(token), Denial::Host, why);
        }
        match (
            self.cgroup_limits.missing(container),
            self.cgroup_limits.mode,
        ) {
            (Some(why), CgroupLimitMode::Require) => {
                let text = format!(
                    "the driver does not enforce the cap on {why}; run gpuslice doctor, or set \
                     cgroup_limits = \"auto\" in gpusliced's configuration"
                );
                tracing::error!(%container, "{text}");
                self.deny(key_of(token), Denial::Host, &text);
                let (token, container) = (NO_REPLY, *container);
                self.enqueue(Event::Dismiss { token, container });
                return;
            }
            (Some(why), CgroupLimitMode::Auto) if self.cgroup_limits.wanted() => {
                tracing::warn!(%container, why, "the driver does not enforce this slice's cap; the shim and the accounting do");
            }
            _ => {}
        }
        self.answer_admitted(key_of(token), container);
    }

    /// Ends a slice: clears its limits, deletes its record, answers.
    pub fn clear_limits_and_dismiss(&mut self, token: Token, container: &ContainerId, known: bool) {
        self.accounting.forget(container);
        let record = self.state.record(container);
        let steps = self.cgroup_limits.remove_slice(container, record.as_ref());
        let after = After::Dismiss(token, known);
        match steps.is_empty() {
            true => self.limits_cleared(token, container, known, record.as_ref()),
            false => self.request_limits(*container, steps, after),
        }
        self.close_nvml_when_idle();
    }

    fn limits_cleared(
        &mut self,
        token: Token,
        container: &ContainerId,
        known: bool,
        record: Option<&Record>,
    ) {
        let left = record.map(|record| record.cgroup);
        self.cgroup_limits.leftover.extend(left);
        self.cgroup_limits.remove_leftover_groups();
        self.forget_slice(token, container, known);
    }

    /// Changes a cap. A lower limit in force is raised first.
    pub fn resize(&mut self, token: Token, container: ContainerId, lane: Lane, memory: MemoryAsk) {
        match self.cgroup_limits.raise_step(&container, lane, memory) {
            Some(step) => {
                self.request_limits(container, vec![step], After::Grow(token, lane, memory));
            }
            None => self.resize_ledger(token, container, lane, memory),
        }
    }

    fn resize_ledger(
        &mut self,
        token: Token,
        container: ContainerId,
        lane: Lane,
        memory: MemoryAsk,
    ) {
        self.deliver(Event::Resize {
            token,
            container,
            lane,
            memory,
        });
        // Also after a refusal: the raised limit is lowered to the old cap.
        self.update_limits(&container);
    }

    /// Stores a slice's caps after a change; limits above them are lowered later.
    pub fn note_caps(&mut self, record: &Record) {
        if let Some(known) = self.cgroup_limits.known.get_mut(&record.container) {
            for (lane, promised) in known.lanes.iter_mut().zip(&record.lanes) {
                lane.1 = promised.cap;
            }
        }
    }

    fn update_limits(&mut self, container: &ContainerId) {
        let asked = self
            .cgroup_limits
            .pending
            .iter()
            .any(|one| one.container == *container);
        let steps = self.cgroup_limits.lagging_steps(container);
        if !asked && !steps.is_empty() {
            self.request_limits(*container, steps, After::Nothing);
        }
    }

    /// Updates the limits that could not yet be lowered to their caps, or not be set.
    pub fn update_all_limits(&mut self) {
        let all: Vec<ContainerId> = self.cgroup_limits.known.keys().copied().collect();
        all.iter()
            .for_each(|container| self.update_limits(container));
    }

    /// Handles NVML's answers, one for each step; a missing one means that NVML could not be asked.
    pub fn limits_answered(&mut self, ticket: Ticket, done: Vec<Result<u64, NvmlError>>) {
        let at = self
            .cgroup_limits
            .pending
            .iter()
            .position(|one| one.ticket == ticket);
        let Some(one) = at.and_then(|at| self.cgroup_limits.pending.remove(at)) else {
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
                NO_LIMIT => log_cleared(&one.container, step, done, self.cgroup_limits.soft),
                _ => self
                    .cgroup_limits
                    .set(&one.container, GpuUuid(step.gpu), done),
            }
        }
        self.continue_after_limits(&one.container, one.after, failed);
    }

    fn continue_after_limits(
        &mut self,
        container: &ContainerId,
        after: After,
        failed: Option<NvmlError>,
    ) {
        match after {
            After::Nothing => {}
            After::Admit(token) => self.answer_limited(token, container),
            After::Dismiss(token, known) => {
                let record = self.state.record(container);
                self.limits_cleared(token, container, known, record.as_ref());
            }
            After::Grow(token, lane, memory) => match failed {
                None => self.resize_ledger(token, *container, lane, memory),
                Some(why) => {
                    let text =
                        format!("the driver refused the new limit: {why}; the cap is unchanged");
                    self.deny(key_of(token), Denial::Host, &text);
                }
            },
        }
    }

    /// Answers the requests that have waited [`ANSWER_WITHIN`] for NVML without it. NVML still performs
    /// their steps when it gets to them.
    pub fn expire_limit_requests(&mut self, now: Instant) {
        let silent = NvmlError {
            call: "NVML".to_owned(),
            answer: nvmlReturn_t::ERROR_TIMEOUT,
        };
        let mut over = Vec::new();
        for one in self
            .cgroup_limits
            .pending
            .iter_mut()
            .filter(|one| one.by <= now)
        {
            match std::mem::replace(&mut one.after, After::Nothing) {
                After::Nothing => {}
                after => over.push((one.container, after)),
            }
        }
        for (container, after) in over {
            tracing::warn!(%container, "NVML does not answer; continuing without the driver's limit");
            self.continue_after_limits(&container, after, Some(silent.clone()));
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
                *memory_enforcement = self.cgroup_limits.memory_enforcement(
                    container,
                    *lane,
                    self.accounting.measures(*gpu),
                );
            }
        }
    }

    /// Clears all limits at the end of an ephemeral daemon, as far as NVML answers.
    pub fn clear_all_limits(&mut self) {
        let all: Vec<ContainerId> = self.cgroup_limits.known.keys().copied().collect();
        for container in all {
            self.cgroup_limits.leftover.extend(
                self.cgroup_limits
                    .known
                    .get(&container)
                    .map(|known| known.cgroup),
            );
            let steps = self.cgroup_limits.remove_slice(&container, None);
            if !steps.is_empty() {
                self.request_limits(container, steps, After::Nothing);
            }
        }
        self.await_limit_answers();
        // The processes in these groups got the same signal as the daemon.
        for _ in 0..GROUPS_TRIES {
            self.cgroup_limits.remove_leftover_groups();
            if self.cgroup_limits.leftover.is_empty() {
                return;
            }
            std::thread::sleep(GROUPS_REST);
        }
    }

    /// Whether NVML has not answered yet for some limits.
    pub fn awaits_limit_answers(&self) -> bool {
        !self.cgroup_limits.pending.is_empty()
    }
}

/// Logs a limit that could not be cleared, if it or its guarantee stays behind.
fn log_cleared(container: &ContainerId, step: &Step, done: Result<u64, NvmlError>, soft: bool) {
    let Err(why) = done else { return };
    let gone = !step.dir.exists();
    match why.answer {
        nvmlReturn_t::ERROR_NOT_FOUND => {}
        _ if gone && !soft => {}
        _ if gone => {
            tracing::error!(%container, gpu = %GpuUuid(step.gpu), cgroup = %step.dir.display(), %why, "the cgroup was removed before its guarantee was cleared; the groups above it may keep the guarantee: check with nvidia-smi memory-limits");
        }
        _ => {
            tracing::error!(%container, gpu = %GpuUuid(step.gpu), cgroup = %step.dir.display(), %why, "the driver did not clear the limit; clear it with nvidia-smi memory-limits");
        }
    }
}
