//! `cuMemAlloc`: charged by what the driver takes, refused when it does not fit, given back.

use crate::words::*;
use gpuslice_nvabi::types::*;

family!("alloc":
    charged, given_back, one_byte, nearly_everything, over_the_device, over_what_is_free,
    refusals_change_nothing, room_after_a_refusal, filled_to_the_last, filled_again, many_small,
    many_sizes, a_thousand_rounds, growing_and_shrinking, usable, zero, largest_number,
    near_overflow, null_out, free_null, free_twice, free_foreign, free_inside, no_context,
    freed_from_another_context, address_range, address_range_of_nothing, old_names;
);

fn charged(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    gpu.alloc(bytes)?;
    gpu.took(bytes, GRAIN)
}

fn given_back(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let at = gpu.alloc(bytes)?;
    gpu.release(at)?;
    gpu.back()
}

fn one_byte(gpu: Gpu) -> Outcome {
    let at = gpu.alloc(1)?;
    gpu.took(0, 2 * GRAIN)?;
    gpu.release(at)?;
    gpu.back()
}

fn nearly_everything(gpu: Gpu) -> Outcome {
    let bytes = gpu.before - gpu.part(16)?;
    let at = gpu.alloc(bytes)?;
    gpu.took(bytes, GRAIN)?;
    gpu.release(at)?;
    gpu.back()
}

fn over_the_device(gpu: Gpu) -> Outcome {
    let (total, mut at) = (gpu.total()?, 7);
    says!(OOM, cuMemAlloc_v2(&mut at, total + GRAIN));
    gpu.back()
}

fn over_what_is_free(gpu: Gpu) -> Outcome {
    let half = gpu.free()? / 2;
    gpu.alloc(half)?;
    let gpu = gpu.measured()?;
    let mut at = 0;
    says!(OOM, cuMemAlloc_v2(&mut at, gpu.before + 2 * GRAIN));
    gpu.back()
}

fn refusals_change_nothing(gpu: Gpu) -> Outcome {
    let total = gpu.total()?;
    for over in 1..100 {
        let mut at = 0;
        says!(OOM, cuMemAlloc_v2(&mut at, total + over * GRAIN));
    }
    gpu.back()
}

fn room_after_a_refusal(gpu: Gpu) -> Outcome {
    let mut at = 0;
    says!(OOM, cuMemAlloc_v2(&mut at, gpu.total()? + GRAIN));
    let gpu = gpu.measured()?;
    let at = gpu.alloc(gpu.before / 2)?;
    gpu.release(at)?;
    gpu.back()
}

fn filled_to_the_last(gpu: Gpu) -> Outcome {
    let step = gpu.part(16)?;
    let all = gpu.fill(step)?;
    that!(gpu.free()? < step + GRAIN, "{} bytes are left", gpu.free()?);
    gpu.fitted(all.len(), step)?;
    gpu.release_all(all)?;
    gpu.back()
}

fn filled_again(gpu: Gpu) -> Outcome {
    let step = gpu.part(32)?;
    let mut counts = Vec::new();
    for _ in 0..4 {
        let all = gpu.fill(step)?;
        counts.push(all.len());
        gpu.release_all(all)?;
    }
    that!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    gpu.back()
}

fn many_small(gpu: Gpu) -> Outcome {
    let all: Vec<_> = (0..8192).map(|_| gpu.alloc(512)).collect::<Outcome<_>>()?;
    gpu.took(8192 * 512, 4 * GRAIN)?;
    gpu.release_all(all)?;
    gpu.back()
}

fn many_sizes(gpu: Gpu) -> Outcome {
    let most = gpu.part(32)?;
    let (mut random, mut held) = (Random(11), Vec::new());
    for _ in 0..500 {
        if held.len() > 16 || (random.below(3) == 0 && !held.is_empty()) {
            gpu.release(held.swap_remove(random.below(held.len())))?;
        } else {
            held.push(gpu.alloc(1 + random.below(most))?);
        }
    }
    gpu.release_all(held)?;
    gpu.back()
}

fn a_thousand_rounds(gpu: Gpu) -> Outcome {
    let bytes = 3 * GRAIN + 1;
    for _ in 0..1000 {
        let at = gpu.alloc(bytes)?;
        gpu.release(at)?;
    }
    gpu.back()
}

fn growing_and_shrinking(gpu: Gpu) -> Outcome {
    let step = gpu.part(16)?;
    let mut held = Vec::new();
    for up in 1..8 {
        held.push(gpu.alloc(step)?);
        gpu.took(up * step, up * GRAIN)?;
    }
    while let Some(at) = held.pop() {
        gpu.release(at)?;
        gpu.took(held.len() * step, (1 + held.len()) * GRAIN)?;
    }
    gpu.back()
}

fn usable(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(16)?;
    let at = gpu.alloc(bytes)?;
    gpu.usable(at, bytes)
}

fn zero(gpu: Gpu) -> Outcome {
    let mut at = 0;
    says!(INVALID, cuMemAlloc_v2(&mut at, 0));
    gpu.back()
}

fn largest_number(gpu: Gpu) -> Outcome {
    let mut at = 0;
    says!(OOM, cuMemAlloc_v2(&mut at, usize::MAX));
    gpu.back()
}

fn near_overflow(gpu: Gpu) -> Outcome {
    let mut at = 0;
    for less in [1, 511, 512, GRAIN - 1, GRAIN, usize::MAX / 2, usize::MAX / 2 + 1] {
        says!(OOM, cuMemAlloc_v2(&mut at, usize::MAX - less));
    }
    gpu.back()
}

fn null_out(gpu: Gpu) -> Outcome {
    says!(INVALID, cuMemAlloc_v2(std::ptr::null_mut(), GRAIN));
    gpu.back()
}

fn free_null(gpu: Gpu) -> Outcome {
    gpu.release(0)
}

fn free_twice(gpu: Gpu) -> Outcome {
    let at = gpu.alloc(gpu.part(16)?)?;
    gpu.release(at)?;
    says!(INVALID, cuMemFree_v2(at));
    says!(INVALID, cuMemFree_v2(at));
    gpu.back()
}

fn free_foreign(gpu: Gpu) -> Outcome {
    let mine = 0u64;
    says!(INVALID, cuMemFree_v2((&raw const mine) as u64));
    says!(INVALID, cuMemFree_v2(1));
    says!(INVALID, cuMemFree_v2(u64::MAX));
    gpu.back()
}

fn free_inside(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(16)?;
    let at = gpu.alloc(bytes)?;
    says!(INVALID, cuMemFree_v2(at + 512));
    gpu.took(bytes, GRAIN)?;
    gpu.release(at)?;
    gpu.back()
}

fn no_context(gpu: Gpu) -> Outcome {
    let mut at = 0;
    set_current(CUcontext::NULL)?;
    says!(CUresult::ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&mut at, GRAIN));
    set_current(gpu.context)?;
    gpu.back()
}

fn freed_from_another_context(gpu: Gpu) -> Outcome {
    let mut other = CUcontext::NULL;
    ok!(cuCtxCreate_v2(&mut other, 0, gpu.device));
    set_current(gpu.context)?;
    let gpu = gpu.measured()?;
    let at = gpu.alloc(gpu.part(16)?)?;
    set_current(other)?;
    gpu.release(at)?;
    gpu.back()
}

fn address_range(gpu: Gpu) -> Outcome {
    let (mut base, mut size) = (0, 0);
    let at = gpu.alloc(3 * GRAIN)?;
    ok!(cuMemGetAddressRange_v2(&mut base, &mut size, at + 4096));
    that!((base, size) == (at, 3 * GRAIN), "{size} bytes at {base:#x}");
    Ok(())
}

fn address_range_of_nothing(gpu: Gpu) -> Outcome {
    let (mut base, mut size) = (0, 0);
    let at = gpu.alloc(3 * GRAIN)?;
    gpu.release(at)?;
    let gone = [CUresult::ERROR_NOT_FOUND, INVALID];
    says!([gone[0], gone[1]], cuMemGetAddressRange_v2(&mut base, &mut size, at));
    Ok(())
}

/// The 32-bit names of before CUDA 3.2, which drivers still export. A card's driver answers that the context,
/// one of today's, is invalid there.
fn old_names(gpu: Gpu) -> Outcome {
    let (mut at, no_context) = (0, CUresult::ERROR_INVALID_CONTEXT);
    says!([OOM, INVALID, no_context], cuMemAlloc(&mut at, u32::MAX));
    if says!([SUCCESS, OOM, no_context], cuMemAlloc(&mut at, 16 << 20)) == SUCCESS {
        gpu.took(16 << 20, GRAIN)?;
        ok!(cuMemFree(at));
    }
    gpu.back()
}
