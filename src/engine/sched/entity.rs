//! One container's account of one GPU's time: what it weighs, what it has used, what it may use.

use gpuslice_wire::ids::Lane;
use gpuslice_wire::units::{Duration, Instant, Weight};

use super::bucket::Bucket;
use crate::lifecycle::Seat;

/// Virtual time: GPU time divided by weight, in 2^-32 ns. 2^64 ns of any weight fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Virtual(u128);

impl Virtual {
    /// This much later for `used` GPU time at `weight`. All that weights do is in this line.
    pub(crate) fn after(self, used: Duration, weight: Weight) -> Virtual {
        let scaled = (u128::from(used.0) << 32) / u128::from(weight.get());
        Virtual(self.0.saturating_add(scaled))
    }
}

/// Who goes before whom, whatever the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    High,
    Fair,
}

/// What a container's processes say together, as far as turns are concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// It has processes.
    pub(crate) attached: bool,
    /// One of them wants the GPU.
    pub(crate) wants: bool,
    /// All of them were read since the last close and have nothing in flight of that turn.
    pub(crate) quiet: bool,
}

/// A container on a GPU.
#[derive(Clone, Debug)]
pub(crate) struct Entity {
    pub(crate) seat: Seat,
    pub(crate) lane: Lane,
    pub(crate) weight: Weight,
    pub(crate) class: Class,
    pub(crate) bucket: Option<Bucket>,
    pub(crate) said: Report,
    /// Start tag: the virtual time at which it waits in line.
    pub(crate) start: Virtual,
    /// Finish tag: grows as it is charged.
    pub(crate) finish: Virtual,
    /// When it got in line; earlier goes first among equal tags.
    pub(crate) queued: Instant,
    /// Odd while it may launch.
    pub(crate) turn: u32,
    pub(crate) turn_end: Instant,
    /// Its turn was closed then, others run by now, and it is still not quiet.
    pub(crate) overrun: Option<Instant>,
    pub(crate) gpu_time: Duration,
    pub(crate) wait_time: Duration,
    pub(crate) turns: u64,
}

impl Entity {
    /// May be given the next turn.
    pub(crate) fn eligible(&self) -> bool {
        let funded = self.bucket.as_ref().is_none_or(Bucket::funded);
        self.said.wants && self.overrun.is_none() && funded
    }

    /// Takes part in the contest for the GPU, with what it wants or with what it left running.
    pub(crate) fn competes(&self) -> bool {
        self.said.wants || self.overrun.is_some()
    }

    /// Gets in line at `now`. What it used is behind it, what it did not use is gone: a sleeper
    /// starts where the line is, without credit for having slept.
    pub(crate) fn queue(&mut self, now: Instant, line: Virtual) {
        self.start = line.max(self.finish);
        self.queued = now;
    }

    /// Was on the GPU for `used`.
    pub(crate) fn charge(&mut self, used: Duration) {
        self.gpu_time = Duration(self.gpu_time.0.saturating_add(used.0));
        self.finish = self.finish.max(self.start).after(used, self.weight);
        if let Some(bucket) = &mut self.bucket {
            bucket.spend(used);
        }
    }

    /// Order in line: the smallest goes first.
    pub(crate) fn place(&self) -> (Virtual, Instant, Seat) {
        (self.start, self.queued, self.seat)
    }
}
