//! Shapes: how many bytes an array of a description has, and which descriptions are allowed.

use crate::entry::refuse_if;
use gpuslice_nvabi::types::*;

const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;
/// Rows begin at multiples of this.
const ROW_ALIGN: u64 = 64;
/// Rows that an array of one dimension takes. An H200 (driver 580.159.04) took 16 MiB for each array of 131072
/// elements of 16 bytes: memory comes in blocks of eight rows. What it takes for layers or few rows is not known.
const LINE_ROWS: u64 = 8;
/// Flags an array can have; video arrays need hardware there is none of.
const FLAGS: u32 = CUDA_ARRAY3D_LAYERED
    | CUDA_ARRAY3D_SURFACE_LDST
    | CUDA_ARRAY3D_CUBEMAP
    | CUDA_ARRAY3D_TEXTURE_GATHER
    | CUDA_ARRAY3D_DEPTH_TEXTURE
    | CUDA_ARRAY3D_COLOR_ATTACHMENT
    | CUDA_ARRAY3D_SPARSE
    | CUDA_ARRAY3D_DEFERRED_MAPPING;
/// Largest sides, as the device's attributes say.
const MOST: [usize; 3] = [131_072, 65_536, 16_384];

/// Bytes of a block of four by four elements in a compressed format, and its channels.
fn block(format: CUarray_format) -> Option<(u64, u32)> {
    match format {
        CU_AD_FORMAT_BC1_UNORM | CU_AD_FORMAT_BC1_UNORM_SRGB => Some((8, 4)),
        CU_AD_FORMAT_BC4_UNORM | CU_AD_FORMAT_BC4_SNORM => Some((8, 1)),
        CU_AD_FORMAT_BC5_UNORM | CU_AD_FORMAT_BC5_SNORM => Some((16, 2)),
        CU_AD_FORMAT_BC6H_UF16 | CU_AD_FORMAT_BC6H_SF16 => Some((16, 3)),
        CU_AD_FORMAT_BC2_UNORM..=CU_AD_FORMAT_BC3_UNORM_SRGB => Some((16, 4)),
        CU_AD_FORMAT_BC7_UNORM | CU_AD_FORMAT_BC7_UNORM_SRGB => Some((16, 4)),
        _ => None,
    }
}

/// Bytes of one element, all channels together.
fn element_bytes(format: CUarray_format, channels: u32) -> Result<u64, CUresult> {
    let channel = match format {
        CU_AD_FORMAT_UNSIGNED_INT8 | CU_AD_FORMAT_SIGNED_INT8 => 1,
        CU_AD_FORMAT_UNSIGNED_INT16 | CU_AD_FORMAT_SIGNED_INT16 | CU_AD_FORMAT_HALF => 2,
        CU_AD_FORMAT_UNSIGNED_INT32 | CU_AD_FORMAT_SIGNED_INT32 | CU_AD_FORMAT_FLOAT => 4,
        // The normalised formats name their channels themselves.
        CU_AD_FORMAT_UNORM_INT8X1 | CU_AD_FORMAT_SNORM_INT8X1 if channels == 1 => 1,
        CU_AD_FORMAT_UNORM_INT8X2 | CU_AD_FORMAT_SNORM_INT8X2 if channels == 2 => 1,
        CU_AD_FORMAT_UNORM_INT8X4 | CU_AD_FORMAT_SNORM_INT8X4 if channels == 4 => 1,
        CU_AD_FORMAT_UNORM_INT16X1 | CU_AD_FORMAT_SNORM_INT16X1 if channels == 1 => 2,
        CU_AD_FORMAT_UNORM_INT16X2 | CU_AD_FORMAT_SNORM_INT16X2 if channels == 2 => 2,
        CU_AD_FORMAT_UNORM_INT16X4 | CU_AD_FORMAT_SNORM_INT16X4 if channels == 4 => 2,
        _ => return Err(INVALID),
    };
    if matches!(channels, 1 | 2 | 4) { Ok(channel * u64::from(channels)) } else { Err(INVALID) }
}

/// Bytes of an element of a format that is not compressed.
pub fn element(shape: &CUDA_ARRAY3D_DESCRIPTOR) -> Result<u64, CUresult> {
    element_bytes(shape.format, shape.num_channels)
}

/// Whether an array of this shape has no memory until some is mapped.
pub fn is_mapped_later(shape: &CUDA_ARRAY3D_DESCRIPTOR) -> bool {
    shape.flags & (CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_SPARSE) != 0
}

/// Whether there can be such an array.
pub fn check(shape: &CUDA_ARRAY3D_DESCRIPTOR) -> Result<(), CUresult> {
    match block(shape.format) {
        // Blocks are flat: there is no row of them.
        Some((_, channels)) if shape.num_channels != channels || shape.height == 0 => {
            return Err(INVALID);
        }
        Some(_) => {}
        None => element_bytes(shape.format, shape.num_channels).map(drop)?,
    }
    if shape.flags & CUDA_ARRAY3D_VIDEO_ENCODE_DECODE != 0 {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    // Tiles are of elements and have two sides at least; what has them is not mapped whole.
    let sparse = shape.flags & CUDA_ARRAY3D_SPARSE != 0;
    let whole = shape.flags & CUDA_ARRAY3D_DEFERRED_MAPPING != 0;
    if sparse && (whole || shape.height == 0 || block(shape.format).is_some()) {
        return Err(INVALID);
    }
    let sides = [shape.width, shape.height, shape.depth];
    let too_large = sides.iter().zip(MOST).any(|(side, most)| *side > most);
    let layered = shape.flags & CUDA_ARRAY3D_LAYERED != 0;
    refuse_if(shape.width == 0 || too_large || shape.flags & !FLAGS != 0)?;
    refuse_if(shape.height == 0 && shape.depth != 0 && !layered)?;
    refuse_if(layered && shape.depth == 0)?;
    let cube = shape.flags & CUDA_ARRAY3D_CUBEMAP != 0;
    let faces = if layered { shape.depth.is_multiple_of(6) } else { shape.depth == 6 };
    refuse_if(cube && !(shape.width == shape.height && faces))?;
    Ok(())
}

/// Bytes of a row, rows, planes; of a compressed format rows are rows of blocks.
pub fn extent(shape: &CUDA_ARRAY3D_DESCRIPTOR) -> Result<[u64; 3], CUresult> {
    if let Some((bytes, _)) = block(shape.format) {
        let blocks = |side: usize| side.div_ceil(4) as u64;
        let planes = shape.depth.max(1) as u64;
        return Ok([blocks(shape.width) * bytes, blocks(shape.height), planes]);
    }
    let row = shape.width as u64 * element_bytes(shape.format, shape.num_channels)?;
    Ok([row, shape.height.max(1) as u64, shape.depth.max(1) as u64])
}

/// From one row to the next.
pub fn pitch(row: u64) -> u64 {
    row.next_multiple_of(ROW_ALIGN)
}

/// Bytes it takes in memory.
pub fn bytes(shape: &CUDA_ARRAY3D_DESCRIPTOR) -> Result<u64, CUresult> {
    let [row, height, depth] = extent(shape)?;
    let height = if shape.height == 0 && shape.depth == 0 { LINE_ROWS } else { height };
    let plane = pitch(row).checked_mul(height);
    plane.and_then(|plane| plane.checked_mul(depth)).ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

/// The shape of a level of a mipmapped array: each side halved, layers kept.
pub fn level(shape: &CUDA_ARRAY3D_DESCRIPTOR, level: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    let half = |side: usize| if side == 0 { 0 } else { (side >> level).max(1) };
    let kept = shape.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    let depth = if kept { shape.depth } else { half(shape.depth) };
    CUDA_ARRAY3D_DESCRIPTOR {
        width: half(shape.width),
        height: half(shape.height),
        depth,
        ..*shape
    }
}

/// Levels until all sides are one.
pub fn most_levels(shape: &CUDA_ARRAY3D_DESCRIPTOR) -> u32 {
    let layered = shape.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    let depth = if layered { 1 } else { shape.depth };
    shape.width.max(shape.height).max(depth).max(1).ilog2() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(width: usize, height: usize, depth: usize, flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
        let (format, num_channels) = (CU_AD_FORMAT_FLOAT, 4);
        CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format, num_channels, flags }
    }

    #[test]
    fn sizes_and_levels() {
        assert_eq!(bytes(&shape(3, 0, 0, 0)), Ok(64 * 8), "a block of 8 rows");
        assert_eq!(bytes(&shape(131_072, 0, 0, 0)), Ok(16 << 20));
        assert_eq!(bytes(&shape(5, 2, 3, 0)), Ok(128 * 6));
        assert_eq!(most_levels(&shape(64, 16, 0, 0)), 7);
        let (format, num_channels) = (CU_AD_FORMAT_BC1_UNORM, 4);
        let blocks = CUDA_ARRAY3D_DESCRIPTOR { format, num_channels, ..shape(61, 5, 0, 0) };
        assert_eq!(bytes(&blocks), Ok(128 * 2), "16 blocks of 8 bytes, 2 rows");
        let second = level(&shape(64, 1, 0, 0), 2);
        assert_eq!((second.width, second.height, second.depth), (16, 1, 0));
        assert_eq!(level(&shape(8, 8, 6, CUDA_ARRAY3D_CUBEMAP), 1).depth, 6);
    }

    #[test]
    fn impossible_shapes() {
        for bad in [
            shape(0, 1, 1, 0),
            shape(1 << 20, 0, 0, 0),
            shape(4, 0, 2, 0),
            shape(4, 4, 0, CUDA_ARRAY3D_LAYERED),
            shape(4, 8, 6, CUDA_ARRAY3D_CUBEMAP),
            shape(4, 4, 5, CUDA_ARRAY3D_CUBEMAP),
            shape(4, 4, 0, 1 << 20),
            CUDA_ARRAY3D_DESCRIPTOR { num_channels: 3, ..shape(4, 4, 0, 0) },
            CUDA_ARRAY3D_DESCRIPTOR {
                format: CU_AD_FORMAT_BC1_UNORM,
                num_channels: 1,
                ..shape(4, 4, 0, 0)
            },
            CUDA_ARRAY3D_DESCRIPTOR { format: 77, ..shape(4, 4, 0, 0) },
        ] {
            assert_eq!(check(&bad), Err(INVALID), "{bad:?}");
        }
        assert_eq!(check(&shape(4, 4, 0, 0)), Ok(()));
    }
}
