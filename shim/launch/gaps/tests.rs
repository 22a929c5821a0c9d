//! The rule of `gaps.rs` against programs and against adversaries.

use super::*;

const US: u64 = 1_000;
const MOST: u64 = 2_000 * US;

/// The promise names both: the least price of a gap, and what all gaps together may cost beyond the bound.
#[test]
fn the_price_and_the_advance_are_those_that_are_promised() {
    assert_eq!([CHANGE_NS, ADVANCE_NS], [400 * US; 2]);
}

/// A program's clock, and the costs of the rule and of the best choice in hindsight so far.
#[derive(Clone)]
struct Run {
    gaps: Gaps,
    now: u64,
    cost: u64,
    best: u64,
    most: u64,
}

impl Run {
    fn new(most: u64) -> Run {
        Run { gaps: Gaps::default(), now: 1, cost: 0, best: 0, most }
    }

    /// Works for `work`, then pauses for as long as `gap` makes of hold and price. Returns the hold.
    fn step(&mut self, work: u64, gap: impl FnOnce(u64, u64) -> u64) -> u64 {
        self.gaps.begins(self.now, self.now);
        self.now += work;
        let ended = self.now;
        let (hold, price) = (self.gaps.hold(ended, self.most), self.gaps.price(ended, self.most));
        let gap = gap(hold, price);
        self.cost += if gap <= hold { gap } else { hold + price };
        self.best += gap.min(price);
        self.now += gap;
        self.gaps.over(ended, self.now, self.most);
        assert!(hold <= price && price <= self.most);
        hold
    }

    fn holds(&mut self, count: usize, work: u64, gap: u64) -> u64 {
        (0..count).fold(0, |_, _| self.step(work, |_, _| gap))
    }

    fn is_bounded(&self) {
        let Run { cost, best, .. } = self;
        assert!(*cost <= 2 * best + ADVANCE_NS, "{cost} for {best}");
    }
}

#[test]
fn a_service_with_long_gaps_holds_nothing() {
    let mut run = Run::new(MOST);
    assert_eq!(run.holds(6, 20 * US, 10_000 * US), 0);
    assert_eq!(run.holds(100, 20 * US, 10_000 * US), 0);
    assert_eq!(run.holds(100, 1_000 * US, 1_000 * US), 0, "as much pause as work");
}

#[test]
fn a_program_that_synchronises_holds_for_its_gap() {
    let loads = [(50, 20), (200, 20), (1_000, 100), (50, 300), (1_000, 400), (5_000, 1_000)];
    for (work, gap) in loads {
        let mut run = Run::new(MOST);
        let hold = run.holds(20, work * US, gap * US);
        assert!(hold >= gap * US, "{gap} µs: {hold} ns");
        // a thread that is late at times, and a long gap at times, as between two requests
        for _ in 0..20 {
            run.step(work * US, |_, _| 10_000 * US);
            let hold = run.holds(30, work * US, gap * US);
            assert!((gap * US..=4 * gap * US).contains(&hold), "{gap} µs: {hold} ns");
        }
    }
}

/// Weights of gaps of some µs.
fn weights(of: &[(u64, u32)]) -> [u32; CLASSES] {
    let mut weights = [0; CLASSES];
    of.iter().for_each(|(gap, weight)| weights[class_of(gap * US)] += weight);
    weights
}

/// Up to twice its length, and within the classes.
#[test]
fn a_gap_counts_a_little_as_a_longer_one() {
    let (late, longest) = (1 << 10, 3_600_000_000);
    let cases: [(u64, &[_]); 2] = [
        (100, &[(112, 1 << 16), (128, late), (160, late), (192, late), (224, late)]),
        (longest, &[(longest, (1 << 16) + 4 * late)]),
    ];
    for (gap, expected) in cases {
        let mut run = Run::new(MOST);
        run.holds(1, US, gap * US);
        assert_eq!(run.gaps.weights, weights(expected), "{gap} µs");
    }
    assert_eq!(class_of(longest * US), CLASSES - 1);
}

/// The gaps of the class from 320 to 384 µs last 352 µs in the mean.
#[test]
fn the_cheapest_hold_weighs_the_gaps_that_end_in_time_against_the_others() {
    let cases: [(&[_], u64, u64); 4] = [
        (&[(380, 1)], 384, 384),
        (&[(440, 1)], 430, 0),
        (&[(380, 1), (10_000, 1)], 400, 0),
        (&[(380, 10), (10_000, 1)], 400, 384),
    ];
    for (of, price, hold) in cases {
        let gaps = Gaps { weights: weights(of), ..Gaps::default() };
        assert_eq!(gaps.cheapest(price * US), hold * US, "{of:?}");
    }
}

#[test]
fn idle_us_is_the_longest_hold() {
    for most in [0, 10 * US, 500 * US] {
        let mut run = Run::new(most);
        for gap in [1, 9, 30, 499, 800, 40_000] {
            assert!(run.step(20_000 * US, |_, _| gap * US) <= most);
        }
    }
}

#[test]
fn a_program_that_changes_is_followed() {
    let mut run = Run::new(MOST);
    for _ in 0..5 {
        assert!(run.holds(30, 1_000 * US, 100 * US) >= 100 * US);
        assert_eq!(run.holds(30, 1_000 * US, 50_000 * US), 0);
    }
    run.is_bounded();
}

/// All sequences of these gaps up to a length, among them those that end just after the hold.
#[test]
fn no_short_sequence_costs_more_than_twice_the_best() {
    fn all(run: &Run, left: u32) {
        run.is_bounded();
        if left == 0 {
            return;
        }
        for work in [20 * US, 6_000 * US] {
            let gaps: [fn(u64, u64) -> u64; 5] = [
                |_, _| US,
                |hold, _| hold,
                |hold, _| hold + 1,
                |_, price| price,
                |_, price| 20 * price,
            ];
            for gap in gaps {
                let mut next = run.clone();
                next.step(work, gap);
                all(&next, left - 1);
            }
        }
    }
    all(&Run::new(MOST), 5);
}

/// Long sequences: a program's regular gaps, and an adversary that knows the rule, in turns. The bound holds from
/// every point on, with the largest balance in place of the advance.
#[test]
fn no_long_sequence_costs_more_than_twice_the_best() {
    let mut seed = 0x9E37_79B9_7F4A_7C15u64;
    let mut draw = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..40 {
        // the largest of `cost - 2 * best` over all parts that end here
        let (mut run, mut worst) = (Run::new(MOST), 0i64);
        let (mut plan, mut usual) = (0, 0);
        for step in 0..5_000 {
            if step % 50 == 0 {
                (plan, usual) = (draw() % 4, draw() % (1 << (draw() % 25)));
            }
            let work = draw() % (1 << (10 + draw() % 15));
            let (before, any) = ((run.cost, run.best), draw());
            run.step(work, |hold, price| match plan {
                0 => hold + 1,
                1 => usual + any % 5_000,
                2 if any % 3 > 0 => usual,
                2 => hold + 1 + any % price.max(1),
                _ => any % (3 * price.max(1)),
            });
            let more = (run.cost - before.0) as i64 - 2 * (run.best - before.1) as i64;
            worst = worst.max(0) + more;
            assert!(worst <= BALANCE_NS as i64, "{worst}");
            run.is_bounded();
        }
    }
}

/// After any adversary, the rule learns again.
#[test]
fn a_balance_that_was_taken_is_regained() {
    let mut run = Run::new(MOST);
    for _ in 0..15 {
        run.step(20 * US, |hold, _| hold + 1);
    }
    assert!(run.gaps.hold(run.now, MOST) > CHANGE_NS / 2, "{:?}", run.gaps.balance);
    assert_eq!(run.holds(40, 20 * US, 10_000 * US), 0);
    run.is_bounded();
}
