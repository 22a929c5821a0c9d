//! Starts the NVML child when there is a question, and restarts it after a failure.
//!
//! A driver that crashes or hangs its callers mostly does so again, and each attempt may leave a process that
//! the kernel never ends. So the pause between attempts doubles, from 1 s to 60 s; meanwhile each question is
//! answered at once with the last error. With [`KEPT_MAX`] such processes there are no further attempts.

use super::child::{Abandoned, Child};
use super::questions::{NvmlAnswer, Question};
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

/// Pause after the first failure; it doubles with each further one.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
/// Longest pause.
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Most killed children that have not ended; with so many there are no further attempts.
const KEPT_MAX: usize = 4;
/// The error for a child that was killed because it did not answer.
const HUNG: &str =
    "NVML hangs; the process that asked it was killed, look for Xid errors in the kernel's log";

/// See the file's head.
#[derive(Default)]
pub struct Supervisor {
    child: Option<Child>,
    failures: u32,
    /// No attempt before this time, and the last error.
    backoff: Option<(Instant, String)>,
    gone: Vec<Abandoned>,
}

impl Supervisor {
    /// Asks NVML.
    ///
    /// # Errors
    /// Why NVML did not answer, as a sentence for the log.
    pub fn ask(
        &mut self,
        library: &Path,
        questions: &[Question],
    ) -> Result<Vec<NvmlAnswer>, String> {
        self.gone.retain_mut(|child| !child.is_gone());
        let mut child = match self.child.take() {
            Some(living) => living,
            None => self.start(library)?,
        };
        match child.ask(questions) {
            Ok(answers) => {
                self.child = Some(child);
                self.failures = 0;
                Ok(answers)
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
    pub fn stop_child(&mut self) {
        self.gone.extend(self.child.take().map(Child::abandon));
    }

    fn start(&mut self, library: &Path) -> Result<Child, String> {
        if let Some((until, why)) = &self.backoff
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
        let until = Instant::now() + backoff_after(self.failures);
        self.backoff = Some((until, why.clone()));
        self.failures = self.failures.saturating_add(1);
        why
    }
}

/// The pause after a failure that follows `failures` others in a row.
fn backoff_after(failures: u32) -> Duration {
    let longer = 1u32.checked_shl(failures).unwrap_or(u32::MAX);
    BACKOFF_FIRST.saturating_mul(longer).min(BACKOFF_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::child::HUNG_AFTER;

    #[test]
    fn pauses_double_up_to_a_minute() {
        let pauses: Vec<u64> = (0..8).map(|n| backoff_after(n).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(backoff_after(u32::MAX), BACKOFF_MAX);
        assert_eq!(HUNG_AFTER, Duration::from_secs(10), "before the first of them");
    }

    #[test]
    fn after_a_failure_the_next_attempt_waits() {
        let mut supervisor = Supervisor::default();
        supervisor.failed("it crashed".to_owned());
        let again = supervisor.ask(Path::new("/none"), &[]);
        assert_eq!(again.err().as_deref(), Some("it crashed"));
    }
}
