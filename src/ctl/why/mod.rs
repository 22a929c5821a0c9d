//! Why a slice is slow: one reason, decided from two snapshots. Pure.
//!
//! # Problem
//! The parts of a slice's wall time say where it went. A reader wants one reason, the container that causes it, and
//! the command that helps. A wrong reason is worse than none: a container that loads data must not look starved.
//!
//! # Idea
//! What keeps a container from the GPU grows in its account: waiting, its limit, its gang, the daemon's absence, and
//! its own idleness. The largest of these is the reason, if it is a tenth of the time at least. Then:
//!
//! | the largest | reason |
//! |---|---|
//! | waiting, most of it in turns of others | its weight, its share or its policy; its limit, if that binds |
//! | waiting, most of it of another cause | behind the container with most time of that cause |
//! | limited | its limit, or its policy's |
//! | gang | the GPU of the gang on which it waits for another container |
//! | idle | no work, or no process |
//! | absent | the daemon was away |
//!
//! A suspended container has no other reason: its memory is on the host. Neither has a frozen one: nothing of it runs.
//!
//! A request for memory that others have borrowed holds the program up, so while it waits it is the reason.
//!
//! A container that runs all the time is held back too if another one's work runs beside it: both count as running, so
//! together they run longer than the stretch. Under turns, that is the work of a container that has overrun.
//!
//! A gang that has a GPU for itself has the GPU all the time, and no time is lost there. That it is held back on its
//! other GPU is a note beside the reason.
//!
//! Many programs allocate until they are refused, and run well. So a refused allocation is the reason only with other
//! evidence:
//! * allocations are refused in the stretch, and nothing holds the container back for half of it;
//! * or the container had no GPU time in the stretch, and the last one was refused within a minute, or its account has
//!   no less idle time than has passed since: a program that works on has less.

mod advice;
mod growth;
#[cfg(test)]
mod tests;
mod words;

pub use growth::Growth;
pub use words::{Told, duration, percent, quoted, with_dir};

use crate::table::{MemoryWait, Row, View, WHOLE_PPM};
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::policy::{Class, Policy};
use gpuslice_wire::snapshot::SuspensionState;
use gpuslice_wire::waits::WaitCause;

/// A smaller part of the time is no reason.
const NOTABLE: f64 = 0.1;
/// Something longer ago is no reason, ns.
const RECENT_NS: u64 = 60_000_000_000;

/// Why a slice is slow.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// Nothing keeps it from the GPU.
    Nothing,
    /// It is suspended, or on the way to or from it.
    Suspended(SuspensionState),
    /// Its processes are frozen, because it is over its cap.
    Frozen,
    /// It has no process.
    NoProcess,
    /// It has no work for the GPU.
    Idle,
    /// Others have the GPU for what their weights, shares or classes give them.
    Weight,
    /// Its share: it has no weight for the rest, or no share leaves a rest.
    Share,
    /// Its GPU's policy divides the time without weights.
    Policy,
    /// Its own limit.
    Limit,
    /// The limit that its GPU's policy sets.
    PolicyLimit,
    /// A limit that no longer holds: parts per million, if that is known.
    PastLimit(Option<u32>),
    /// Its GPU's policy has no turns, and other containers have work.
    NoTurns,
    /// A container, and how it has the GPU.
    Behind {
        /// The container's id.
        container: String,
        /// How.
        cause: WaitCause,
        /// The longest single wait, ns.
        longest: u64,
        /// Its late turns in the stretch.
        late: u64,
    },
    /// It runs, and so does the work of a container, which has overrun or beside which it has.
    Beside {
        /// The container's id.
        container: String,
    },
    /// Another GPU of its gang is not free.
    Gang {
        /// That GPU, if it is known.
        gpu: Option<GpuUuid>,
        /// The id of the container that has it, and how.
        behind: Option<(String, WaitCause)>,
    },
    /// An allocation was refused this long ago, ns.
    Refused(u64),
    /// An allocation within its cap waits for memory that others have borrowed.
    Lent(MemoryWait),
    /// The daemon was away.
    Away,
}

impl Why {
    /// Its name in JSON.
    pub const fn name(&self) -> &'static str {
        match self {
            Why::Nothing => "nothing",
            Why::Suspended(_) => "suspended",
            Why::Frozen => "frozen",
            Why::NoProcess => "no-process",
            Why::Idle => "idle",
            Why::Weight => "weight",
            Why::Share => "share",
            Why::Policy => "policy",
            Why::Limit | Why::PastLimit(_) => "share-limit",
            Why::PolicyLimit => "policy-limit",
            Why::NoTurns => "native",
            Why::Behind { .. } => "behind",
            Why::Beside { .. } => "beside",
            Why::Gang { .. } => "gang",
            Why::Refused(_) => "memory-refused",
            Why::Lent(_) => "memory-lent",
            Why::Away => "daemon-away",
        }
    }
}

/// A reason and its evidence.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The reason.
    pub why: Why,
    /// The part of the time that it cost, 0..=1.
    pub part: f64,
    /// Where the time of the stretch went.
    pub growth: Growth,
    /// The part of the GPU that it is due in the stretch, 0..=1.
    pub due: f64,
    /// The GPU of its gang on which it is held back most, if the reason does not say so.
    pub partner: Option<Partner>,
}

/// A GPU of a gang on which it is held back.
#[derive(Clone, Debug, PartialEq)]
pub struct Partner {
    /// That GPU.
    pub gpu: GpuUuid,
    /// The id of the container that has it, if that is known.
    pub behind: Option<String>,
    /// The part of the time, 0..=1.
    pub part: f64,
}

/// Decides for a slice, from its growth since `before`, or since its account began.
pub fn decide(before: Option<&View>, now: &View, row: &Row) -> Finding {
    let growth = Growth::of(before, now, row).unwrap_or_default();
    let due = now.due_since(before, row);
    let (why, ns) = reason(before, now, row, &growth);
    let partner = noted_partner(before, now, row, (&why, &growth));
    Finding { why, part: growth.part(ns).min(1.0), growth, due, partner }
}

/// The GPU of its gang that a note names: it is held back there, and this GPU's account does not show it.
fn noted_partner(
    before: Option<&View>,
    now: &View,
    row: &Row,
    (why, growth): (&Why, &Growth),
) -> Option<Partner> {
    if row.gang == 0 || !matches!(why, Why::Nothing | Why::Idle) {
        return None;
    }
    let (Why::Gang { gpu: Some(gpu), behind }, ns) = partner(before, now, row) else {
        return None;
    };
    let (behind, part) = (behind.map(|(container, _)| container), growth.part(ns).min(1.0));
    (part >= NOTABLE).then_some(Partner { gpu, behind, part })
}

/// The reason, and its time, ns.
fn reason(before: Option<&View>, now: &View, row: &Row, growth: &Growth) -> (Why, u64) {
    if let Some(state) = now.suspensions.get(&row.container) {
        return (Why::Suspended(*state), growth.wall);
    }
    if now.frozen.contains(&row.container) {
        return (Why::Frozen, growth.wall);
    }
    // Its program stands in the call, so it has no work for the GPU meanwhile.
    if let Some(wait) = now.waits_for_memory(row) {
        return (Why::Lent(wait), growth.wall.min(now.now_ns.saturating_sub(wait.since_ns)));
    }
    if let Some(ago) = refused(now, row, growth) {
        return (Why::Refused(ago), 0);
    }
    let waiting = growth.waiting + growth.handover;
    let parts = [growth.idle, waiting, growth.limited, growth.gang, growth.absent];
    let largest = parts.into_iter().max().unwrap_or(0);
    let beside = beside(before, now, row, growth);
    // Work beside its own takes from it as waiting does, and goes on longer than any wait here.
    let more = beside.as_ref().is_some_and(|(_, ns)| *ns > largest);
    if growth.part(largest) < NOTABLE || more {
        return unhindered(now, row, growth, beside);
    }
    let why = match parts.into_iter().position(|ns| ns == largest) {
        Some(0) if row.clients == 0 => Why::NoProcess,
        Some(0) => Why::Idle,
        Some(1) => waited(before, now, row, growth),
        Some(2) if row.cap_ppm >= WHOLE_PPM => past_limit(before, row),
        Some(2) => limit(now, row),
        Some(3) => partner(before, now, row).0,
        _ => Why::Away,
    };
    (why, largest)
}

/// How long ago an allocation was refused, if that is the reason, ns.
fn refused(now: &View, row: &Row, growth: &Growth) -> Option<u64> {
    let ago = refused_ago(now, row)?;
    let still = growth.denied.is_some_and(|denied| denied > 0);
    let is_free = growth.part(growth.held_back()) < 0.5;
    let has_stopped = ago <= RECENT_NS || now.time(row).is_some_and(|time| time.off() >= ago);
    let does_nothing = has_stopped && growth.gpu == 0;
    (is_free && (still || does_nothing)).then_some(ago)
}

/// How long ago an allocation was last refused, ns.
pub fn refused_ago(now: &View, row: &Row) -> Option<u64> {
    (row.denied_at_ns > 0).then(|| now.now_ns.saturating_sub(row.denied_at_ns))
}

/// How long ago the daemon came back, and for how long it had been away if that is known, ns.
pub fn came_back(now: &View, row: &Row) -> Option<(u64, Option<u64>)> {
    let (daemon, time) = (now.daemon?, now.time(row)?);
    let ago = |at: u64| now.now_ns.saturating_sub(at);
    let restored = time.since_ns <= daemon.started_ns;
    let absent = daemon.absent_until_ns > time.since_ns;
    let absent = absent.then_some((ago(daemon.absent_until_ns), Some(daemon.absent_ns)));
    let back = absent.or(restored.then_some((ago(daemon.started_ns), None)));
    back.filter(|(ago, _)| *ago <= RECENT_NS)
}

/// No wait takes a notable part of the time on this GPU, or work beside its own takes more.
fn unhindered(now: &View, row: &Row, growth: &Growth, beside: Option<(String, u64)>) -> (Why, u64) {
    let others = |peer: &&Row| peer.gpu == row.gpu && peer.container != row.container;
    let policy = now.policy(row.gpu);
    if !policy.rules().turns && now.rows.iter().filter(others).any(|peer| peer.runnable != 0) {
        return (Why::NoTurns, growth.running);
    }
    if let Some((container, ns)) = beside {
        return (Why::Beside { container }, ns);
    }
    // What ended before the stretch is a note.
    match came_back(now, row).filter(|(ago, _)| *ago <= growth.wall) {
        Some((_, ns)) => (Why::Away, ns.unwrap_or(growth.absent)),
        None => (Why::Nothing, 0),
    }
}

/// The container whose work ran beside this one's for longest, and for how long at least, ns, if that is notable.
fn beside(before: Option<&View>, now: &View, row: &Row, growth: &Growth) -> Option<(String, u64)> {
    let others = now.rows.iter().filter(|it| it.gpu == row.gpu && it.container != row.container);
    let overlaps = others.filter_map(|it| {
        let other = Growth::of(before, now, it)?;
        let both = growth.running + other.running;
        Some((it.container.clone(), both.saturating_sub(growth.wall.max(other.wall))))
    });
    overlaps.max_by_key(|(_, ns)| *ns).filter(|(_, ns)| growth.part(*ns) >= NOTABLE)
}

/// The reason for waiting: the cause with most time, and the container with most of that.
fn waited(before: Option<&View>, now: &View, row: &Row, growth: &Growth) -> Why {
    let sums = growth.by_cause();
    let causes = WaitCause::ALL.into_iter().zip(sums);
    let cause = causes.max_by_key(|(_, ns)| *ns).map_or(WaitCause::Queue, |(cause, _)| cause);
    let behind = growth.behind.iter().max_by_key(|behind| behind.by_cause[cause as usize]);
    match (cause, behind) {
        (WaitCause::Queue, _) | (_, None) if limit_binds(before, now, row) => limit(now, row),
        (WaitCause::Queue, _) | (_, None) => by_rule(now, row),
        (_, Some(behind)) => {
            let (container, longest) = (behind.container.clone(), behind.longest);
            let late = late_turns(before, now, row, &container);
            Why::Behind { container, cause, longest, late }
        }
    }
}

/// Late turns of `container` on the GPU of `row` in the stretch.
fn late_turns(before: Option<&View>, now: &View, row: &Row, container: &str) -> u64 {
    let is_it = |it: &&Row| it.gpu == row.gpu && it.container == container;
    let late = |view: &View| view.rows.iter().find(is_it).map_or(0, |it| it.late_turns);
    late(now).saturating_sub(before.map_or(0, late))
}

/// The rule that gives a slice its part.
fn by_rule(now: &View, row: &Row) -> Why {
    let rules = now.policy(row.gpu).rules();
    let shares = now.rows.iter().filter(|it| it.gpu == row.gpu).filter_map(|it| it.share);
    match row.share {
        Some(_) if row.weight.is_none() || shares.sum::<u32>() >= 100 => Why::Share,
        _ if !rules.weights => Why::Policy,
        _ => Why::Weight,
    }
}

/// Whether it would be due more without its limit.
fn limit_binds(before: Option<&View>, now: &View, row: &Row) -> bool {
    if row.cap_ppm >= WHOLE_PPM {
        return false;
    }
    let mut free = now.clone();
    for it in free.rows.iter_mut().filter(|it| it.is_of(row)) {
        it.cap_ppm = WHOLE_PPM;
    }
    free.due_since(before, row) > now.due_since(before, row) + 0.01
}

/// The limit that holds: its own, or the policy's.
fn limit(now: &View, row: &Row) -> Why {
    let own = row.share_limit.is_some_and(|percent| percent * 10_000 <= row.cap_ppm);
    match own || (row.share_limit.is_none() && now.policy(row.gpu) == Policy::Soft) {
        true => Why::Limit,
        false => Why::PolicyLimit,
    }
}

/// The limit that held before, of a slice that has none now.
fn past_limit(before: Option<&View>, row: &Row) -> Why {
    let was = before.and_then(|view| view.row(row)).map(|old| old.cap_ppm);
    Why::PastLimit(was.filter(|ppm| *ppm < WHOLE_PPM))
}

/// The GPU of the gang on which the container is held back longest, the container that has it, and the time, ns.
fn partner(before: Option<&View>, now: &View, row: &Row) -> (Why, u64) {
    let lanes = now.rows.iter();
    let lanes = lanes.filter(|it| it.container == row.container && it.gpu != row.gpu);
    let growths = lanes.filter_map(|it| Some((it.gpu, Growth::of(before, now, it)?)));
    let missing = growths.max_by_key(|(_, growth)| growth.waiting + growth.limited);
    let Some((gpu, growth)) = missing.filter(|(_, it)| it.waiting + it.limited > 0) else {
        return (Why::Gang { gpu: None, behind: None }, 0);
    };
    let ways = growth.behind.iter().flat_map(|by| {
        let causes = WaitCause::ALL.into_iter().zip(by.by_cause);
        causes.map(|(cause, ns)| (by.container.clone(), cause, ns))
    });
    let most = ways.max_by_key(|(_, _, ns)| *ns).filter(|(_, _, ns)| *ns > 0);
    let behind = most.map(|(container, cause, _)| (container, cause));
    (Why::Gang { gpu: Some(gpu), behind }, growth.waiting + growth.limited)
}

/// Whether `one` goes before `other`.
pub fn is_higher(one: Class, other: Class) -> bool {
    one < other
}
