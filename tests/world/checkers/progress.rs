//! Who waits is served: while i waits, each other of its class gets at most what the line owes
//! it, `l_i * w_j / w_i + 2 l_j` (`l_i` with a debt of a shortest turn, which keeps nobody from going on where turns
//! begin), and then it is i's turn. Since the GPU does not idle either, every wait ends.

use std::collections::BTreeMap;

use super::Objection;
use crate::observer::{Observer, Place, Seat};

/// What others had since each one waits.
#[derive(Debug, Default)]
pub struct Progress(BTreeMap<(Place, Place), Had>);

/// How much, and under which weights and classes of the two.
#[derive(Clone, Copy, Debug, Default)]
struct Had {
    time: u64,
    tuned: (u64, u64),
}

impl Progress {
    /// Time passed.
    ///
    /// # Errors
    /// The objection.
    pub fn advance(&mut self, seen: &Observer) -> Result<(), Objection> {
        let waits = |place: &Place| {
            seen.seats.get(place).is_some_and(|seat| {
                let free = !seat.capped() && !seat.passed && !seat.gang;
                free && seat.waits.is_some() && !seen.gap
            })
        };
        self.0
            .retain(|(i, j), _| waits(i) && seen.seats.contains_key(j));
        for (&i, me) in seen.seats.iter().filter(|(place, _)| waits(place)) {
            for (&j, other) in seen.on(me.gpu).filter(|(_, other)| beside(me, other)) {
                let had = self.0.entry((i, j)).or_default();
                let tuned = (me.tuned, other.tuned);
                if had.tuned != tuned {
                    *had = Had { time: 0, tuned };
                }
                had.time += if other.pays() { seen.passed } else { 0 };
                had.time = had.time.saturating_sub(other.spared);
                let (bound, had) = (bound(seen, me, other), had.time);
                if had > bound {
                    return Err(format!(
                        "{} waits while {} had {had} ns of at most {bound}",
                        i.0, j.0
                    ));
                }
            }
        }
        Ok(())
    }
}

fn beside(me: &Seat, other: &Seat) -> bool {
    let counts = other.pays() || other.spared > 0;
    // who was passed runs beside others, and has turns of its own beside that
    let waited_for = !other.passed || other.holds();
    other.record.class == me.record.class && counts && waited_for
}

fn bound(seen: &Observer, me: &Seat, other: &Seat) -> u64 {
    let weight = |seat: &Seat| u128::from(seat.weight);
    // what it owed when turns began, and was let go on with, comes on top of its longest turn
    let mine = u128::from(me.longest + seen.config.turn_min.0) * weight(other) / weight(me);
    // a gang that was called on all its GPUs comes, whoever else does on one of them
    let turns = if other.gang { 3 } else { 2 };
    u64::try_from(mine)
        .unwrap_or(u64::MAX)
        .saturating_add(turns * other.longest + 1_000)
}
