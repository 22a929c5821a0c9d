//! The worker's part that sets hardware time slices, one group at a time between stops.
//!
//! Each round gets the wanted time slice of every group and compares it with the driver's value. A value that differs
//! from the one set before was set by the process itself, which can do so at any time: it is reset and counted.
//! A group that is no longer in the list gets its previous time slice back. No file stays open between rounds.

use super::controls::{ControlError, Controls};
use super::journal::{self, JournalEntry};
use crate::clients::ChannelGroup;
use crate::slab::Key;
use gpuslice_wire::ids::{ContainerId, Lane};
use gpuslice_wire::tenant::ObjectName;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

/// A container and one of its GPUs.
pub type SliceLane = (ContainerId, Lane);

/// The wanted time slice of a group.
#[derive(Clone, Copy, Debug)]
pub struct WantedSlice {
    /// The process's connection.
    pub key: Key,
    /// The process's pid.
    pub pid: u32,
    /// The container and its GPU.
    pub slice_lane: SliceLane,
    /// The group.
    pub named: ChannelGroup,
    /// The time slice, µs.
    pub us: u64,
}

/// Result of a round for a container's groups on a GPU.
#[derive(Debug, Default)]
pub struct Observed {
    /// The time slice that all of them have, µs; 0 if one lacks the wanted one.
    pub us: u64,
    /// How many had another time slice than was set before.
    pub changed: u64,
    /// Why one lacks the wanted time slice.
    pub refused: Option<String>,
}

/// Identifies a group: connection, client, group.
type Ident = (Key, ObjectName, ObjectName);

/// A group with a changed time slice.
#[derive(Debug)]
struct Set {
    container: ContainerId,
    line: JournalEntry,
    us: u64,
}

#[derive(Debug)]
enum Todo {
    Set(WantedSlice),
    Restore(Ident),
    /// The round is over.
    Tell,
}

/// See the file's head.
pub struct TimeSlicer {
    controls: Controls,
    dir: PathBuf,
    set: BTreeMap<Ident, Set>,
    todo: VecDeque<Todo>,
    found: BTreeMap<SliceLane, Observed>,
}

impl TimeSlicer {
    /// Starts without changed groups.
    pub fn new(controls: Controls, dir: PathBuf) -> TimeSlicer {
        TimeSlicer {
            controls,
            dir,
            set: BTreeMap::new(),
            todo: VecDeque::new(),
            found: BTreeMap::new(),
        }
    }

    /// Begins a round with the wanted time slices of all groups.
    pub fn look(&mut self, all_wanted: Vec<WantedSlice>) {
        let wanted: BTreeSet<Ident> = all_wanted.iter().map(ident).collect();
        let over = self.set.keys().filter(|it| !wanted.contains(it)).copied();
        self.todo.extend(over.map(Todo::Restore));
        self.todo.extend(all_wanted.into_iter().map(Todo::Set));
        self.todo.push_back(Todo::Tell);
    }

    /// Whether no round is in progress.
    pub fn is_idle(&self) -> bool {
        self.todo.is_empty()
    }

    /// Handles one group; at the end of a round returns its results.
    pub fn step(&mut self) -> Option<BTreeMap<SliceLane, Observed>> {
        match self.todo.pop_front()? {
            Todo::Set(wanted) => {
                // a group that no longer exists is not in the result
                let given = self.set_time_slice(&wanted).transpose()?;
                let found = self
                    .found
                    .entry(wanted.slice_lane)
                    .or_insert(Observed { us: wanted.us, ..Observed::default() });
                match given {
                    Ok(changed) => found.changed += u64::from(changed),
                    Err(why) => (found.us, found.refused) = (0, Some(why.to_string())),
                }
                None
            }
            Todo::Restore(ident) => {
                self.restore(ident);
                None
            }
            Todo::Tell => Some(std::mem::take(&mut self.found)),
        }
    }

    /// Sets a group's time slice; returns whether it had another one than was set before. `None` if the group no
    /// longer exists.
    fn set_time_slice(&mut self, wanted: &WantedSlice) -> Result<Option<bool>, ControlError> {
        let ident = ident(wanted);
        let known = self.set.get(&ident).map(|set| set.line);
        let line = known.unwrap_or_else(|| JournalEntry::of(wanted.pid, wanted.named));
        // If the pid was reused, the driver refuses the client's name, which does not belong to that file.
        let Some(file) = line.open(&self.controls)? else {
            return Ok(None);
        };
        let is = match self.controls.time_slice(&file, &wanted.named) {
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
            self.remember(ident, wanted.slice_lane.0, line, is)?;
        }
        if let Err(refused) = self.controls.set_time_slice(&file, &wanted.named, wanted.us) {
            self.restore(ident);
            return Err(refused);
        }
        if let Some(set) = self.set.get_mut(&ident) {
            set.us = wanted.us;
        }
        Ok(Some(changed))
    }

    /// Writes a group's present time slice to the journal before it is changed.
    fn remember(
        &mut self,
        ident: Ident,
        container: ContainerId,
        line: JournalEntry,
        us: u64,
    ) -> Result<(), ControlError> {
        let line = line.with_slice(us);
        let set = Set { container, line, us };
        self.set.insert(ident, set);
        let written = self.write_down(&container);
        if written.is_err() {
            self.set.remove(&ident);
        }
        written
    }

    /// Restores a group's previous time slice.
    fn restore(&mut self, ident: Ident) {
        let Some(set) = self.set.remove(&ident) else {
            return;
        };
        if let Err(why) = set.line.undo(&self.controls) {
            tracing::debug!(container = %set.container, %why, "its time slice could not be restored");
        }
        // An extra entry restores a time slice twice, which is harmless; without the container there is no file.
        let _ = self.write_down(&set.container);
    }

    /// A process's connection ended.
    pub fn release(&mut self, key: Key) {
        self.restore_all(|(of, ..)| *of == key);
    }

    /// Restores the time slices of all groups, at the daemon's end.
    pub fn end(&mut self) {
        self.restore_all(|_| true);
    }

    fn restore_all(&mut self, which: impl Fn(&Ident) -> bool) {
        let all: Vec<Ident> = self.set.keys().filter(|it| which(it)).copied().collect();
        all.into_iter().for_each(|ident| self.restore(ident));
    }

    fn write_down(&self, container: &ContainerId) -> Result<(), ControlError> {
        let its = self.set.values().filter(|set| set.container == *container);
        let lines: Vec<JournalEntry> = its.map(|set| set.line).collect();
        journal::write(&self.dir, container, journal::SLICED, &lines).map_err(ControlError::System)
    }
}

fn ident(wanted: &WantedSlice) -> Ident {
    (wanted.key, wanted.named.client, wanted.named.group)
}
