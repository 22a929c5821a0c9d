//! Arrays: memory in the layout textures read. The driver rounds rows and tiles up as it likes; at
//! least the elements are charged.

use crate::child::refused_or_crashes;
use crate::words::*;
use gpuslice_apps::api::calls;
use gpuslice_nvabi::types::*;

family!("array":
    one_dimension, every_plain_format, blocks, mipmapped, mipmapped_blocks,
    level_belongs_to_its_array, over_the_device, over_the_device_3d, over_the_device_mipmapped,
    refusals_change_nothing, filled_to_the_last, a_hundred_rounds, deferred, deferred_mipmapped,
    sparse, requirements_of_plain_ones, described, null_out, destroy_twice, destroy_foreign,
    context_destroyed, two_dimensions, three_dimensions, layers, cube, cube_layers, surface,
    four_channels_of_floats, zero, overflow, bad_format, bad_channels, bad_flags;
);

/// 32-bit floats in one channel, and these extents.
fn shape(extent: [usize; 3], flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    let [width, height, depth] = extent;
    let (format, num_channels) = (CU_AD_FORMAT_FLOAT, 1);
    CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format, num_channels, flags }
}

const NO_NEED: CUDA_ARRAY_MEMORY_REQUIREMENTS =
    CUDA_ARRAY_MEMORY_REQUIREMENTS { size: 0, alignment: 0, reserved: [0; 4] };

fn create(shape: &CUDA_ARRAY3D_DESCRIPTOR) -> Outcome<CUarray> {
    let mut array = CUarray::NULL;
    ok!(cuArray3DCreate_v2(&mut array, shape));
    Ok(array)
}

fn destroy(array: CUarray) -> Outcome {
    ok!(cuArrayDestroy(array));
    Ok(())
}

/// An array of this shape is charged with at least `bytes`, and given back.
fn lives(gpu: Gpu, shape: &CUDA_ARRAY3D_DESCRIPTOR, bytes: usize) -> Outcome {
    let array = create(shape)?;
    gpu.took(bytes, bytes + 2 * GRAIN)?;
    destroy(array)?;
    gpu.back()
}

/// How many floats wide a square of a `n`th of the device is.
fn side(gpu: Gpu, n: usize) -> Outcome<usize> {
    Ok((((gpu.part(n)? / 4) as f64).sqrt() as usize / 64 * 64).min(16384))
}

/// A card takes a block of eight rows for each: eight times the elements.
fn one_dimension(gpu: Gpu) -> Outcome {
    let plain = CUDA_ARRAY_DESCRIPTOR {
        width: 131_072,
        height: 0,
        format: CU_AD_FORMAT_FLOAT,
        num_channels: 4,
    };
    let mut all = [CUarray::NULL; 8];
    for array in &mut all {
        ok!(cuArrayCreate_v2(array, &plain));
    }
    let bytes = all.len() * 131_072 * 16;
    gpu.took(bytes, 7 * bytes + 16 * GRAIN)?;
    all.into_iter().try_for_each(destroy)?;
    gpu.back()
}

fn two_dimensions(gpu: Gpu) -> Outcome {
    let side = side(gpu, 8)?;
    lives(gpu, &shape([side, side, 0], 0), side * side * 4)
}

fn three_dimensions(gpu: Gpu) -> Outcome {
    lives(gpu, &shape([256, 256, 128], 0), 256 * 256 * 128 * 4)
}

fn layers(gpu: Gpu) -> Outcome {
    lives(gpu, &shape([512, 512, 20], CUDA_ARRAY3D_LAYERED), 512 * 512 * 20 * 4)
}

fn cube(gpu: Gpu) -> Outcome {
    lives(gpu, &shape([512, 512, 6], CUDA_ARRAY3D_CUBEMAP), 512 * 512 * 6 * 4)
}

fn cube_layers(gpu: Gpu) -> Outcome {
    let flags = CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED;
    lives(gpu, &shape([256, 256, 24], flags), 256 * 256 * 24 * 4)
}

fn surface(gpu: Gpu) -> Outcome {
    lives(gpu, &shape([1024, 1024, 0], CUDA_ARRAY3D_SURFACE_LDST), 1024 * 1024 * 4)
}

fn every_plain_format(gpu: Gpu) -> Outcome {
    for (format, bytes) in [
        (CU_AD_FORMAT_UNSIGNED_INT8, 1),
        (CU_AD_FORMAT_SIGNED_INT8, 1),
        (CU_AD_FORMAT_UNSIGNED_INT16, 2),
        (CU_AD_FORMAT_SIGNED_INT16, 2),
        (CU_AD_FORMAT_HALF, 2),
        (CU_AD_FORMAT_UNSIGNED_INT32, 4),
        (CU_AD_FORMAT_SIGNED_INT32, 4),
        (CU_AD_FORMAT_FLOAT, 4),
    ] {
        for num_channels in [1, 2, 4] {
            let plain = shape([2048, 2048, 0], 0);
            let array = create(&CUDA_ARRAY3D_DESCRIPTOR { format, num_channels, ..plain })?;
            let bytes = 2048 * 2048 * bytes * num_channels as usize;
            gpu.took(bytes, bytes / 2 + 2 * GRAIN)?;
            destroy(array)?;
        }
    }
    gpu.back()
}

fn four_channels_of_floats(gpu: Gpu) -> Outcome {
    let side = side(gpu, 32)?;
    let plain = shape([side, side, 0], 0);
    let wide = CUDA_ARRAY3D_DESCRIPTOR { num_channels: 4, ..plain };
    lives(gpu, &wide, side * side * 16)
}

/// Blocks of four by four elements take 8 or 16 bytes: less than an element has bits.
fn blocks(gpu: Gpu) -> Outcome {
    for (format, num_channels, block) in [
        (CU_AD_FORMAT_BC1_UNORM, 4, 8),
        (CU_AD_FORMAT_BC4_UNORM, 1, 8),
        (CU_AD_FORMAT_BC7_UNORM, 4, 16),
    ] {
        let gpu = gpu.measured()?;
        let plain = shape([4096, 4096, 0], 0);
        let array = create(&CUDA_ARRAY3D_DESCRIPTOR { format, num_channels, ..plain })?;
        let bytes = 1024 * 1024 * block;
        gpu.took(bytes, bytes / 2 + 2 * GRAIN)?;
        destroy(array)?;
        gpu.back()?;
    }
    Ok(())
}

fn mip(shape: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> Outcome<CUmipmappedArray> {
    let mut array = CUmipmappedArray::NULL;
    ok!(cuMipmappedArrayCreate(&mut array, shape, levels));
    Ok(array)
}

fn mipmapped(gpu: Gpu) -> Outcome {
    let array = mip(&shape([2048, 2048, 0], 0), 12)?;
    // The levels add a third to the first.
    gpu.took(2048 * 2048 * 4 * 4 / 3, 12 * GRAIN)?;
    ok!(cuMipmappedArrayDestroy(array));
    gpu.back()
}

fn mipmapped_blocks(gpu: Gpu) -> Outcome {
    let plain = shape([4096, 4096, 0], 0);
    let (format, num_channels) = (CU_AD_FORMAT_BC1_UNORM, 4);
    let array = mip(&CUDA_ARRAY3D_DESCRIPTOR { format, num_channels, ..plain }, 4)?;
    gpu.took(1024 * 1024 * 8 * 4 / 3 - GRAIN, 12 * GRAIN)?;
    ok!(cuMipmappedArrayDestroy(array));
    gpu.back()
}

fn level_belongs_to_its_array(gpu: Gpu) -> Outcome {
    refused_or_crashes(gpu, "destroy-level")
}

/// The helper of that case. A card's driver answers success for a level. What becomes of its array is not known, so
/// neither is used again. At most the array's memory comes back.
pub fn level_destroyed(_: &[String]) -> Outcome {
    let (gpu, mut level) = (gpu()?, CUarray::NULL);
    let array = mip(&shape([1024, 1024, 0], 0), 4)?;
    ok!(cuMipmappedArrayGetLevel(&mut level, array, 1));
    says!([SUCCESS, INVALID, CUresult::ERROR_INVALID_HANDLE], cuArrayDestroy(level));
    let free = gpu.free()?;
    that!(free <= gpu.before + GRAIN, "{free} bytes are free, {} before", gpu.before);
    Ok(())
}

/// More than the device has, in a shape within its limits.
fn too_large(gpu: Gpu) -> Outcome<CUDA_ARRAY3D_DESCRIPTOR> {
    let plain = shape([16384, 16384, 0], CUDA_ARRAY3D_LAYERED);
    let layer = 16384 * 16384 * 16;
    let depth = gpu.total()? / layer + 1;
    Ok(CUDA_ARRAY3D_DESCRIPTOR { depth, num_channels: 4, ..plain })
}

fn over_the_device(gpu: Gpu) -> Outcome {
    let mut array = CUarray::NULL;
    says!(OOM, cuArray3DCreate_v2(&mut array, &too_large(gpu)?));
    gpu.back()
}

fn over_the_device_3d(gpu: Gpu) -> Outcome {
    let mut array = CUarray::NULL;
    let plain = shape([4096, 4096, gpu.part(1)? / (4096 * 4096 * 16) + 1], 0);
    let wide = CUDA_ARRAY3D_DESCRIPTOR { num_channels: 4, ..plain };
    if wide.depth > 16384 {
        return skip("the device is larger than an array can be");
    }
    says!(OOM, cuArray3DCreate_v2(&mut array, &wide));
    gpu.back()
}

fn over_the_device_mipmapped(gpu: Gpu) -> Outcome {
    let mut array = CUmipmappedArray::NULL;
    says!(OOM, cuMipmappedArrayCreate(&mut array, &too_large(gpu)?, 3));
    gpu.back()
}

fn refusals_change_nothing(gpu: Gpu) -> Outcome {
    let mut array = CUarray::NULL;
    for _ in 0..50 {
        says!(OOM, cuArray3DCreate_v2(&mut array, &too_large(gpu)?));
    }
    gpu.back()
}

fn filled_to_the_last(gpu: Gpu) -> Outcome {
    let side = side(gpu, 16)?;
    let (mut all, mut array) = (Vec::new(), CUarray::NULL);
    let square = shape([side, side, 0], 0);
    while says!([SUCCESS, OOM], cuArray3DCreate_v2(&mut array, &square)) == SUCCESS {
        all.push(array);
    }
    let bytes = side * side * 4;
    that!(all.len() * bytes <= gpu.before, "{} times {bytes} of {}", all.len(), gpu.before);
    that!(all.len() > 2 && gpu.free()? < 2 * bytes, "{} bytes are left", gpu.free()?);
    all.into_iter().try_for_each(destroy)?;
    gpu.back()
}

fn a_hundred_rounds(gpu: Gpu) -> Outcome {
    for round in 1..100 {
        destroy(create(&shape([64 * round, 64, 0], 0))?)?;
        ok!(cuMipmappedArrayDestroy(mip(&shape([64 * round, 64, 0], 0), 3)?));
    }
    gpu.back()
}

/// An array whose memory is mapped later costs nothing now, and says what it will need.
fn deferred(gpu: Gpu) -> Outcome {
    let mut array = CUarray::NULL;
    let later = shape([2048, 2048, 0], CUDA_ARRAY3D_DEFERRED_MAPPING);
    match calls::cuArray3DCreate_v2(&mut array, &later) {
        SUCCESS => {}
        other => return skip(format_args!("arrays that are mapped later: {other:?}")),
    }
    gpu.back()?;
    let mut need = NO_NEED;
    ok!(cuArrayGetMemoryRequirements(&mut need, array, gpu.device));
    that!(need.size >= 2048 * 2048 * 4, "{} bytes needed", need.size);
    that!(need.alignment.is_power_of_two(), "aligned to {}", need.alignment);
    destroy(array)?;
    gpu.back()
}

fn deferred_mipmapped(gpu: Gpu) -> Outcome {
    let mut array = CUmipmappedArray::NULL;
    let later = shape([2048, 2048, 0], CUDA_ARRAY3D_DEFERRED_MAPPING);
    match calls::cuMipmappedArrayCreate(&mut array, &later, 3) {
        SUCCESS => {}
        other => return skip(format_args!("arrays that are mapped later: {other:?}")),
    }
    gpu.back()?;
    let mut need = NO_NEED;
    ok!(cuMipmappedArrayGetMemoryRequirements(&mut need, array, gpu.device));
    that!(need.size >= 2048 * 2048 * 5, "{} bytes needed", need.size);
    ok!(cuMipmappedArrayDestroy(array));
    gpu.back()
}

/// A sparse array costs nothing until memory is mapped into it.
fn sparse(gpu: Gpu) -> Outcome {
    let mut array = CUarray::NULL;
    let sparse = shape([8192, 8192, 0], CUDA_ARRAY3D_SPARSE);
    match calls::cuArray3DCreate_v2(&mut array, &sparse) {
        SUCCESS => {}
        other => return skip(format_args!("sparse arrays: {other:?}")),
    }
    gpu.took(0, 4 * GRAIN)?;
    destroy(array)?;
    gpu.back()
}

fn requirements_of_plain_ones(gpu: Gpu) -> Outcome {
    let array = create(&shape([64, 64, 0], 0))?;
    let mut need = NO_NEED;
    // Answered, or invalid as the array's memory is there already; never a crash.
    says!([SUCCESS, INVALID], cuArrayGetMemoryRequirements(&mut need, array, gpu.device));
    destroy(array)
}

fn described(_: Gpu) -> Outcome {
    let (want, mut read) = (shape([640, 480, 0], 0), shape([1, 1, 1], 7));
    let array = create(&want)?;
    ok!(cuArray3DGetDescriptor_v2(&mut read, array));
    that!((read.width, read.height, read.depth) == (640, 480, 0), "{read:?} is read");
    destroy(array)
}

fn refused(gpu: Gpu, shapes: &[CUDA_ARRAY3D_DESCRIPTOR]) -> Outcome {
    let mut array = CUarray::NULL;
    for shape in shapes {
        says!([INVALID, OOM], cuArray3DCreate_v2(&mut array, shape));
    }
    gpu.back()
}

fn zero(gpu: Gpu) -> Outcome {
    refused(gpu, &[shape([0, 0, 0], 0), shape([0, 64, 0], 0), shape([0, 64, 64], 0)])
}

/// A card's driver does not refuse all of these: it may make an array of sides that it has cut.
fn overflow(gpu: Gpu) -> Outcome {
    let huge = usize::MAX;
    let shapes = [
        shape([huge, 0, 0], 0),
        shape([1 << 32, 1 << 32, 0], 0),
        shape([64, huge, 0], 0),
        shape([64, 64, huge], 0),
        shape([huge / 4 + 2, 1, 0], 0),
        shape([1 << 31, 1 << 31, 1 << 2], CUDA_ARRAY3D_LAYERED),
    ];
    for (index, shape) in shapes.iter().enumerate() {
        let mut array = CUarray::NULL;
        match calls::cuArray3DCreate_v2(&mut array, shape) {
            SUCCESS => {
                let free = gpu.free()?;
                that!(free <= gpu.before, "shape {index}: {free} of {} free", gpu.before);
                destroy(array)?;
            }
            INVALID | OOM => {}
            other => return fail(format_args!("shape {index} is answered {other:?}")),
        }
        let back = gpu.back();
        that!(back.is_ok(), "shape {index}: {back:?}");
    }
    Ok(())
}

fn bad_format(gpu: Gpu) -> Outcome {
    let plain = shape([64, 64, 0], 0);
    refused(
        gpu,
        &[
            CUDA_ARRAY3D_DESCRIPTOR { format: 0, ..plain },
            CUDA_ARRAY3D_DESCRIPTOR { format: 99_999, ..plain },
        ],
    )
}

fn bad_channels(gpu: Gpu) -> Outcome {
    let plain = shape([64, 64, 0], 0);
    refused(
        gpu,
        &[0, 3, 5, u32::MAX].map(|num_channels| CUDA_ARRAY3D_DESCRIPTOR { num_channels, ..plain }),
    )
}

fn bad_flags(gpu: Gpu) -> Outcome {
    refused(
        gpu,
        &[
            shape([64, 64, 7], CUDA_ARRAY3D_CUBEMAP),
            shape([64, 32, 6], CUDA_ARRAY3D_CUBEMAP),
            shape([64, 64, 0], 1 << 30),
        ],
    )
}

fn null_out(gpu: Gpu) -> Outcome {
    let mut array = CUarray::NULL;
    let square = shape([1024, 1024, 0], 0);
    says!(INVALID, cuArray3DCreate_v2(std::ptr::null_mut(), &square));
    says!(INVALID, cuArray3DCreate_v2(&mut array, std::ptr::null()));
    says!(INVALID, cuArrayCreate_v2(&mut array, std::ptr::null()));
    says!(INVALID, cuMipmappedArrayCreate(std::ptr::null_mut(), &square, 2));
    gpu.back()
}

fn destroy_twice(gpu: Gpu) -> Outcome {
    refused_or_crashes(gpu, "destroy-array-twice")
}

/// The helper of that case.
pub fn destroyed_twice(_: &[String]) -> Outcome {
    let gpu = gpu()?;
    let array = create(&shape([2048, 2048, 0], 0))?;
    destroy(array)?;
    says!([CUresult::ERROR_INVALID_HANDLE, INVALID], cuArrayDestroy(array));
    gpu.back()
}

fn destroy_foreign(_: Gpu) -> Outcome {
    says!([CUresult::ERROR_INVALID_HANDLE, INVALID], cuArrayDestroy(CUarray::NULL));
    Ok(())
}

fn context_destroyed(gpu: Gpu) -> Outcome {
    let mut other = CUcontext::NULL;
    ok!(cuCtxCreate_v2(&mut other, 0, gpu.device));
    create(&shape([4096, 4096, 0], 0))?;
    mip(&shape([2048, 2048, 0], 0), 4)?;
    ok!(cuCtxDestroy_v2(other));
    set_current(gpu.context)?;
    gpu.back()
}
