//! Whether an MPS server uses a GPU, as the samples of NVML show while the daemon runs.
//!
//! # Problem
//! A server can start and end at any time, and the name of one is no proof: any program can have it. A wrong answer
//! costs much in both directions. A GPU with a server keeps no cap and no turn; a GPU that is taken for such takes no
//! container.
//!
//! # Idea
//! A process that may belong to a slice never counts; the caller leaves it out. A slice can end a moment before its
//! last processes, which then seem to belong to no slice. So a GPU has MPS once one process was seen in samples that
//! are [`AGREE_AFTER`] apart, and has none once no process was seen for as long.

use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::units::{Duration, Instant};
use std::collections::BTreeMap;

/// Samples that decide together are at least so far apart.
const AGREE_AFTER: Duration = Duration::from_millis(300);

/// What was seen on a GPU.
#[derive(Debug, Default)]
struct Seen {
    /// MPS uses it.
    has: bool,
    /// The processes of the last sample, and since when each was in all samples.
    since: BTreeMap<u32, Instant>,
    /// When a sample showed none for the first time since one did.
    gone: Option<Instant>,
}

/// See the file's head.
#[derive(Debug, Default)]
pub struct MpsWatch(BTreeMap<GpuUuid, Seen>);

impl MpsWatch {
    /// MPS used this GPU when the daemon started.
    pub fn found(&mut self, gpu: GpuUuid) {
        self.0.entry(gpu).or_default().has = true;
    }

    /// The GPUs that MPS uses.
    pub fn gpus(&self) -> impl Iterator<Item = GpuUuid> + '_ {
        self.0.iter().filter(|(_, seen)| seen.has).map(|(gpu, _)| *gpu)
    }

    /// Whether MPS uses any GPU.
    pub fn is_any(&self) -> bool {
        self.gpus().next().is_some()
    }

    /// A sample of a GPU has shown these processes of no slice. Returns whether MPS uses the GPU, if that has changed.
    pub fn sampled(
        &mut self,
        now: Instant,
        gpu: GpuUuid,
        pids: impl IntoIterator<Item = u32>,
    ) -> Option<bool> {
        let seen = self.0.entry(gpu).or_default();
        let before = std::mem::take(&mut seen.since);
        seen.since = pids.into_iter().map(|pid| (pid, *before.get(&pid).unwrap_or(&now))).collect();
        seen.gone = match seen.since.is_empty() {
            true => Some(seen.gone.unwrap_or(now)),
            false => None,
        };
        let agrees = |since: &Instant| since.plus(AGREE_AFTER) <= now;
        let decides = match seen.has {
            true => seen.gone.iter().any(agrees),
            false => seen.since.values().any(agrees),
        };
        seen.has ^= decides;
        decides.then_some(seen.has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: GpuUuid = GpuUuid([3; 16]);
    const OTHER: GpuUuid = GpuUuid([4; 16]);

    fn at(ms: u64) -> Instant {
        Instant(1 + ms * 1_000_000)
    }

    #[test]
    fn a_server_is_there_and_gone_once_samples_agree() {
        let mut watch = MpsWatch::default();
        assert_eq!(watch.sampled(at(0), GPU, [7]), None);
        assert_eq!(watch.sampled(at(299), GPU, [7, 8]), None);
        assert!(!watch.is_any());
        assert_eq!(watch.sampled(at(300), GPU, [7]), Some(true));
        assert_eq!(watch.sampled(at(900), GPU, [7]), None, "told once");
        assert_eq!(watch.gpus().collect::<Vec<_>>(), [GPU]);
        assert_eq!(watch.sampled(at(1_000), GPU, []), None);
        assert_eq!(watch.sampled(at(1_100), GPU, [9]), None, "another server");
        assert_eq!(watch.sampled(at(1_500), GPU, []), None);
        assert_eq!(watch.sampled(at(1_799), GPU, []), None);
        assert_eq!(watch.sampled(at(1_800), GPU, []), Some(false));
        assert!(!watch.is_any());
        assert_eq!(watch.sampled(at(9_000), GPU, []), None);
    }

    /// The last processes of a slice that has just ended, one after the other.
    #[test]
    fn processes_that_come_and_go_are_no_server() {
        let mut watch = MpsWatch::default();
        for n in 0..100 {
            let now = at(u64::from(n) * 200);
            assert_eq!(watch.sampled(now, GPU, [n, n + 1]), None);
            assert_eq!(watch.sampled(now, OTHER, []), None);
        }
    }

    #[test]
    fn a_server_of_the_start_ends_as_any_other() {
        let mut watch = MpsWatch::default();
        watch.found(GPU);
        assert!(watch.is_any());
        assert_eq!(watch.sampled(at(0), GPU, []), None);
        assert_eq!(watch.sampled(at(300), GPU, []), Some(false));
    }
}
