//! What slices got in the last minutes, interval by interval: the daemon remembers, and the CLI draws.
//!
//! A sample has one slice's figures of one interval, which is a second or, where the daemon was late, longer. Lengths
//! are in µs, cut from running sums: the samples of a slice add up to the growth of its account, to the µs.

use crate::frame::record;
use crate::ids::{ContainerId, GpuUuid};
use crate::text::Name;
use crate::units::Bytes;
use crate::waits::WaitCause;

/// Samples of a frame.
pub const SAMPLES_OF_FRAME: usize = 48;

record! {
    /// One slice's figures of one interval.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Sample {
        /// The number of its [`Samples::Series`].
        series: u32,
        /// CLOCK_MONOTONIC of the interval's end, ns.
        end_ns: u64,
        /// The interval's length, µs.
        length_us: u32,
        /// The part of the GPU's time that was due to it while it had work, parts per million.
        due_ppm: u32,
        /// GPU time charged to it, µs.
        got_us: u32,
        /// Wall time in which it had the GPU, µs.
        running_us: u32,
        /// Wall time of hand-overs before its turns, µs.
        handover_us: u32,
        /// Wall time in which its own limit held it back, µs.
        limited_us: u32,
        /// Wall time in which it waited for other GPUs of its gang, µs.
        gang_us: u32,
        /// Wall time without work for the GPU, µs.
        idle_us: u32,
        /// Wall time in which it was suspended, µs.
        suspended_us: u32,
        /// Wall time of which the daemon knows nothing, µs.
        absent_us: u32,
        /// Wall time behind other containers by cause, in the order of [`WaitCause::ALL`], µs.
        wait_us: [u32; WaitCause::ALL.len()],
        /// Memory held on the GPU at the end.
        memory: Bytes,
    }
}

impl Sample {
    /// All wall time behind other containers, µs.
    #[must_use]
    pub fn waiting_us(&self) -> u64 {
        self.wait_us.iter().map(|us| u64::from(*us)).sum()
    }

    /// Wall time in which it had work and not the GPU, because of other containers or of its limit, µs.
    #[must_use]
    pub fn waited_us(&self) -> u64 {
        let others = [self.handover_us, self.limited_us, self.gang_us];
        self.waiting_us() + others.into_iter().map(u64::from).sum::<u64>()
    }
}

crate::frame::messages! {
    /// Rows of an answer to [`crate::admin::Command::Samples`], ended by `End`.
    Samples {
        /// A slice that samples of this answer name, before the first of them.
        601 Series {
            /// Its number.
            number: u32,
            /// The container's id.
            container: ContainerId,
            /// Its name for display; empty for none.
            name: Name,
            /// Its GPU.
            gpu: GpuUuid,
            /// Its memory cap now, or at its end.
            cap: Bytes,
        }
        /// Samples, the oldest first.
        602 Rows {
            /// How many of `rows` are used.
            count: u32,
            /// The samples.
            rows: [Sample; SAMPLES_OF_FRAME],
        }
        /// The last frame of an answer.
        603 End {
            /// CLOCK_MONOTONIC of the answer, ns.
            now_ns: u64,
            /// The same instant, ns since 1970.
            unix_ns: u64,
            /// The end of the last interval in this answer: ask for those after it next.
            last_ns: u64,
            /// 1 if there are more after that, 0 if not.
            more: u32,
        }
    }
}
