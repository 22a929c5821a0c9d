//! The window: how much work may be in flight, bounded in time and not in launches.
//!
//! At the end of a turn the GPU must drain soon, and in its middle it must never run dry. So a launch is
//! admitted while the work in flight fits into the rest of the turn, or into a small window when the rest
//! is shorter. Work in flight is an estimate, corrected by *fences*: events put into the stream behind every
//! ~100 µs of estimated work. A [`LaunchGroup`] is the launches between two fences of one stream; once its fence
//! has been reached, the group is retired.
//!
//! The time of a kernel that was never measured is a guess, which may be far too low. So the rest of a turn is
//! filled with measured kernels alone: guesses must fit into the window together, or there is only one.
//!
//! The estimate assumes that groups run one after the other in launch order, as they do in sum on a busy
//! GPU. Elapsed time alone reduces only the oldest group, and never below an eighth of it once it is overdue:
//! so a GPU slower than expected is taken into account.
#![forbid(unsafe_code)]

use super::backend::{Event, Progress};
use super::estimate::{Estimate, Key, Task};
use std::collections::VecDeque;

/// Estimated work after which a fence is put into the stream.
const FENCE_NS: u64 = 100_000;
/// Launches after which a fence is put, whatever their length.
const FENCE_LAUNCHES: u32 = 256;
/// Different kernels in one group.
const GROUP_KEYS: usize = 8;
/// Groups tracked at once; beyond that, launches wait for the oldest.
pub const GROUPS_MAX: usize = 512;
/// How long a full window holds a launch back before it goes anyway: the work in flight may be waiting for
/// it.
pub const HELD_MAX_NS: u64 = 100_000_000;
/// An open group whose stream cannot be queried counts as finished this long after twice its estimate.
const GIVEN_UP_NS: u64 = 5_000_000;
/// Work that exceeds twice its estimate by this much may be waiting for a held launch.
const STUCK_NS: u64 = 100_000_000;
/// So may work of this age, whatever its estimate.
const STUCK_MAX_NS: u64 = 5_000_000_000;
/// Shortest and longest pause between two checks of a full window.
const RETRY_NS: (u64, u64) = (20_000, 500_000);

/// Work in flight up to this counts as none. A launch that may go when nothing is in flight has to start
/// before that, or the GPU idles for as long as a thread takes to wake.
const LEAD_NS: u64 = 100_000;

/// Index of a stream in the gate's list, below [`STREAMS_MAX`].
pub type StreamIndex = u16;
/// Streams of a lane tracked at once.
pub const STREAMS_MAX: usize = 128;

/// Launches of one stream between two fences.
#[derive(Debug)]
pub struct LaunchGroup {
    /// Its stream.
    pub stream_index: StreamIndex,
    /// Estimated run time, ns.
    pub expected: u64,
    /// The part of it that is guessed, ns.
    guessed: u64,
    /// Number of launches.
    pub launches: u32,
    /// Their total size: see [`Task::parts`].
    pub parts: u64,
    /// The different kernels among them.
    pub keys: Vec<Key>,
    /// Times of the first and the last launch.
    pub span: (u64, u64),
    /// The event in front of the first launch, if the stream was empty then.
    pub base: Option<Event>,
    /// It follows the previous group of its stream directly.
    pub follows: bool,
    /// The event behind the last launch; `None` while the group is open.
    pub fence: Option<Event>,
    /// There is a gate in front of it, and `base` is behind that gate.
    pub gated: bool,
    /// If nothing was in flight at its launch: the stream of the last work, and the end of that work.
    pub after: Option<(StreamIndex, u64)>,
}

/// The state of work in flight while gates are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// A stream is blocked at a gate.
    pub parked: bool,
    /// Work that streams still have to do before their next gates, ns; `None` if no stream runs.
    pub running: Option<u64>,
}

impl LaunchGroup {
    /// The time from which the group counts as finished if its end cannot be observed, ns.
    #[must_use]
    pub const fn given_up(&self) -> u64 {
        self.span.1.saturating_add(self.expected.saturating_mul(2)).saturating_add(GIVEN_UP_NS)
    }

    /// A group without launches.
    fn new(stream_index: StreamIndex, now: u64, base: Option<Event>) -> LaunchGroup {
        LaunchGroup {
            stream_index,
            expected: 0,
            guessed: 0,
            launches: 0,
            parts: 0,
            keys: Vec::new(),
            span: (now, now),
            base,
            follows: false,
            fence: None,
            gated: false,
            after: None,
        }
    }
}

/// The verdict on one more launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Launch.
    Go,
    /// Check again after this many ns.
    Full(u64),
}

/// The work in flight on one lane.
#[derive(Debug, Default)]
pub struct InFlight {
    groups: VecDeque<LaunchGroup>,
    /// Total estimate of all groups, and the part of it that is guessed.
    expected: u64,
    guessed: u64,
    /// Estimated start of the oldest group.
    head_since: u64,
    /// When the oldest group was last seen unfinished.
    head_pending: u64,
    /// The stream of the group retired last.
    last: Option<StreamIndex>,
    /// Launches inside the driver at this moment, and their estimate.
    inside: u32,
    inside_ns: u64,
}

impl InFlight {
    /// Whether no work is known to be in flight.
    #[must_use]
    pub fn empty(&self) -> bool {
        self.inside == 0 && self.groups.is_empty()
    }

    /// Estimated end of the last work in flight; 0 if no work was observed.
    #[must_use]
    pub const fn ended(&self) -> u64 {
        self.head_since
    }

    /// Launches inside the driver at this moment.
    #[must_use]
    pub const fn inside(&self) -> u32 {
        self.inside
    }

    /// Estimated time until all work in flight has run, ns.
    #[must_use]
    pub fn outstanding(&self, now: u64) -> u64 {
        let credit = self.groups.front().map_or(0, |head| {
            let elapsed = now.saturating_sub(self.head_since);
            let overdue = elapsed >= head.expected && head.fence.is_some();
            let rest = if overdue { head.expected / 8 } else { 0 };
            elapsed.min(head.expected - rest)
        });
        self.expected - credit + self.inside_ns
    }

    /// Whether a launch may go, with `left` ns of the turn left. A launch always may when next to nothing is in
    /// flight: a kernel longer than any turn must run too, and is charged afterwards.
    #[must_use]
    pub fn admit(&self, now: u64, next: Estimate, window: u64, left: u64) -> Admission {
        let outstanding = self.outstanding(now);
        let guesses = self.guessed.saturating_add(next.ns);
        let wild = !next.known && self.guessed > 0 && guesses > window;
        let room = if wild { window } else { window.max(left) };
        let many = self.groups.len() >= GROUPS_MAX;
        let sum = outstanding.saturating_add(next.ns);
        let fits = sum <= room && !wild || outstanding <= LEAD_NS;
        if (fits && !many) || self.empty() {
            return Admission::Go;
        }
        let excess = sum.saturating_sub(room);
        // There is room as soon as next to nothing is in flight.
        let soon = excess.min(outstanding.saturating_sub(LEAD_NS));
        Admission::Full(soon.clamp(RETRY_NS.0, RETRY_NS.1))
    }

    /// A launch enters the driver.
    pub fn enter(&mut self, ns: u64) {
        self.inside += 1;
        self.inside_ns += ns;
    }

    /// A launch that entered with `ns` returned; it failed, or `launched` counts it.
    pub fn leave(&mut self, ns: u64) {
        self.inside = self.inside.saturating_sub(1);
        self.inside_ns = self.inside_ns.saturating_sub(ns);
    }

    /// Whether the oldest group should have finished by now, so that a query is worth its cost.
    #[must_use]
    pub fn due(&self, now: u64) -> bool {
        let since = now.saturating_sub(self.head_since);
        self.groups.front().is_some_and(|head| head.fence.is_some() && since >= head.expected)
    }

    /// Whether all work in flight may have finished by now, so that a query is worth its cost. It rarely takes less
    /// than three quarters of its estimate.
    #[must_use]
    pub fn may_be_over(&self, now: u64) -> bool {
        let since = now.saturating_sub(self.head_since);
        self.inside == 0 && !self.groups.is_empty() && since >= self.expected / 4 * 3
    }

    /// Notes that the last work has ended just now: a thread waited for its end.
    pub fn ended_at(&mut self, now: u64) {
        self.head_since = self.head_since.max(now);
    }

    /// Whether the work in flight is so late that it may be waiting for a held launch. The time after which it is
    /// late is doubled `doublings` times.
    #[must_use]
    pub fn stuck(&self, now: u64, doublings: u32) -> bool {
        let since = now.saturating_sub(self.head_since);
        self.groups.front().is_some_and(|head| {
            let patience = head.expected.saturating_mul(2).saturating_add(STUCK_NS);
            since > patience.min(STUCK_MAX_NS) << doublings
        })
    }

    /// Whether any group of the stream is in flight, so that the next one needs no base of its own.
    #[must_use]
    pub fn busy(&self, stream_index: StreamIndex) -> bool {
        self.groups.iter().any(|group| group.stream_index == stream_index)
    }

    /// Notes that `task` was launched into the stream. Returns whether a fence should follow now.
    pub fn launched(
        &mut self,
        now: u64,
        stream_index: StreamIndex,
        task: Task,
        expected: Estimate,
        base: Option<Event>,
    ) -> bool {
        let empty = self.groups.is_empty();
        let after = self.last.filter(|_| empty).map(|last| (last, self.ended()));
        if empty {
            self.head_since = now;
        }
        let guessed = if expected.known { 0 } else { expected.ns };
        self.expected += expected.ns;
        self.guessed += guessed;
        let open = self
            .groups
            .iter_mut()
            .rev()
            .find(|g| g.stream_index == stream_index && g.fence.is_none());
        let group = match open {
            Some(group) => group,
            None => {
                let follows = self.busy(stream_index);
                self.groups.push_back(LaunchGroup {
                    after,
                    follows,
                    ..LaunchGroup::new(stream_index, now, base)
                });
                self.groups.back_mut().expect("just pushed")
            }
        };
        group.expected += expected.ns;
        group.guessed += guessed;
        group.launches += 1;
        group.parts += u64::from(task.parts);
        // Threads that launch into one stream may return in another order than they entered.
        group.span = (group.span.0.min(now), group.span.1.max(now));
        if !group.keys.contains(&task.key) {
            group.keys.push(task.key);
        }
        let full = group.keys.len() >= GROUP_KEYS || group.launches >= FENCE_LAUNCHES;
        group.expected >= FENCE_NS || full
    }

    /// Notes that the stream may hold untracked work, which has finished when the stream has.
    pub fn untracked(&mut self, now: u64, stream_index: StreamIndex) {
        if self.is_open(stream_index) {
            return;
        }
        if self.groups.is_empty() {
            self.head_since = now;
        }
        self.groups.push_back(LaunchGroup::new(stream_index, now, None));
    }

    /// Notes a gate in the stream, with `base` behind it, for launches to come.
    pub fn gate(&mut self, now: u64, stream_index: StreamIndex, base: Option<Event>) {
        if self.groups.is_empty() {
            self.head_since = now;
        }
        // Without an event behind the gate it cannot be observed whether the GPU passed it.
        let gated = base.is_some();
        self.groups.push_back(LaunchGroup { gated, ..LaunchGroup::new(stream_index, now, base) });
    }

    /// Notes that gates were closed until now: work blocked there was not late.
    pub fn resumed(&mut self, now: u64) {
        self.head_since = now;
    }

    /// Which streams with work in flight are blocked at gates. Finished work was retired before.
    pub fn blocked(&self, mut progress: impl FnMut(Event) -> Progress) -> Blocked {
        let mut seen = [false; STREAMS_MAX];
        let mut blocked =
            Blocked { parked: false, running: (self.inside > 0).then_some(self.inside_ns) };
        for group in &self.groups {
            if std::mem::replace(&mut seen[usize::from(group.stream_index) % STREAMS_MAX], true) {
                continue;
            }
            let base = group.base.filter(|_| group.gated);
            if base.is_some_and(|base| progress(base) == Progress::Pending) {
                blocked.parked = true;
            } else {
                let before = blocked.running.unwrap_or(0);
                blocked.running = Some(before.saturating_add(group.expected));
            }
        }
        blocked
    }

    /// Whether the stream has launches without a fence behind them.
    #[must_use]
    pub fn is_open(&self, stream_index: StreamIndex) -> bool {
        let open =
            |group: &LaunchGroup| group.stream_index == stream_index && group.fence.is_none();
        self.groups.iter().any(open)
    }

    /// The stream of the oldest group.
    #[must_use]
    pub fn oldest(&self) -> Option<StreamIndex> {
        self.groups.front().map(|group| group.stream_index)
    }

    /// Notes `event` behind the stream's open group; returns it if there is no open group.
    pub fn fence(&mut self, stream_index: StreamIndex, event: Event) -> Option<Event> {
        let open =
            |group: &&mut LaunchGroup| group.stream_index == stream_index && group.fence.is_none();
        match self.groups.iter_mut().rev().find(open) {
            Some(group) => {
                group.fence = Some(event);
                None
            }
            None => Some(event),
        }
    }

    /// Retires the oldest finished group; `ask` returns `None` if it did not query. Streams run in order, so
    /// no group behind an unfinished one of its stream is queried.
    pub fn retire(
        &mut self,
        now: u64,
        mut ask: impl FnMut(&LaunchGroup) -> Option<Progress>,
    ) -> Option<LaunchGroup> {
        let mut pending = [false; STREAMS_MAX];
        for index in 0..self.groups.len() {
            let group = &self.groups[index];
            let held = &mut pending[usize::from(group.stream_index) % STREAMS_MAX];
            if *held {
                continue;
            }
            match ask(group) {
                Some(Progress::Done) => return self.remove(now, index),
                Some(Progress::Pending) if index == 0 => self.head_pending = now,
                _ => {}
            }
            *held = true;
        }
        None
    }

    /// Removes a group of the stream, finished or not: the stream is gone.
    pub fn forget(&mut self, now: u64, stream_index: StreamIndex) -> Option<LaunchGroup> {
        let index = self.groups.iter().position(|group| group.stream_index == stream_index)?;
        self.remove(now, index)
    }

    fn remove(&mut self, now: u64, index: usize) -> Option<LaunchGroup> {
        let group = self.groups.remove(index)?;
        self.last = Some(group.stream_index);
        self.expected -= group.expected;
        self.guessed -= group.guessed;
        if index == 0 {
            // It ended between the last check and this one, most likely at its expected time.
            let due = self.head_since.saturating_add(group.expected);
            self.head_since = due.max(self.head_pending).min(now);
        }
        Some(group)
    }
}

#[cfg(test)]
mod tests;
