//! What the daemon and a container's worker process send each other: one packet of JSON for each message.
//!
//! The worker answers each job with one message, and gets the next job after that. So a packet always fits into the
//! socket, and a worker that hangs is one that owes an answer.

use super::journal::JournalEntry;
use super::time_slicer::{Observed, WantedSlice};
use crate::slab::Key;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Most groups of a container that are stopped at the same time, on all GPUs; a container with more is not stopped.
pub const GROUPS_MAX: usize = 128;
/// Groups whose time slices are set by one job, so that a stop waits for no more.
pub const SLICES_TOGETHER: usize = 4;
/// Longest packet, bytes: a stop of [`GROUPS_MAX`] groups, with room to spare.
pub const PACKET_BYTES_MAX: usize = 128 << 10;
/// The time that any job may take. It normally takes microseconds.
const JOB_WITHIN: Duration = Duration::from_secs(2);
/// How much longer the first job may take, in which the process starts.
const START_WITHIN: Duration = Duration::from_secs(2);
/// The time that each of its groups adds: the driver may wait 100 ms for one.
const GROUP_WITHIN: Duration = Duration::from_millis(250);

/// A group and its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The process's connection.
    pub key: Key,
    /// The process, and its group.
    pub entry: JournalEntry,
}

/// A job for the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Job {
    /// Stop these groups, which are all groups of the container on a GPU; with the number of the engine's order.
    Stop(u8, u32, Vec<Target>),
    /// Resume the stopped groups of a GPU.
    Resume(u8),
    /// Set these time slices, a part of a round; after the last part restore those of all groups that no part named.
    Slices(Vec<WantedSlice>, bool),
    /// A process's connection ended.
    Release(Key),
    /// Resume this group, or restore its time slice: an earlier worker has changed it.
    Undo(Box<JournalEntry>),
    /// Remove the journal, all of which is undone.
    Clear,
    /// Resume everything.
    End,
}

impl Job {
    /// The time within which it is done, as the worker's first job or a later one, unless the worker hangs.
    pub fn within(&self, is_first: bool) -> Duration {
        let start = if is_first { START_WITHIN } else { Duration::ZERO };
        let groups = match self {
            Job::Stop(_, _, targets) => targets.len(),
            Job::Slices(wanted, _) => wanted.len(),
            Job::Resume(_) | Job::Release(_) | Job::Undo(_) | Job::Clear | Job::End => 1,
        };
        start + JOB_WITHIN + GROUP_WITHIN * groups as u32
    }
}

/// The worker's answer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerAnswer {
    /// To `Stop`: its duration in µs, or why nothing is stopped.
    Stopped(Result<u64, String>),
    /// To `Stop`: one of the processes has ended, and nothing is stopped.
    Gone,
    /// To `Resume`: the error for groups that are not resumed yet; the worker tries again until they are.
    Resumed(Option<String>),
    /// To the last `Slices` of a round, by GPU.
    Sliced(BTreeMap<u8, Observed>),
    /// To `Undo`: why it is not undone.
    Undone(Option<String>),
    /// To any other job.
    Done,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::{ChannelGroup, channels_of};
    use gpuslice_wire::ids::Lane;
    use gpuslice_wire::limits::CHANNELS_PER_GROUP_MAX;
    use gpuslice_wire::tenant::ObjectName;

    fn target() -> Target {
        let name = ObjectName(u32::MAX);
        let named = ChannelGroup {
            lane: Lane(15),
            fd: u32::MAX,
            client: name,
            group: name,
            subdevice: name,
            channels: channels_of([u32::MAX; CHANNELS_PER_GROUP_MAX]),
        };
        let key = Key { slot: u16::MAX, generation: u32::MAX };
        Target { key, entry: JournalEntry::of(u32::MAX, u64::MAX, named) }
    }

    #[test]
    fn the_longest_jobs_fit_into_a_packet_and_are_read_back() {
        let wanted = WantedSlice { key: target().key, entry: target().entry, us: u64::MAX };
        let jobs = [
            Job::Stop(15, u32::MAX, vec![target(); GROUPS_MAX]),
            Job::Slices(vec![wanted; SLICES_TOGETHER], true),
            Job::Undo(Box::new(target().entry.with_slice(u64::MAX))),
        ];
        for job in jobs {
            let packet = serde_json::to_vec(&job).expect("plain data");
            assert!(packet.len() <= PACKET_BYTES_MAX * 3 / 4, "{} bytes", packet.len());
            let back: Job = serde_json::from_slice(&packet).expect("the same");
            assert_eq!(back, job);
        }
    }

    #[test]
    fn a_job_has_time_for_each_of_its_groups() {
        let stop = |groups| Job::Stop(0, 1, vec![target(); groups]).within(false);
        assert_eq!(stop(4), Duration::from_secs(3));
        assert_eq!([Job::Resume(0), Job::End].map(|it| it.within(false).as_millis()), [2_250; 2]);
        assert_eq!(Job::Resume(0).within(true).as_millis(), 4_250, "its process starts first");
    }
}
