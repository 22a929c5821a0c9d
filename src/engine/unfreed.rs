//! Memory of ended processes that the driver has not freed yet, as amounts; `memory::unfreed` has the rules.

use alloc::vec::Vec;
use gpuslice_wire::limits::CONTEXT_BYTES_MAX;
use gpuslice_wire::units::{Bytes, Duration, Instant};

/// Longest time for which an ended process's memory is charged. Drivers are known to take up to three seconds.
pub const FREED_WITHIN: Duration = Duration::from_millis(5_000);

/// Greatest age of NVML's figures.
pub const FIGURE_AGE: Duration = Duration::from_millis(150);

/// The most that a context is known to take: charged for one whose process ended before it could be measured, where no
/// process of the container has shown what a context takes.
pub(crate) const CONTEXT_MOST: Bytes = Bytes(CONTEXT_BYTES_MAX);

/// Ends that are told apart; later ones count with the last.
const PARTS_MAX: usize = 64;

/// Unfreed memory of one account, or of ended containers on one GPU: when its process ended, and how much.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unfreed(Vec<(Instant, Bytes)>);

impl Unfreed {
    /// All of it.
    pub(crate) fn sum(&self) -> Bytes {
        self.0.iter().fold(Bytes::ZERO, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// A process that was charged so much ended at `now`. Returns what was added: the sum stays a number of bytes,
    /// since the account counts exactly, and subtracts later what the sum shows.
    pub(crate) fn add(&mut self, now: Instant, bytes: Bytes) -> Bytes {
        let bytes = bytes.min(Bytes(u64::MAX).saturating_sub(self.sum()));
        let full = self.0.len() >= PARTS_MAX;
        match self.0.last_mut() {
            _ if bytes == Bytes::ZERO => {}
            Some(last) if last.0 == now || full => {
                *last = (now, last.1.saturating_add(bytes));
            }
            _ => self.0.push((now, bytes)),
        }
        bytes
    }

    /// Looks that were asked for at `asked` or later show at most `left` of it.
    pub(crate) fn look(&mut self, asked: Instant, left: Bytes) {
        let mut left = left;
        for (ended, bytes) in self.0.iter_mut().rev() {
            if ended.plus(FIGURE_AGE) <= asked {
                *bytes = (*bytes).min(left);
                left = left.saturating_sub(*bytes);
            }
        }
        self.0.retain(|(_, bytes)| *bytes > Bytes::ZERO);
    }

    /// Drops what is no longer charged at `now`.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.0.retain(|(ended, _)| now < ended.plus(FREED_WITHIN));
    }

    /// When the next look can show something.
    pub(crate) fn visible(&self) -> Option<Instant> {
        self.0.first().map(|(ended, _)| ended.plus(FIGURE_AGE))
    }

    /// When the first part is no longer charged.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.0.first().map(|(ended, _)| ended.plus(FREED_WITHIN))
    }

    /// Takes out at most `most`, the latest first.
    pub(crate) fn take(&mut self, most: Bytes) -> Unfreed {
        let (mut taken, mut most) = (Vec::new(), most);
        for (ended, bytes) in self.0.iter_mut().rev() {
            let part = (*bytes).min(most);
            (*bytes, most) = (bytes.saturating_sub(part), most.saturating_sub(part));
            taken.push((*ended, part));
        }
        taken.reverse();
        taken.retain(|(_, bytes)| *bytes > Bytes::ZERO);
        self.0.retain(|(_, bytes)| *bytes > Bytes::ZERO);
        Unfreed(taken)
    }

    /// Takes over all of `other`.
    pub(crate) fn append(&mut self, other: Unfreed) {
        let mut all = core::mem::take(&mut self.0);
        all.extend(other.0);
        all.sort_by_key(|(ended, _)| *ended);
        for (ended, bytes) in all {
            self.add(ended, bytes);
        }
    }
}

/// What a GPU's memory is used for beside living processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Beside {
    /// The driver's own, by the last two looks without unfreed memory: in one of them a process may just have ended.
    pub(crate) own: [Bytes; 2],
    /// All of it at least, by the last look.
    pub(crate) least: Bytes,
    /// Memory of processes outside of all slices, by the last two samples: one may show a process that has just ended.
    pub(crate) outside: [Bytes; 2],
    /// When the daemon restarted, until the first look.
    pub(crate) restored: Option<Instant>,
    /// The last look with unfreed memory: when it was asked for, and how much there was at most.
    pub(crate) last: Option<(Instant, Bytes)>,
    /// Until then there may be memory of ended processes that was charged to none: of those before a restart of the
    /// daemon, and of a second context that was not charged yet.
    pub(crate) unknown_until: Instant,
    /// Unfreed memory of ended containers.
    pub(crate) unfreed: Unfreed,
}

impl Beside {
    /// A process ends at `now`, or did shortly before.
    pub(crate) fn ended(&mut self, now: Instant) {
        self.unknown_until = now.plus(FREED_WITHIN);
    }
}
