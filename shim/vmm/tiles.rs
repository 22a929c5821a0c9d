//! Tiles of sparse arrays: memory mapped into a part of an array.
//!
//! `cuMemMapArrayAsync` puts memory behind a part of an array that was made without any. The memory is
//! then held by that tile, until the same part is unmapped or the array is destroyed, whatever became of
//! its handle. A part is known by its exact region: if an application unmaps other regions than it
//! mapped, the charge stays until the array's end. The calls take effect in the order of a stream; for
//! the books they do when they are made.

use super::{Piece, Pieces};
use gpuslice_nvabi::types::{CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL, CUarrayMapInfo};
use std::collections::HashMap;

/// A part of an array, as an application names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The array or mipmapped array.
    pub resource: u64,
    kind: u32,
    words: [u64; 4],
}

impl Region {
    /// The region that a step of `cuMemMapArrayAsync` works on.
    #[must_use]
    pub fn of(step: &CUarrayMapInfo) -> Region {
        let mut words = step.subresource;
        if step.subresource_type == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL {
            // Layer (32 bits), offset and size; the rest is padding with anything in it.
            words = [u64::from(words[0] as u32), words[1], words[2], 0];
        }
        Region {
            resource: step.resource as u64,
            kind: step.subresource_type,
            words,
        }
    }
}

/// A part that has memory.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    pub(super) piece: Piece,
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

impl Pieces {
    /// Writes a counted reference down as held by a tile. One region may be mapped again without
    /// having been unmapped: all that was there is held until then.
    pub fn map_tile(&mut self, region: Region, context: u64, piece: Piece) {
        self.tiles.restore(vec![Tile {
            piece,
            region,
            context,
        }]);
    }

    /// Takes out what is held by the tile of exactly this region; to be dropped.
    #[must_use]
    pub fn unmap_tile(&mut self, region: Region) -> Vec<Piece> {
        let Some(tiles) = self.tiles.0.get_mut(&region.resource) else {
            return Vec::new();
        };
        let gone = tiles.extract_if(.., |tile| tile.region == region);
        gone.map(|tile| tile.piece).collect()
    }

    /// Takes out all tiles of an array that is about to be destroyed; to be dropped, or written back by
    /// [`Pieces::restore_tiles`].
    #[must_use]
    pub fn take_tiles(&mut self, resource: u64) -> Vec<Tile> {
        self.tiles.0.remove(&resource).unwrap_or_default()
    }

    /// Writes back the tiles of an array that was not destroyed.
    pub fn restore_tiles(&mut self, tiles: Vec<Tile>) {
        self.tiles.restore(tiles);
    }
}

/// The pieces of tiles that are gone.
pub fn pieces(tiles: Vec<Tile>) -> impl Iterator<Item = Piece> {
    tiles.into_iter().map(|tile| tile.piece)
}
