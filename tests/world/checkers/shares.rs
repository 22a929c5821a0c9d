//! GPU time by weight, and hard shares.
//!
//! Time over weight is kept in 2^-20 ns, so that rounding stays far below the slack of 1 µs.

use std::collections::BTreeMap;

use super::Objection;
use crate::observer::{Observer, Place, Seat};

const SLACK: i128 = 1_000 << 20;

fn over_weight(ns: u64, seat: &Seat) -> i128 {
    (i128::from(ns) << 20) / i128::from(seat.record.weight.get())
}

/// Two containers that have both wanted a GPU since some time.
#[derive(Debug, Default)]
struct Pair {
    /// `W_i/w_i - W_j/w_j` since then, and how far it went to both sides.
    lead: i128,
    least: i128,
    most: i128,
    /// Longest turns in that time, and the last ones before it, over weight.
    first: i128,
    second: i128,
}

/// The bound of start-time fair queueing: over every interval in which i and j both want the
/// GPU, `|W_i/w_i - W_j/w_j| <= l_i/w_i + l_j/w_j`.
#[derive(Debug, Default)]
pub struct Pairs(BTreeMap<(Place, Place), Pair>);

impl Pairs {
    /// Time passed.
    ///
    /// # Errors
    /// The objection.
    pub fn advance(&mut self, seen: &Observer) -> Result<(), Objection> {
        let lines: Vec<(&Place, &Seat)> = seen
            .seats
            .iter()
            .filter(|(_, seat)| in_line(seat) && !seen.gap)
            .collect();
        self.0.retain(|(a, b), _| {
            let still = |place: &Place| seen.seats.get(place).is_some_and(in_line);
            !seen.gap && still(a) && still(b)
        });
        for (n, &(i, a)) in lines.iter().enumerate() {
            for &(j, b) in &lines[n + 1..] {
                if a.gpu == b.gpu && a.record.class == b.record.class {
                    let pair = self.0.entry((*i, *j)).or_default();
                    pair.advance(seen.passed, a, b);
                    pair.check()
                        .map_err(|why| format!("{} and {}: {why}", i.0, j.0))?;
                }
            }
        }
        Ok(())
    }
}

/// Competes by weight alone.
fn in_line(seat: &Seat) -> bool {
    seat.wants() && !seat.passed && seat.record.share.is_none()
}

impl Pair {
    fn advance(&mut self, passed: u64, a: &Seat, b: &Seat) {
        let got = |seat: &Seat| {
            if seat.pays() {
                over_weight(passed, seat)
            } else {
                0
            }
        };
        self.lead += got(a) - got(b);
        self.least = self.least.min(self.lead);
        self.most = self.most.max(self.lead);
        self.first = self.first.max(over_weight(a.stretch.max(a.last), a));
        self.second = self.second.max(over_weight(b.stretch.max(b.last), b));
    }

    fn check(&self) -> Result<(), Objection> {
        let (drift, bound) = (self.most - self.least, self.first + self.second + SLACK);
        if drift <= bound {
            return Ok(());
        }
        let ns = |value: i128| value >> 20;
        Err(format!(
            "shares drift by {} ns/weight, the bound is {}",
            ns(drift),
            ns(bound)
        ))
    }
}

/// Hard shares: over every interval t, `used <= c t + c burst + longest turn`.
#[derive(Debug, Default)]
pub struct Caps(BTreeMap<Place, i128>);

impl Caps {
    /// Time passed.
    ///
    /// # Errors
    /// The objection.
    pub fn advance(&mut self, seen: &Observer) -> Result<(), Objection> {
        self.0.retain(|place, _| seen.seats.contains_key(place));
        for (&place, seat) in &seen.seats {
            let Some(share) = seat.record.share.map(|share| i128::from(share.get())) else {
                continue;
            };
            let used = if seat.pays() {
                i128::from(seen.passed)
            } else {
                0
            };
            // the most that any interval ending now used beyond its share, in percent x ns
            let excess = self.0.entry(place).or_default();
            *excess = (*excess + 100 * used - share * i128::from(seen.passed)).max(0);
            let burst = share * i128::from(seen.config.burst.0);
            let bound = burst + 100 * (i128::from(seat.longest) + (SLACK >> 20));
            if *excess > bound {
                return Err(format!(
                    "{} of hard share {share} % is {} ns ahead of it, the bound is {}",
                    place.0,
                    *excess / 100,
                    bound / 100
                ));
            }
        }
        Ok(())
    }
}
