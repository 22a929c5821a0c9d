//! Caps on time: a token bucket that fills with time and empties with use.
//!
//! A cap of c fills `c` of every second into the bucket, up to `c` times the burst; using the GPU empties
//! it. Turns are granted while it is not empty. A running kernel cannot be stopped, so a turn may take out
//! more than the level; the container pays the debt by waiting. Hence, whatever the kernels' lengths,
//! `used(0, t) <= c * t + c * burst + one turn`, and in the long run exactly `c`.
//!
//! A cap may change at any time; level and debt stay the same GPU time. A container without a cap has a
//! bucket too, filled by all time: so no change forgives a debt, and the bound holds with the integral of c
//! in the place of `c * t`.
//!
//! The overhead of switches (see [`super::overhead`]) belongs to no container. It comes out of idle time if
//! the GPU has any. Otherwise a cap is a fraction of the rest, so that caps which add up to all of the time
//! stay in proportion.
//!
//! An empty bucket pays out again only after some time has gathered. Otherwise a cap of half would run in
//! slivers of the shortest turn, and switches would use up the GPU.
//!
//! A share is a promise ([`super::dues`]), also under a cap. While its container waits behind others of its
//! class, the share's part of the time is owed to it and does not overflow: otherwise a neighbour with
//! kernels of seconds would leave a share of half a tenth. The queues bound that amount: its part of a turn
//! of each. What the cap allows beyond the share overflows as ever.

use gpuslice_wire::units::{Duration, Percent};

use super::policy::Fraction;
use crate::config::Config;

/// The limit above which incoming time is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FillLimit {
    /// The depth, and none for the share's part of the time: that is owed.
    Owed,
    /// The present level, if it is above the depth: it stays, and no more comes in.
    Level,
    /// The depth.
    Depth,
}

/// The bucket of a container. Levels are in ns x the cap's whole, so that nothing is rounded while the cap
/// stays.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    cap: Fraction,
    /// The share, percent; 0 without one. The cap is not below it.
    share: u32,
    level: i128,
    depth: i128,
    /// The level at which an emptied bucket pays out again.
    enough: i128,
    emptied: bool,
    /// The time withheld from it for the overhead of switches.
    withheld: i128,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn new(cap: Fraction, config: &Config) -> Bucket {
        let mut bucket =
            Bucket { cap, share: 0, level: 0, depth: 0, enough: 0, emptied: false, withheld: 0 };
        bucket.resize(config);
        bucket.level = bucket.depth;
        bucket
    }

    fn resize(&mut self, config: &Config) {
        let times = |span: Duration, of: u32| i128::from(span.0) * i128::from(of);
        let (part, whole) = (self.cap.part(), self.cap.whole());
        self.depth = times(config.burst, part).max(i128::from(whole));
        let enough = times(config.round, part).max(times(config.turn_min, whole));
        self.enough = enough.min(self.depth);
    }

    /// Changes cap and share. The level stays, also above the new depth: it may be owed.
    pub(crate) fn set(&mut self, cap: Fraction, share: Option<Percent>, config: &Config) {
        self.share = share.map_or(0, Percent::get);
        if cap == self.cap {
            return;
        }
        let (was, is) = (i128::from(self.cap.whole()), i128::from(cap.whole()));
        self.level = (self.level * is).div_euclid(was);
        (self.cap, self.withheld) = (cap, 0);
        self.resize(config);
        self.emptied = self.level <= 0 || self.emptied && self.level < self.enough;
    }

    /// Drops what is above the depth.
    pub(crate) fn overflow(&mut self) {
        self.level = self.level.min(self.depth);
    }

    /// The cap.
    pub(crate) fn cap(&self) -> Fraction {
        self.cap
    }

    /// Whether it pays for a turn now.
    pub(crate) fn funded(&self) -> bool {
        !self.emptied || !self.cap.limits()
    }

    /// Adds the part of elapsed time.
    pub(crate) fn fill(&mut self, elapsed: Duration, limit: FillLimit) {
        let more = i128::from(elapsed.0) * i128::from(self.cap.part());
        match limit {
            FillLimit::Owed => {
                let whole = i128::from(self.cap.whole());
                let owed = i128::from(elapsed.0) * whole * i128::from(self.share) / 100;
                // what was withheld would not have overflowed: it stays
                self.add(more, self.depth.max(self.level.saturating_add(owed)));
            }
            FillLimit::Level => self.pour(more, self.depth.max(self.level)),
            FillLimit::Depth => self.pour(more, self.depth),
        }
    }

    /// Takes out used GPU time.
    pub(crate) fn spend(&mut self, used: Duration) {
        let less = i128::from(used.0) * i128::from(self.cap.whole());
        self.level = self.level.saturating_sub(less);
        if self.level <= 0 {
            self.emptied = true;
        }
    }

    /// Puts back time that was taken out and not used.
    pub(crate) fn refund(&mut self, unused: Duration) {
        let limit = self.depth.max(self.level);
        self.pour(i128::from(unused.0) * i128::from(self.cap.whole()), limit);
    }

    /// Takes out the part of `lost`, which no container could use.
    pub(crate) fn withhold(&mut self, lost: Duration) {
        let less = i128::from(lost.0) * i128::from(self.cap.part());
        self.level = self.level.saturating_sub(less);
        self.withheld = self.withheld.saturating_add(less);
    }

    /// The GPU was idle for `idle`: that much of the withheld time could have been used.
    pub(crate) fn make_up(&mut self, idle: Duration) {
        let more = i128::from(idle.0) * i128::from(self.cap.part());
        let more = more.min(self.withheld);
        self.withheld -= more;
        self.pour(more, self.depth.max(self.level));
    }

    /// Takes in `more`, up to the limit. Withheld time that would have overflowed is lost, too.
    fn pour(&mut self, more: i128, limit: i128) {
        self.add(more, limit);
        let room = limit.saturating_sub(self.level).max(0);
        self.withheld = self.withheld.min(room);
    }

    fn add(&mut self, more: i128, limit: i128) {
        self.level = self.level.saturating_add(more).min(limit);
        if self.level >= self.enough {
            self.emptied = false;
        }
    }

    /// How long a turn that starts now is paid for; `None` without a limit.
    pub(crate) fn lasts(&self) -> Option<Duration> {
        let drain = i128::from(self.cap.whole() - self.cap.part());
        (drain > 0).then(|| Duration((self.level.max(0) / drain) as u64))
    }

    /// The time until an empty bucket pays out.
    pub(crate) fn pause(&self) -> Duration {
        let missing = self.enough.saturating_sub(self.level).max(0).unsigned_abs();
        let pause = missing.div_ceil(u128::from(self.cap.part()));
        Duration(u64::try_from(pause).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses all time allowed for 100 s, in turns of all lengths.
    fn run(parts: &[(u32, u32)]) -> (u64, u64) {
        let config = Config::default();
        let cap = |n: usize| Fraction::new(parts[n % parts.len()].0, parts[n % parts.len()].1);
        let mut bucket = Bucket::new(cap(0), &config);
        let (mut used, mut due, mut now) = (0u64, 0f64, 0u64);
        for n in 1u64.. {
            if now >= 100_000_000_000 {
                break;
            }
            bucket.set(cap(n as usize), None, &config);
            let funded = bucket.funded();
            let turn = Duration(n * 7_919_000 % 50_000_000 + 1);
            let span = if funded { turn } else { bucket.pause() };
            if funded {
                used += span.0;
                bucket.spend(span);
            }
            bucket.fill(span, FillLimit::Depth);
            now += span.0;
            let cap = bucket.cap();
            due += span.0 as f64 * f64::from(cap.part()) / f64::from(cap.whole());
        }
        (used, due as u64)
    }

    #[test]
    fn the_long_run_is_exact_for_turns_of_any_length() {
        for (part, whole) in [(1, 100), (1, 16), (1, 3), (2, 7), (1, 2), (99, 100)] {
            let (used, due) = run(&[(part, whole)]);
            let slack = 100_000_000 * u64::from(part) / u64::from(whole) + 50_000_000;
            assert!(used <= due + slack, "{part}/{whole}: {used} of {due}");
            // it was always runnable, so it also gets its part, except for a debt of one turn
            assert!(used + 50_000_000 >= due, "{part}/{whole}: {used} of {due}");
        }
    }

    #[test]
    fn no_change_of_cap_forgives_or_lends() {
        let (used, due) = run(&[(1, 3), (2, 7), (1, 1), (1, 16)]);
        assert!(used <= due + 150_000_000, "{used} of {due}");
        let config = Config::default();
        let mut bucket = Bucket::new(Fraction::new(1, 4), &config);
        bucket.spend(Duration::from_millis(525));
        for cap in [(1, 7), (1, 1), (1, 256), (1, 4)] {
            bucket.set(Fraction::new(cap.0, cap.1), None, &config);
        }
        // half a second of debt and the 4 ms to pay out again, at a quarter
        assert_eq!(bucket.pause(), Duration(2_016_000_000));
    }

    /// Whether it pays for a turn after a change of cap: by what it has then, and not again before it has enough.
    #[test]
    fn a_change_of_cap_empties_and_fills_no_bucket() {
        let config = Config::default();
        let ms = |ms: u64| Duration::from_millis(ms);
        let (half, tenth) = (Fraction::new(1, 2), Fraction::new(1, 10));
        let funded = |from: Fraction, spent: Duration, filled: u64, to: Fraction| {
            let mut bucket = Bucket::new(from, &config);
            bucket.spend(spent);
            bucket.fill(Duration(filled), FillLimit::Depth);
            bucket.set(to, None, &config);
            bucket.funded()
        };
        assert!(funded(half, ms(49), 0, tenth), "not emptied, and less than enough");
        assert!(!funded(half, ms(50), 1, tenth), "emptied, and less than enough");
        // a round's part of a half, 8 ms, is enough of a tenth
        assert!(funded(half, ms(50), 15_999_998, tenth));
        assert!(!funded(half, ms(51), 0, tenth), "in debt");
        // of half, 8 ms are missing; of a tenth, 1.6 ms, which is exactly what 3.2 ms bring
        assert!(funded(half, ms(50), 3_200_000, tenth), "exactly enough");
        assert!(!funded(half, ms(50), 3_199_998, tenth), "two nanoseconds are missing");
    }

    #[test]
    fn the_whole_is_never_empty() {
        let mut bucket = Bucket::new(Fraction::ALL, &Config::default());
        assert_eq!(bucket.lasts(), None);
        for _ in 0..1_000 {
            bucket.spend(Duration::from_millis(10));
            bucket.fill(Duration::from_millis(10), FillLimit::Depth);
            assert!(bucket.funded());
        }
    }

    #[test]
    fn owed_time_does_not_overflow() {
        let config = Config::default();
        let half = Fraction::new(1, 2);
        let mut bucket = Bucket::new(half, &config);
        bucket.set(half, Percent::new(50).ok(), &config);
        let second = Duration::from_millis(1_000);
        bucket.fill(second, FillLimit::Owed);
        bucket.fill(second, FillLimit::Level);
        // half a second and the burst of 50 ms
        assert_eq!(bucket.lasts(), Some(Duration::from_millis(1_100)));
        bucket.fill(Duration(0), FillLimit::Depth);
        assert_eq!(bucket.lasts(), Some(Duration::from_millis(100)));
        // of a cap above the share, the share's part: a tenth of a second
        bucket.set(half, Percent::new(10).ok(), &config);
        bucket.fill(second, FillLimit::Owed);
        assert_eq!(bucket.lasts(), Some(Duration::from_millis(300)));
        // another container comes or goes, and the cap changes: the time stays owed
        bucket.set(Fraction::new(2, 5), Percent::new(10).ok(), &config);
        assert_eq!(bucket.lasts(), Some(Duration::from_millis(250)));
        bucket.set(half, Percent::new(10).ok(), &config);
        bucket.overflow();
        assert_eq!(bucket.lasts(), Some(Duration::from_millis(100)));
    }

    #[test]
    fn time_that_was_not_used_is_put_back_up_to_the_depth() {
        let mut bucket = Bucket::new(Fraction::new(1, 2), &Config::default());
        let lasts = |it: &Bucket| it.lasts().map(|it| it.0 / 1_000_000);
        bucket.spend(Duration::from_millis(30));
        assert_eq!(lasts(&bucket), Some(40));
        bucket.refund(Duration::from_millis(10));
        assert_eq!(lasts(&bucket), Some(60));
        bucket.refund(Duration::from_millis(1_000));
        assert_eq!(lasts(&bucket), Some(100));
    }

    /// In fifths of a ms: of each lost or idle one 2 are its part, and each that it uses takes 5.
    #[test]
    fn idle_time_makes_up_for_what_was_withheld_and_for_no_more() {
        let mut bucket = Bucket::new(Fraction::new(2, 5), &Config::default());
        let level = |it: &Bucket| it.level / 1_000_000;
        bucket.withhold(Duration::from_millis(30));
        assert_eq!(level(&bucket), 140, "of 200");
        bucket.spend(Duration::from_millis(20));
        assert_eq!(level(&bucket), 40);
        let after = [10, 1_000, 1_000].map(|idle| {
            bucket.make_up(Duration::from_millis(idle));
            level(&bucket)
        });
        assert_eq!(after, [60, 100, 100]);
    }

    /// An empty bucket pays out when a round's part has gathered, not in slivers.
    #[test]
    fn an_empty_bucket_pays_out_in_no_slivers() {
        let mut bucket = Bucket::new(Fraction::new(1, 4), &Config::default());
        bucket.spend(Duration::from_millis(25));
        assert!(!bucket.funded());
        bucket.fill(Duration(bucket.pause().0 - 1), FillLimit::Depth);
        assert!(!bucket.funded(), "a nanosecond is missing");
        bucket.fill(Duration(1), FillLimit::Depth);
        assert!(bucket.funded());
        assert_eq!(bucket.lasts(), Some(Duration(5_333_333)));
    }
}
