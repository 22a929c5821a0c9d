//! Where a slice's wall time went: the parts by name, for JSON and metrics.

use gpuslice_wire::ids::{ContainerId, GpuUuid};
use gpuslice_wire::snapshot::Snapshot;
use gpuslice_wire::waits::{WAITS_SHOWN, WaitBehind};

/// Where the time of one slice went since `since_ns`.
#[derive(Clone, Copy, Debug)]
pub struct WallTime {
    /// Container id.
    pub container: ContainerId,
    /// Its GPU.
    pub gpu: GpuUuid,
    /// CLOCK_MONOTONIC, ns.
    pub since_ns: u64,
    /// Each part's name and length, ns. Their sum is the wall time.
    pub parts: [(&'static str, u64); 8],
    /// The containers behind which it waited most.
    pub behind: [WaitBehind; WAITS_SHOWN],
    /// Time behind others, ns.
    pub others_ns: u64,
}

impl WallTime {
    /// Reads a row; `None` for a row of another kind.
    pub fn of(row: &Snapshot) -> Option<WallTime> {
        match *row {
            Snapshot::SliceTime {
                container,
                gpu,
                since_ns,
                running_ns,
                waiting_ns,
                handover_ns,
                limited_ns,
                gang_ns,
                idle_ns,
                suspended_ns,
                absent_ns,
                behind,
                others_ns,
                ..
            } => Some(WallTime {
                container,
                gpu,
                since_ns,
                parts: [
                    ("running", running_ns),
                    ("waiting", waiting_ns),
                    ("handover", handover_ns),
                    ("limited", limited_ns),
                    ("gang", gang_ns),
                    ("idle", idle_ns),
                    ("suspended", suspended_ns),
                    ("absent", absent_ns),
                ],
                behind,
                others_ns,
            }),
            _ => None,
        }
    }

    /// The wall time: the sum of all parts, ns.
    pub fn total(&self) -> u64 {
        self.parts.iter().map(|(_, ns)| ns).sum()
    }

    /// Time in which it did nothing that is known: idle, suspended, or without the daemon, ns.
    pub fn off(&self) -> u64 {
        let is_off = |name: &str| matches!(name, "idle" | "suspended" | "absent");
        self.parts.iter().filter(|(name, _)| is_off(name)).map(|(_, ns)| ns).sum()
    }

    /// The containers behind which it waited, the longest total first.
    pub fn waits(&self) -> impl Iterator<Item = (ContainerId, &WaitBehind)> {
        self.behind.iter().filter_map(|wait| Some((wait.container?, wait)))
    }
}
