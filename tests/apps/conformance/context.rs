//! Contexts: one costs memory from its creation on, and its end releases everything made in it.

use crate::words::*;
use gpuslice_apps::api::calls;
use gpuslice_nvabi::types::*;

family!("context":
    costs_memory, given_back, old_create, with_affinity, with_params, primary, primary_counts,
    primary_reset, primary_state, attached_and_detached, fifty_in_turn, several_at_once,
    refused_when_full, primary_refused_when_full, takes_allocations_along,
    takes_pitched_and_managed_along, takes_ordered_memory_along, heap_limit, stack_limit,
    unknown_limit, current_after_destroy, destroy_twice, destroy_nothing, destroy_primary,
    create_for_no_device, bad_flags, null_out, use_after_destroy, before_initialisation,
    bad_initialisation, of_another_thread, green,
);

fn create(gpu: Gpu) -> Outcome<CUcontext> {
    let mut context = CUcontext::NULL;
    ok!(cuCtxCreate_v2(&mut context, 0, gpu.device));
    Ok(context)
}

fn destroy(context: CUcontext) -> Outcome {
    ok!(cuCtxDestroy_v2(context));
    Ok(())
}

/// A second context, made in this way, costs something, and nothing when it is gone.
fn comes_and_goes(make: impl Fn(Gpu, &mut CUcontext) -> Outcome) -> Outcome {
    let (gpu, mut context) = (gpu()?, CUcontext::NULL);
    let before = gpu.free()?;
    make(gpu, &mut context)?;
    let during = gpu.free()?;
    that!(
        during < before,
        "{during} bytes are free with one more context, {before} before"
    );
    destroy(context)?;
    set_current(gpu.context)?;
    gpu.back_to(before)
}

fn costs_memory() -> Outcome {
    let gpu = gpu()?;
    let (free, total) = gpu.info()?;
    that!(
        free < total,
        "{free} bytes of {total} are free although there is a context"
    );
    let before = gpu.free()?;
    create(gpu)?;
    that!(gpu.free()? < before, "a second context costs nothing");
    Ok(())
}

fn given_back() -> Outcome {
    comes_and_goes(|gpu, context| {
        *context = create(gpu)?;
        Ok(())
    })
}

fn old_create() -> Outcome {
    comes_and_goes(|gpu, context| {
        ok!(cuCtxCreate(context, 0, gpu.device));
        Ok(())
    })
}

fn with_affinity() -> Outcome {
    comes_and_goes(|gpu, context| {
        ok!(cuCtxCreate_v3(
            context,
            std::ptr::null_mut(),
            0,
            0,
            gpu.device
        ));
        Ok(())
    })
}

fn with_params() -> Outcome {
    comes_and_goes(|gpu, context| {
        ok!(cuCtxCreate_v4(context, std::ptr::null_mut(), 0, gpu.device));
        Ok(())
    })
}

fn primary() -> Outcome {
    let (gpu, mut context) = (gpu()?, CUcontext::NULL);
    let before = gpu.free()?;
    ok!(cuDevicePrimaryCtxRetain(&mut context, gpu.device));
    that!(gpu.free()? < before, "a primary context costs nothing");
    ok!(cuDevicePrimaryCtxRelease_v2(gpu.device));
    gpu.back_to(before)
}

fn primary_counts() -> Outcome {
    let (gpu, mut context) = (gpu()?, CUcontext::NULL);
    let before = gpu.free()?;
    for _ in 0..3 {
        ok!(cuDevicePrimaryCtxRetain(&mut context, gpu.device));
    }
    let with = gpu.free()?;
    for _ in 0..2 {
        ok!(cuDevicePrimaryCtxRelease_v2(gpu.device));
        gpu.back_to(with)?;
    }
    ok!(cuDevicePrimaryCtxRelease_v2(gpu.device));
    gpu.back_to(before)
}

fn primary_reset() -> Outcome {
    let (gpu, mut context) = (gpu()?, CUcontext::NULL);
    let before = gpu.free()?;
    ok!(cuDevicePrimaryCtxRetain(&mut context, gpu.device));
    set_current(context)?;
    let at = gpu.alloc(gpu.part(8)?)?;
    set_current(gpu.context)?;
    ok!(cuDevicePrimaryCtxReset_v2(gpu.device));
    that!(
        gpu.free()? + gpu.part(8)? > before - gpu.part(8)?,
        "its memory is still taken"
    );
    says!(INVALID, cuMemFree_v2(at));
    calls::cuDevicePrimaryCtxRelease_v2(gpu.device);
    gpu.back_to(before)
}

fn primary_state() -> Outcome {
    let (gpu, mut context) = (gpu()?, CUcontext::NULL);
    for want in [0, 1, 0] {
        let (mut flags, mut active) = (0, 7);
        ok!(cuDevicePrimaryCtxGetState(
            gpu.device,
            &mut flags,
            &mut active
        ));
        that!(active == want, "active is {active}, not {want}");
        if active == 0 {
            ok!(cuDevicePrimaryCtxRetain(&mut context, gpu.device));
        } else {
            ok!(cuDevicePrimaryCtxRelease_v2(gpu.device));
        }
    }
    ok!(cuDevicePrimaryCtxRelease_v2(gpu.device));
    Ok(())
}

fn attached_and_detached() -> Outcome {
    let gpu = gpu()?;
    let (before, mut same) = (gpu.free()?, CUcontext::NULL);
    let context = create(gpu)?;
    gpu.alloc(gpu.part(8)?)?;
    ok!(cuCtxAttach(&mut same, 0));
    that!(same == context, "another context");
    let with = gpu.free()?;
    ok!(cuCtxDetach(context));
    gpu.back_to(with)?;
    ok!(cuCtxDetach(context));
    set_current(gpu.context)?;
    gpu.back_to(before)
}

fn fifty_in_turn() -> Outcome {
    let gpu = gpu()?;
    let before = gpu.free()?;
    for _ in 0..50 {
        destroy(create(gpu)?)?;
    }
    set_current(gpu.context)?;
    gpu.back_to(before)
}

fn several_at_once() -> Outcome {
    let gpu = gpu()?;
    let before = gpu.free()?;
    let all: Vec<_> = (0..4).map(|_| create(gpu)).collect::<Outcome<_>>()?;
    for context in all {
        destroy(context)?;
    }
    set_current(gpu.context)?;
    gpu.back_to(before)
}

/// A device without room for a context.
fn full() -> Outcome<Gpu> {
    let gpu = gpu()?;
    for step in [gpu.part(16)?, GRAIN] {
        gpu.fill(step)?;
    }
    Ok(gpu)
}

fn refused_when_full() -> Outcome {
    let (gpu, mut context) = (full()?, CUcontext::NULL);
    let before = gpu.free()?;
    for _ in 0..10 {
        says!(OOM, cuCtxCreate_v2(&mut context, 0, gpu.device));
    }
    gpu.back_to(before)
}

fn primary_refused_when_full() -> Outcome {
    let (gpu, mut context) = (full()?, CUcontext::NULL);
    let before = gpu.free()?;
    for _ in 0..10 {
        says!(OOM, cuDevicePrimaryCtxRetain(&mut context, gpu.device));
    }
    gpu.back_to(before)
}

fn takes_allocations_along() -> Outcome {
    let gpu = gpu()?;
    let before = gpu.free()?;
    let context = create(gpu)?;
    for _ in 0..8 {
        gpu.alloc(gpu.part(32)?)?;
        gpu.alloc(512)?;
    }
    destroy(context)?;
    set_current(gpu.context)?;
    gpu.back_to(before)
}

fn takes_pitched_and_managed_along() -> Outcome {
    let gpu = gpu()?;
    let (before, mut at, mut pitch) = (gpu.free()?, 0, 0);
    let context = create(gpu)?;
    ok!(cuMemAllocPitch_v2(&mut at, &mut pitch, 5000, 1000, 4));
    ok!(cuMemAllocManaged(
        &mut at,
        gpu.part(16)?,
        CU_MEM_ATTACH_GLOBAL
    ));
    destroy(context)?;
    set_current(gpu.context)?;
    gpu.back_to(before)
}

fn takes_ordered_memory_along() -> Outcome {
    let gpu = gpu()?;
    let before = gpu.free()?;
    let context = create(gpu)?;
    let at = crate::pool::ordered(gpu.part(8)?, CUstream::NULL)?;
    ok!(cuMemFreeAsync(at, CUstream::NULL));
    destroy(context)?;
    set_current(gpu.context)?;
    gpu.synchronize()?;
    gpu.back_to(before)
}

/// A limit may cost memory, in its context.
fn limit(limit: CUlimit, value: usize) -> Outcome {
    let gpu = gpu()?;
    let (before, mut read) = (gpu.free()?, 0);
    let context = create(gpu)?;
    let with = gpu.free()?;
    says!([SUCCESS, OOM, INVALID], cuCtxSetLimit(limit, value));
    ok!(cuCtxGetLimit(&mut read, limit));
    that!(gpu.free()? <= with, "a limit has given memory back");
    destroy(context)?;
    set_current(gpu.context)?;
    gpu.back_to(before)
}

fn heap_limit() -> Outcome {
    limit(CU_LIMIT_MALLOC_HEAP_SIZE, 32 << 20)
}

fn stack_limit() -> Outcome {
    limit(CU_LIMIT_STACK_SIZE, 4096)
}

fn unknown_limit() -> Outcome {
    gpu()?;
    let (bad, mut value) = ([INVALID, CUresult::ERROR_UNSUPPORTED_LIMIT], 0);
    says!([bad[0], bad[1]], cuCtxSetLimit(9999, 1));
    says!([bad[0], bad[1]], cuCtxGetLimit(&mut value, 9999));
    Ok(())
}

fn current_after_destroy() -> Outcome {
    let gpu = gpu()?;
    let mut current = CUcontext::NULL;
    destroy(create(gpu)?)?;
    ok!(cuCtxGetCurrent(&mut current));
    that!(current == gpu.context, "another context is current");
    Ok(())
}

fn destroy_twice() -> Outcome {
    let gpu = gpu()?;
    let before = gpu.free()?;
    let context = create(gpu)?;
    destroy(context)?;
    says!(
        [
            CUresult::ERROR_INVALID_CONTEXT,
            CUresult::ERROR_CONTEXT_IS_DESTROYED
        ],
        cuCtxDestroy_v2(context)
    );
    set_current(gpu.context)?;
    gpu.back_to(before)
}

fn destroy_nothing() -> Outcome {
    let gpu = gpu()?;
    let before = gpu.free()?;
    says!(
        [CUresult::ERROR_INVALID_CONTEXT, INVALID],
        cuCtxDestroy_v2(CUcontext::NULL)
    );
    gpu.back_to(before)
}

fn destroy_primary() -> Outcome {
    let (gpu, mut context) = (gpu()?, CUcontext::NULL);
    ok!(cuDevicePrimaryCtxRetain(&mut context, gpu.device));
    let with = gpu.free()?;
    says!(
        [CUresult::ERROR_INVALID_CONTEXT, INVALID],
        cuCtxDestroy_v2(context)
    );
    gpu.back_to(with)
}

fn create_for_no_device() -> Outcome {
    let (gpu, mut context) = (gpu()?, CUcontext::NULL);
    let before = gpu.free()?;
    for device in [99, -1, i32::MAX] {
        says!(
            CUresult::ERROR_INVALID_DEVICE,
            cuCtxCreate_v2(&mut context, 0, device)
        );
        says!(
            CUresult::ERROR_INVALID_DEVICE,
            cuDevicePrimaryCtxRetain(&mut context, device)
        );
    }
    gpu.back_to(before)
}

fn bad_flags() -> Outcome {
    let (gpu, mut context) = (gpu()?, CUcontext::NULL);
    let before = gpu.free()?;
    for flags in [3, u32::MAX, 1 << 16] {
        says!(INVALID, cuCtxCreate_v2(&mut context, flags, gpu.device));
    }
    gpu.back_to(before)
}

fn null_out() -> Outcome {
    let gpu = gpu()?;
    let before = gpu.free()?;
    says!(INVALID, cuCtxCreate_v2(std::ptr::null_mut(), 0, gpu.device));
    says!(
        INVALID,
        cuDevicePrimaryCtxRetain(std::ptr::null_mut(), gpu.device)
    );
    gpu.back_to(before)
}

fn use_after_destroy() -> Outcome {
    let gpu = gpu()?;
    let before = gpu.free()?;
    let context = create(gpu)?;
    let at = gpu.alloc(gpu.part(8)?)?;
    destroy(context)?;
    set_current(gpu.context)?;
    says!(INVALID, cuMemFree_v2(at));
    gpu.back_to(before)
}

fn before_initialisation() -> Outcome {
    const NOT_YET: CUresult = CUresult::ERROR_NOT_INITIALIZED;
    let (mut at, mut free, mut total, mut context) = (0, 0, 0, CUcontext::NULL);
    says!(NOT_YET, cuMemAlloc_v2(&mut at, GRAIN));
    says!(NOT_YET, cuMemGetInfo_v2(&mut free, &mut total));
    says!(NOT_YET, cuDeviceTotalMem_v2(&mut total, 0));
    says!(NOT_YET, cuCtxCreate_v2(&mut context, 0, 0));
    says!(NOT_YET, cuDevicePrimaryCtxRetain(&mut context, 0));
    says!(NOT_YET, cuMemFree_v2(4096));
    gpu().map(drop)
}

fn bad_initialisation() -> Outcome {
    says!(INVALID, cuInit(1));
    says!(INVALID, cuInit(u32::MAX));
    gpu().map(drop)
}

fn of_another_thread() -> Outcome {
    let gpu = gpu()?;
    let before = gpu.free()?;
    let context = create(gpu)?;
    gpu.alloc(gpu.part(8)?)?;
    set_current(gpu.context)?;
    let ended = std::thread::spawn(move || destroy(context)).join();
    ended.unwrap_or_else(|_| fail("a thread panicked"))?;
    gpu.back_to(before)
}

/// A context over a part of the multiprocessors.
fn green() -> Outcome {
    let gpu = gpu()?;
    let before = gpu.free()?;
    const SM: CUdevResourceType = 1;
    let (mut resource, mut desc) = ([0u64; 32], CUdevResourceDesc::NULL);
    let (mut green, mut context) = (CUgreenCtx::NULL, CUcontext::NULL);
    let place = (&raw mut resource).cast::<c_void>();
    ok!(cuDeviceGetDevResource(gpu.device, place, SM));
    ok!(cuDevResourceGenerateDesc(&mut desc, place, 1));
    ok!(cuGreenCtxCreate(&mut green, desc, gpu.device, 1));
    ok!(cuCtxFromGreenCtx(&mut context, green));
    set_current(context)?;
    let at = gpu.alloc(gpu.part(8)?)?;
    gpu.release(at)?;
    set_current(gpu.context)?;
    ok!(cuGreenCtxDestroy(green));
    gpu.took(before, 0, gpu.part(4)?)
}
