//! The output of a probe: one line of JSON for each finding.

use std::fmt::Write;
use std::time::Instant;

/// A line that is being made.
pub struct Row(String);

impl Row {
    /// Begins a row of a probe.
    pub fn of(probe: &str) -> Row {
        Row(format!(r#"{{"probe":"{probe}""#))
    }

    /// Adds a string, which must need no escapes.
    pub fn word(mut self, key: &str, value: &str) -> Row {
        let _ = write!(self.0, r#","{key}":"{value}""#);
        self
    }

    /// Adds a number, a boolean or a list in JSON's notation.
    pub fn plain(mut self, key: &str, value: impl std::fmt::Display) -> Row {
        let _ = write!(self.0, r#","{key}":{value}"#);
        self
    }

    /// Adds microseconds, or null.
    pub fn us(mut self, key: &str, value: Option<f64>) -> Row {
        let _ = match value {
            Some(us) => write!(self.0, r#","{key}":{us:.1}"#),
            None => write!(self.0, r#","{key}":null"#),
        };
        self
    }

    /// Prints it.
    pub fn say(self) {
        println!("{}}}", self.0);
    }
}

/// Microseconds since then.
pub fn us_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

/// The value at this part of the sorted list.
pub fn percentile(sorted: &[f64], part: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = (sorted.len() as f64 * part) as usize;
    Some(sorted[at.min(last)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_few() {
        assert_eq!(percentile(&[], 0.5), None);
        assert_eq!(percentile(&[3.0], 0.99), Some(3.0));
        assert_eq!(percentile(&[1.0, 2.0, 3.0, 4.0], 0.5), Some(3.0));
    }
}
