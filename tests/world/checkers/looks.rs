//! Amounts measured by NVML, and when they count.

/// Two measurements confirm each other from this far apart, ns.
const APART: u64 = 300_000_000;

/// A measured amount: more counts when two measurements showed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The amount that counts.
    pub counts: u64,
    first: Option<u64>,
    least: u64,
}

impl Seen {
    /// So much counts.
    #[must_use]
    pub fn of(counts: u64) -> Seen {
        Seen { counts, ..Seen::default() }
    }

    /// Takes in a measurement at `now`.
    pub fn look(&mut self, now: u64, amount: u64) {
        if amount <= self.counts {
            *self = Seen { counts: amount, ..Seen::default() };
            return;
        }
        let Some(first) = self.first else {
            (self.first, self.least) = (Some(now), amount);
            return;
        };
        self.least = self.least.min(amount);
        if now >= first + APART {
            self.counts = self.least;
            (self.first, self.least) = ((amount > self.counts).then_some(now), amount);
        }
    }
}
