//! Sparse arrays: addresses of a picture without memory behind them, until tiles are mapped.
//!
//! A tile is 64 KiB; its extent in elements follows from their size, as on every device since the
//! first that had them. Memory is put behind tiles and taken away by `cuMemMapArrayAsync`, and each tile
//! holds its memory by itself: releasing the handle of mapped memory frees nothing. Small levels of a
//! mipmapped array share a tail, which is mapped by bytes. The content of tiles cannot be read here,
//! because there are no textures.

use crate::allocations::array::{Array, INVALID, change, format, with};
use crate::entry::{In, Out, Outcome, refuse_if};
use crate::exec;
use crate::memory::vmm;
use crate::vram::Chunk;
use gpuslice_nvabi::types::*;
use std::sync::Arc;

/// Bytes of a tile.
const TILE: u64 = 64 << 10;
/// `CU_RESOURCE_TYPE_ARRAY` and its mipmapped sibling.
const RESOURCE_ARRAY: u32 = 0;
const RESOURCE_MIPMAPPED: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_GENERIC`: the one kind of handle there is.
const GENERIC: u32 = 0;

/// A tile's place: level (or [`TAIL`]), layer, and position in tiles.
type Place = [u32; 5];
/// In the place of a level: the tail, counted in tiles of bytes.
const TAIL: u32 = u32::MAX;

/// Elements of a tile: width, height, depth.
fn extent(shape: &CUDA_ARRAY3D_DESCRIPTOR) -> Result<[u32; 3], CUresult> {
    let flat = shape.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    let solid = shape.depth > 0 && !flat;
    match (format::element(shape)?, solid) {
        (1, false) => Ok([256, 256, 1]),
        (2, false) => Ok([256, 128, 1]),
        (4, false) => Ok([128, 128, 1]),
        (8, false) => Ok([128, 64, 1]),
        (_, false) => Ok([64, 64, 1]),
        (1, true) => Ok([64, 32, 32]),
        (2, true) => Ok([32, 32, 32]),
        (4, true) => Ok([32, 32, 16]),
        (8, true) => Ok([32, 16, 16]),
        (_, true) => Ok([16, 16, 16]),
    }
}

fn sides(shape: &CUDA_ARRAY3D_DESCRIPTOR) -> [u32; 3] {
    let layers = shape.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    let depth = if layers { 1 } else { shape.depth.max(1) };
    [shape.width as u32, shape.height.max(1) as u32, depth as u32]
}

/// The first level that is smaller than a tile: from it on levels are in the tail.
fn first_of_tail(array: &Array, tile: [u32; 3]) -> u32 {
    let small = |level: u32| {
        let sides = sides(&format::level(&array.shape, level));
        sides.iter().zip(tile).any(|(side, tile)| *side < tile)
    };
    let levels = array.levels.len() as u32;
    (0..levels).find(|level| small(*level)).unwrap_or(levels)
}

/// Bytes of one layer's tail, in whole tiles.
fn tail_bytes(array: &Array, first: u32) -> u64 {
    let own = |level: u32| format::bytes(&format::level(&array.shape, level)).unwrap_or(0);
    let all: u64 = (first..array.levels.len() as u32).map(own).sum();
    all.next_multiple_of(TILE)
}

fn properties(array: &Array) -> Result<CUDA_ARRAY_SPARSE_PROPERTIES, CUresult> {
    refuse_if(array.shape.flags & CUDA_ARRAY3D_SPARSE == 0)?;
    let [width, height, depth] = extent(&array.shape)?;
    let first = first_of_tail(array, [width, height, depth]);
    Ok(CUDA_ARRAY_SPARSE_PROPERTIES {
        tile_extent: CUDA_ARRAY_SPARSE_TILE { width, height, depth },
        miptail_first_level: first,
        miptail_size: tail_bytes(array, first),
        flags: CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL,
        reserved: [0; 4],
    })
}

/// The tiles of a region of a level; it is whole tiles, but for the edge of the level.
fn level_tiles(array: &Array, step: &CUarrayMapInfo) -> Result<Vec<Place>, CUresult> {
    let half = |word: u64| [word as u32, (word >> 32) as u32];
    let [[level, layer], [x, y], [z, width], [height, depth]] = step.subresource.map(half);
    let (tile, whole) = (extent(&array.shape)?, format::level(&array.shape, level));
    let layered = array.shape.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    let layers = if layered { array.shape.depth as u32 } else { 1 };
    refuse_if(level >= array.levels.len().max(1) as u32 || layer >= layers)?;
    let mut ranges = [0..0, 0..0, 0..0];
    let wanted = [(x, width), (y, height), (z, depth)];
    for (axis, (from, len)) in wanted.into_iter().enumerate() {
        let (tile, side) = (tile[axis], sides(&whole)[axis]);
        let end = from.checked_add(len).ok_or(INVALID)?;
        let fits = end <= side && (end % tile == 0 || end == side);
        refuse_if(len == 0 || from % tile != 0 || !fits)?;
        ranges[axis] = from / tile..end.div_ceil(tile);
    }
    let [xs, ys, zs] = ranges;
    let mut all = Vec::new();
    for z in zs {
        for y in ys.clone() {
            all.extend(xs.clone().map(|x| [level, layer, x, y, z]));
        }
    }
    Ok(all)
}

/// The same of a part of the tail.
fn tail_tiles(array: &Array, step: &CUarrayMapInfo) -> Result<Vec<Place>, CUresult> {
    let (layer, offset, size) =
        (step.subresource[0] as u32, step.subresource[1], step.subresource[2]);
    let most = properties(array)?.miptail_size;
    let end = offset.checked_add(size).ok_or(INVALID)?;
    let whole = offset.is_multiple_of(TILE) && size.is_multiple_of(TILE);
    refuse_if(size == 0 || end > most || !whole)?;
    let tiles = offset / TILE..end / TILE;
    Ok(tiles.map(|at| [TAIL, layer, at as u32, 0, 0]).collect())
}

/// Looks a step through: the tiles, and the memory to put behind them.
fn plan(step: &CUarrayMapInfo) -> Result<(Vec<Place>, Option<Arc<Chunk>>), CUresult> {
    let mipmapped = match step.resource_type {
        RESOURCE_ARRAY => false,
        RESOURCE_MIPMAPPED => true,
        _ => return Err(INVALID),
    };
    if step.flags != 0 || step.device_bit_mask == 0 || step.mem_handle_type != GENERIC {
        return Err(INVALID);
    }
    let tiles = with(step.resource, mipmapped, |array| {
        if array.shape.flags & CUDA_ARRAY3D_SPARSE == 0 {
            // An array that is whole would have to be mapped whole.
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        match step.subresource_type {
            CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL => level_tiles(array, step),
            CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL => tail_tiles(array, step),
            _ => Err(INVALID),
        }
    })??;
    match step.mem_operation_type {
        CU_MEM_OPERATION_TYPE_UNMAP => Ok((tiles, None)),
        CU_MEM_OPERATION_TYPE_MAP => {
            let chunk = vmm::chunk_of(step.mem_handle)?;
            let end = step.offset.checked_add(tiles.len() as u64 * TILE);
            let fits = end.is_some_and(|end| end <= chunk.bytes());
            refuse_if(!fits || !step.offset.is_multiple_of(TILE))?;
            Ok((tiles, Some(chunk)))
        }
        _ => Err(INVALID),
    }
}

/// Applies a step; returns the memory that is no longer held, to be released without the lock.
fn apply(step: &CUarrayMapInfo, tiles: Vec<Place>, chunk: Option<&Arc<Chunk>>) -> Vec<Arc<Chunk>> {
    let gone = change(step.resource, |array| {
        let before = tiles.into_iter().filter_map(|place| match chunk {
            Some(chunk) => array.tiles.insert(place, chunk.clone()),
            None => array.tiles.remove(&place),
        });
        before.collect()
    });
    gone.unwrap_or_default()
}

pub fn cuArrayGetSparseProperties(
    sparse: Out<CUDA_ARRAY_SPARSE_PROPERTIES>,
    array: CUarray,
) -> Outcome {
    sparse.require()?;
    sparse.set(with(array.0, false, properties)??)
}

pub fn cuMipmappedArrayGetSparseProperties(
    sparse: Out<CUDA_ARRAY_SPARSE_PROPERTIES>,
    mipmap: CUmipmappedArray,
) -> Outcome {
    sparse.require()?;
    sparse.set(with(mipmap.0, true, properties)??)
}

/// Applies all steps or none. The work queued before has ended, so the order of the stream is kept.
pub fn cuMemMapArrayAsync(steps: In<CUarrayMapInfo>, count: u32, stream: CUstream) -> Outcome {
    exec::working()?;
    refuse_if(count == 0)?;
    let steps = steps.list(count as usize)?;
    let plans = steps.iter().map(plan).collect::<Result<Vec<_>, _>>()?;
    exec::wait(stream)?;
    for (step, (tiles, chunk)) in steps.iter().zip(plans) {
        drop(apply(step, tiles, chunk.as_ref()));
    }
    Ok(())
}
pub use cuMemMapArrayAsync as cuMemMapArrayAsync_ptsz;
