//! When the daemon is asked for the pages' figures.
//!
//! Rates are measured between questions, and all pages show the same ones. So only the server's clock asks, once in
//! [`EVERY`], while a client wants figures: however often clients ask, the rates of all are those of the same seconds.
//! The first client after a pause does not wait for the clock, and has no view from which rates could be measured.

use super::EVERY;
use std::time::Instant;

/// The clock goes on for so many intervals after the last client.
const GOES_ON: u32 = 3;
/// Figures are that many intervals old at most, unless the clock rests.
const FRESH: u32 = 2;

/// What to ask the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Nothing.
    Nothing,
    /// For the next view.
    Next,
    /// For two views, from which rates are measured: the ones before are too old.
    Anew,
}

/// See the file's head.
#[derive(Debug, Default)]
pub struct Pace {
    /// When the daemon was last asked.
    asked: Option<Instant>,
    /// When a client last wanted figures.
    wanted: Option<Instant>,
}

impl Pace {
    /// The clock's interval has ended.
    pub fn tick(&mut self, now: Instant) -> Ask {
        match (is_within(self.wanted, GOES_ON, now), is_within(self.asked, GOES_ON, now)) {
            (false, _) => Ask::Nothing,
            (true, true) => Ask::Next,
            (true, false) => Ask::Anew,
        }
    }

    /// A client wants figures, which may be those of the last tick.
    pub fn want(&mut self, now: Instant) -> Ask {
        self.wanted = Some(now);
        match is_within(self.asked, FRESH, now) {
            true => Ask::Nothing,
            false => Ask::Anew,
        }
    }

    /// The daemon was asked.
    pub fn asked(&mut self, now: Instant) {
        self.asked = Some(now);
    }
}

fn is_within(at: Option<Instant>, intervals: u32, now: Instant) -> bool {
    at.is_some_and(|at| now.saturating_duration_since(at) <= intervals * EVERY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// The seconds at which the daemon is asked in the first ten, with a stream until `until` and a client that asks
    /// every `every` ms.
    fn asked(until: u64, every: u64) -> Vec<f64> {
        let (mut pace, begin, mut asked) = (Pace::default(), Instant::now(), Vec::new());
        for ms in 0..=10_000 {
            let now = begin + Duration::from_millis(ms);
            let mut answers = Vec::new();
            if ms == 0 || (every > 0 && ms % every == 0) {
                answers.push(pace.want(now));
            }
            if ms > 0 && ms % 1_000 == 0 {
                if ms <= until {
                    pace.want(now);
                }
                answers.push(pace.tick(now));
            }
            for _ in answers.into_iter().filter(|it| *it != Ask::Nothing) {
                pace.asked(now);
                asked.push(ms as f64 / 1e3);
            }
        }
        asked
    }

    #[test]
    fn a_client_that_loops_asks_the_daemon_no_question() {
        let seconds: Vec<f64> = (0..=10).map(f64::from).collect();
        assert_eq!(asked(10_000, 0), seconds, "a stream alone");
        for every in [1, 7, 250, 900, 950, 1_000] {
            assert_eq!(asked(10_000, every), seconds, "beside it a client, every {every} ms");
            assert_eq!(asked(0, every), seconds, "the client alone");
        }
    }

    #[test]
    fn without_clients_the_clock_rests() {
        assert_eq!(asked(2_000, 0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let mut pace = Pace::default();
        let now = Instant::now();
        assert_eq!((pace.tick(now), pace.want(now)), (Ask::Nothing, Ask::Anew));
        pace.asked(now);
        assert_eq!(pace.want(now + FRESH * EVERY), Ask::Nothing);
        assert_eq!(pace.want(now + 10 * EVERY), Ask::Anew);
        assert_eq!(pace.tick(now + 10 * EVERY), Ask::Anew);
    }
}
