//! The in-flight limit: adapts the window to the measured time of a drain.
//!
//! The page limits the work in flight near a turn's end, and thereby the expected time of a drain. Work in
//! flight is an estimate. If estimates are too low, a window of that size drains for longer, and work
//! admitted for the rest of the turn does not fit there. So the limit follows the drains: a turn that drains
//! much later than the page allows lowers it by 30 %. A turn that held launches although nothing was in
//! flight, so that the GPU was idle, raises it by 20 %. This is the control that keeps a network's queues
//! short; an additive increase would be too slow for turns that come 60 times a second and last some ms.
//! The limit never exceeds the page's. The part of the rest of the turn that is filled shrinks with it, but
//! not below a quarter: work that is delayed by other containers needs a queue to progress.
#![forbid(unsafe_code)]

/// Smallest limit: below it a GPU is fed too slowly to be useful.
const MIN_NS: u64 = 60_000;

/// The in-flight limit of one lane.
#[derive(Debug, Default)]
pub struct InFlightLimit {
    /// The limit; 0 before the first measurement.
    ns: u64,
    /// Launches were held in this turn although nothing was in flight.
    underrun: bool,
    /// The longest expected launch of this turn, ns: that much may be left at any limit.
    longest: u64,
}

impl InFlightLimit {
    /// The present limit, where the page allows `bound`.
    #[must_use]
    pub fn current(&self, bound: u64) -> u64 {
        if self.ns == 0 { bound } else { self.ns.min(bound) }
    }

    /// How much of the `left` ns of a turn may be filled.
    #[must_use]
    pub fn share_of_rest(&self, left: u64, bound: u64) -> u64 {
        let limit = self.current(bound).max(bound / 4);
        let part = u128::from(left) * u128::from(limit) / u128::from(bound.max(1));
        u64::try_from(part).unwrap_or(left)
    }

    /// Notes an admitted launch of `ns`.
    pub fn admitted(&mut self, ns: u64) {
        self.longest = self.longest.max(ns);
    }

    /// Notes that a launch was held by the window and nothing was in flight when it went.
    pub fn underran(&mut self) {
        self.underrun = true;
    }

    /// Notes that the work of a turn drained `took` ns after the turn's end.
    pub fn drained(&mut self, took: u64, bound: u64) {
        let underrun = std::mem::take(&mut self.underrun);
        let longest = std::mem::take(&mut self.longest);
        let now = self.current(bound);
        if took > bound.saturating_add(bound / 4).saturating_add(longest) {
            self.ns = (now - now * 3 / 10).max(MIN_NS);
        } else if underrun {
            self.ns = (now + now / 5).min(bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::backend::{Event, Progress};
    use super::super::estimate::{Estimate, Key, Task};
    use super::super::window::{Admission, InFlight};
    use super::*;

    const US: u64 = 1_000;
    const BOUND: u64 = 500 * US;
    const TURN: u64 = 8_000 * US;

    /// A GPU in virtual time, on which every kernel takes `truth` times its expected time.
    struct Gpu {
        now: u64,
        busy_until: u64,
        /// Completion time of each event, by its number.
        events: Vec<u64>,
        idle: u64,
    }

    impl Gpu {
        fn launch(&mut self, ns: u64) -> Event {
            self.idle += self.now.saturating_sub(self.busy_until);
            self.busy_until = self.busy_until.max(self.now) + ns;
            self.events.push(self.busy_until);
            Event(self.events.len() - 1)
        }

        fn progress(&self, event: Event) -> Progress {
            if self.events[event.0] <= self.now { Progress::Done } else { Progress::Pending }
        }
    }

    /// One turn of kernels with an expected time of `expected` ns each. Returns the time it took to drain.
    fn turn(gpu: &mut Gpu, limit: &mut InFlightLimit, expected: u64, truth: u64) -> u64 {
        let mut in_flight = InFlight::default();
        gpu.now = gpu.now.max(gpu.busy_until);
        gpu.busy_until = gpu.now;
        let end = gpu.now + TURN;
        let mut held = false;
        while gpu.now < end {
            let look = |in_flight: &mut InFlight| {
                while in_flight
                    .retire(gpu.now, |group| group.fence.map(|fence| gpu.progress(fence)))
                    .is_some()
                {}
                let left = limit.share_of_rest(end - gpu.now, BOUND);
                let next = Estimate::measured(expected);
                in_flight.admit(gpu.now, next, limit.current(BOUND), left)
            };
            match look(&mut in_flight) {
                Admission::Go => {
                    if std::mem::take(&mut held) && in_flight.empty() {
                        limit.underran();
                    }
                    limit.admitted(expected);
                    let next = Estimate::measured(expected);
                    in_flight.launched(gpu.now, 0, Task::launch(Key(1)), next, None);
                    let event = gpu.launch(expected * truth);
                    assert_eq!(in_flight.fence(0, event), None);
                    gpu.now += 4 * US;
                }
                Admission::Full(ns) => {
                    held = true;
                    gpu.now += ns;
                }
            }
        }
        let took = gpu.busy_until.saturating_sub(end);
        limit.drained(took, BOUND);
        took
    }

    /// Runs turns until the limit has settled, and 100 more: mean drain and idle fraction of the GPU.
    fn settled(expected: u64, truth: u64) -> (u64, f64, u64) {
        let mut gpu = Gpu { now: 1, busy_until: 1, events: Vec::new(), idle: 0 };
        let mut limit = InFlightLimit::default();
        for _ in 0..60 {
            turn(&mut gpu, &mut limit, expected, truth);
        }
        gpu.idle = 0;
        let sum: u64 = (0..100).map(|_| turn(&mut gpu, &mut limit, expected, truth)).sum();
        let idle = gpu.idle as f64 / (100 * TURN) as f64;
        (sum / 100, idle, limit.current(BOUND))
    }

    #[test]
    fn right_estimates_keep_the_page_s_limit() {
        let (drain, idle, ns) = settled(40 * US, 1);
        assert!(drain <= BOUND + 40 * US, "{drain}");
        assert!(idle < 0.01, "{idle}");
        assert_eq!(ns, BOUND);
    }

    #[test]
    fn low_estimates_lower_the_limit_until_drains_are_short() {
        for truth in [2, 3, 4] {
            let (drain, idle, ns) = settled(40 * US, truth);
            assert!(drain <= BOUND * 5 / 4 + 40 * US, "{truth} times: {drain}");
            assert!(ns < BOUND, "{truth} times: still {ns}");
            assert!(idle < 0.02, "{truth} times: {idle} idle");
        }
    }

    #[test]
    fn long_kernels_do_not_lower_the_limit() {
        let (_, idle, ns) = settled(2_000 * US, 1);
        assert_eq!(ns, BOUND);
        assert!(idle < 0.01, "{idle}");
    }

    #[test]
    fn the_limit_follows_late_drains_and_idle_gpus_step_by_step() {
        let mut limit = InFlightLimit::default();
        let latest = BOUND * 5 / 4 + 40 * US;
        let mut after = |took, underruns: bool| {
            limit.admitted(40 * US);
            if underruns {
                limit.underran();
            }
            limit.drained(took, BOUND);
            (limit.current(BOUND) / US, limit.share_of_rest(TURN, BOUND) / US)
        };
        assert_eq!([after(0, false), after(latest, false)], [(500, 8_000); 2]);
        assert_eq!(after(latest + 1, false), (350, 5_600));
        assert_eq!(after(latest + 1, true), (245, 3_920), "late is late");
        assert_eq!([after(0, true), after(0, false)], [(294, 4_704); 2]);
        let lowest = (0..9).map(|_| after(u64::MAX, false)).last();
        assert_eq!(lowest, Some((60, 2_000)), "a quarter of the rest");
    }

    /// For any kernel length and any measurement, the limit stays within its bounds.
    #[test]
    fn the_limit_has_bounds() {
        let mut limit = InFlightLimit::default();
        assert_eq!(limit.current(150 * US), 150 * US);
        for _ in 0..100 {
            limit.drained(u64::MAX, BOUND);
        }
        assert_eq!(limit.current(BOUND), MIN_NS);
        assert_eq!(limit.current(10 * US), 10 * US, "the page limits it");
        for _ in 0..100 {
            limit.underran();
            limit.drained(0, BOUND);
        }
        assert_eq!(limit.current(BOUND), BOUND);
        limit.drained(0, u64::MAX);
        limit.underran();
        limit.drained(0, 0);
        assert_eq!((limit.current(0), limit.share_of_rest(TURN, 0)), (0, 0));
    }
}
