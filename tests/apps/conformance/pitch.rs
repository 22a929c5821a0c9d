//! `cuMemAllocPitch`: rows begin at multiples of the pitch, and whole pitches are charged.

use crate::words::*;
use gpuslice_nvabi::types::*;

family!("pitch":
    charged_by_the_pitch, given_back, every_element_size, over_the_device, bad_element,
    nothing_wide, nothing_high, overflow, null_out;
);

fn pitched(width: usize, height: usize, element: u32) -> Outcome<(CUdeviceptr, usize)> {
    let (mut at, mut pitch) = (0, 0);
    ok!(cuMemAllocPitch_v2(&mut at, &mut pitch, width, height, element));
    that!(pitch >= width, "a pitch of {pitch} for rows of {width}");
    Ok((at, pitch))
}

fn charged_by_the_pitch(gpu: Gpu) -> Outcome {
    // One byte more than fits a row: most of each row is lost, and charged.
    let (_, pitch) = pitched(513, gpu.part(16)? / 1024, 4)?;
    gpu.took(pitch * (gpu.part(16)? / 1024), GRAIN)
}

fn given_back(gpu: Gpu) -> Outcome {
    for _ in 0..100 {
        let (at, _) = pitched(1000, 4000, 16)?;
        gpu.release(at)?;
    }
    gpu.back()
}

fn every_element_size(gpu: Gpu) -> Outcome {
    for element in [4, 8, 16] {
        let (at, pitch) = pitched(4096, 64, element)?;
        gpu.usable(at, pitch * 64)?;
        gpu.release(at)?;
    }
    gpu.back()
}

fn over_the_device(gpu: Gpu) -> Outcome {
    let (total, mut at, mut pitch) = (gpu.total()?, 0, 0);
    says!(OOM, cuMemAllocPitch_v2(&mut at, &mut pitch, 4096, total / 4096 + 1024, 4));
    // By the width alone it would fit.
    says!(OOM, cuMemAllocPitch_v2(&mut at, &mut pitch, 1, total / 256, 4));
    gpu.back()
}

fn bad_element(gpu: Gpu) -> Outcome {
    let (mut at, mut pitch) = (0, 0);
    for element in [0, 1, 2, 3, 5, 32, u32::MAX] {
        says!(INVALID, cuMemAllocPitch_v2(&mut at, &mut pitch, 4096, 64, element));
    }
    gpu.back()
}

fn nothing_wide(gpu: Gpu) -> Outcome {
    let (mut at, mut pitch) = (0, 0);
    says!(INVALID, cuMemAllocPitch_v2(&mut at, &mut pitch, 0, 64, 4));
    gpu.back()
}

fn nothing_high(gpu: Gpu) -> Outcome {
    let (mut at, mut pitch) = (0, 0);
    says!(INVALID, cuMemAllocPitch_v2(&mut at, &mut pitch, 64, 0, 4));
    gpu.back()
}

fn overflow(gpu: Gpu) -> Outcome {
    let (mut at, mut pitch) = (0, 0);
    for (width, height) in [
        (usize::MAX, 1),
        (1, usize::MAX),
        (usize::MAX, usize::MAX),
        (1 << 33, 1 << 33),
        (usize::MAX - 511, 2),
    ] {
        says!([OOM, INVALID], cuMemAllocPitch_v2(&mut at, &mut pitch, width, height, 4));
    }
    gpu.back()
}

fn null_out(gpu: Gpu) -> Outcome {
    let (mut at, mut pitch) = (0, 0);
    says!(INVALID, cuMemAllocPitch_v2(std::ptr::null_mut(), &mut pitch, 64, 64, 4));
    says!(INVALID, cuMemAllocPitch_v2(&mut at, std::ptr::null_mut(), 64, 64, 4));
    gpu.back()
}
