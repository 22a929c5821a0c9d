//! How long a process keeps its turn while it has nothing in flight.
//!
//! # Problem
//! A program that waits for its kernel before it launches the next one leaves a *gap*: from the end of its work to
//! its next launch. If it keeps its turn over the gap, the GPU idles for that long. If it ends its turn, the GPU
//! changes hands twice before it can go on. So a training step that pauses for 100 µs should keep its turn, and a
//! service whose next request is 10 ms away should hold nothing. When a gap begins, its length is unknown.
//!
//! # Idea
//! This is the problem of renting or buying. Keeping the turn for `g` costs `g`; ending it costs a *price* `P`. The
//! best choice in hindsight costs `min(g, P)`. A rule keeps the turn for some time `t`, and then ends it: it costs
//! `g` if `g <= t`, else `t + P`. With `t = P` that is never more than twice the best, but exactly twice for each
//! gap that is long. The gaps of a program resemble each other, so a histogram of the last ones, in which older
//! ones count less, gives the `t` of the least expected cost; of several, the longest. That is 0 if most gaps are
//! long, about twice the usual gap if few are, and `P` if none is. For threads are late at times: each gap also
//! counts a little as a longer one.
//!
//! A history may mislead, so a *balance* `B` bounds its use. It holds what earlier gaps cost less than twice the
//! best; [`Gaps::hold`] stakes half of it:
//! ```text
//! t  >=  P - B / 2                                     B += 2 * best - cost, after each gap
//! ```
//!
//! # Bound
//! In any sequence of gaps, an adversary's too, all costs together are at most twice the best in hindsight, plus
//! [`ADVANCE_NS`]. A gap takes the most from the balance if it ends just after `t`, where `t <= P`:
//! `2 t - (t + P) = t - P >= -B / 2`. So `B` stays positive or 0, and `B` is the advance plus twice the best minus
//! the cost of all gaps so far. It is limited to [`BALANCE_NS`], so the same holds for any part of a sequence, with
//! that in place of the advance. Without an advance no rule can learn within twice the best: it would have to hold
//! for `P` in each long gap, for ever. A long gap adds `P - t` to the balance, half of `B`, so a balance that an
//! adversary took is regained in a few gaps.
//!
//! # Price
//! Two hand-overs ([`CHANGE_NS`]). But a program also loses its place: the next container's kernel may be as long
//! as its own, and the two would alternate whatever their weights are. So the price is at least half of the work
//! since the last gap: up to there, a holder uses two thirds of the GPU. It is never more than the page's `idle_us`.
//!
//! # Why here
//! A process knows its gaps exactly; the daemon would have to be told of each. A false answer gains nothing: the
//! daemon charges a turn until it has ended, held or busy. A container keeps its turn while any of its processes
//! does, so each process decides for its own gaps.
#![forbid(unsafe_code)]

/// GPU time that giving the GPU up and getting it back costs, ns: two hand-overs of 0.2 ms (SPECIFICATION, "How
/// exactly, how fast").
pub const CHANGE_NS: u64 = 400_000;
/// The balance at the beginning, ns.
pub const ADVANCE_NS: u64 = CHANGE_NS;
/// The largest balance, ns.
pub const BALANCE_NS: u64 = 20 * CHANGE_NS;
/// The price is at least the work since the last gap divided by this.
const WORK_PER_GAP: u64 = 2;
/// Each gap takes one part in so many from the weights of earlier ones.
const MEMORY: u32 = 16;
/// The weight of a new gap in its class, and in each of the next ones up to twice its length.
const FRESH: u32 = 1 << 16;
const FRESH_LATE: u32 = FRESH / 64;
/// Classes of gaps: four for each doubling, from 2 µs to 1 s, and one for longer gaps.
const CLASSES: usize = 80;
const PER_DOUBLING: usize = 4;

/// The longest gap of a class, ns: 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8 µs and so on.
const fn longest(class: usize) -> u64 {
    ((PER_DOUBLING + class % PER_DOUBLING) as u64 * 500) << (class / PER_DOUBLING)
}

/// The class of a gap.
fn class_of(gap: u64) -> usize {
    (0..CLASSES - 1).take_while(|class| longest(*class) < gap).count()
}

/// The gaps of one process on one GPU.
#[derive(Clone, Debug)]
pub struct Gaps {
    weights: [u32; CLASSES],
    balance: u64,
    /// Work since the last gap, without the present stretch, ns.
    work: u64,
    /// Begin of the present stretch of work; 0 for none.
    began: u64,
}

impl Default for Gaps {
    fn default() -> Gaps {
        Gaps { weights: [0; CLASSES], balance: ADVANCE_NS, work: 0, began: 0 }
    }
}

impl Gaps {
    /// A stretch of work begins at `now`, ns; the one before ended at `ended`.
    pub fn begins(&mut self, ended: u64, now: u64) {
        self.work = self.work_until(ended);
        self.began = now;
    }

    fn work_until(&self, ended: u64) -> u64 {
        let stretch = if self.began == 0 { 0 } else { ended.saturating_sub(self.began) };
        self.work.saturating_add(stretch)
    }

    /// The price of ending the turn after work that ended at `ended`, at most `most`, ns.
    fn price(&self, ended: u64, most: u64) -> u64 {
        (self.work_until(ended) / WORK_PER_GAP).max(CHANGE_NS).min(most)
    }

    /// How long to keep the turn after work that ended at `ended`; at most `most`, ns.
    #[must_use]
    pub fn hold(&self, ended: u64, most: u64) -> u64 {
        let price = self.price(ended, most);
        self.cheapest(price).max(price.saturating_sub(self.balance / 2)).min(price)
    }

    /// The time of the least expected cost, by the history alone; without one, the price.
    fn cheapest(&self, price: u64) -> u64 {
        let all: u64 = self.weights.iter().copied().map(u64::from).sum();
        if all == 0 {
            return price;
        }
        // cost of gaps that end in time, and weight of the others
        let (mut ended, mut left) = (0u64, all);
        let mut best = (left.saturating_mul(price), 0);
        let mut consider = |ended: u64, left: u64, hold: u64| {
            let cost = ended.saturating_add(left.saturating_mul(hold.saturating_add(price)));
            if cost <= best.0 {
                best = (cost, hold);
            }
        };
        for (class, weight) in self.weights.iter().enumerate() {
            let hold = longest(class);
            if hold > price {
                break;
            }
            let weight = u64::from(*weight);
            left -= weight;
            ended = ended.saturating_add(weight.saturating_mul(hold - hold / 12)); // a mean of the class
            consider(ended, left, hold);
        }
        consider(ended, left, price);
        best.1
    }

    /// Launches go without turns: the present gap is not observed.
    pub fn forget(&mut self) {
        (self.work, self.began) = (0, 0);
    }

    /// The gap after work that ended at `ended` is over at `now`: learns from it, once.
    pub fn over(&mut self, ended: u64, now: u64, most: u64) {
        if self.began == 0 {
            return;
        }
        let (gap, price, hold) =
            (now.saturating_sub(ended), self.price(ended, most), self.hold(ended, most));
        let cost = if gap <= hold { gap } else { hold.saturating_add(price) };
        let twice = gap.min(price).saturating_mul(2);
        self.balance = self.balance.saturating_add(twice).saturating_sub(cost).min(BALANCE_NS);
        for weight in &mut self.weights {
            *weight -= weight.div_ceil(MEMORY);
        }
        let class = class_of(gap);
        self.weights[class] += FRESH;
        for late in class + 1..=class + PER_DOUBLING {
            self.weights[late.min(CLASSES - 1)] += FRESH_LATE;
        }
        self.forget();
    }
}

#[cfg(test)]
mod tests;
