//! The clockwork: computes the GPU's work between the last access and this one.
//!
//! A real GPU runs one context of one process at a time. Contexts with work take turns: a slice
//! each, with a switch between them. A context that runs out of work yields the rest of its slice,
//! and a context that is alone is never interrupted. All that follows from the queued work and its
//! times, so it need not happen in real time: each access to the device calls `advance` with the
//! present time, which computes the progress since the last one. Between two accesses nothing is
//! queued (queueing is an access), hence the result does not depend on how many accesses there are.
//!
//! The lengths of slices and switches may differ from one to the next. They are drawn from a seeded sequence when
//! the slice or the switch begins, so they too depend on the queued work alone.

use crate::layout::{Bucket, Context, Gpu, Load};
use crate::limits::*;
use crate::properties::Span;
use crate::types::{Recalled, Seq, Status, Work};

/// Brings a GPU to the moment `now` (earlier moments change nothing).
pub(crate) fn advance(gpu: &mut Gpu, contexts: &mut [Context], now: u64) {
    if gpu.clock_ns == 0 {
        gpu.clock_ns = now;
    }
    while gpu.clock_ns < now {
        if gpu.queued == 0 {
            gpu.clock_ns = now;
            return;
        }
        skip_rounds(gpu, contexts, now);
        step(gpu, contexts, now);
    }
}

/// After a long time without an access, takes many rounds at once: while no kernel ends, each round
/// gives each context one slice and changes nothing else. The rest, which is computed step by step,
/// is enough to fill the load's whole window.
fn skip_rounds(gpu: &mut Gpu, contexts: &mut [Context], now: u64) {
    // Where they differ, each slice and each switch has to be drawn.
    if gpu.queued < 2 || !gpu.slice.is_fixed() || !gpu.switch.is_fixed() {
        return;
    }
    let window = BUCKETS as u64 * BUCKET_NS;
    let slice_ns = gpu.slice.least_ns;
    let round = u64::from(gpu.queued) * (slice_ns + gpu.switch.least_ns);
    let mut rounds = (now - gpu.clock_ns).saturating_sub(window) / round;
    if rounds < 2 || gpu.resident != u32::from(gpu.queue[0]) + 1 {
        return;
    }
    let queue = &gpu.queue[..gpu.queued as usize];
    for &index in queue {
        let context = &contexts[usize::from(index)];
        if context.slice_ns != 0 {
            return;
        }
        let slices = context.until_change() / slice_ns;
        rounds = rounds.min(slices.saturating_sub(1));
    }
    if rounds == 0 {
        return;
    }
    for &index in queue {
        contexts[usize::from(index)].skip(rounds * slice_ns);
    }
    gpu.busy_ns += rounds * round;
    gpu.clock_ns += rounds * round;
}

/// One stretch of constant activity: a switch, or a run of the first context of the queue.
fn step(gpu: &mut Gpu, contexts: &mut [Context], now: u64) {
    let front = gpu.queue[0];
    let available = now - gpu.clock_ns;
    if gpu.resident != u32::from(front) + 1 {
        gpu.switch_left_ns = switch_time(gpu, contexts);
        gpu.resident = u32::from(front) + 1;
        gpu.slice_ns = draw(gpu, gpu.slice);
        gpu.slice_left_ns = slice(gpu, contexts, front);
    }
    let slice_ns = slice(gpu, contexts, front);
    if gpu.switch_left_ns > 0 {
        let spent = gpu.switch_left_ns.min(available);
        gpu.switch_left_ns -= spent;
        pass(gpu, spent);
        return;
    }
    let contended = gpu.queued > 1;
    if gpu.slice_left_ns == 0 {
        gpu.slice_left_ns = slice_ns;
        if contended {
            contexts[usize::from(front)].saves += 1;
            gpu.queue[..gpu.queued as usize].rotate_left(1);
            return;
        }
    }
    let budget = if contended { available.min(gpu.slice_left_ns) } else { available };
    let context = &mut contexts[usize::from(front)];
    let spent = context.run(gpu.clock_ns, budget);
    context.load.add(gpu.clock_ns, spent);
    pass(gpu, spent);
    // Alone, slices follow each other without a switch; a newcomer waits for the end of the present one.
    let into_slice = slice_ns.saturating_sub(gpu.slice_left_ns) + spent;
    gpu.slice_left_ns = if contended {
        slice_ns.saturating_sub(into_slice)
    } else {
        slice_ns - into_slice % slice_ns
    };
    if context.head == context.tail {
        leave(gpu, front);
    }
}

/// How long the context that has the GPU runs while others have work.
fn slice(gpu: &Gpu, contexts: &[Context], index: u16) -> u64 {
    match contexts[usize::from(index)].slice_ns {
        0 => gpu.slice_ns,
        own => own,
    }
}

/// How long the GPU takes for another context: the longer, the more blocks of the one before are in work, because their
/// state is put away.
fn switch_time(gpu: &mut Gpu, contexts: &[Context]) -> u64 {
    let Some(before) = gpu.resident.checked_sub(1) else {
        return 0;
    };
    let (all, least) = (u64::from(WAVE_BLOCKS), gpu.switch.least_ns);
    let more = u128::from(draw(gpu, gpu.switch) - least);
    let part = u128::from(all + contexts[before as usize].blocks_in_work());
    least + (more * part / u128::from(2 * all)) as u64
}

fn draw(gpu: &mut Gpu, span: Span) -> u64 {
    gpu.draws += 1;
    span.draw(gpu.seed, gpu.draws)
}

fn pass(gpu: &mut Gpu, spent: u64) {
    gpu.load.add(gpu.clock_ns, spent);
    gpu.busy_ns += spent;
    gpu.clock_ns += spent;
}

/// Queues work; the caller has advanced the GPU and made sure there is room.
pub(crate) fn push(gpu: &mut Gpu, context: &mut Context, index: u16, work: Work) -> Seq {
    let first = context.head == context.tail;
    let seq = context.push(work);
    if first && context.is_ready() {
        join(gpu, index);
    }
    seq
}

/// Takes back the context's work from `from` on, as far as it has not begun.
pub(crate) fn recall(gpu: &mut Gpu, context: &mut Context, index: u16, from: u64) -> Recalled {
    let recalled = context.recall(from, gpu.clock_ns);
    if context.head == context.tail {
        leave(gpu, index);
    }
    recalled
}

/// Puts a context at the end of the queue.
fn join(gpu: &mut Gpu, index: u16) {
    gpu.queue[gpu.queued as usize] = index;
    gpu.queued += 1;
}

/// Takes a context's group off the run list, wherever its work is, or puts it back.
pub(crate) fn disable(gpu: &mut Gpu, context: &mut Context, index: u16, disable: bool) {
    if (context.disabled != 0) == disable {
        return;
    }
    if disable {
        if gpu.resident == u32::from(index) + 1 {
            context.saves += u32::from(context.is_ready());
            (gpu.resident, gpu.switch_left_ns) = (0, 0);
        }
        leave(gpu, index);
        context.disabled = 1;
        context.stops[(context.stopped % STOPS as u64) as usize] = gpu.clock_ns;
        context.stopped += 1;
    } else {
        context.disabled = 0;
        if context.is_ready() && context.fault_xid == 0 {
            join(gpu, index);
        }
    }
}

/// Takes a context out of the queue.
pub(crate) fn leave(gpu: &mut Gpu, index: u16) {
    let queued = gpu.queued as usize;
    if let Some(at) = gpu.queue[..queued].iter().position(|&other| other == index) {
        gpu.queue[at..queued].rotate_left(1);
        gpu.queued -= 1;
    }
}

/// Where a piece of work stands, the GPU being up to date.
pub(crate) fn status(gpu: &Gpu, contexts: &[Context], index: u16, seq: u64) -> Status {
    let context = &contexts[usize::from(index)];
    if context.has_ended(seq) {
        let (start_ns, end_ns) = context.times(seq).unwrap_or_else(|| {
            let end = context.earliest_end();
            (end, end)
        });
        return Status::Done { start_ns, end_ns };
    }
    match context.fault_xid {
        0 => Status::Pending { earliest_ns: earliest(gpu, contexts, index, seq) },
        xid => Status::Faulted { xid },
    }
}

/// When pending work completes if nothing more is queued: newcomers only delay it, so it is a
/// safe time to sleep to. Looks at most a few hundred slices ahead. Of times that are not drawn yet, those are
/// taken with which the work completes soonest.
fn earliest(gpu: &Gpu, contexts: &[Context], index: u16, seq: u64) -> u64 {
    let context = &contexts[usize::from(index)];
    if seq >= context.tail || context.disabled != 0 {
        return u64::MAX;
    }
    let mut need = context.least_time(seq);
    let mut queue = gpu.queue;
    let mut left = [0u64; MAX_CONTEXTS];
    let mut queued = gpu.queued as usize;
    for &other in &queue[..queued] {
        left[usize::from(other)] = contexts[usize::from(other)].least_left_in_all();
    }
    let own = &mut left[usize::from(index)];
    *own = need.max(*own);
    let (mut clock, mut resident) = (gpu.clock_ns, gpu.resident);
    let (mut slice_left, mut switch) = (gpu.slice_left_ns, gpu.switch_left_ns);
    let soonest = |front: u16| match contexts[usize::from(front)].slice_ns {
        0 if front == index => gpu.slice.most_ns,
        0 => gpu.slice.least_ns,
        own => own,
    };
    for _ in 0..256 {
        let front = queue[0];
        if resident != u32::from(front) + 1 {
            switch = if resident == 0 { 0 } else { gpu.switch.least_ns };
            (resident, slice_left) = (u32::from(front) + 1, soonest(front));
        }
        clock = clock.saturating_add(switch);
        switch = 0;
        let turn = if queued > 1 { slice_left } else { u64::MAX };
        if front == index {
            if need <= turn {
                return clock.saturating_add(need);
            }
            need -= turn;
        }
        let spent = left[usize::from(front)].min(turn);
        clock = clock.saturating_add(spent);
        left[usize::from(front)] -= spent;
        queue[..queued].rotate_left(1);
        if left[usize::from(front)] == 0 {
            queued -= 1;
        }
        slice_left = soonest(queue[0]);
    }
    clock
}

impl Load {
    /// Adds `busy` nanoseconds of doing from `from` on.
    pub(crate) fn add(&mut self, from: u64, busy: u64) {
        let end = from + busy;
        let window = BUCKETS as u64 * BUCKET_NS;
        let mut at = from.max(end.saturating_sub(window));
        while at < end {
            let period = at / BUCKET_NS;
            let upto = end.min((period + 1) * BUCKET_NS);
            let bucket = &mut self.buckets[(period % BUCKETS as u64) as usize];
            if bucket.period != period as u32 {
                *bucket = Bucket { period: period as u32, busy_ns: 0 };
            }
            bucket.busy_ns += (upto - at) as u32;
            at = upto;
        }
    }

    /// Percent of the `buckets` whole periods before `now` that were busy.
    pub(crate) fn percent(&self, now: u64, buckets: u64) -> u32 {
        let present = now / BUCKET_NS;
        let busy: u64 = (present.saturating_sub(buckets)..present)
            .map(|period| (period, self.buckets[(period % BUCKETS as u64) as usize]))
            .filter(|(period, bucket)| bucket.period == *period as u32)
            .map(|(_, bucket)| u64::from(bucket.busy_ns))
            .sum();
        ((busy * 100).div_ceil(buckets * BUCKET_NS)).min(100) as u32
    }
}

#[cfg(test)]
mod tests;
