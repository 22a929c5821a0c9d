//! Amounts of which NVML tells, and when they count.

/// Looks at NVML confirm each other from this far apart, ns.
const APART: u64 = 300_000_000;

/// An amount that is looked at: more counts when it was there at two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// What counts.
    pub counts: u64,
    first: Option<u64>,
    least: u64,
}

impl Seen {
    /// One more look, at `now`.
    pub fn look(&mut self, now: u64, amount: u64) {
        if amount <= self.counts {
            *self = Seen {
                counts: amount,
                ..Seen::default()
            };
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
