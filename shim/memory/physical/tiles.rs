//! Tiles of sparse arrays: memory mapped into a part of an array.
//!
//! `cuMemMapArrayAsync` maps memory into a part of a sparse array. That tile then refers to the memory until
//! the same part is unmapped or the array is destroyed, even if the handle is released. A part is identified
//! by its exact region: if an application unmaps other regions than it mapped, the charge stays until the
//! array's end. The driver executes these calls in stream order; the table applies them immediately.

use super::{PhysicalAllocation, PhysicalTable};
use gpuslice_nvabi::types::{CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL, CUarrayMapInfo};
use std::collections::HashMap;

/// A part of an array, as the application specifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The array or mipmapped array.
    pub resource: u64,
    kind: u32,
    words: [u64; 4],
}

impl Region {
    /// The region of a step of `cuMemMapArrayAsync`.
    #[must_use]
    pub fn of(step: &CUarrayMapInfo) -> Region {
        let mut words = step.subresource;
        if step.subresource_type == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL {
            // Layer (32 bits), offset and size; the rest is undefined padding.
            words = [u64::from(words[0] as u32), words[1], words[2], 0];
        }
        Region { resource: step.resource as u64, kind: step.subresource_type, words }
    }
}

/// A part with memory mapped into it.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    pub(super) allocation: PhysicalAllocation,
    region: Region,
    context: u64,
}

/// All tiles, by array.
#[derive(Debug, Default)]
pub struct Tiles(HashMap<u64, Vec<Tile>>);

impl Tiles {
    pub(super) fn take_context(&mut self, context: u64) -> Vec<Tile> {
        let mut taken = Vec::new();
        self.0.retain(|_, tiles| {
            taken.extend(tiles.extract_if(.., |tile| tile.context == context));
            !tiles.is_empty()
        });
        taken
    }

    pub(super) fn restore(&mut self, tiles: Vec<Tile>) {
        for tile in tiles {
            self.0.entry(tile.region.resource).or_default().push(tile);
        }
    }
}

impl PhysicalTable {
    /// Records a counted reference as held by a tile. A region may be mapped again without an unmap: all
    /// memory mapped there is held until the unmap.
    pub fn map_tile(&mut self, region: Region, context: u64, allocation: PhysicalAllocation) {
        self.tiles.restore(vec![Tile { allocation, region, context }]);
    }

    /// Removes the references held by tiles of exactly this region; the caller drops them.
    #[must_use]
    pub fn unmap_tile(&mut self, region: Region) -> Vec<PhysicalAllocation> {
        let Some(tiles) = self.tiles.0.get_mut(&region.resource) else {
            return Vec::new();
        };
        let gone = tiles.extract_if(.., |tile| tile.region == region);
        gone.map(|tile| tile.allocation).collect()
    }

    /// Removes all tiles of an array that is about to be destroyed; the caller drops them, or restores them
    /// by [`PhysicalTable::restore_tiles`].
    #[must_use]
    pub fn take_tiles(&mut self, resource: u64) -> Vec<Tile> {
        self.tiles.0.remove(&resource).unwrap_or_default()
    }

    /// Restores the tiles of an array that was not destroyed.
    pub fn restore_tiles(&mut self, tiles: Vec<Tile>) {
        self.tiles.restore(tiles);
    }
}

/// The allocations behind removed tiles.
pub fn allocations(tiles: Vec<Tile>) -> impl Iterator<Item = PhysicalAllocation> {
    tiles.into_iter().map(|tile| tile.allocation)
}
