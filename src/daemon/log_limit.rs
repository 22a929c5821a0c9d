//! Log lines that a tenant can cause at will: one in a while, with the number of times since the last one. Otherwise a
//! process that connects and closes fills the node's journal with thousands of lines a second.

use gpuslice_wire::units::{Duration, Instant};

/// Shortest time between two lines of one cause.
const EVERY: Duration = Duration(60_000_000_000);

/// Counts what one log line tells about.
#[derive(Debug, Default)]
pub struct LogLimit {
    count: u64,
    next: Instant,
}

impl LogLimit {
    /// Counts one more; returns the count since the last log line if another is due.
    pub fn one_more(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        (self.next <= now).then(|| {
            self.next = now.plus(EVERY);
            std::mem::take(&mut self.count)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_of_all_since_the_last_one() {
        let mut limit = LogLimit::default();
        let start = Instant(1);
        assert_eq!(EVERY.0, 60 * 1_000_000_000, "a minute");
        assert_eq!(limit.one_more(start), Some(1));
        assert!((0..1000).all(|_| limit.one_more(start.plus(Duration(EVERY.0 - 1))).is_none()));
        assert_eq!(limit.one_more(start.plus(EVERY)), Some(1001));
    }
}
