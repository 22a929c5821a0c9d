//! How much of the time kernels ran on GPUs lately.
//!
//! While one container uses a GPU it takes no turns, and its launches are not counted: the daemon knows that its
//! processes claim work, and not whether the GPU is in use. NVML knows that. It is asked when a client looks, and for
//! each second of the samples; so nothing is asked while nothing is shown of a node without slices.

use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::units::{Duration, Instant};
use std::collections::BTreeMap;

/// Two questions are at least so far apart.
const APART: Duration = Duration(100_000_000);
/// An older answer is not shown.
const FRESH: Duration = Duration(2_500_000_000);

/// See the file's head.
#[derive(Debug, Default)]
pub struct Loads {
    /// Percent, and when NVML told it.
    known: BTreeMap<GpuUuid, (Instant, u32)>,
    /// When NVML was asked last, and whether its answer is due.
    asked: Option<Instant>,
    is_due: bool,
}

impl Loads {
    /// Whether NVML is to be asked now.
    pub fn wants(&self, now: Instant) -> bool {
        !self.is_due && self.asked.is_none_or(|at| at.plus(APART) <= now)
    }

    /// NVML was asked.
    pub fn asked(&mut self, now: Instant) {
        (self.asked, self.is_due) = (Some(now), true);
    }

    /// NVML has answered.
    pub fn answered(&mut self, now: Instant, loads: &[(GpuUuid, u32)]) {
        self.is_due = false;
        self.known.extend(loads.iter().map(|(gpu, percent)| (*gpu, (now, (*percent).min(100)))));
    }

    /// What NVML told lately of a GPU, percent.
    pub fn of(&self, gpu: GpuUuid, now: Instant) -> Option<u32> {
        let (_, percent) = self.known.get(&gpu).filter(|it| is_fresh(it, now))?;
        Some(*percent)
    }

    /// What NVML told lately, for a snapshot.
    pub fn rows(&self, now: Instant) -> impl Iterator<Item = Snapshot> + '_ {
        let fresh = self.known.iter().filter(move |(_, known)| is_fresh(known, now));
        fresh.map(|(gpu, (at, percent))| Snapshot::GpuLoad {
            uuid: *gpu,
            at_ns: at.0,
            percent: *percent,
        })
    }
}

/// Whether an answer may still be shown.
fn is_fresh((at, _): &(Instant, u32), now: Instant) -> bool {
    now.since(*at) <= FRESH
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: GpuUuid = GpuUuid([3; 16]);
    const S: u64 = 1_000_000_000;

    #[test]
    fn nvml_is_asked_once_at_a_time_and_an_old_answer_is_none() {
        let mut loads = Loads::default();
        assert!(loads.wants(Instant(S)));
        loads.asked(Instant(S));
        assert!(!loads.wants(Instant(9 * S)), "its answer is due");
        loads.answered(Instant(9 * S), &[(GPU, 140)]);
        assert!(loads.wants(Instant(9 * S)));
        assert_eq!(loads.of(GPU, Instant(11 * S)), Some(100));
        let row = Snapshot::GpuLoad { uuid: GPU, at_ns: 9 * S, percent: 100 };
        assert_eq!(loads.rows(Instant(11 * S)).collect::<Vec<_>>(), [row]);
        assert_eq!(loads.of(GPU, Instant(12 * S)), None);
        assert_eq!(loads.rows(Instant(12 * S)).count(), 0);
        loads.asked(Instant(12 * S));
        loads.answered(Instant(12 * S), &[]);
        assert!(!loads.wants(Instant(12 * S + 1)), "too soon");
    }
}
