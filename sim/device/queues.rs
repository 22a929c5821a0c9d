//! The work of one context: which pieces of it run at the same time.
//!
//! A context has up to 32 hardware queues. Work of one queue runs in order. Of several queues pieces run at the same
//! time where there is room: kernels whose grids together fit the multiprocessors, and two copies, one on each copy
//! engine. Of the kernels that are first in their queues, earlier submissions begin first, and one that does not fit
//! keeps those behind it waiting, as the GPU gives out the blocks of kernels in order. A piece may wait for one of
//! another queue, as a stream does for an event; it waits for earlier submissions alone, so some piece can always run.
//!
//! On a machine without `overlap` all work is in the first queue.
//!
//! The pieces of a queue are linked in the context's ring, because each step of the clockwork asks for the first of
//! every queue.

use crate::layout::{Context, Entry, Queue};
use crate::limits::{MAX_DURATION_NS, MAX_QUEUES, RING, WAVE_BLOCKS};
use crate::types::{Kind, Recalled, Seq, Work};

/// Copies that run at the same time.
const COPY_ENGINES: u32 = 2;

/// Numbers of pieces, each of another queue, the earliest first.
#[derive(Clone, Copy)]
pub(crate) struct Pieces {
    seqs: [u64; MAX_QUEUES as usize],
    len: usize,
}

impl Pieces {
    const NONE: Self = Self { seqs: [0; _], len: 0 };

    fn add(&mut self, seq: u64) {
        self.seqs[self.len] = seq;
        self.len += 1;
    }

    fn all(&self) -> &[u64] {
        &self.seqs[..self.len]
    }
}

impl Context {
    pub(crate) fn entry(&self, seq: u64) -> &Entry {
        &self.ring[(seq % RING) as usize]
    }

    fn entry_mut(&mut self, seq: u64) -> &mut Entry {
        &mut self.ring[(seq % RING) as usize]
    }

    /// It has work and may run it.
    pub(crate) fn is_ready(&self) -> bool {
        self.head < self.tail && self.disabled == 0
    }

    /// Whether a piece has ended.
    pub(crate) fn has_ended(&self, seq: u64) -> bool {
        seq < self.head || (seq < self.tail && !self.is_pending(seq))
    }

    /// A piece that has lost its place has ended.
    fn is_pending(&self, seq: u64) -> bool {
        let entry = self.entry(seq);
        entry.number == seq + 1 && entry.end_ns == 0
    }

    /// Whether the place of a new number is that of an earlier piece which has not ended.
    fn is_taken(&self, seq: u64) -> bool {
        let earlier = self.entry(seq).number.checked_sub(1);
        earlier.is_some_and(|it| (self.head..self.tail).contains(&it) && self.is_pending(it))
    }

    /// Start and end of a piece that has ended, as far as they are known.
    pub(crate) fn times(&self, seq: u64) -> Option<(u64, u64)> {
        let entry = self.entry(seq);
        (entry.number == seq + 1).then_some((entry.start_ns, entry.end_ns))
    }

    /// The earliest end that is known.
    pub(crate) fn earliest_end(&self) -> u64 {
        let ends = self.ring.iter().filter(|it| it.number <= self.tail).map(|it| it.end_ns);
        ends.filter(|end| *end != 0).min().unwrap_or(0)
    }

    /// Numbers from `from` on of the pieces that have not ended, the earliest first.
    fn pending_from(&self, from: u64) -> Vec<u64> {
        let numbers = self.ring.iter().filter(|it| it.end_ns == 0).map(|it| it.number);
        let seqs = numbers.filter_map(|number| number.checked_sub(1));
        let mut seqs: Vec<u64> = seqs.filter(|seq| (from..self.tail).contains(seq)).collect();
        seqs.sort_unstable();
        seqs
    }

    /// Queues a piece behind all earlier ones of its queue; the caller has made sure that there is room.
    pub(crate) fn push(&mut self, work: Work) -> Seq {
        let mut seq = self.tail;
        while self.is_taken(seq) {
            seq += 1;
        }
        let after = work.after.filter(|(_, after)| after.0 < seq);
        let (after_queue, after) = after.map_or((0, 0), |(queue, after)| (queue, after.0 + 1));
        *self.entry_mut(seq) = Entry {
            number: seq + 1,
            left_ns: work.duration_ns.min(MAX_DURATION_NS),
            start_ns: 0,
            end_ns: 0,
            next: 0,
            after,
            after_queue: after_queue.min(MAX_QUEUES as u16 - 1),
            queue: work.queue.min(MAX_QUEUES as u16 - 1),
            kind: work.kind as u16,
            blocks: work.blocks.min(WAVE_BLOCKS),
        };
        self.tail = seq + 1;
        self.link(seq);
        Seq(seq)
    }

    fn link(&mut self, seq: u64) {
        let entry = *self.entry(seq);
        let at = usize::from(entry.queue);
        let queue = &mut self.queues[at];
        let last = std::mem::replace(&mut queue.last, seq + 1);
        queue.left_ns = queue.left_ns.saturating_add(entry.left_ns);
        self.pending += 1;
        if queue.first == 0 {
            queue.first = seq + 1;
            self.used |= 1 << at;
        } else {
            self.entry_mut(last - 1).next = seq + 1;
        }
    }

    /// Makes the queues again, of the pieces that have not ended.
    pub(crate) fn relink(&mut self) {
        (self.queues, self.used) = ([Queue { first: 0, last: 0, left_ns: 0 }; _], 0);
        self.pending = 0;
        if self.head < self.tail {
            for seq in self.pending_from(self.head) {
                let entry = self.entry_mut(seq);
                (entry.next, entry.queue) = (0, entry.queue.min(MAX_QUEUES as u16 - 1));
                entry.after_queue = entry.after_queue.min(MAX_QUEUES as u16 - 1);
                self.link(seq);
            }
        }
        self.forget_ended();
    }

    /// The first piece of every queue that has one.
    fn firsts(&self) -> Pieces {
        let (mut firsts, mut used) = (Pieces::NONE, self.used);
        while used != 0 {
            firsts.add(self.queues[used.trailing_zeros() as usize].first - 1);
            used &= used - 1;
        }
        firsts.seqs[..firsts.len].sort_unstable();
        firsts
    }

    /// Whether a piece waits for one of another queue.
    fn waits(&self, entry: &Entry) -> bool {
        let first = self.queues[usize::from(entry.after_queue)].first;
        entry.after != 0 && first != 0 && first <= entry.after
    }

    /// The pieces that run, or begin as soon as the context has the GPU.
    fn running(&self) -> Pieces {
        let firsts = self.firsts();
        if firsts.len == 1 {
            return firsts;
        }
        let begun = |seq: &&u64| self.entry(**seq).start_ns != 0;
        let (mut blocks, mut engines, mut fits) = (u32::from(WAVE_BLOCKS), COPY_ENGINES, true);
        for seq in firsts.all().iter().filter(begun) {
            let entry = self.entry(*seq);
            blocks -= if entry.is(Kind::Kernel) { u32::from(entry.blocks) } else { 0 };
            engines -= u32::from(entry.is(Kind::Copy));
        }
        let mut running = Pieces::NONE;
        for &seq in firsts.all() {
            let entry = self.entry(seq);
            if entry.start_ns == 0 {
                if self.waits(entry) {
                    continue;
                }
                if entry.is(Kind::Kernel) {
                    fits &= u32::from(entry.blocks) <= blocks;
                    if !fits {
                        continue;
                    }
                    blocks -= u32::from(entry.blocks);
                } else if entry.is(Kind::Copy) {
                    if engines == 0 {
                        continue;
                    }
                    engines -= 1;
                }
            }
            running.add(seq);
        }
        running
    }

    /// Blocks of the kernels that have begun and not ended.
    pub(crate) fn blocks_in_work(&self) -> u64 {
        let firsts = self.firsts();
        let entries = firsts.all().iter().map(|seq| self.entry(*seq));
        let begun = entries.filter(|entry| entry.start_ns != 0 && entry.is(Kind::Kernel));
        begun.map(|entry| u64::from(entry.blocks)).sum()
    }

    /// Least time until one of these pieces ends.
    fn least_left(&self, pieces: &Pieces) -> u64 {
        pieces.all().iter().map(|seq| self.entry(*seq).left_ns).min().unwrap_or(0)
    }

    /// Runs its work from `from` for at most `budget`; returns the time it used.
    pub(crate) fn run(&mut self, from: u64, budget: u64) -> u64 {
        let (mut time, end) = (from, from + budget);
        while self.head < self.tail {
            let running = self.running();
            let least = self.least_left(&running);
            // Some piece can always run, but for a state that no repair has made whole.
            if running.len == 0 || (time == end && least > 0) {
                break;
            }
            let spent = least.min(end - time);
            for &seq in running.all() {
                // What takes time does not begin at the last instant.
                if time < end || self.entry(seq).left_ns == 0 {
                    self.spend(seq, time, spent);
                }
            }
            self.busy_ns += spent;
            time += spent;
        }
        time - from
    }

    /// A piece runs from `time` on for so long.
    fn spend(&mut self, seq: u64, time: u64, spent: u64) {
        let entry = self.entry_mut(seq);
        if entry.start_ns == 0 {
            entry.start_ns = time;
        }
        entry.left_ns -= spent;
        let (ends, at, next) = (entry.left_ns == 0, usize::from(entry.queue), entry.next);
        if ends {
            entry.end_ns = time + spent;
            self.note_gap(time + spent);
        }
        let queue = &mut self.queues[at];
        queue.left_ns = queue.left_ns.saturating_sub(spent);
        if ends {
            self.pending -= 1;
            queue.first = next;
            if next == 0 {
                (queue.last, queue.left_ns) = (0, 0);
                self.used &= !(1 << at);
            }
            self.forget_ended();
        }
    }

    /// The times between ends are watched from now on.
    pub(crate) fn watch_gaps(&mut self, now: u64) {
        (self.last_end_ns, self.longest_gap_ns) = (now, 0);
    }

    fn note_gap(&mut self, end: u64) {
        self.longest_gap_ns = self.longest_gap(end);
        self.last_end_ns = self.last_end_ns.max(end);
    }

    /// The longest time between two ends since the watch began, with the one that lasts until now.
    pub(crate) fn longest_gap(&self, now: u64) -> u64 {
        self.longest_gap_ns.max(now.saturating_sub(self.last_end_ns))
    }

    fn forget_ended(&mut self) {
        while self.head < self.tail && !self.is_pending(self.head) {
            self.head += 1;
        }
    }

    /// How long it can run until a piece begins or ends; 0 where one begins at once.
    pub(crate) fn until_change(&self) -> u64 {
        let running = self.running();
        match running.all().iter().all(|seq| self.entry(*seq).start_ns != 0) {
            true => self.least_left(&running),
            false => 0,
        }
    }

    /// All that runs has run for so long, and nothing has ended.
    pub(crate) fn skip(&mut self, ns: u64) {
        for &seq in self.running().all() {
            self.spend(seq, 0, ns);
        }
        self.busy_ns += ns;
    }

    /// Takes back the pieces from `from` on that have not begun.
    pub(crate) fn recall(&mut self, from: u64, now: u64) -> Recalled {
        let mut taken = self.pending_from(from.max(self.head));
        taken.retain(|seq| self.entry(*seq).start_ns == 0);
        for &seq in &taken {
            let entry = self.entry_mut(seq);
            (entry.left_ns, entry.end_ns) = (0, now.max(1));
        }
        self.relink();
        Recalled(taken.into_iter().map(Seq).collect())
    }

    /// The least time that the context needs the GPU for until a pending piece has ended.
    pub(crate) fn least_time(&self, seq: u64) -> u64 {
        let queue = &self.queues[usize::from(self.entry(seq).queue)];
        let Some(first) = queue.first.checked_sub(1) else {
            return 0;
        };
        let head = self.entry(first);
        let blocked = match head.start_ns {
            0 => self.blocked(first),
            _ => 0,
        };
        blocked.saturating_add(self.left_until(queue, seq))
    }

    /// How long the first piece of a queue waits at least: for the one that it is behind, or for room, which a running
    /// piece of its kind has.
    fn blocked(&self, first: u64) -> u64 {
        let (running, head) = (self.running(), self.entry(first));
        if running.all().contains(&first) {
            return 0;
        }
        if self.waits(head) {
            // Of an earlier submission, so this comes to its end.
            return self.least_time(head.after - 1);
        }
        let like = |seq: &&u64| self.entry(**seq).kind == head.kind;
        let left = running.all().iter().filter(like).map(|seq| self.entry(*seq).left_ns);
        left.min().unwrap_or(0)
    }

    /// What the pieces of a queue take, one after the other, up to this one.
    fn left_until(&self, queue: &Queue, seq: u64) -> u64 {
        if queue.last == seq + 1 {
            return queue.left_ns;
        }
        let (mut sum, mut at) = (0u64, queue.first);
        while at != 0 && at <= seq + 1 {
            let entry = self.entry(at - 1);
            (sum, at) = (sum.saturating_add(entry.left_ns), entry.next);
        }
        sum
    }

    /// The least time that it needs the GPU for until all of its work has ended.
    pub(crate) fn least_left_in_all(&self) -> u64 {
        self.queues.iter().map(|queue| queue.left_ns).max().unwrap_or(0)
    }
}

impl Entry {
    fn is(&self, kind: Kind) -> bool {
        self.kind == kind as u16
    }
}

#[cfg(test)]
mod tests;
