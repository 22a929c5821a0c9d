//! What NVML says reaches the engine: a process's use when it asks, and the samples of all GPUs.

use super::Daemon;
use crate::accounting::attribute::granted_beside;
use crate::accounting::questions::NvmlAnswer;
use crate::tasks::Measure;
use gpuslice_engine::Event;
use gpuslice_host::clock::now;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::tenant::Reply;
use gpuslice_wire::units::{Bytes, Instant};
use std::collections::BTreeSet;

/// Answers taken before other sources are served.
const ANSWERS_AT_ONCE: usize = 4;

impl Daemon {
    /// Asks NVML for a process's use; without NVML, answers "unknown".
    pub(super) fn measure(&mut self, measure: Measure) {
        let duties = &mut self.duties;
        let gpu = duties.containers.gpu_of(&measure.container, measure.lane);
        if !duties.accounting.measure(measure, gpu, now()) {
            self.answer_measure(&measure, None);
        }
    }

    fn answer_measure(&mut self, asked: &Measure, used: Option<Bytes>) {
        let (lane, duties) = (asked.lane, &mut self.duties);
        let reply = Reply::Measured { lane, used };
        duties.clients.reply(asked.client, asked.request, &reply, &mut duties.tasks);
    }

    /// Takes NVML's answers, some at a time: the rest is told of again, behind the other sources.
    pub(super) fn read_nvml_answers(&mut self) {
        for _ in 0..ANSWERS_AT_ONCE {
            let Some(answer) = self.duties.accounting.try_receive() else {
                return;
            };
            match answer {
                NvmlAnswer::Measured { ticket, used } => {
                    // A process that waited for too long has its answer already.
                    if let Some(asked) = self.duties.accounting.measured(ticket) {
                        self.measured(&asked, used.map(Bytes));
                    }
                }
                NvmlAnswer::Samples(samples) => self.account_samples(&samples),
                NvmlAnswer::Devices { asked_ns, usage } => self.devices_looked(asked_ns, &usage),
                NvmlAnswer::Room { ticket, rooms } => self.duties.room_told(ticket, &rooms),
                NvmlAnswer::Loads(loads) => {
                    let loads: Vec<_> =
                        loads.into_iter().map(|(gpu, percent)| (GpuUuid(gpu), percent)).collect();
                    self.duties.accounting.loads.answered(now(), &loads);
                }
                NvmlAnswer::Set { ticket, done } => {
                    let finished = self.duties.cgroup_limits.answered(ticket, done);
                    self.duties.continue_after_limits(finished);
                }
                NvmlAnswer::Support(told) => self.duties.cgroup_limits.supported(told),
            }
        }
        self.duties.accounting.tell_of_more();
    }

    fn measured(&mut self, asked: &Measure, used: Option<Bytes>) {
        let (client, lane) = (asked.client, asked.lane);
        let Some(used) = used else {
            return self.answer_measure(asked, None);
        };
        let from = now();
        // Read its claims first: the memory it charged before it asked is part of the measured use.
        let duties = &mut self.duties;
        duties.clients.read_claims(asked.key, &mut duties.tasks);
        let beside = granted_beside(client, lane, &self.attached_processes());
        let used = used.saturating_sub(beside);
        self.deliver(Event::Measured { client, lane, used, requested: true });
        self.answer_measure(asked, Some(used));
        self.duties.clients.spent_on_requests(&asked.container, (from, now()));
    }

    /// Does what is due in the accounting.
    pub(super) fn account(&mut self, now: Instant) {
        while let Some(asked) = self.duties.accounting.expired(now) {
            self.answer_measure(&asked, None);
        }
        let duties = &mut self.duties;
        let finished = duties.cgroup_limits.expired(now);
        duties.continue_after_limits(finished);
        let (limits, accounting) = (&duties.cgroup_limits, &mut duties.accounting);
        match accounting.takes_samples(duties.containers.len()) {
            false => accounting.close_if_due(now),
            true if accounting.is_sample_due(now) => {
                let gpus: BTreeSet<GpuUuid> =
                    limits.gpus().into_iter().chain(accounting.mps.gpus()).collect();
                accounting.sample(now, &Vec::from_iter(gpus), limits.in_force());
                limits.owners().iter().for_each(|it| self.deliver(it.looking()));
                self.look_at_devices(now);
            }
            true => {}
        }
        if self.look_deadline().is_some_and(|due| due <= now) {
            self.look_at_devices(now);
        }
    }
}
