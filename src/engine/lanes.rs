//! One value for each memory account of a container: a lane for each GPU of its slice, and [`Lane::HOST`]
//! for the host memory it pinned. Code that counts bytes treats both alike.

use alloc::vec::Vec;
use gpuslice_wire::ids::Lane;

/// A `T` for each account.
#[derive(Clone, Debug)]
pub(crate) struct ByLane<T> {
    /// Those of the GPUs, lane 0 first.
    pub(crate) gpus: Vec<T>,
    host: T,
}

impl<T> ByLane<T> {
    pub(crate) fn new(gpus: Vec<T>, host: T) -> ByLane<T> {
        ByLane { gpus, host }
    }
    pub(crate) fn get(&self, lane: Lane) -> Option<&T> {
        match lane {
            Lane::HOST => Some(&self.host),
            Lane(at) => self.gpus.get(usize::from(at)),
        }
    }
    pub(crate) fn get_mut(&mut self, lane: Lane) -> Option<&mut T> {
        match lane {
            Lane::HOST => Some(&mut self.host),
            Lane(at) => self.gpus.get_mut(usize::from(at)),
        }
    }
    /// All, the GPUs' first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Lane, &T)> {
        let gpus = self.gpus.iter().enumerate();
        gpus.map(|(at, it)| (Lane(at as u8), it)).chain([(Lane::HOST, &self.host)])
    }
    /// All, the GPUs' first.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Lane, &mut T)> {
        let gpus = self.gpus.iter_mut().enumerate();
        gpus.map(|(at, it)| (Lane(at as u8), it)).chain([(Lane::HOST, &mut self.host)])
    }
    /// The same accounts, with another value each.
    pub(crate) fn map<U>(&self, mut f: impl FnMut(Lane, &T) -> U) -> ByLane<U> {
        ByLane {
            gpus: (0u8..).zip(&self.gpus).map(|(at, it)| f(Lane(at), it)).collect(),
            host: f(Lane::HOST, &self.host),
        }
    }
    /// The lanes.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = Lane> + use<T> {
        let gpus = self.gpus.len() as u8;
        (0..gpus).map(Lane).chain([Lane::HOST])
    }
}
