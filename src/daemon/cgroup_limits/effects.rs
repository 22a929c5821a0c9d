//! Has NVML set, update and clear the cgroup limits, and reports when it has done so. Limits that lag behind their
//! caps are updated with every sample of the accounting.

use super::{After, CgroupLimits, Finished, LimitState, LimitedSlice, Pending, clear_steps_for};
use crate::accounting::Accounting;
use crate::accounting::questions::{Id, LimitSupport, NvmlAnswer, Question, Step, Ticket};
use crate::cgroup;
use crate::config::CgroupLimitMode;
use crate::nvml::{NO_LIMIT, NvmlError};
use gpuslice_engine::{Record, Token};
use gpuslice_host::clock::now;
use gpuslice_nvabi::types::nvmlReturn_t;
use gpuslice_wire::admin::MemoryAsk;
use gpuslice_wire::ids::{ContainerId, GpuUuid, Lane};
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::text::CgroupPath;
use gpuslice_wire::units::{Duration, Instant};

/// How long a request, such as a container's admission, waits for NVML. The hook waits no longer than
/// `HOOK_DEADLINE_NS`.
const ANSWER_WITHIN: Duration = Duration::from_millis(400);
/// The same of a changed cap, which no hook waits for: a driver that is only slow should not refuse it.
const CHANGE_WITHIN: Duration = Duration::from_millis(5_000);
/// Attempts at shutdown to remove groups left by `gpuslice run`, and the pause between two.
const GROUPS_TRIES: u32 = 25;
const GROUPS_REST: std::time::Duration = std::time::Duration::from_millis(20);

impl CgroupLimits {
    /// Stores on which GPUs the driver has limits, as far as NVML has told.
    pub fn supported(&mut self, told: Vec<(Id, LimitSupport)>) {
        for (gpu, support) in told {
            let gpu = GpuUuid(gpu);
            match &support {
                LimitSupport::Unknown(_) if self.support.contains_key(&gpu) => continue,
                _ if self.mode == CgroupLimitMode::Off => {}
                LimitSupport::Has => {}
                LimitSupport::Lacks(why) => {
                    tracing::info!(%gpu, why, "caps are not the driver's own limits");
                }
                LimitSupport::Unknown(why) => {
                    tracing::warn!(%gpu, why, "NVML has not told whether caps can be the driver's own limits; it is asked again");
                }
            }
            self.support.insert(gpu, support);
        }
    }

    /// Asks again whether the driver has limits on the GPUs of which NVML has not told it.
    fn ask_support(&self, nvml: &mut Accounting) {
        let unknown = |it: &LimitSupport| matches!(it, LimitSupport::Unknown(_));
        let gpus = self.support.iter().filter(|(_, it)| unknown(it));
        let gpus: Vec<Id> = gpus.map(|(gpu, _)| gpu.0).collect();
        if !gpus.is_empty() && self.mode != CgroupLimitMode::Off {
            nvml.ask(Question::Support { gpus });
        }
    }

    /// Removes a slice; returns the steps that clear its limits.
    pub(super) fn remove_slice(
        &mut self,
        container: &ContainerId,
        record: Option<&Record>,
    ) -> Vec<Step> {
        // What NVML has yet to answer is of the slice that ends.
        let pending = self.pending.iter_mut().filter(|one| one.container == *container);
        pending.for_each(|one| one.ends = true);
        match self.known.remove(container) {
            Some(known) => self.clear_steps_of(&known),
            // A slice of an earlier daemon that was not restored may have left limits.
            None => record.map(|record| self.clear_steps(record)).unwrap_or_default(),
        }
    }

    /// The steps that clear the limits a slice has or may have.
    pub(super) fn clear_steps(&self, record: &Record) -> Vec<Step> {
        let Some(dir) = self.dir(&record.cgroup) else {
            return Vec::new();
        };
        let lacks = |gpu| matches!(self.support.get(gpu), None | Some(LimitSupport::Lacks(_)));
        let lanes = record.lanes.iter().filter(|lane| !lacks(&lane.gpu));
        lanes.flat_map(|lane| clear_steps_for(lane.gpu, &dir, lane.limit.0)).collect()
    }

    /// Whether limits of an ended slice of this container are still being cleared.
    pub fn is_clearing(&self, container: &ContainerId) -> bool {
        let ends =
            |one: &Pending| one.container == *container && matches!(one.after, After::Dismiss(..));
        self.pending.iter().any(ends)
    }

    /// Removes groups of `gpuslice run` that have become empty.
    fn remove_leftover_groups(&mut self) {
        match &self.mount {
            Some(mount) => self.leftover.retain(|name| !cgroup::remove_own(mount, name.as_bytes())),
            None => self.leftover.clear(),
        }
    }

    fn clear_steps_of(&self, known: &LimitedSlice) -> Vec<Step> {
        let Some(dir) = self.dir(&known.cgroup) else {
            return Vec::new();
        };
        // Another program's limit is its own to clear.
        let ours = |limit: &LimitState| {
            !matches!(limit, LimitState::Unavailable(_) | LimitState::Theirs(_))
        };
        let limited = known.lanes.iter().filter(|lane| ours(&lane.2));
        limited.flat_map(|(gpu, cap, _)| clear_steps_for(*gpu, &dir, cap.0)).collect()
    }
}

impl CgroupLimits {
    /// Asks NVML to perform the steps. Returns the change if it is finished, and there is something to continue.
    fn request(
        &mut self,
        nvml: &mut Accounting,
        container: ContainerId,
        steps: Vec<Step>,
        (after, left): (After, Option<CgroupPath>),
    ) -> Option<Finished> {
        let ticket = nvml.ticket();
        let within = match after {
            After::Grow(..) => CHANGE_WITHIN,
            _ => ANSWER_WITHIN,
        };
        let one = Pending {
            ticket,
            by: now().plus(within),
            container,
            steps: steps.clone(),
            ends: !self.known.contains_key(&container),
            after,
            left,
        };
        if steps.is_empty() {
            return self.finish(one, None);
        }
        self.pending.push_back(one);
        match nvml.ask(Question::Set { ticket, steps }) {
            true => None,
            false => self.answered(ticket, Vec::new()),
        }
    }

    fn finish(&mut self, one: Pending, failed: Option<NvmlError>) -> Option<Finished> {
        if let Some(left) = one.left {
            self.leftover.push(left);
            self.remove_leftover_groups();
        }
        let (container, after) = (one.container, one.after);
        (!matches!(after, After::Nothing)).then_some(Finished { container, after, failed })
    }

    /// The container's own cgroup, found through one of its processes; empty if it has none.
    pub fn cgroup_of(&self, container: &ContainerId, pid: u32) -> CgroupPath {
        cgroup::admitted(pid, self.cgroups()).unwrap_or_else(|why| {
            tracing::info!(%container, %why, "the container has no cgroup of its own: processes that bypass the shim are not attributed to it");
            CgroupPath::EMPTY
        })
    }

    /// Sets the limits of a new slice, whose record is on disk and whose socket listens.
    pub fn admit(
        &mut self,
        nvml: &mut Accounting,
        token: Token,
        record: &Record,
    ) -> Option<Finished> {
        self.remove_leftover_groups();
        self.ask_support(nvml);
        let steps = self.add_slice(record, false);
        self.request(nvml, record.container, steps, (After::Admit(token), None))
    }

    /// Sets the limits of a slice restored from its record.
    pub fn restore(&mut self, nvml: &mut Accounting, record: &Record) {
        let steps = self.add_slice(record, true);
        self.request(nvml, record.container, steps, (After::Nothing, None));
    }

    /// Whether a new slice may begin, now that NVML has set or refused each limit.
    ///
    /// # Errors
    /// It lacks a limit that the configuration requires.
    pub fn verdict(&self, container: &ContainerId) -> Result<(), String> {
        match (self.missing(container), self.mode) {
            (Some(why), CgroupLimitMode::Require) => Err(format!(
                "the driver does not enforce the cap on {why}; run gpuslice doctor, or set \
                 cgroup_limits = \"auto\" in gpusliced's configuration"
            )),
            (Some(why), CgroupLimitMode::Auto) if self.wanted() => {
                tracing::warn!(%container, why, "the driver does not enforce this slice's cap; the shim and the accounting do");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Clears the limits of an ended slice, whose record is still on disk.
    pub fn dismiss(
        &mut self,
        nvml: &mut Accounting,
        container: &ContainerId,
        record: Option<&Record>,
        (token, known): (Token, bool),
    ) -> Option<Finished> {
        let steps = self.remove_slice(container, record);
        let left = record.map(|record| record.cgroup);
        let after = After::Dismiss(token, known);
        self.request(nvml, *container, steps, (after, left))
    }

    /// Begins to change a cap: a lower limit in force is raised first.
    pub fn grow(
        &mut self,
        nvml: &mut Accounting,
        token: Token,
        container: ContainerId,
        (lane, memory): (Lane, MemoryAsk),
    ) -> Option<Finished> {
        let step = self.raise_step(&container, lane, memory);
        let after = After::Grow(token, lane, memory);
        self.request(nvml, container, step.into_iter().collect(), (after, None))
    }

    /// Stores a slice's caps after a change; limits above them are lowered later.
    pub fn note_caps(&mut self, record: &Record) {
        if let Some(known) = self.known.get_mut(&record.container) {
            for (lane, promised) in known.lanes.iter_mut().zip(&record.lanes) {
                lane.1 = promised.limit;
            }
        }
    }

    /// Updates the limits of a slice that could not yet be lowered to their caps, or not be set.
    pub fn update(&mut self, nvml: &mut Accounting, container: &ContainerId) {
        let mut pending = self.pending.iter();
        let asked = pending.any(|one| one.container == *container);
        let steps = self.lagging_steps(container);
        if !asked {
            self.request(nvml, *container, steps, (After::Nothing, None));
        }
    }

    /// Updates the limits of all slices.
    pub fn update_all(&mut self, nvml: &mut Accounting) {
        self.ask_support(nvml);
        let all: Vec<ContainerId> = self.known.keys().copied().collect();
        all.iter().for_each(|container| self.update(nvml, container));
    }

    /// Handles NVML's answers, one for each step; a missing one means that NVML could not be asked.
    pub fn answered(
        &mut self,
        ticket: Ticket,
        done: Vec<Result<u64, NvmlError>>,
    ) -> Option<Finished> {
        let at = self.pending.iter().position(|one| one.ticket == ticket)?;
        let one = self.pending.remove(at)?;
        let silent =
            Err(NvmlError { call: "NVML".to_owned(), answer: nvmlReturn_t::ERROR_UNINITIALIZED });
        let done = done.into_iter().chain(std::iter::repeat(silent));
        let mut failed = None;
        for (step, done) in one.steps.iter().zip(done) {
            failed = failed.or(done.as_ref().err().cloned());
            match step.hard {
                NO_LIMIT => log_cleared(&one.container, step, done, self.soft),
                _ if one.ends => {}
                hard => self.set(&one.container, (GpuUuid(step.gpu), hard), done),
            }
        }
        self.finish(one, failed)
    }

    /// The changes that have waited long enough for NVML and end without its answer. NVML still performs their steps
    /// when it gets to them.
    pub fn expired(&mut self, now: Instant) -> Vec<Finished> {
        let silent = || NvmlError { call: "NVML".to_owned(), answer: nvmlReturn_t::ERROR_TIMEOUT };
        let mut over = Vec::new();
        for one in self.pending.iter_mut().filter(|one| one.by <= now) {
            let after = std::mem::replace(&mut one.after, After::Nothing);
            if !matches!(after, After::Nothing) {
                let container = one.container;
                let result = match after {
                    After::Grow(..) => "the cap is not changed",
                    _ => "continuing without the driver's limit",
                };
                tracing::warn!(%container, "NVML does not answer; {result}");
                self.leftover.extend(one.left.take());
                over.push(Finished { container, after, failed: Some(silent()) });
            }
        }
        if !over.is_empty() {
            self.remove_leftover_groups();
        }
        over
    }

    /// Adds each cap's enforcement level to the engine's rows; `measures`: whether NVML reports a GPU's processes.
    pub fn set_memory_enforcement(
        &self,
        rows: &mut [Snapshot],
        measures: impl Fn(GpuUuid) -> bool,
    ) {
        for row in rows {
            if let Snapshot::Slice { container, lane, gpu, memory_enforcement, .. } = row {
                *memory_enforcement = self.memory_enforcement(container, *lane, measures(*gpu));
            }
        }
    }

    /// Clears all limits at the end of an ephemeral daemon, as far as NVML answers; returns earlier changes that are
    /// finished now.
    pub fn clear_all(&mut self, nvml: &mut Accounting) -> Vec<Finished> {
        let all: Vec<ContainerId> = self.known.keys().copied().collect();
        for container in all {
            let left = self.known.get(&container).map(|known| known.cgroup);
            self.leftover.extend(left);
            let steps = self.remove_slice(&container, None);
            self.request(nvml, container, steps, (After::Nothing, None));
        }
        let mut finished = Vec::new();
        while !self.pending.is_empty() {
            match nvml.await_answer() {
                Some(NvmlAnswer::Set { ticket, done }) => {
                    finished.extend(self.answered(ticket, done));
                }
                Some(_) => {} // a sample or a measurement, which is not needed any more
                None => {
                    tracing::error!("NVML does not answer; the driver's limits may stay in force");
                    break;
                }
            }
        }
        finished
    }

    /// Removes the groups left by `gpuslice run` at the daemon's end. Their processes got the same signal as the
    /// daemon.
    pub fn await_leftover_groups(&mut self) {
        for _ in 0..GROUPS_TRIES {
            self.remove_leftover_groups();
            if self.leftover.is_empty() {
                return;
            }
            std::thread::sleep(GROUPS_REST);
        }
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
