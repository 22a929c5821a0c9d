//! A recording of turns on all GPUs: its begin, its cuts, and its end.
//!
//! The stretches of [`crate::sched::recording`] leave the engine as actions, with the container's id: an index may
//! belong to another container in the next step.

use gpuslice_wire::units::Instant;

use crate::action::{Action, Actions};
use crate::engine::Engine;

impl Engine {
    /// Records until `until`, and tells all that was recorded before: the stretches end here and begin anew.
    pub(crate) fn record(&mut self, until: Instant, actions: &mut Actions) {
        self.recording = Some(until).filter(|until| *until > self.now);
        let is_on = self.recording.is_some();
        self.gpus.iter_mut().for_each(|gpu| gpu.turns.set_recording(is_on));
        self.tell_recorded(actions);
    }

    /// Tells the stretches that have ended, and ends the recording if it is over.
    pub(crate) fn follow_recording(&mut self, actions: &mut Actions) {
        match self.recording {
            None => {}
            Some(until) if until < self.now => self.record(Instant(0), actions),
            Some(_) => self.tell_recorded(actions),
        }
    }

    /// Tells all stretches before a container is forgotten.
    pub(crate) fn cut_recording(&mut self, actions: &mut Actions) {
        if let Some(until) = self.recording {
            self.record(until, actions);
        }
    }

    fn tell_recorded(&mut self, actions: &mut Actions) {
        let containers = &self.containers;
        for gpu in &mut self.gpus {
            let uuid = gpu.uuid;
            for (index, stretch) in gpu.turns.take_recorded() {
                let Some(it) = containers.get(index) else {
                    continue;
                };
                let container = it.record.container;
                actions.push(Action::Recorded { container, gpu: uuid, stretch });
            }
        }
    }
}
