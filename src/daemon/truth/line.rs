//! The line to the child that asks NVML: made when there is something to ask, made anew when it breaks.
//!
//! A driver that crashes or hangs whoever asks it mostly does so again, and every attempt may leave a
//! process behind that the kernel keeps for good. So attempts become rarer, from a second to a minute
//! apart; in between, the answer is what went wrong the last time, at once. When too many are kept, there are no more.

use super::child::{Abandoned, Child};
use super::thread::{Fact, Question};
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

/// Before the attempt after the first failure; twice as long after each further one.
const REST_FIRST: Duration = Duration::from_secs(1);
/// Never longer than this.
const REST_MAX: Duration = Duration::from_secs(60);
/// Killed children that the kernel does not let go; with so many there are no further attempts.
const KEPT_MAX: usize = 4;
/// For the person, about a child that was killed because it did not answer.
const HUNG: &str =
    "NVML hangs; the process that asked it was killed, look for Xid errors in the kernel's log";

/// See the file's head.
#[derive(Default)]
pub struct Line {
    child: Option<Child>,
    failures: u32,
    /// Until when it is left alone, and why.
    resting: Option<(Instant, String)>,
    gone: Vec<Abandoned>,
}

impl Line {
    /// Asks.
    ///
    /// # Errors
    /// Why nothing is known, for the person.
    pub fn ask(&mut self, library: &Path, questions: &[Question]) -> Result<Vec<Fact>, String> {
        self.gone.retain_mut(|child| !child.is_gone());
        let mut child = match self.child.take() {
            Some(living) => living,
            None => self.start(library)?,
        };
        match child.ask(questions) {
            Ok(facts) => {
                self.child = Some(child);
                self.failures = 0;
                Ok(facts)
            }
            Err(why) => {
                self.gone.push(child.abandon());
                Err(self.failed(match why.kind() {
                    ErrorKind::TimedOut => HUNG.to_owned(),
                    _ => format!("the process that asks NVML ended: {why}"),
                }))
            }
        }
    }

    /// Ends the child, if there is one.
    pub fn rest(&mut self) {
        self.gone.extend(self.child.take().map(Child::abandon));
    }

    fn start(&mut self, library: &Path) -> Result<Child, String> {
        if let Some((until, why)) = &self.resting
            && Instant::now() < *until
        {
            return Err(why.clone());
        }
        if self.gone.len() >= KEPT_MAX {
            let all = self.gone.len();
            return Err(format!(
                "{all} processes that asked NVML hang in the driver; reboot the node"
            ));
        }
        let child = Child::start(library);
        child
            .map_err(|why| self.failed(format!("the process that asks NVML does not start: {why}")))
    }

    fn failed(&mut self, why: String) -> String {
        let until = Instant::now() + rest_after(self.failures);
        self.resting = Some((until, why.clone()));
        self.failures = self.failures.saturating_add(1);
        why
    }
}

/// How long to leave it alone, after so many failures in a row before the last one.
fn rest_after(failures: u32) -> Duration {
    let longer = 1u32.checked_shl(failures).unwrap_or(u32::MAX);
    REST_FIRST.saturating_mul(longer).min(REST_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rarer() {
        let rests: Vec<u64> = (0..8).map(|n| rest_after(n).as_secs()).collect();
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(rest_after(u32::MAX), REST_MAX);
    }

    #[test]
    fn after_a_failure_nothing_is_tried_at_once() {
        let mut line = Line::default();
        line.failed("it fell over".to_owned());
        let again = line.ask(Path::new("/none"), &[]);
        assert_eq!(again.err().as_deref(), Some("it fell over"));
    }
}
