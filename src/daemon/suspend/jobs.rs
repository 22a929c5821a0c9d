//! What the daemon and a worker that moves memory send each other: one packet of JSON each.

use gpuslice_engine::Process;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Longest packet, bytes: a job of [`PROCESSES_MAX`] processes, with room to spare.
pub const PACKET_BYTES_MAX: usize = 64 << 10;
/// Most processes of a container that are moved.
pub const PROCESSES_MAX: usize = 1024;
/// How long the driver waits for the work of a process that it locks, ms.
pub const LOCK_MS: u32 = 5_000;
/// The time that any job may take beside its bytes.
const JOB_WITHIN: Duration = Duration::from_secs(10);
/// The slowest move that is no hang, bytes each second: drivers have been measured at 1.1 GB/s (580) and 4 GB/s (595).
const BYTES_PER_SECOND: u64 = 256 << 20;

/// A job: the processes of a container, by pid and start time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Move their memory to the host, or else back.
    pub away: bool,
    /// It undoes a move to the host.
    pub undoes: bool,
    /// A move to the host that an earlier daemon had begun: a part of the memory may be there.
    pub again: bool,
    /// The processes.
    pub processes: Vec<(u32, u64)>,
    /// Their memory, bytes.
    pub memory: u64,
}

impl Job {
    /// A job for these processes; a process without a pid in the daemon's namespace is left out.
    pub fn of(away: bool, processes: impl Iterator<Item = Process>, memory: u64) -> Job {
        let mut processes: Vec<_> = processes.map(|it| (it.pid, it.born)).collect();
        processes.sort_unstable();
        processes.dedup();
        processes.truncate(PROCESSES_MAX);
        Job { away, undoes: false, again: false, processes, memory }
    }

    /// The report if no call was made. Where a part may be on the host, the container stays suspended, and all that is
    /// not known to be there counts as on the GPU.
    pub fn stays(&self) -> Report {
        Report { away: !self.away || self.again, moved: self.again.then(Vec::new), why: None }
    }

    /// The time within which it is done, unless the driver hangs.
    pub fn within(&self) -> Duration {
        let locks = Duration::from_millis(u64::from(LOCK_MS));
        JOB_WITHIN + locks + Duration::from_secs(self.memory / BYTES_PER_SECOND)
    }
}

/// The worker's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The memory is on the host now, or a part of it is.
    pub away: bool,
    /// The processes whose memory is there, by the driver's own word. `None`: no call was made, and they are the same
    /// as before.
    pub moved: Option<Vec<(u32, u64)>>,
    /// Why the job is not done.
    pub why: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_job_and_its_report_fit_into_a_packet() {
        let processes =
            (0..2 * PROCESSES_MAX as u32).map(|n| Process { pid: u32::MAX - n, born: u64::MAX });
        let job = Job::of(true, processes, u64::MAX);
        let packet = serde_json::to_vec(&job).expect("plain data");
        assert!(packet.len() <= PACKET_BYTES_MAX, "{} bytes", packet.len());
        assert_eq!(serde_json::from_slice::<Job>(&packet).expect("the same"), job);
        let report = Report { away: true, moved: Some(job.processes), why: Some("w".repeat(4096)) };
        let packet = serde_json::to_vec(&report).expect("plain data");
        assert!(packet.len() <= PACKET_BYTES_MAX, "{} bytes", packet.len());
    }

    /// Nothing is known of how far an earlier daemon has come: all counts as on the GPU, the container as suspended.
    #[test]
    fn a_repeated_move_that_is_not_begun_leaves_it_suspended() {
        let stays = |away, again| {
            let Report { away, moved, .. } =
                Job { again, ..Job::of(away, std::iter::empty(), 0) }.stays();
            (away, moved)
        };
        assert_eq!(stays(true, false), (false, None));
        assert_eq!(stays(true, true), (true, Some(Vec::new())));
        assert_eq!(stays(false, false), (true, None));
    }

    #[test]
    fn more_memory_has_more_time() {
        let within = |memory| Job::of(true, std::iter::empty(), memory).within();
        assert_eq!(within(0), Duration::from_secs(15));
        assert_eq!(within(60 << 30), Duration::from_secs(255));
        assert_eq!(LOCK_MS, 5_000, "of it for the locks");
    }
}
