//! Gangs: a container whose GPUs take turns together has all of them or none, is served in bounded time,
//! and leaves no GPU idle for long.

use std::collections::{BTreeMap, BTreeSet};

use gpuslice_engine::Mode;
use gpuslice_wire::ids::{ContainerId, GpuUuid};
use gpuslice_wire::policy::Class;

use super::Objection;
use crate::observer::{LaneKey, LaneState, Observer};

/// The state of this checker.
#[derive(Debug, Default)]
pub struct Gangs {
    /// The engine's deadline after the step before.
    deadline: Option<u64>,
    /// Since when a GPU idles although a container in no gang waits for it, and the longest drain time of
    /// any container that waited since: the first of them may be gone by now.
    idle: BTreeMap<GpuUuid, (u64, u64)>,
    /// GPU time of others on each GPU since a gang waits, and the weights and classes then.
    waits: BTreeMap<ContainerId, Wait>,
    /// The longest stretch of any container without a share, also of one that is gone by now.
    longest: Longest,
}

/// Per GPU and class.
type Longest = BTreeMap<(GpuUuid, Class), u64>;

/// A gang that waits.
#[derive(Debug, Default)]
struct Wait {
    had: BTreeMap<(LaneKey, LaneKey), u64>,
    /// GPU time of all containers without a share together, where it waits.
    pools: BTreeMap<LaneKey, u64>,
    /// Three of the longest turns of each container on the node, summed: the most so far, because some may
    /// be gone by now.
    turns: u64,
    /// Its GPUs with turns on which others had no more than their part.
    rightly: BTreeSet<LaneKey>,
    tuned: Vec<(LaneKey, u64)>,
}

/// Percent that all shares of the gang's class leave to weights; and the sum of the weights, 0 if no
/// container with a share has one.
fn rest(seen: &Observer, me: &LaneState) -> (u64, u64) {
    let class = seen.on(me.gpu).map(|(_, state)| state);
    let class: Vec<&LaneState> =
        class.filter(|state| state.record.class == me.record.class).collect();
    let shares: u64 = class.iter().map(|state| state.share).sum();
    let mixed = class.iter().any(|state| state.share > 0 && state.surplus > 0);
    let weights: u64 = class.iter().map(|state| state.surplus).sum();
    (100u64.saturating_sub(shares).max(1), if mixed { weights } else { 0 })
}

/// The time owed to `other` while `me` waits, beside turns. In one queue that is `l_i * w_j / w_i`. The
/// queue of shares weighs the containers without one together as `rest`, at most 100 less a runnable share.
/// With `pool` the time they had and the longest turn of any of them, a share of `c` has `pool * c / rest`.
/// Where a container with a share has one of the weights, which add up to `weights`, it takes from the rest,
/// too, and two shares are no longer in proportion.
fn owed(me: &LaneState, other: &LaneState, pool: u64, (rest, weights): (u64, u64)) -> u64 {
    let (had, theirs, mine) = match (me.share, other.share) {
        (0, share) if share > 0 && weights > 0 => {
            (pool, share * weights + other.surplus * rest, me.surplus * rest)
        }
        (0, share) if share > 0 => (pool, share, rest),
        (share, _) if share > 0 && weights > 0 => {
            (me.longest, 100u64.saturating_sub(share).max(1), share)
        }
        (share, 0) if share > 0 => (me.longest, 100u64.saturating_sub(share).max(1), share),
        _ => (me.longest, other.weight, me.weight),
    };
    let owed = u128::from(had) * u128::from(theirs) / u128::from(mine);
    u64::try_from(owed).unwrap_or(u64::MAX)
}

/// On the GPU, so that others have to wait for it.
fn on(state: &LaneState) -> bool {
    state.holds() || (state.closing.is_some() && !state.overrun)
}

fn gated(state: &LaneState) -> bool {
    state.view.is_some_and(|view| view.mode == Mode::Turns)
}

impl Gangs {
    /// Advances the clock.
    ///
    /// # Errors
    /// The objection.
    pub fn advance(&mut self, seen: &Observer) -> Result<(), Objection> {
        let mut gangs: BTreeMap<ContainerId, Vec<(LaneKey, &LaneState)>> = BTreeMap::new();
        for (&key, state) in seen.lanes.iter().filter(|(_, state)| state.gang) {
            gangs.entry(key.0).or_default().push((key, state));
        }
        let waits = |gang: &Vec<(LaneKey, &LaneState)>| {
            let free = |state: &LaneState| {
                state.runnable() && !on(state) && !state.overrun && !state.capped()
            };
            let any = gang.iter().any(|(_, state)| gated(state));
            any && !seen.gap && gang.iter().all(|(_, state)| free(state))
        };
        for state in seen.lanes.values().filter(|state| state.share == 0) {
            let longest = self.longest.entry((state.gpu, state.record.class));
            let longest = longest.or_default();
            *longest = (*longest).max(state.longest);
        }
        self.waits.retain(|id, _| gangs.get(id).is_some_and(waits));
        for (id, gang) in gangs.into_iter().filter(|(_, gang)| waits(gang)) {
            let wait = self.waits.entry(id).or_default();
            wait.advance(seen, id, &gang, &self.longest)?;
        }
        Ok(())
    }

    /// Whether one waits whose service is promised.
    #[must_use]
    pub fn any_waits(&self) -> bool {
        !self.waits.is_empty()
    }

    /// Whether a GPU idles for a gang while another container waits for it.
    #[must_use]
    pub fn any_kept(&self) -> bool {
        !self.idle.is_empty()
    }

    /// The engine asks to be called at `at`.
    pub fn asks(&mut self, at: Option<u64>) {
        self.deadline = at;
    }

    /// After a step: all or none, and no GPU idle for long.
    ///
    /// # Errors
    /// The objection.
    pub fn after_step(&mut self, seen: &Observer) -> Result<(), Objection> {
        for (key, state) in seen.lanes.iter().filter(|(_, state)| state.gang) {
            let alone = |other: &LaneState| gated(other) && !other.holds();
            if let Some((other, _)) = seen.gang(key).find(|(_, other)| alone(other))
                && state.holds()
            {
                return Err(format!(
                    "{} has a turn on lane {} and none on lane {}",
                    key.0, key.1.0, other.1.0
                ));
            }
        }
        let gpus: Vec<GpuUuid> = seen.lanes.values().map(|state| state.gpu).collect();
        for gpu in gpus {
            self.idles(seen, gpu)?;
        }
        Ok(())
    }

    /// Checks a GPU that is reserved for a gang while others wait. It may idle until the gang's other GPUs
    /// are free, if that is known to be within a shortest turn, and for a shortest turn if it is not known.
    /// Each of its other GPUs may first end a turn and then be drained.
    fn idles(&mut self, seen: &Observer, gpu: GpuUuid) -> Result<(), Objection> {
        let mut all = seen.on(gpu);
        let free = !all.any(|(_, state)| on(state) || !gated(state));
        let may =
            |state: &LaneState| state.runnable() && !state.capped() && state.closing.is_none();
        let waits = seen.on(gpu).any(|(_, state)| may(state) && !state.gang);
        let tied = seen.on(gpu).any(|(_, state)| state.gang);
        if !free || !waits || !tied {
            self.idle.remove(&gpu);
            return Ok(());
        }
        let (since, longest) = self.idle.entry(gpu).or_insert((seen.now, 0));
        let gpus = seen.lanes.values().map(|state| state.gpu);
        let gpus = gpus.collect::<std::collections::BTreeSet<_>>().len() as u64;
        // Two shortest turns for each other GPU, and the drain times of the waiting containers: once where
        // an end is known, twice where it is not. A step after the engine's deadline, or after
        // that time, is the world's doing.
        let singles = seen.on(gpu).filter(|(_, state)| state.runnable() && !state.gang);
        let tail = singles.map(|(_, state)| state.tail).max().unwrap_or(0);
        *longest = (*longest).max(tail);
        let bound = gpus * (2 * seen.config.turn_min.0 + 3 * *longest) + 1_000_000;
        if seen.gap {
            *since = seen.now;
        } else {
            let late = self.deadline.map_or(0, |due| seen.now.saturating_sub(due));
            let late = if seen.elapsed > bound { seen.elapsed } else { late };
            *since = (*since + late.min(seen.elapsed)).min(seen.now);
        }
        let idle = seen.now - *since;
        if idle.saturating_sub(seen.elapsed) > bound {
            return Err(format!("{gpu} idles for {idle} ns while a container in no gang waits"));
        }
        Ok(())
    }
}

impl Wait {
    /// GPU time of the containers of the gang's class without a share on one of its GPUs.
    fn pool(&mut self, seen: &Observer, mine: LaneKey, me: &LaneState) -> u64 {
        let others = seen.on(me.gpu).map(|(_, state)| state);
        let pays =
            |it: &&LaneState| it.share == 0 && it.record.class == me.record.class && it.pays();
        let pool = self.pools.entry(mine).or_default();
        *pool += others.filter(pays).count() as u64 * seen.elapsed;
        *pool
    }

    /// A gang waits. On one of its GPUs at least, each other container of its class had no more than the queue
    /// owes it and the turns that the gang waits for to have all GPUs at once.
    fn advance(
        &mut self,
        seen: &Observer,
        id: ContainerId,
        gang: &[(LaneKey, &LaneState)],
        longest: &Longest,
    ) -> Result<(), Objection> {
        let on_gpu = |gpu: GpuUuid| seen.on(gpu).filter(move |(key, _)| key.0 != id);
        let mut tuned = Vec::new();
        for (key, state) in gang {
            tuned.push((*key, state.tuned));
            tuned.extend(on_gpu(state.gpu).map(|(key, other)| (*key, other.tuned)));
        }
        // one of its GPUs for which it waited rightly has no turns any more: it may wait for the others anew
        let waited_for = |key: &LaneKey| gang.iter().any(|(own, state)| own == key && gated(state));
        if self.tuned != tuned || !self.rightly.iter().all(waited_for) {
            *self = Wait { tuned, ..Wait::default() };
        }
        // its own, and those of gangs that were ready before it: each once or twice
        self.turns = self.turns.max(seen.lanes.values().map(|state| 3 * state.longest).sum());
        let turns = self.turns;
        let mut starves = true;
        for &(mine, me) in gang {
            let mut over = false;
            let longest = longest.get(&(me.gpu, me.record.class)).copied();
            let pool = self.pool(seen, mine, me) + longest.unwrap_or(0);
            for (&theirs, other) in on_gpu(me.gpu) {
                if other.record.class > me.record.class || !other.pays() {
                    continue;
                }
                let had = self.had.entry((mine, theirs)).or_default();
                *had += seen.elapsed;
                let owed = owed(me, other, pool, rest(seen, me));
                let above = other.record.class < me.record.class;
                over |= !above && *had > owed.saturating_add(turns);
            }
            if over || !gated(me) {
                self.rightly.remove(&mine);
            } else {
                self.rightly.insert(mine);
                starves = false;
            }
        }
        if starves {
            return Err(format!(
                "{id} starves: on each of its GPUs others had more than their part"
            ));
        }
        Ok(())
    }
}
