//! The driver's objects that lead to a channel group.
//!
//! ```text
//! client (of an open file)
//!   device
//!     subdevice                 the GPU itself
//!     channel group             the GPU's unit of scheduling
//!       channel
//!         compute object        only in groups that run kernels
//! ```

use gpuslice_nvabi::control::class;
use gpuslice_wire::ids::Lane;
use gpuslice_wire::limits::{CHANNELS_PER_GROUP_MAX, GROUPS_PER_CLIENT_MAX};
use std::os::fd::RawFd;

/// More than the driver creates for the largest number of reported groups.
const OBJECTS_MAX: usize = 1024;

/// An object that the driver created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverObject {
    /// The root of its tree.
    pub client: u32,
    /// The parent object.
    pub parent: u32,
    /// Its handle.
    pub handle: u32,
    /// Its class.
    pub class: u32,
    /// The GPU on which a context was being created.
    pub lane: Option<Lane>,
    /// The open file.
    pub fd: RawFd,
    /// Index of the driver's pointer through which it was created.
    pub got_slot: u8,
}

/// A group in which kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelGroup {
    /// Its GPU.
    pub lane: Lane,
    /// The open file.
    pub fd: RawFd,
    /// The root of its tree.
    pub client: u32,
    /// Its handle.
    pub group: u32,
    /// The handle of its GPU's subdevice in that tree.
    pub subdevice: u32,
    /// The handles of its channels; 0 after the last one.
    pub channels: [u32; CHANNELS_PER_GROUP_MAX],
    /// Index of the driver's pointer through which it was created.
    pub got_slot: u8,
}

/// All known objects of one process.
#[derive(Debug, Default)]
pub struct Objects {
    all: Vec<DriverObject>,
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
    /// An empty list.
    #[must_use]
    pub const fn new() -> Objects {
        Objects { all: Vec::new(), process: 0 }
    }

    /// Records a new object; `false` if there is no room.
    pub fn made(&mut self, it: DriverObject) -> bool {
        let process = std::process::id();
        if std::mem::replace(&mut self.process, process) != process {
            self.all.clear(); // the parent's objects, which this process cannot use
        }
        if !is_kept(it.class) {
            return true;
        }
        // an object with the same handle ended unseen
        self.freed(it.client, it.handle);
        if self.all.len() >= OBJECTS_MAX {
            return false;
        }
        self.all.push(it);
        true
    }

    /// Removes an object and all below it; the handle of a client removes all its objects.
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

    /// All known objects.
    #[must_use]
    pub fn all(&self) -> &[DriverObject] {
        &self.all
    }

    fn find(&self, client: u32, handle: u32) -> Option<&DriverObject> {
        self.all.iter().find(|it| (it.client, it.handle) == (client, handle))
    }

    /// The groups with kernels in them. None if there are too many, or the GPU of one is unknown; with a
    /// single GPU, `only` is that GPU.
    #[must_use]
    pub fn groups(&self, only: Option<Lane>) -> Vec<ChannelGroup> {
        let mut all: Vec<ChannelGroup> = Vec::new();
        if self.process != std::process::id() {
            return all;
        }
        let compute = self.all.iter().filter(|it| class::COMPUTE.contains(&it.class));
        for compute in compute {
            match self.group_of(compute, only) {
                Some(group) if all.contains(&group) => {}
                Some(group) if all.len() < GROUPS_PER_CLIENT_MAX => all.push(group),
                _ => return Vec::new(),
            }
        }
        all
    }

    fn group_of(&self, compute: &DriverObject, only: Option<Lane>) -> Option<ChannelGroup> {
        let client = compute.client;
        let channel = self.find(client, compute.parent)?;
        let group = self.find(client, channel.parent)?;
        let is_subdevice = |it: &&DriverObject| {
            (it.client, it.parent, it.class) == (client, group.parent, class::SUBDEVICE)
        };
        let subdevice = self.all.iter().find(is_subdevice)?;
        let channels = self.channels_of(client, group.handle)?;
        let known = is_channel(channel.class) && group.class == class::GROUP;
        known.then_some(ChannelGroup {
            lane: only.or(group.lane)?,
            fd: group.fd,
            client,
            group: group.handle,
            subdevice: subdevice.handle,
            channels,
            got_slot: group.got_slot,
        })
    }

    /// The channels of a group; `None` if there are too many.
    fn channels_of(&self, client: u32, group: u32) -> Option<[u32; CHANNELS_PER_GROUP_MAX]> {
        let its =
            |it: &&DriverObject| (it.client, it.parent) == (client, group) && is_channel(it.class);
        let mut channels = [0; CHANNELS_PER_GROUP_MAX];
        for (at, channel) in self.all.iter().filter(its).enumerate() {
            *channels.get_mut(at)? = channel.handle;
        }
        Some(channels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: u32 = 0xc1d0_0007;

    fn made(parent: u32, handle: u32, class: u32) -> DriverObject {
        DriverObject { client: CLIENT, parent, handle, class, lane: None, fd: 9, got_slot: 0 }
    }

    /// A device with a subdevice, a group for kernels and one for copies alone.
    fn context(first: u32) -> [DriverObject; 7] {
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

    fn channels<const N: usize>(handles: [u32; N]) -> [u32; CHANNELS_PER_GROUP_MAX] {
        std::array::from_fn(|at| handles.get(at).copied().unwrap_or(0))
    }

    fn names(objects: &Objects) -> Vec<u32> {
        let groups = objects.groups(Some(Lane(0)));
        groups.iter().map(|group| group.group).collect()
    }

    #[test]
    fn only_a_group_with_kernels_is_returned() {
        let group = ChannelGroup {
            lane: Lane(0),
            fd: 9,
            client: CLIENT,
            group: 102,
            subdevice: 101,
            channels: channels([103]),
            got_slot: 0,
        };
        assert_eq!(with(1).groups(Some(Lane(0))), [group]);
        assert!(with(1).groups(None).is_empty(), "of a GPU nobody knows");
    }

    #[test]
    fn freeing_an_object_removes_all_below_it() {
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
    fn a_group_has_all_its_channels_as_they_come_and_go() {
        let mut objects = with(1);
        let listed = |objects: &Objects| objects.groups(Some(Lane(0)))[0].channels;
        for more in 0..CHANNELS_PER_GROUP_MAX as u32 - 1 {
            assert!(objects.made(made(102, 200 + more, class::CHANNELS[2])));
        }
        assert_eq!(listed(&objects)[..3], [103, 200, 201]);
        assert!(!listed(&objects).contains(&0));
        assert!(objects.made(made(102, 300, class::CHANNELS[2])));
        assert!(names(&objects).is_empty(), "more than can be reported");
        objects.freed(CLIENT, 300);
        objects.freed(CLIENT, 200);
        assert_eq!(listed(&objects)[..2], [103, 201]);
    }

    #[test]
    fn a_reused_handle_is_another_object() {
        let mut objects = with(1);
        assert!(objects.made(made(100, 102, class::GROUP)));
        assert!(names(&objects).is_empty(), "the channels went with the old");
    }

    #[test]
    fn too_many_groups_yield_none() {
        let most = GROUPS_PER_CLIENT_MAX as u32;
        assert_eq!(names(&with(most)).len(), GROUPS_PER_CLIENT_MAX);
        assert!(names(&with(most + 1)).is_empty());
        let mut objects = Objects::new();
        let mut room = |at: u32| objects.made(made(1, 5000 + at, class::DEVICE));
        assert_eq!((0..2000).filter(|&at| room(at)).count(), OBJECTS_MAX);
    }
}
