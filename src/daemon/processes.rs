//! The processes of a container, for a screen that shows one slice in full.
//!
//! What the engine knows of a process decides something; what its memory is used for, and its name, only inform. So
//! these are read here, when a client asks, and no other client pays for them.

use crate::executor::Duties;
use crate::replies::plain;
use crate::slab::Key;
use gpuslice_engine::{Engine, ProcessFigures};
use gpuslice_host::clock::now;
use gpuslice_host::process::name_of;
use gpuslice_wire::admin::Denial;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::text::Name;

impl Duties {
    /// Answers with a row for each process of a container and each of its GPUs.
    pub fn show_processes(&mut self, key: Key, engine: &Engine, container: ContainerId) {
        let Some(figures) = engine.processes(container) else {
            let text = format!("container {container} has no slice");
            return self.deny(key, Denial::NoSuchSlice, &text);
        };
        let rows = figures.iter().map(|it| self.process_row(it));
        let end = Snapshot::End { now_ns: now().0 };
        let rows: Vec<Snapshot> = rows.chain([end]).collect();
        self.admins.answer_all(key, &rows, &mut self.tasks);
    }

    fn process_row(&self, it: &ProcessFigures) -> Snapshot {
        let (pid, families) = self.clients.shown(it.client, it.lane);
        let name = name_of(pid).and_then(|name| Name::new(plain(&name).as_str()).ok());
        Snapshot::Process {
            gpu: it.gpu,
            pid,
            name: name.unwrap_or(Name::EMPTY),
            connected: it.is_connected.into(),
            reserved: it.granted,
            used: it.held,
            untracked: it.untracked,
            families: families.bytes,
            contexts: families.contexts,
            launches: it.launches,
        }
    }
}
