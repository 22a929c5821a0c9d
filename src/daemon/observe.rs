//! The rows that only metrics have: use and health of GPUs, waits by cause, events counted, claims.
//!
//! `gpuslice events` shows what happened and forgets the oldest; a counter here forgets nothing. A claim without a
//! container has a row here, so that it can be alerted on. Only `gpuslice metrics` pays for these rows.

use crate::claims::Claim;
use crate::events::Happening;
use crate::executor::Duties;
use crate::gpu_table::trouble;
use gpuslice_engine::{Engine, Event};
use gpuslice_host::clock::now;
use gpuslice_wire::history::EventKind;
use gpuslice_wire::owner::ClaimId;
use gpuslice_wire::snapshot::{ClaimState, Snapshot};
use gpuslice_wire::units::Instant;

impl Duties {
    /// Adds the rows of metrics at `now` to a snapshot, before its end.
    pub fn add_metrics(&self, engine: &Engine, now: Instant, rows: &mut Vec<Snapshot>) {
        let end = rows.pop();
        rows.extend(engine.usage(now));
        rows.extend(self.gpu_table.health_rows());
        rows.extend(
            EventKind::ALL
                .into_iter()
                .zip(self.events.totals())
                .map(|(kind, total)| Snapshot::EventCount { kind, total }),
        );
        rows.extend(self.claims.all().map(|(claim, known)| self.claim_row(claim, known)));
        rows.extend(end);
    }

    /// Adds the health of each GPU that is not healthy to a snapshot, before its end.
    pub fn add_unhealthy(&self, rows: &mut Vec<Snapshot>) {
        let end = rows.pop();
        rows.extend(self.gpu_table.unhealthy_rows());
        rows.extend(end);
    }

    /// GPUs have failed, or recovered: the engine, agents and `gpuslice events` are told.
    pub fn health_changed(&mut self) {
        for (uuid, health) in self.gpu_table.take_changes() {
            let (kind, text, event) = match trouble(health) {
                Some(why) => {
                    let event = Event::GpuWithoutSlices { uuid, why };
                    (EventKind::GpuFailed, why.to_string(), event)
                }
                None => (EventKind::GpuRecovered, String::new(), Event::GpuWithSlices { uuid }),
            };
            let happened = Happening::of_node(kind).on(Some(uuid));
            self.events.record(now(), happened.with([health.xid.into(), 0], text));
            self.tasks.step(event);
        }
        self.agents.changed();
    }

    fn claim_row(&self, claim: &ClaimId, known: &Claim) -> Snapshot {
        let containers = self.containers.members_of(claim).len() as u32;
        let owner = self.containers.owner_of(&claim.slice());
        let (state, owner) = match known {
            Claim::Reserved(words) if owner.is_empty() => (ClaimState::Reserved, words.owner),
            Claim::Reserved(_) => (ClaimState::Reserved, owner),
            Claim::Released => (ClaimState::Released, owner),
            Claim::Broken(_) => (ClaimState::Broken, owner),
        };
        Snapshot::Claim { claim: *claim, state, containers, owner }
    }
}

/// What a snapshot shows of the daemon itself.
pub fn daemon_row(engine: &Engine, started: Instant) -> Snapshot {
    let (until, absent) = engine.last_absence().unwrap_or_default();
    Snapshot::Daemon {
        started_ns: started.0,
        absent_until_ns: until.0,
        absent_ns: absent.0,
        class_caps: engine.class_caps(),
    }
}
