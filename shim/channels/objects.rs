//! What the driver has made of the objects that lead to a channel group, and what is left of it.
//!
//! ```text
//! client (of an open file)
//!   device
//!     subdevice                 the GPU itself
//!     channel group             what the GPU runs in turns
//!       channel
//!         compute object        only a group of kernels has one
//! ```

use gpuslice_nvabi::control::class;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::GROUPS_PER_CLIENT_MAX;
use std::os::fd::RawFd;

/// More than the driver makes for as many groups as are told of.
const OBJECTS_MAX: usize = 1024;

/// An object that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The root of its tree.
    pub client: u32,
    /// What it is below.
    pub parent: u32,
    /// Its own name.
    pub handle: u32,
    /// What it is.
    pub class: u32,
    /// The GPU a context was made on just then.
    pub lane: Option<Lane>,
    /// The open file.
    pub fd: RawFd,
    /// Through which of the driver's pointers it was made.
    pub got_slot: u8,
}

/// A group in which kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// On which GPU.
    pub lane: Lane,
    /// The open file.
    pub fd: RawFd,
    /// The root of its tree.
    pub client: u32,
    /// Its own name.
    pub group: u32,
    /// The name of its GPU in that tree.
    pub subdevice: u32,
    /// Through which of the driver's pointers it was made.
    pub got_slot: u8,
}

/// All there are, of one process.
#[derive(Debug, Default)]
pub struct Objects {
    all: Vec<Made>,
    process: u32,
}

fn is_kept(class: u32) -> bool {
    let single = [class::DEVICE, class::SUBDEVICE, class::GROUP];
    single.contains(&class) || is_channel(class) || class::COMPUTE.contains(&class)
}

fn is_channel(class: u32) -> bool {
    class::CHANNELS.contains(&class)
}

impl Objects {
    /// None yet.
    #[must_use]
    pub const fn new() -> Objects {
        Objects {
            all: Vec::new(),
            process: 0,
        }
    }

    /// An object was made; `false` if there is no room to remember it.
    pub fn made(&mut self, it: Made) -> bool {
        let process = std::process::id();
        if std::mem::replace(&mut self.process, process) != process {
            self.all.clear(); // a parent's, which this process cannot use
        }
        if !is_kept(it.class) {
            return true;
        }
        // whatever had this name is gone, in a way that passed us by
        self.freed(it.client, it.handle);
        if self.all.len() >= OBJECTS_MAX {
            return false;
        }
        self.all.push(it);
        true
    }

    /// An object was ended, and all below it; with a client's own name all of the client's.
    pub fn freed(&mut self, client: u32, handle: u32) {
        if client == handle {
            return self.all.retain(|it| it.client != client);
        }
        let mut gone = vec![handle];
        while let Some(parent) = gone.pop() {
            self.all.retain(|it| {
                let child = it.client == client && it.parent == parent;
                if child {
                    gone.push(it.handle);
                }
                !child && (it.client, it.handle) != (client, parent)
            });
        }
    }

    /// All that are known.
    #[must_use]
    pub fn all(&self) -> &[Made] {
        &self.all
    }

    fn find(&self, client: u32, handle: u32) -> Option<&Made> {
        self.all
            .iter()
            .find(|it| (it.client, it.handle) == (client, handle))
    }

    /// The groups with kernels in them. None if there are too many, or the GPU of one is not known,
    /// which is `only` where there is but one.
    #[must_use]
    pub fn groups(&self, only: Option<Lane>) -> Vec<Group> {
        let mut all: Vec<Group> = Vec::new();
        if self.process != std::process::id() {
            return all;
        }
        let compute = self
            .all
            .iter()
            .filter(|it| class::COMPUTE.contains(&it.class));
        for compute in compute {
            match self.group_of(compute, only) {
                Some(group) if all.contains(&group) => {}
                Some(group) if all.len() < GROUPS_PER_CLIENT_MAX => all.push(group),
                _ => return Vec::new(),
            }
        }
        all
    }

    fn group_of(&self, compute: &Made, only: Option<Lane>) -> Option<Group> {
        let client = compute.client;
        let channel = self.find(client, compute.parent)?;
        let group = self.find(client, channel.parent)?;
        let is_subdevice = |it: &&Made| {
            (it.client, it.parent, it.class) == (client, group.parent, class::SUBDEVICE)
        };
        let subdevice = self.all.iter().find(is_subdevice)?;
        let known = is_channel(channel.class) && group.class == class::GROUP;
        known.then_some(Group {
            lane: only.or(group.lane)?,
            fd: group.fd,
            client,
            group: group.handle,
            subdevice: subdevice.handle,
            got_slot: group.got_slot,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: u32 = 0xc1d0_0007;

    fn made(parent: u32, handle: u32, class: u32) -> Made {
        Made {
            client: CLIENT,
            parent,
            handle,
            class,
            lane: None,
            fd: 9,
            got_slot: 0,
        }
    }

    /// A device with a subdevice, a group for kernels and one for copies alone.
    fn context(first: u32) -> [Made; 7] {
        [
            made(CLIENT, first, class::DEVICE),
            made(first, first + 1, class::SUBDEVICE),
            made(first, first + 2, class::GROUP),
            made(first + 2, first + 3, class::CHANNELS[2]),
            made(first + 3, first + 4, class::COMPUTE[4]),
            made(first, first + 5, class::GROUP),
            made(first + 5, first + 6, class::CHANNELS[2]),
        ]
    }

    fn with(contexts: u32) -> Objects {
        let mut objects = Objects::new();
        let all = (0..contexts).flat_map(|at| context(100 + at * 10));
        assert!(all.into_iter().all(|it| objects.made(it)));
        objects
    }

    fn names(objects: &Objects) -> Vec<u32> {
        let groups = objects.groups(Some(Lane(0)));
        groups.iter().map(|group| group.group).collect()
    }

    #[test]
    fn the_group_with_kernels_is_the_one() {
        let group = Group {
            lane: Lane(0),
            fd: 9,
            client: CLIENT,
            group: 102,
            subdevice: 101,
            got_slot: 0,
        };
        assert_eq!(with(1).groups(Some(Lane(0))), [group]);
        assert!(with(1).groups(None).is_empty(), "of a GPU nobody knows");
    }

    #[test]
    fn what_is_freed_takes_all_below_with_it() {
        let mut objects = with(2);
        objects.freed(CLIENT, 103);
        assert_eq!(names(&objects), [112]);
        objects.freed(CLIENT + 1, 110);
        assert_eq!(names(&objects), [112], "another client's");
        objects.freed(CLIENT, 110);
        assert!(names(&objects).is_empty());
        assert_eq!(objects.all.len(), 5, "what was not below it: {objects:?}");
        objects.freed(CLIENT, CLIENT);
        assert!(objects.all.is_empty());
    }

    #[test]
    fn a_name_that_is_used_again_is_another_object() {
        let mut objects = with(1);
        assert!(objects.made(made(100, 102, class::GROUP)));
        assert!(names(&objects).is_empty(), "the channels went with the old");
    }

    #[test]
    fn too_much_is_as_good_as_nothing() {
        let most = GROUPS_PER_CLIENT_MAX as u32;
        assert_eq!(names(&with(most)).len(), GROUPS_PER_CLIENT_MAX);
        assert!(names(&with(most + 1)).is_empty());
        let mut objects = Objects::new();
        let mut room = |at: u32| objects.made(made(1, 5000 + at, class::DEVICE));
        assert_eq!((0..2000).filter(|&at| room(at)).count(), OBJECTS_MAX);
    }
}
