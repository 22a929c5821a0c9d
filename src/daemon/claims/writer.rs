//! The thread that writes the claims' files.
//!
//! # Problem
//! A reservation is answered when its file is on the disk, which takes a millisecond, and on a busy disk a second. The
//! thread that gives turns must not wait for a disk.
//!
//! # Idea
//! What is known in memory runs ahead of the disk. A thread writes the changes in order, and an answer about a claim
//! waits for the changes of this claim that were queued before it. So the disk has at any time the claims of an
//! earlier moment, and all that agents were told. What a killed daemon had not written was not answered either, and the
//! agent asks again.

use super::store::ClaimStore;
use crate::poll::{Source, Watch};
use crate::slab::Key;
use gpuslice_wire::node::{NodeAnswer, Reservation};
use gpuslice_wire::owner::ClaimId;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A change of a claim's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // a few at a time
pub enum Change {
    /// Write it.
    Keep(Reservation),
    /// Delete it, if there is one.
    Forget(ClaimId),
}

impl Change {
    /// The claim.
    pub fn claim(&self) -> ClaimId {
        match self {
            Change::Keep(words) => words.claim,
            Change::Forget(claim) => *claim,
        }
    }
}

/// A change that was written, or could not be.
#[derive(Debug)]
pub struct Written {
    pub change: Change,
    /// Otherwise the file and the error.
    pub done: Result<(), String>,
    /// What waited for it, by connection.
    pub answers: Vec<(Key, NodeAnswer)>,
}

/// A change on its way to the disk.
#[derive(Debug)]
struct Queued {
    change: Change,
    answers: Vec<(Key, NodeAnswer)>,
}

/// The event loop's side; see the file's head.
#[derive(Debug)]
pub struct Writer {
    changes: Sender<Change>,
    done: Receiver<Result<(), String>>,
    /// Written by the thread after each change; kept open for epoll.
    _notify: Arc<EventFd>,
    /// What the thread has not answered, in its order.
    queued: VecDeque<Queued>,
}

impl Writer {
    /// Starts the thread. It ends with the writer.
    ///
    /// # Errors
    /// No descriptor or no thread left.
    pub fn start(store: ClaimStore, watch: &Watch) -> io::Result<Writer> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let notify = Arc::new(EventFd::from_flags(flags)?);
        watch.add_edge_triggered(&*notify, Source::ClaimsWritten)?;
        let ((changes, asked), (answer, done)) = (channel::<Change>(), channel());
        let bell = Arc::clone(&notify);
        std::thread::Builder::new().name("claims".to_owned()).spawn(move || {
            while let Ok(change) = asked.recv() {
                let result = match change {
                    Change::Keep(words) => store.keep(&words),
                    Change::Forget(claim) => store.forget(&claim),
                };
                let at = store.path(&change.claim());
                let result = result.map_err(|why| format!("{}: {why}", at.display()));
                if answer.send(result).is_err() {
                    return;
                }
                // A full counter means that a notification is pending already.
                let _ = bell.write(1);
            }
        })?;
        Ok(Writer { changes, done, _notify: notify, queued: VecDeque::new() })
    }

    /// Queues a change behind all others.
    pub fn queue(&mut self, change: Change) {
        // The thread lives as long as the writer.
        let _ = self.changes.send(change);
        self.queued.push_back(Queued { change, answers: Vec::new() });
    }

    /// How many changes the thread has not done with.
    pub fn behind(&self) -> usize {
        self.queued.len()
    }

    /// Whether a change of the claim is on its way.
    pub fn is_writing(&self, claim: &ClaimId) -> bool {
        self.queued.iter().any(|it| it.change.claim() == *claim)
    }

    /// Lets an answer wait for the changes of its claim. It comes back if there is none on its way.
    pub fn hold(&mut self, claim: &ClaimId, key: Key, answer: NodeAnswer) -> Option<NodeAnswer> {
        match self.queued.iter_mut().rfind(|it| it.change.claim() == *claim) {
            Some(last) => {
                last.answers.push((key, answer));
                None
            }
            None => Some(answer),
        }
    }

    /// The next change that the thread has done with.
    pub fn written(&mut self) -> Option<Written> {
        let done = self.done.try_recv().ok()?;
        let Queued { change, answers } = self.queued.pop_front()?;
        Some(Written { change, done, answers })
    }
}
