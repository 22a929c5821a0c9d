//! `cuMemAllocPitch`: rows begin at multiples of the pitch, and whole pitches are charged.

use crate::words::*;
use gpuslice_nvabi::types::*;

family!("pitch":
    charged_by_the_pitch, given_back, every_element_size, over_the_device, bad_element,
    nothing_wide, nothing_high, overflow, null_out,
);

fn pitched(width: usize, height: usize, element: u32) -> Outcome<(CUdeviceptr, usize)> {
    let (mut at, mut pitch) = (0, 0);
    ok!(cuMemAllocPitch_v2(
        &mut at, &mut pitch, width, height, element
    ));
    that!(pitch >= width, "a pitch of {pitch} for rows of {width}");
    Ok((at, pitch))
}

fn charged_by_the_pitch() -> Outcome {
    let gpu = gpu()?;
    let before = gpu.free()?;
    // One byte more than fits a row: most of each row is lost, and charged.
    let (_, pitch) = pitched(513, gpu.part(16)? / 1024, 4)?;
    gpu.took(before, pitch * (gpu.part(16)? / 1024), GRAIN)
}

fn given_back() -> Outcome {
    let gpu = gpu()?;
    let before = gpu.free()?;
    for _ in 0..100 {
        let (at, _) = pitched(1000, 4000, 16)?;
        gpu.release(at)?;
    }
    gpu.back_to(before)
}

fn every_element_size() -> Outcome {
    let gpu = gpu()?;
    let before = gpu.free()?;
    for element in [4, 8, 16] {
        let (at, pitch) = pitched(4096, 64, element)?;
        gpu.usable(at, pitch * 64)?;
        gpu.release(at)?;
    }
    gpu.back_to(before)
}

fn over_the_device() -> Outcome {
    let gpu = gpu()?;
    let ((before, total), mut at, mut pitch) = (gpu.info()?, 0, 0);
    says!(
        OOM,
        cuMemAllocPitch_v2(&mut at, &mut pitch, 4096, total / 4096 + 1024, 4)
    );
    // By the width alone it would fit.
    says!(
        OOM,
        cuMemAllocPitch_v2(&mut at, &mut pitch, 1, total / 256, 4)
    );
    gpu.back_to(before)
}

fn bad_element() -> Outcome {
    let gpu = gpu()?;
    let (before, mut at, mut pitch) = (gpu.free()?, 0, 0);
    for element in [0, 1, 2, 3, 5, 32, u32::MAX] {
        says!(
            INVALID,
            cuMemAllocPitch_v2(&mut at, &mut pitch, 4096, 64, element)
        );
    }
    gpu.back_to(before)
}

fn nothing_wide() -> Outcome {
    let gpu = gpu()?;
    let (before, mut at, mut pitch) = (gpu.free()?, 0, 0);
    says!(INVALID, cuMemAllocPitch_v2(&mut at, &mut pitch, 0, 64, 4));
    gpu.back_to(before)
}

fn nothing_high() -> Outcome {
    let gpu = gpu()?;
    let (before, mut at, mut pitch) = (gpu.free()?, 0, 0);
    says!(INVALID, cuMemAllocPitch_v2(&mut at, &mut pitch, 64, 0, 4));
    gpu.back_to(before)
}

fn overflow() -> Outcome {
    let gpu = gpu()?;
    let (before, mut at, mut pitch) = (gpu.free()?, 0, 0);
    for (width, height) in [
        (usize::MAX, 1),
        (1, usize::MAX),
        (usize::MAX, usize::MAX),
        (1 << 33, 1 << 33),
        (usize::MAX - 511, 2),
    ] {
        says!(
            [OOM, INVALID],
            cuMemAllocPitch_v2(&mut at, &mut pitch, width, height, 4)
        );
    }
    gpu.back_to(before)
}

fn null_out() -> Outcome {
    let gpu = gpu()?;
    let (before, mut at, mut pitch) = (gpu.free()?, 0, 0);
    says!(
        INVALID,
        cuMemAllocPitch_v2(std::ptr::null_mut(), &mut pitch, 64, 64, 4)
    );
    says!(
        INVALID,
        cuMemAllocPitch_v2(&mut at, std::ptr::null_mut(), 64, 64, 4)
    );
    gpu.back_to(before)
}
