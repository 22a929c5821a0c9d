//! Estimates the memory of an array that the driver does not report.
//!
//! The layout of arrays is undocumented. It is known that images are kept in blocks of 64 bytes by 8
//! rows, several of them stacked vertically and in depth, in powers of two. So every row is rounded up to
//! 64 bytes and every plane to whole stacks of blocks. This is an upper estimate: at most about twice the
//! size of the elements, for an image larger than a few blocks.
#![forbid(unsafe_code)]
#![allow(non_upper_case_globals)] // the header's names of formats

use gpuslice_nvabi::types::*;

/// A block's width, bytes, and height, rows.
const BLOCK: (usize, usize) = (64, 8);
/// Most blocks stacked vertically, and most planes in depth.
const STACK: (usize, usize) = (32, 32);
/// The granularity of the whole array, bytes.
const ALIGN: usize = 64 << 10;
/// Bits of an element of the largest format.
const BITS_MAX: usize = 128;

/// Bits of one element: all channels together, including chrominance shared by several elements. Most formats
/// with a number of channels in their name are described with that number, some with another.
fn element_bits(format: CUarray_format, channels: u32) -> usize {
    let channels = channels.clamp(1, 4) as usize;
    match format {
        CU_AD_FORMAT_UNSIGNED_INT8 | CU_AD_FORMAT_SIGNED_INT8 => 8 * channels,
        CU_AD_FORMAT_UNSIGNED_INT16 | CU_AD_FORMAT_SIGNED_INT16 | CU_AD_FORMAT_HALF => {
            16 * channels
        }
        CU_AD_FORMAT_UNSIGNED_INT32 | CU_AD_FORMAT_SIGNED_INT32 | CU_AD_FORMAT_FLOAT => {
            32 * channels
        }
        CU_AD_FORMAT_BC1_UNORM | CU_AD_FORMAT_BC1_UNORM_SRGB => 4,
        CU_AD_FORMAT_BC4_UNORM | CU_AD_FORMAT_BC4_SNORM => 4,
        CU_AD_FORMAT_BC2_UNORM..=CU_AD_FORMAT_BC7_UNORM_SRGB => 8,
        CU_AD_FORMAT_UNORM_INT8X1 | CU_AD_FORMAT_SNORM_INT8X1 => 8,
        CU_AD_FORMAT_UNORM_INT8X2 | CU_AD_FORMAT_SNORM_INT8X2 => 16,
        CU_AD_FORMAT_UNORM_INT16X1 | CU_AD_FORMAT_SNORM_INT16X1 => 16,
        CU_AD_FORMAT_UNORM_INT8X4 | CU_AD_FORMAT_SNORM_INT8X4 => 32,
        CU_AD_FORMAT_UNORM_INT16X2 | CU_AD_FORMAT_SNORM_INT16X2 => 32,
        CU_AD_FORMAT_UNORM_INT16X4 | CU_AD_FORMAT_SNORM_INT16X4 => 64,
        CU_AD_FORMAT_UNORM_INT_101010_2 | CU_AD_FORMAT_AYUV | CU_AD_FORMAT_Y410 => 32,
        // Luminance and chrominance in planes; each chrominance plane is half, a quarter or all of the size.
        CU_AD_FORMAT_NV12 | CU_AD_FORMAT_UINT8_SEMIPLANAR_420 | CU_AD_FORMAT_UINT8_PLANAR_420 => 12,
        CU_AD_FORMAT_NV16
        | CU_AD_FORMAT_UINT8_SEMIPLANAR_422
        | CU_AD_FORMAT_UINT8_PLANAR_422
        | CU_AD_FORMAT_YUY2
        | CU_AD_FORMAT_UINT8_PACKED_422 => 16,
        CU_AD_FORMAT_P010
        | CU_AD_FORMAT_P016
        | CU_AD_FORMAT_UINT16_SEMIPLANAR_420
        | CU_AD_FORMAT_UINT16_PLANAR_420
        | CU_AD_FORMAT_Y444_PLANAR8
        | CU_AD_FORMAT_YUV444_8bit_SemiPlanar
        | CU_AD_FORMAT_UINT8_SEMIPLANAR_444
        | CU_AD_FORMAT_UINT8_PLANAR_444 => 24,
        CU_AD_FORMAT_P210
        | CU_AD_FORMAT_P216
        | CU_AD_FORMAT_Y210
        | CU_AD_FORMAT_Y216
        | CU_AD_FORMAT_UINT16_SEMIPLANAR_422
        | CU_AD_FORMAT_UINT16_PLANAR_422
        | CU_AD_FORMAT_UINT8_PACKED_444 => 32,
        CU_AD_FORMAT_Y444_PLANAR10
        | CU_AD_FORMAT_YUV444_16bit_SemiPlanar
        | CU_AD_FORMAT_UINT16_SEMIPLANAR_444
        | CU_AD_FORMAT_UINT16_PLANAR_444 => 48,
        CU_AD_FORMAT_Y416 => 64,
        _ => BITS_MAX,
    }
}

fn is_compressed(format: CUarray_format) -> bool {
    (CU_AD_FORMAT_BC1_UNORM..=CU_AD_FORMAT_BC7_UNORM_SRGB).contains(&format)
}

/// `side` rounded up to whole units, stacked by a power of two of at most `most`.
fn stacked(side: usize, unit: usize, most: usize) -> usize {
    let units = side.div_ceil(unit);
    let together = units.checked_next_power_of_two().unwrap_or(most).min(most);
    round(side, unit * together)
}

fn round(bytes: usize, to: usize) -> usize {
    bytes.checked_next_multiple_of(to).unwrap_or(usize::MAX)
}

/// The memory of one level, bytes; a side of 0 is absent.
fn level_bytes(shape: &CUDA_ARRAY3D_DESCRIPTOR, [width, height, depth]: [usize; 3]) -> usize {
    let bits = element_bits(shape.format, shape.num_channels);
    let (width, height, bits) = if is_compressed(shape.format) {
        // Four by four elements are one block.
        (width.div_ceil(4), height.div_ceil(4), bits * 16)
    } else {
        (width, height, bits)
    };
    let row = round(width.saturating_mul(bits).div_ceil(8), BLOCK.0);
    let rows = stacked(height.max(1), BLOCK.1, STACK.0);
    let planes = if is_layered(shape) { depth.max(1) } else { stacked(depth.max(1), 1, STACK.1) };
    row.saturating_mul(rows).saturating_mul(planes)
}

fn is_layered(shape: &CUDA_ARRAY3D_DESCRIPTOR) -> bool {
    shape.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0
}

/// Whether an array of this shape takes memory at its creation, and not when memory is mapped into it.
pub fn takes_memory(shape: &CUDA_ARRAY3D_DESCRIPTOR) -> bool {
    shape.flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) == 0
}

/// Upper bound for an array with so many levels, bytes.
pub fn bytes(shape: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> usize {
    let mut sides = [shape.width, shape.height, shape.depth];
    let mut sum: usize = 0;
    for _ in 0..levels.clamp(1, usize::BITS) {
        sum = sum.saturating_add(level_bytes(shape, sides));
        let kept = sides[2];
        sides = sides.map(|side| if side > 1 { side / 2 } else { side });
        if is_layered(shape) {
            sides[2] = kept;
        }
    }
    round(sum, ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(format: CUarray_format, sides: [usize; 3], flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR {
            width: sides[0],
            height: sides[1],
            depth: sides[2],
            format,
            num_channels: 4,
            flags,
        }
    }

    #[test]
    fn never_below_the_elements_and_seldom_twice_as_much() {
        for (format, bits) in [
            (CU_AD_FORMAT_UNSIGNED_INT8, 32),
            (CU_AD_FORMAT_HALF, 64),
            (CU_AD_FORMAT_FLOAT, 128),
            (CU_AD_FORMAT_BC1_UNORM, 4),
            (CU_AD_FORMAT_BC7_UNORM, 8),
            (CU_AD_FORMAT_NV12, 12),
            (CU_AD_FORMAT_Y416, 64),
            (0x7777, 128),
        ] {
            for width in [64, 100, 512, 1001, 4096] {
                for height in [256, 300, 1025] {
                    let least = width * height * bits / 8;
                    let bytes = bytes(&shape(format, [width, height, 0], 0), 1);
                    let most = 2 * least + (128 << 10);
                    assert!(
                        (least..=most).contains(&bytes),
                        "format {format:#x}, {width} x {height}: {bytes}, elements {least}"
                    );
                }
            }
        }
    }

    #[test]
    fn layers_levels_and_depth() {
        let float = |sides, flags| shape(CU_AD_FORMAT_FLOAT, sides, flags);
        let plain = bytes(&float([256, 256, 0], 0), 1);
        assert_eq!(plain, 256 * 256 * 16);
        let layered = bytes(&float([256, 256, 6], CUDA_ARRAY3D_LAYERED), 1);
        assert_eq!(layered, 6 * plain);
        assert_eq!(bytes(&float([256, 256, 6], 0), 1), 8 * plain);
        let levels = bytes(&float([256, 256, 0], 0), 9);
        assert!((plain * 4 / 3..plain * 3 / 2).contains(&levels), "{levels}");
    }

    #[test]
    fn impossible_shapes_do_not_overflow() {
        let huge = shape(CU_AD_FORMAT_FLOAT, [usize::MAX; 3], 0);
        assert_eq!(bytes(&huge, u32::MAX), usize::MAX);
        assert!(bytes(&shape(0, [0; 3], 0), 0) <= 1 << 20);
        for flags in [CUDA_ARRAY3D_SPARSE, CUDA_ARRAY3D_DEFERRED_MAPPING] {
            assert!(!takes_memory(&shape(0, [1; 3], flags)));
        }
    }
}
