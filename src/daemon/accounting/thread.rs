//! The NVML thread. It passes questions to a child process ([`super::child`]), sends the answers over a channel
//! and notifies the event loop through an eventfd. A driver that is slow, or hangs on a GPU that fell off the
//! bus, delays an answer and never a turn. A driver that crashes ends only the child;
//! [`super::supervisor`] starts the next one.
//!
//! Questions are answered in order. Those about single processes that wait together share one sample per GPU.

use super::questions::{NvmlAnswer, Question, unanswered};
use super::supervisor::Supervisor;
use nix::sys::eventfd::EventFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

/// Shortest pause between two samples for single processes, however often these ask.
const PAUSE: Duration = Duration::from_millis(1);

/// The thread's state.
pub struct NvmlThread {
    /// NVML's library.
    pub library: PathBuf,
    /// Questions; the thread ends with sender.
    pub questions: Receiver<Question>,
    /// Answers.
    pub answers: Sender<NvmlAnswer>,
    /// Written after each batch of answers.
    pub notify: Arc<EventFd>,
}

impl NvmlThread {
    /// Answers questions until the sender is dropped.
    pub fn serve(self) {
        let mut supervisor = Supervisor::default();
        while let Ok(first) = self.questions.recv() {
            let mut waiting = vec![first];
            waiting.extend(self.questions.try_iter());
            if !self.answer(&mut supervisor, waiting) {
                return;
            }
        }
    }

    /// Returns false when the receiver has been dropped.
    fn answer(&self, supervisor: &mut Supervisor, mut waiting: Vec<Question>) -> bool {
        let closes = matches!(waiting.last(), Some(Question::Close));
        let measured = waiting.iter().any(|question| matches!(question, Question::Measure { .. }));
        waiting.retain(|question| !matches!(question, Question::Close));
        if !waiting.is_empty() {
            for answer in self.ask(supervisor, waiting) {
                if self.answers.send(answer).is_err() {
                    return false;
                }
            }
            // A full counter means that a notification is pending already.
            let _ = self.notify.write(1);
        }
        if closes {
            supervisor.stop_child();
        }
        if measured {
            std::thread::sleep(PAUSE);
        }
        true
    }

    fn ask(&self, supervisor: &mut Supervisor, questions: Vec<Question>) -> Vec<NvmlAnswer> {
        supervisor.ask(&self.library, &questions).unwrap_or_else(|why| {
            let answers = questions.into_iter().map(|one| unanswered(one, &why));
            answers.collect()
        })
    }
}
