//! Estimates the run time of a launch, learned per kernel and shape in a small table.
//!
//! Kernels last from 2 µs to many ms, so bounding the work in flight needs time, not a count. A key
//! is a kernel with its grid and block (or a graph); its estimate is a moving mean of times measured by
//! fences in the stream. An unknown key gets a high guess, which follows the measured times
//! asymmetrically: quickly up, slowly down. A wrong estimate costs some idle time or some
//! overrun, but no wrong charge: the daemon charges by its own clock.
//!
//! Copies and fills are in the same table. Their time grows with their size, but small ones are dominated by
//! the start-up cost. So each power of two has an estimate of its own, and within it time is proportional
//! to size: a [`Task`] says how many parts of its key's whole it is.
#![forbid(unsafe_code)]

/// A digest of a kernel with its grid and block, or of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub u64);

impl Key {
    /// Folds numbers into a key; never zero, which marks an empty entry.
    #[must_use]
    pub fn of(parts: &[u64]) -> Key {
        let mix = |hash: u64, part: &u64| {
            let x = (hash ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            x ^ (x >> 29)
        };
        Key(parts.iter().fold(0x5151_c0de, mix) | 1)
    }
}

/// A whole, in parts: estimates are for a whole.
pub const WHOLE: u32 = 1 << 10;

/// A launch to be estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Tasks with the same key take the same time per part.
    pub key: Key,
    /// Its size, in parts of [`WHOLE`].
    pub parts: u32,
    /// The expected time while the key is unknown, ns; 0 for the general guess.
    pub guess: u64,
}

impl Task {
    /// A launch: always a whole.
    #[must_use]
    pub const fn launch(key: Key) -> Task {
        Task { key, parts: WHOLE, guess: 0 }
    }

    /// A copy or fill of `bytes`, of the transfer kind `kind`. While it is unknown, the guess assumes a rate
    /// of `GUESS_BYTES_PER_US`.
    #[must_use]
    pub fn of_bytes(kind: u64, bytes: u64) -> Task {
        let bytes = bytes.max(1);
        let class = bytes.ilog2();
        // Less than twice the class, so it fits.
        let parts = (u128::from(bytes) * u128::from(WHOLE)) >> class;
        Task {
            key: Key::of(&[kind, u64::from(class)]),
            parts: parts as u32,
            guess: (GUESS_BYTES_NS + bytes.saturating_mul(1_000) / GUESS_BYTES_PER_US).min(NS_MAX),
        }
    }

    /// The time of a whole, if `parts` took `ns`.
    fn whole(parts: u64, ns: u64) -> u64 {
        let whole = u128::from(ns) * u128::from(WHOLE) / u128::from(parts.max(1));
        u64::try_from(whole).unwrap_or(NS_MAX)
    }
}

/// The expected run time of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Nanoseconds.
    pub ns: u64,
    /// Whether it was measured, or is a guess.
    pub known: bool,
    /// Whether the driver has accepted a launch with the same key.
    pub tried: bool,
}

#[cfg(test)]
impl Estimate {
    /// A measured one of `ns`.
    pub(super) const fn measured(ns: u64) -> Estimate {
        Estimate { ns, known: true, tried: true }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    key: u64,
    ns: u64,
    samples: u32,
    used: u32,
}

/// Sets of two entries: 1024 keys, 24 KiB.
const SETS: usize = 512;
const WAYS: usize = 2;
const GUESS_FIRST_NS: u64 = 100_000;
const GUESS_MIN_NS: u64 = 10_000;
const GUESS_MAX_NS: u64 = 20_000_000;
const NS_MAX: u64 = 60_000_000_000;
/// Guess for a copy, constant part and rate: a slow bus.
const GUESS_BYTES_NS: u64 = 10_000;
const GUESS_BYTES_PER_US: u64 = 10_000;

/// The table of estimates. Starts empty and unallocated: a process alone on its GPU never needs it.
#[derive(Debug)]
pub struct Estimates {
    entries: Vec<Entry>,
    guess: u64,
    clock: u32,
}

impl Default for Estimates {
    fn default() -> Self {
        Estimates { entries: Vec::new(), guess: GUESS_FIRST_NS, clock: 0 }
    }
}

impl Estimates {
    /// The expected time of `task`.
    pub fn expect(&mut self, task: Task) -> Estimate {
        self.clock = self.clock.wrapping_add(1);
        let clock = self.clock;
        match self.find(task.key) {
            Some(entry) => {
                entry.used = clock;
                let ns = entry.ns.saturating_mul(u64::from(task.parts)) / u64::from(WHOLE);
                if entry.samples > 0 {
                    return Estimate { ns: ns.max(1), known: true, tried: true };
                }
                self.guess(task, true)
            }
            None => self.guess(task, false),
        }
    }

    fn guess(&self, task: Task, tried: bool) -> Estimate {
        Estimate { ns: if task.guess > 0 { task.guess } else { self.guess }, known: false, tried }
    }

    /// Notes that the driver accepted a launch of `key`.
    pub fn accepted(&mut self, key: Key) {
        if self.find(key).is_none() {
            self.claim(key);
        }
    }

    /// Notes that `parts` of `key` took `ns` together. Each of the first few samples counts half, because the
    /// first one often includes one-time costs such as loading a module.
    pub fn observe(&mut self, key: Key, parts: u64, ns: u64) {
        let ns = Task::whole(parts, ns).clamp(1, NS_MAX);
        let entry = self.claim(key);
        let share = match entry.samples {
            0 => 1,
            1..4 => 2,
            _ => 8,
        };
        entry.samples = entry.samples.saturating_add(1);
        entry.ns = entry.ns - entry.ns / share + ns / share;
        let mean = entry.ns;
        let towards = if mean > self.guess {
            self.guess + (mean - self.guess) / 8
        } else {
            self.guess - (self.guess - mean) / 64
        };
        self.guess = towards.clamp(GUESS_MIN_NS, GUESS_MAX_NS);
    }

    /// Notes that `parts` of `key` took at most `ns` together: lowers an estimate, never raises it.
    pub fn observe_at_most(&mut self, key: Key, parts: u64, ns: u64) {
        let whole = Task::whole(parts, ns);
        let raises = |entry: &mut Entry| entry.samples > 0 && entry.ns <= whole;
        if !self.find(key).is_some_and(raises) {
            self.observe(key, parts, ns);
        }
    }

    /// Notes that a mixed group with a launch of `key` took `measured` instead of `expected` ns: moves the
    /// estimate an eighth of the way.
    pub fn scale(&mut self, key: Key, measured: u64, expected: u64) {
        if let Some(entry) = self.find(key) {
            let target = u128::from(entry.ns) * u128::from(measured) / u128::from(expected.max(1));
            let target = u64::try_from(target).unwrap_or(NS_MAX).clamp(1, NS_MAX);
            entry.ns = (entry.ns - entry.ns / 8 + target / 8).max(1);
        }
    }

    fn set(key: Key) -> usize {
        (key.0 >> 20) as usize % SETS * WAYS
    }

    fn find(&mut self, key: Key) -> Option<&mut Entry> {
        let first = Self::set(key);
        let set = self.entries.get_mut(first..first + WAYS)?;
        set.iter_mut().find(|entry| entry.key == key.0)
    }

    /// The entry of `key`; a new key replaces the least recently used entry.
    fn claim(&mut self, key: Key) -> &mut Entry {
        if self.entries.is_empty() {
            self.entries = vec![Entry::default(); SETS * WAYS];
        }
        let first = Self::set(key);
        let (a, b) = (&self.entries[first], &self.entries[first + 1]);
        // The first entry is filled first, so no key is behind an empty one.
        let fits = |entry: &Entry| entry.key == key.0 || entry.key == 0;
        let age = |entry: &Entry| self.clock.wrapping_sub(entry.used);
        let takes_first = fits(a) || (!fits(b) && age(a) >= age(b));
        let entry = &mut self.entries[if takes_first { first } else { first + 1 }];
        if entry.key != key.0 {
            *entry = Entry { key: key.0, used: self.clock, ..Entry::default() };
        }
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: u64 = WHOLE as u64;

    #[test]
    fn estimates_follow_measurements() {
        let mut table = Estimates::default();
        let key = Key::of(&[1, 2, 3]);
        assert_eq!(
            table.expect(Task::launch(key)),
            Estimate { ns: GUESS_FIRST_NS, known: false, tried: false }
        );
        table.observe(key, ONE, 9_000_000); // loading
        for _ in 0..40 {
            table.observe(key, ONE, 20_000);
        }
        let learned = table.expect(Task::launch(key));
        assert!(learned.known && (19_000..40_000).contains(&learned.ns), "{learned:?}");
        for _ in 0..60 {
            table.observe(key, ONE, 200_000);
        }
        assert!((190_000..=200_000).contains(&table.expect(Task::launch(key)).ns));
    }

    #[test]
    fn an_accepted_launch_is_tried_and_not_known() {
        let mut table = Estimates::default();
        let key = Key::of(&[5]);
        table.accepted(key);
        let tried = table.expect(Task::launch(key));
        assert_eq!((tried.known, tried.tried), (false, true));
        table.scale(key, 5, 1);
        assert_eq!(table.expect(Task::launch(key)).ns, GUESS_FIRST_NS);
        table.observe_at_most(key, ONE, 70_000);
        table.accepted(key);
        let known = table.expect(Task::launch(key));
        assert_eq!((known.ns, known.known, known.tried), (70_000, true, true));
    }

    #[test]
    fn upper_bounds_only_lower() {
        let mut table = Estimates::default();
        let key = Key::of(&[7]);
        table.observe(key, ONE, 50_000);
        table.observe_at_most(key, ONE, 900_000);
        assert_eq!(table.expect(Task::launch(key)).ns, 50_000);
        table.observe_at_most(key, ONE, 10_000);
        assert!(table.expect(Task::launch(key)).ns < 50_000);
    }

    #[test]
    fn the_guess_rises_fast_and_stays_in_bounds() {
        let mut table = Estimates::default();
        for i in 0..200 {
            table.observe(Key::of(&[i]), ONE, NS_MAX);
        }
        assert_eq!(table.expect(Task::launch(Key::of(&[999_999]))).ns, GUESS_MAX_NS);
        for i in 0..2_000 {
            table.observe(Key::of(&[i, i]), ONE, 1);
        }
        assert_eq!(table.expect(Task::launch(Key::of(&[888_888]))).ns, GUESS_MIN_NS);
    }

    /// An eighth of the way up, a sixty-fourth down.
    #[test]
    fn the_guess_follows_each_mean() {
        let mut table = Estimates::default();
        let guesses = [8_100_000, 100].map(|ns| {
            table.observe(Key::of(&[ns]), ONE, ns);
            table.expect(Task::launch(Key::of(&[]))).ns
        });
        assert_eq!(guesses, [1_100_000, 1_082_815]);
    }

    #[test]
    fn new_keys_replace_the_least_recently_used() {
        let mut table = Estimates::default();
        for i in 0..100_000 {
            table.observe(Key::of(&[i]), ONE, 5_000 + i);
            let fresh = table.expect(Task::launch(Key::of(&[i])));
            assert!(fresh.known && fresh.ns == 5_000 + i);
        }
        assert_eq!(table.entries.len(), SETS * WAYS);
    }

    #[test]
    fn a_key_just_added_is_not_the_least_recently_used() {
        let mut table = Estimates::default();
        let set = Estimates::set(Key::of(&[0]));
        let mut same = (0..).map(|n| Key::of(&[n])).filter(|key| Estimates::set(*key) == set);
        let [old, new, third] = [(); 3].map(|()| same.next().expect("endless"));
        table.observe(old, ONE, 1_000);
        table.expect(Task::launch(old));
        table.expect(Task::launch(Key::of(&[1, 2, 3])));
        table.observe(new, ONE, 2_000);
        table.observe(third, ONE, 3_000);
        let known = [old, new, third].map(|key| table.expect(Task::launch(key)).known);
        assert_eq!(known, [false, true, true]);
    }

    /// Whichever of two in a set was used last, a measurement of either replaces neither.
    #[test]
    fn a_known_key_keeps_its_entry() {
        let mut table = Estimates::default();
        let set = Estimates::set(Key::of(&[0]));
        let mut same = (0..).map(|n| Key::of(&[n])).filter(|key| Estimates::set(*key) == set);
        let both = [(); 2].map(|()| same.next().expect("endless"));
        for key in [both[0], both[1], both[0], both[0], both[1], both[1], both[0]] {
            table.observe(key, ONE, 1_000);
            table.expect(Task::launch(key));
        }
        let samples = both.map(|key| table.find(key).map(|entry| entry.samples));
        assert_eq!(samples, [Some(4), Some(3)]);
    }

    /// Zero marks an empty entry.
    #[test]
    fn a_key_is_odd_and_so_never_zero() {
        assert!((0..8).all(|n| Key::of(&[n]).0 % 2 == 1));
    }

    #[test]
    fn keys_are_spread_over_the_sets() {
        // A number, or the first of a pair, as the width of a grid is.
        for shift in [0, 32] {
            let mut sets: Vec<usize> =
                (0..256).map(|n| Estimates::set(Key::of(&[n << shift]))).collect();
            sets.sort_unstable();
            sets.dedup();
            assert!(sets.len() > 128 && sets.iter().all(|first| first % WAYS == 0), "{sets:?}");
        }
    }

    #[test]
    fn a_mixed_group_moves_an_estimate_an_eighth_of_the_way() {
        let mut table = Estimates::default();
        let key = Key::of(&[4]);
        table.observe(key, ONE, 8_000);
        table.scale(key, 3_000, 1_000);
        assert_eq!(table.expect(Task::launch(key)).ns, 8_000 - 1_000 + 3_000);
    }

    #[test]
    fn scaling_is_total() {
        let mut table = Estimates::default();
        let key = Key::of(&[3]);
        table.scale(key, 5, 5);
        table.observe(key, ONE, 8_000);
        table.scale(key, u64::MAX, 0);
        table.scale(key, 0, u64::MAX);
        assert!(
            table.expect(Task::launch(key)).ns >= 1 && table.expect(Task::launch(key)).ns <= NS_MAX
        );
    }

    #[test]
    fn copies_are_estimated_by_size() {
        const MIB: u64 = 1 << 20;
        let mut table = Estimates::default();
        let copy = |bytes| Task::of_bytes(1, bytes);
        assert_eq!(
            table.expect(copy(100 * MIB)).ns,
            GUESS_BYTES_NS + 100 * MIB * 1_000 / GUESS_BYTES_PER_US
        );
        for _ in 0..20 {
            let small = copy(8);
            table.observe(small.key, small.parts.into(), 1_500);
            let large = copy(MIB);
            table.observe(large.key, large.parts.into(), 21_000);
        }
        assert_eq!(table.expect(copy(8)).ns, 1_500);
        let more = table.expect(copy(MIB * 3 / 2));
        assert!(more.known && more.ns.abs_diff(31_500) < 100, "{more:?}");
        assert!(!table.expect(copy(4 * MIB)).known);
        assert!(!table.expect(Task::of_bytes(2, MIB)).known);
        for bytes in [0, 1, u64::MAX] {
            let task = copy(bytes);
            assert!(task.parts >= WHOLE && task.parts < 2 * WHOLE && task.guess <= NS_MAX);
        }
    }
}
