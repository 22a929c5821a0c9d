//! Hard shares: a bucket that fills with time and empties with use.
//!
//! A share of c fills `c` of every second into the bucket, up to `c` times the burst; using the
//! GPU empties it. Turns are given while it is not empty. A kernel cannot be stopped, so a turn
//! may take out more than is in; the debt is paid by waiting. Hence, whatever the kernels'
//! lengths, `used(0, t) <= c * t + c * burst + one turn`, and in the long run exactly `c`.
//!
//! An empty bucket pays out again only when some has gathered: else a share of half would run
//! in slivers of the shortest turn, and handing over would eat the GPU.

use gpuslice_wire::units::{Duration, Percent};

use crate::config::Config;

/// A hard share's account. Levels are in percent x ns, so that nothing is rounded.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    percent: i64,
    level: i64,
    depth: i64,
    /// Level at which an emptied bucket pays out again.
    enough: i64,
    emptied: bool,
}

const WHOLE: i64 = 100;

fn ns(span: Duration) -> i64 {
    i64::try_from(span.0 / 1_000)
        .unwrap_or(i64::MAX / 1_000_000)
        .saturating_mul(1_000)
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn new(share: Percent, config: &Config) -> Bucket {
        let percent = i64::from(share.get());
        let depth = percent.saturating_mul(ns(config.burst)).max(WHOLE);
        let round = percent.saturating_mul(ns(config.round));
        let enough = round
            .max(WHOLE.saturating_mul(ns(config.turn_min)))
            .min(depth);
        Bucket {
            percent,
            level: depth,
            depth,
            enough,
            emptied: false,
        }
    }

    /// Pays for a turn now.
    pub(crate) fn funded(&self) -> bool {
        !self.emptied
    }

    /// Time passed.
    pub(crate) fn fill(&mut self, passed: Duration) {
        let more = self
            .percent
            .saturating_mul(passed.0.min(i64::MAX as u64) as i64);
        self.level = self.level.saturating_add(more).min(self.depth);
        if self.level >= self.enough {
            self.emptied = false;
        }
    }

    /// GPU time was used.
    pub(crate) fn spend(&mut self, used: Duration) {
        let less = WHOLE.saturating_mul(used.0.min(i64::MAX as u64) as i64);
        self.level = self.level.saturating_sub(less);
        if self.level <= 0 {
            self.emptied = true;
        }
    }

    /// How long a turn that starts now is paid for; `None` for ever.
    pub(crate) fn lasts(&self) -> Option<Duration> {
        let drain = WHOLE - self.percent;
        (drain > 0).then(|| Duration((self.level.max(0) / drain) as u64))
    }

    /// How long until an empty bucket pays out.
    pub(crate) fn pause(&self) -> Duration {
        let missing = self.enough.saturating_sub(self.level).max(0);
        Duration(missing.unsigned_abs().div_ceil(self.percent.unsigned_abs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_long_run_is_exact_whatever_a_turn_takes() {
        for percent in [1, 10, 33, 50, 99] {
            let share = Percent::new(percent).expect("a share");
            let mut bucket = Bucket::new(share, &Config::default());
            let (mut used, mut now, end) = (0u64, 0u64, 100_000_000_000);
            for turn in (1u64..).map(|n| n * 7_919_000 % 50_000_000 + 1) {
                if now >= end {
                    break;
                }
                let span = if bucket.funded() {
                    Duration(turn)
                } else {
                    bucket.pause()
                };
                if bucket.funded() {
                    used += span.0;
                    bucket.spend(span);
                }
                bucket.fill(span);
                now += span.0;
            }
            let due = now / 100 * u64::from(percent);
            let slack = 100_000_000 / 100 * u64::from(percent) + 50_000_000;
            assert!(used <= due + slack, "{percent} %: {used} of {due}");
            // it wanted all the time, so it also gets its share, but for a debt of one turn
            assert!(used + 50_000_000 >= due, "{percent} %: {used} of {due}");
        }
    }

    #[test]
    fn the_whole_is_never_empty() {
        let mut bucket = Bucket::new(Percent::new(100).expect("a share"), &Config::default());
        assert_eq!(bucket.lasts(), None);
        for _ in 0..1_000 {
            bucket.spend(Duration::from_millis(10));
            bucket.fill(Duration::from_millis(10));
            assert!(bucket.funded());
        }
    }
}
