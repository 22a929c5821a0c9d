//! What each container is due: its share, and a part of the time that shares leave.
//!
//! # Problem
//! A share is reserved, so no weight may dilute it. Its container may want more, beside containers that have
//! only weights. A limit may keep a container below what its weight would give, and others divide the time
//! that it must leave. Containers begin and cease to be runnable all the time.
//!
//! # Idea
//! Of the containers of a class that count, each is due
//! ```text
//!     due = min(cap, share + level * weight)        share = 0 without one
//! ```
//! with the one level at which the dues add up to all of the time. A share without a weight has weight 0: it
//! has no part of time that weights want. Once each weight has its cap, these containers divide the remaining time
//! in proportion to their shares. Weights have a hundredth of the time at least.
//!
//! Dues are the weights of the upper queue ([`super::queues`]): each container with a share weighs its due,
//! the pool weighs the sum of its containers' dues. In the lower queue the weights themselves count.
//!
//! # Who counts
//! A container counts while it is runnable, and after that while it has a lead: time used ahead of its
//! queue. If it ceased to count at once, the others would divide its part without ever having back what it
//! used ahead: a share of 50 that runs for one turn and pauses for two would leave a share of 30 a fifth.
//! When no container of the pool is runnable, its lead counts and not theirs.
//!
//! # Bound
//! Let `lead_i = (F_i - V) * due_i`, GPU time. While i counts, `0 <= lead_i <= l_i`, its longest turn. No
//! change of dues changes a lead. So over any interval in which i counts, its time is
//! `W_i = integral of due_i dV + change of lead_i`. The dues of all that count add up to one at most, so
//! the time of the class is `T <= V' - V + sum of l_j`. Hence, whatever weights, limits and pauses the
//! others have, a container that is always runnable and not at its cap has
//! ```text
//!     W_i >= share_i * (T - sum of l_j) - l_i
//! ```
//! less a hundredth of that where shares add up to 100 and weights want time. While the same containers
//! are runnable, and none of them at its cap, the same holds with the due in the place of the share, less
//! what leads are paid back. What two containers have beyond their shares is then in proportion to weight.

use gpuslice_wire::policy::Class;
use gpuslice_wire::units::Percent;

use super::Turns;
use super::entity::{Entity, QueueWeight};

/// All of a GPU's time, parts per million.
pub(super) const ALL_PPM: u32 = 1_000_000;
/// A percent, parts per million.
const PERCENT_PPM: u32 = ALL_PPM / 100;

impl Turns {
    /// Updates the weights of the upper queues after a container began or ceased to count.
    pub(super) fn weigh(&mut self) {
        for class in Class::ALL {
            // Without a share the pool is alone in the upper queue, and its weight decides nothing.
            if self.entities.iter().any(|it| it.reserved && it.class == class) {
                self.count(class);
                divide(&mut self.entities, class);
                self.reweigh(class);
            }
        }
    }

    /// Sets what is due to each container of `class` to its share, or to nothing if it does not count.
    fn count(&mut self, class: Class) {
        let queues = self.queues[class as usize];
        let runs = |it: &Entity| it.class == class && it.reported.runnable;
        let pool = queues.pool_leads() || self.entities.iter().any(|it| !it.reserved && runs(it));
        for entity in self.entities.iter_mut().filter(|it| it.class == class) {
            let leads = entity.finish > queues.time_of(entity.reserved);
            let counts = entity.reported.runnable || leads && (entity.reserved || pool);
            entity.due = counts.then_some(share(entity) * PERCENT_PPM);
        }
    }

    /// Gives each entry of the upper queue of `class` the weight that is due to it.
    fn reweigh(&mut self, class: Class) {
        let queues = &mut self.queues[class as usize];
        let (upper, mut pool) = (queues.time_of(true), 0);
        for entity in self.entities.iter_mut().filter(|it| it.class == class) {
            let Some(due) = entity.due else { continue };
            let weight = QueueWeight::new(due);
            if !entity.reserved {
                pool += due;
            } else if weight != entity.weight {
                entity.rescale(upper, weight);
            }
        }
        if pool > 0 {
            queues.reweigh(QueueWeight::new(pool));
        }
    }
}

/// The reserved share of `entity`, percent; 0 without one.
pub(super) fn share(entity: &Entity) -> u32 {
    let share = entity.entitlement.share.filter(|_| entity.reserved);
    share.map_or(0, Percent::get)
}

/// Adds to what is due to the containers of `class` that count: each has its share already.
fn divide(all: &mut [Entity], class: Class) {
    let counting = all.iter().filter(|it| it.class == class);
    let shares: u32 = counting.filter_map(|it| it.due).sum();
    let rest = ALL_PPM.saturating_sub(shares).max(PERCENT_PPM);
    let rest = fill(all, class, rest, |it| it.surplus_weight);
    let alone = |it: &Entity| if it.surplus_weight == 0 { share(it) } else { 0 };
    fill(all, class, rest, alone);
}

/// Divides `left` parts per million by weight among containers that count and are below their caps. Returns
/// what all of them must leave.
fn fill(all: &mut [Entity], class: Class, mut left: u32, weight: fn(&Entity) -> u32) -> u32 {
    loop {
        let room = |it: &Entity| {
            let room = it.bucket.cap().ppm().saturating_sub(it.due?);
            (it.class == class && room > 0).then_some(room)
        };
        let open = all.iter().filter(|it| room(it).is_some());
        let weights: u64 = open.map(|it| u64::from(weight(it))).sum();
        if weights == 0 {
            return left;
        }
        let part = |weight: u64| (u64::from(left) * weight / weights) as u32;
        let mut taken = 0;
        for entity in all.iter_mut() {
            let part = part(weight(entity).into());
            if let Some(room) = room(entity).filter(|room| *room <= part) {
                entity.due = entity.due.map(|due| due + room);
                taken += room;
            }
        }
        if taken == 0 {
            // parts of the sums, so that they add up to `left` exactly
            let mut sum = 0;
            for entity in all.iter_mut().filter(|it| room(it).is_some()) {
                let before = part(sum);
                sum += u64::from(weight(entity));
                entity.due = entity.due.map(|due| due + part(sum) - before);
            }
            return 0;
        }
        left -= taken;
    }
}
