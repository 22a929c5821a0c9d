//! The worker's part that gives groups time slices, one group at a time between stops.
//!
//! Each look is told what every group's slice is to be, and compares it with what the driver says. What it
//! says otherwise than we set it was set by the process itself, which can do so at any time: it is set back and
//! counted. A group of which nothing is wished any more gets back what it had. No file is kept open in between.

use super::controls::{ControlError, Controls};
use super::journal::{self, JournalEntry};
use super::{ChannelGroup, SliceLane};
use crate::slab::Key;
use gpuslice_wire::ids::ContainerId;
use gpuslice_wire::tenant::ObjectName;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

/// What a group's slice is to be.
#[derive(Clone, Copy, Debug)]
pub struct WantedSlice {
    /// The process's connection.
    pub key: Key,
    /// The process's number.
    pub pid: u32,
    /// Whose, and on which of its GPUs.
    pub slice_lane: SliceLane,
    /// The group.
    pub named: ChannelGroup,
    /// How long, µs.
    pub us: u64,
}

/// What a look found of a container's groups on a GPU.
#[derive(Debug, Default)]
pub struct Observed {
    /// The slice all of them have; 0 if one has not what was wished.
    pub us: u64,
    /// How many had another one than we had set.
    pub changed: u64,
    /// Why one has not what was wished.
    pub refused: Option<String>,
}

/// One group among all: of one connection, by client and handle.
type Ident = (Key, ObjectName, ObjectName);

/// A group with a slice of ours.
#[derive(Debug)]
struct Set {
    container: ContainerId,
    line: JournalEntry,
    us: u64,
}

#[derive(Debug)]
enum Todo {
    Give(WantedSlice),
    GiveBack(Ident),
    /// The look is over.
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
    /// One that has given nothing.
    pub fn new(controls: Controls, dir: PathBuf) -> TimeSlicer {
        TimeSlicer {
            controls,
            dir,
            set: BTreeMap::new(),
            todo: VecDeque::new(),
            found: BTreeMap::new(),
        }
    }

    /// Begins a look: these are all wishes there are.
    pub fn look(&mut self, wishes: Vec<WantedSlice>) {
        let wished: BTreeSet<Ident> = wishes.iter().map(ident).collect();
        let over = self.set.keys().filter(|it| !wished.contains(it)).copied();
        self.todo.extend(over.map(Todo::GiveBack));
        self.todo.extend(wishes.into_iter().map(Todo::Give));
        self.todo.push_back(Todo::Tell);
    }

    /// Whether nothing is to be done.
    pub fn is_idle(&self) -> bool {
        self.todo.is_empty()
    }

    /// Looks at one group; at the end of a look, what was found.
    pub fn step(&mut self) -> Option<BTreeMap<SliceLane, Observed>> {
        match self.todo.pop_front()? {
            Todo::Give(wish) => {
                // nothing is said of a group that is gone
                let given = self.give(&wish).transpose()?;
                let found = self.found.entry(wish.slice_lane).or_insert(Observed {
                    us: wish.us,
                    ..Observed::default()
                });
                match given {
                    Ok(changed) => found.changed += u64::from(changed),
                    Err(why) => (found.us, found.refused) = (0, Some(why.to_string())),
                }
                None
            }
            Todo::GiveBack(ident) => {
                self.give_back(ident);
                None
            }
            Todo::Tell => Some(std::mem::take(&mut self.found)),
        }
    }

    /// Sees to it that a group has its slice; whether it had another one than we had set. `None` if there
    /// is no such group any more.
    fn give(&mut self, wish: &WantedSlice) -> Result<Option<bool>, ControlError> {
        let ident = ident(wish);
        let known = self.set.get(&ident).map(|set| set.line);
        let line = known.unwrap_or_else(|| JournalEntry::of(wish.pid, wish.named));
        // Should the number be another process's by now, the driver refuses the name of a client that is not
        // that file's.
        let Some(file) = line.open(&self.controls)? else {
            return Ok(None);
        };
        let is = match self.controls.time_slice(&file, &wish.named) {
            Err(refused) if refused.is_gone() => return Ok(None),
            is => is?,
        };
        let mut changed = false;
        if let Some(set) = self.set.get_mut(&ident) {
            changed = is != set.us;
            if is == wish.us {
                set.us = is;
                return Ok(Some(changed));
            }
        } else {
            self.remember(ident, wish.slice_lane.0, line, is)?;
        }
        if let Err(refused) = self.controls.set_time_slice(&file, &wish.named, wish.us) {
            self.give_back(ident);
            return Err(refused);
        }
        if let Some(set) = self.set.get_mut(&ident) {
            set.us = wish.us;
        }
        Ok(Some(changed))
    }

    /// Writes down what a group had before it is changed.
    fn remember(
        &mut self,
        ident: Ident,
        container: ContainerId,
        line: JournalEntry,
        us: u64,
    ) -> Result<(), ControlError> {
        let line = line.with_slice(us);
        let set = Set {
            container,
            line,
            us,
        };
        self.set.insert(ident, set);
        let written = self.write_down(&container);
        if written.is_err() {
            self.set.remove(&ident);
        }
        written
    }

    /// Gives a group back what it had.
    fn give_back(&mut self, ident: Ident) {
        let Some(set) = self.set.remove(&ident) else {
            return;
        };
        if let Err(why) = set.line.undo(&self.controls) {
            tracing::debug!(container = %set.container, %why, "its time slice is not what it was before");
        }
        // A line too many is a slice that is given back twice; and where the container is gone, so is the file.
        let _ = self.write_down(&set.container);
    }

    /// A process's connection ended.
    pub fn release(&mut self, key: Key) {
        self.give_back_all(|(of, ..)| *of == key);
    }

    /// The end: everybody gets back what it had.
    pub fn end(&mut self) {
        self.give_back_all(|_| true);
    }

    fn give_back_all(&mut self, which: impl Fn(&Ident) -> bool) {
        let all: Vec<Ident> = self.set.keys().filter(|it| which(it)).copied().collect();
        all.into_iter().for_each(|ident| self.give_back(ident));
    }

    fn write_down(&self, container: &ContainerId) -> Result<(), ControlError> {
        let its = self.set.values().filter(|set| set.container == *container);
        let lines: Vec<JournalEntry> = its.map(|set| set.line).collect();
        journal::write(&self.dir, container, journal::SLICED, &lines).map_err(ControlError::System)
    }
}

fn ident(wish: &WantedSlice) -> Ident {
    (wish.key, wish.named.client, wish.named.group)
}
