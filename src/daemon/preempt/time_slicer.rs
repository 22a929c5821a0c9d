//! The worker's part that sets hardware time slices, a few groups at a time between stops.
//!
//! A round gets the wanted time slice of every group of the container and compares it with the driver's value. A value
//! that differs from the one set before was set by the process itself, which can do so at any time: it is reset and
//! counted. A group that the round does not name gets its previous time slice back. No file stays open between parts.

use super::controls::{ControlError, Controls};
use super::journal::{self, Ident, JournalEntry};
use crate::slab::Key;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The wanted time slice of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedSlice {
    /// The process's connection.
    pub key: Key,
    /// The process, and its group.
    pub entry: JournalEntry,
    /// The time slice, µs.
    pub us: u64,
}

/// Result of a round for a container's groups on a GPU.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// The time slice that all of them have, µs; 0 if one lacks the wanted one.
    pub us: u64,
    /// How many had another time slice than was set before.
    pub changed: u64,
    /// Why one lacks the wanted time slice.
    pub refused: Option<String>,
}

/// A group with a changed time slice.
#[derive(Debug)]
struct Set {
    line: JournalEntry,
    us: u64,
}

/// See the file's head.
pub struct TimeSlicer {
    controls: Controls,
    set: BTreeMap<Ident, Set>,
    /// Groups that the round has named so far.
    named: BTreeSet<Ident>,
    found: BTreeMap<u8, Observed>,
}

impl TimeSlicer {
    /// Starts without changed groups.
    pub fn new(controls: Controls) -> TimeSlicer {
        TimeSlicer {
            controls,
            set: BTreeMap::new(),
            named: BTreeSet::new(),
            found: BTreeMap::new(),
        }
    }

    /// Sets the time slices of some groups.
    pub fn set_some(&mut self, wanted: &[WantedSlice]) {
        for wanted in wanted {
            self.named.insert(ident(wanted));
            // a group that no longer exists is not in the result
            let Some(given) = self.set_time_slice(wanted).transpose() else {
                continue;
            };
            let fresh = Observed { us: wanted.us, ..Observed::default() };
            let found = self.found.entry(wanted.entry.named().lane.0).or_insert(fresh);
            match given {
                Ok(changed) => found.changed += u64::from(changed),
                Err(why) => (found.us, found.refused) = (0, Some(why.to_string())),
            }
        }
    }

    /// Ends a round; returns its results by GPU.
    pub fn end_round(&mut self) -> BTreeMap<u8, Observed> {
        let named = std::mem::take(&mut self.named);
        self.restore_all(|it| !named.contains(it));
        std::mem::take(&mut self.found)
    }

    /// Sets a group's time slice; returns whether it had another one than was set before. `None` if the group no
    /// longer exists.
    fn set_time_slice(&mut self, wanted: &WantedSlice) -> Result<Option<bool>, ControlError> {
        let ident = ident(wanted);
        let named = wanted.entry.named();
        let Some(file) = wanted.entry.open(&self.controls)? else {
            return Ok(None);
        };
        let is = match self.controls.time_slice(&file, named) {
            Err(refused) if refused.is_gone() => return Ok(None),
            is => is?,
        };
        let mut changed = false;
        if let Some(set) = self.set.get_mut(&ident) {
            changed = is != set.us;
            if is == wanted.us {
                set.us = is;
                return Ok(Some(changed));
            }
        } else {
            self.remember(ident, wanted.entry, is)?;
        }
        if let Err(refused) = self.controls.set_time_slice(&file, named, wanted.us) {
            self.restore_all(|it| *it == ident);
            return Err(refused);
        }
        if let Some(set) = self.set.get_mut(&ident) {
            set.us = wanted.us;
        }
        Ok(Some(changed))
    }

    /// Writes a group's present time slice to the journal before it is changed.
    fn remember(&mut self, ident: Ident, line: JournalEntry, us: u64) -> Result<(), ControlError> {
        self.set.insert(ident, Set { line: line.with_slice(us), us });
        let written = self.write_down();
        if written.is_err() {
            self.set.remove(&ident);
        }
        written
    }

    /// A process's connection ended.
    pub fn release(&mut self, key: Key) {
        self.restore_all(|(of, ..)| *of == key);
    }

    /// Restores the time slices of all groups, at the daemon's end.
    pub fn end(&mut self) {
        self.restore_all(|_| true);
    }

    /// Restores the previous time slices of groups.
    fn restore_all(&mut self, which: impl Fn(&Ident) -> bool) {
        let all: Vec<Ident> = self.set.keys().filter(|it| which(it)).copied().collect();
        for set in all.iter().filter_map(|ident| self.set.remove(ident)) {
            // The driver keeps a time slice for the process that changed it alone.
            let _ = set.line.undo(&self.controls);
        }
        if !all.is_empty() {
            // An extra entry restores a time slice twice, which is harmless; without the container there is no file.
            let _ = self.write_down();
        }
    }

    fn write_down(&self) -> Result<(), ControlError> {
        let lines: Vec<JournalEntry> = self.set.values().map(|set| set.line).collect();
        journal::write(Path::new("."), journal::SLICED, &lines).map_err(ControlError::System)
    }
}

fn ident(wanted: &WantedSlice) -> Ident {
    wanted.entry.ident(wanted.key)
}
