//! Contexts: one costs memory from its creation on, and its end releases everything made in it.

use crate::pool::PIECE;
use crate::words::*;
use gpuslice_apps::api::calls;
use gpuslice_nvabi::types::*;

family!("context":
    costs_memory, attached_and_detached, fifty_in_turn, several_at_once,
    lower_stack, lower_stack_in_steps, takes_allocations_along, takes_pitched_and_managed_along, takes_ordered_memory_along,
    ordered_memory_outlives_its_context, ordered_memory_outlives_a_reset,
    unknown_limit, current_after_destroy, destroy_twice, destroy_nothing, null_out,
    use_after_destroy, of_another_thread, green, given_back, old_create, with_affinity,
    with_params, primary, primary_counts, primary_reset, primary_state, refused_when_full,
    primary_refused_when_full, destroy_primary, create_for_no_device, bad_flags;
    bare: heap_limit, stack_limit, before_initialisation, bad_initialisation,
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
fn comes_and_goes(gpu: Gpu, make: impl Fn(Gpu, &mut CUcontext) -> Outcome) -> Outcome {
    let mut context = CUcontext::NULL;
    make(gpu, &mut context)?;
    let during = gpu.free()?;
    that!(
        during < gpu.before,
        "{during} bytes are free with one more context, {} before",
        gpu.before
    );
    destroy(context)?;
    set_current(gpu.context)?;
    gpu.back()
}

fn costs_memory(gpu: Gpu) -> Outcome {
    let (free, total) = gpu.info()?;
    that!(free < total, "{free} bytes of {total} are free although there is a context");
    create(gpu)?;
    that!(gpu.free()? < gpu.before, "a second context costs nothing");
    Ok(())
}

fn given_back(gpu: Gpu) -> Outcome {
    comes_and_goes(gpu, |gpu, context| {
        *context = create(gpu)?;
        Ok(())
    })
}

/// The form of before CUDA 3.2, which a card's driver refuses.
fn old_create(gpu: Gpu) -> Outcome {
    let mut context = CUcontext::NULL;
    if says!([SUCCESS, OOM], cuCtxCreate(&mut context, 0, gpu.device)) == SUCCESS {
        that!(gpu.free()? < gpu.before, "a second context costs nothing");
        destroy(context)?;
        set_current(gpu.context)?;
    }
    gpu.back()
}

fn with_affinity(gpu: Gpu) -> Outcome {
    comes_and_goes(gpu, |gpu, context| {
        ok!(cuCtxCreate_v3(context, std::ptr::null_mut(), 0, 0, gpu.device));
        Ok(())
    })
}

fn with_params(gpu: Gpu) -> Outcome {
    comes_and_goes(gpu, |gpu, context| {
        ok!(cuCtxCreate_v4(context, std::ptr::null_mut(), 0, gpu.device));
        Ok(())
    })
}

fn primary(gpu: Gpu) -> Outcome {
    let mut context = CUcontext::NULL;
    ok!(cuDevicePrimaryCtxRetain(&mut context, gpu.device));
    that!(gpu.free()? < gpu.before, "a primary context costs nothing");
    ok!(cuDevicePrimaryCtxRelease_v2(gpu.device));
    gpu.back()
}

fn primary_counts(gpu: Gpu) -> Outcome {
    let mut context = CUcontext::NULL;
    for _ in 0..3 {
        ok!(cuDevicePrimaryCtxRetain(&mut context, gpu.device));
    }
    let with = gpu.measured()?;
    for _ in 0..2 {
        ok!(cuDevicePrimaryCtxRelease_v2(gpu.device));
        with.back()?;
    }
    ok!(cuDevicePrimaryCtxRelease_v2(gpu.device));
    gpu.back()
}

fn primary_reset(gpu: Gpu) -> Outcome {
    let mut context = CUcontext::NULL;
    ok!(cuDevicePrimaryCtxRetain(&mut context, gpu.device));
    set_current(context)?;
    let at = gpu.alloc(gpu.part(8)?)?;
    set_current(gpu.context)?;
    ok!(cuDevicePrimaryCtxReset_v2(gpu.device));
    that!(gpu.free()? + gpu.part(8)? > gpu.before - gpu.part(8)?, "its memory is still taken");
    says!(INVALID, cuMemFree_v2(at));
    calls::cuDevicePrimaryCtxRelease_v2(gpu.device);
    gpu.back()
}

fn primary_state(gpu: Gpu) -> Outcome {
    let mut context = CUcontext::NULL;
    for want in [0, 1, 0] {
        let (mut flags, mut active) = (0, 7);
        ok!(cuDevicePrimaryCtxGetState(gpu.device, &mut flags, &mut active));
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

fn attached_and_detached(gpu: Gpu) -> Outcome {
    let mut same = CUcontext::NULL;
    let context = create(gpu)?;
    gpu.alloc(gpu.part(8)?)?;
    ok!(cuCtxAttach(&mut same, 0));
    that!(same == context, "another context");
    let with = gpu.measured()?;
    ok!(cuCtxDetach(context));
    with.back()?;
    ok!(cuCtxDetach(context));
    set_current(gpu.context)?;
    gpu.back()
}

fn fifty_in_turn(gpu: Gpu) -> Outcome {
    for _ in 0..50 {
        destroy(create(gpu)?)?;
    }
    set_current(gpu.context)?;
    gpu.back()
}

fn several_at_once(gpu: Gpu) -> Outcome {
    let all: Vec<_> = (0..4).map(|_| create(gpu)).collect::<Outcome<_>>()?;
    for context in all {
        destroy(context)?;
    }
    set_current(gpu.context)?;
    gpu.back()
}

/// A device without room for a context.
fn full(gpu: Gpu) -> Outcome<Gpu> {
    for step in [gpu.part(16)?, GRAIN] {
        gpu.fill(step)?;
    }
    Ok(gpu)
}

fn refused_when_full(gpu: Gpu) -> Outcome {
    full(gpu)?;
    let mut context = CUcontext::NULL;
    let gpu = gpu.measured()?;
    for _ in 0..10 {
        says!(OOM, cuCtxCreate_v2(&mut context, 0, gpu.device));
    }
    gpu.back()
}

fn primary_refused_when_full(gpu: Gpu) -> Outcome {
    full(gpu)?;
    let mut context = CUcontext::NULL;
    let gpu = gpu.measured()?;
    for _ in 0..10 {
        says!(OOM, cuDevicePrimaryCtxRetain(&mut context, gpu.device));
    }
    gpu.back()
}

fn takes_allocations_along(gpu: Gpu) -> Outcome {
    let context = create(gpu)?;
    for _ in 0..8 {
        gpu.alloc(gpu.part(32)?)?;
        gpu.alloc(512)?;
    }
    destroy(context)?;
    set_current(gpu.context)?;
    gpu.back()
}

fn takes_pitched_and_managed_along(gpu: Gpu) -> Outcome {
    let (mut at, mut pitch) = (0, 0);
    let context = create(gpu)?;
    ok!(cuMemAllocPitch_v2(&mut at, &mut pitch, 5000, 1000, 4));
    ok!(cuMemAllocManaged(&mut at, gpu.part(16)?, CU_MEM_ATTACH_GLOBAL));
    destroy(context)?;
    set_current(gpu.context)?;
    gpu.back()
}

fn takes_ordered_memory_along(gpu: Gpu) -> Outcome {
    let context = create(gpu)?;
    let at = crate::pool::ordered(gpu.part(8)?, CUstream::NULL)?;
    ok!(cuMemFreeAsync(at, CUstream::NULL));
    destroy(context)?;
    set_current(gpu.context)?;
    gpu.synchronize()?;
    gpu.back()
}

/// Memory of a pool belongs to no context: it is there until it is freed, though the pool and the context are gone.
fn ordered_memory_outlives_its_context(gpu: Gpu) -> Outcome {
    let pool = crate::pool::new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?;
    let (context, bytes) = (create(gpu)?, gpu.part(8)?);
    let at = crate::pool::of_pool(pool, bytes)?;
    gpu.synchronize()?;
    ok!(cuMemPoolDestroy(pool));
    destroy(context)?;
    set_current(gpu.context)?;
    gpu.took(bytes, 32 << 20)?;
    gpu.usable(at, bytes)?;
    ok!(cuMemFree_v2(at));
    gpu.synchronize()?;
    gpu.back()
}

/// Memory of the default pool belongs to the device: after a reset of the primary context, all of it is still taken.
fn ordered_memory_outlives_a_reset(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(4)?;
    let with = with_primary(gpu)?;
    let (kept, mut at) = (crate::pool::ordered(bytes, CUstream::NULL)?, 0);
    gpu.synchronize()?;
    with.took(bytes, PIECE)?;
    set_current(gpu.context)?;
    ok!(cuDevicePrimaryCtxReset_v2(gpu.device));
    gpu.took(bytes, PIECE)?;
    with_primary(gpu)?;
    with.took(bytes, PIECE)?;
    says!(OOM, cuMemAlloc_v2(&mut at, with.before - bytes / 2));
    let more = crate::pool::ordered(bytes, CUstream::NULL)?;
    with.took(2 * bytes, 2 * PIECE)?;
    ok!(cuMemFreeAsync(more, CUstream::NULL));
    gpu.synchronize()?;
    with.took(bytes, PIECE)?;
    // Whether a card's driver then frees it is not known.
    let freed = calls::cuMemFreeAsync(kept, CUstream::NULL) == SUCCESS;
    gpu.synchronize()?;
    if freed { with.back() } else { with.took(bytes, PIECE) }
}

/// Makes the primary context current. Returns the device as it is with that context.
fn with_primary(gpu: Gpu) -> Outcome<Gpu> {
    let mut context = CUcontext::NULL;
    ok!(cuDevicePrimaryCtxRetain(&mut context, gpu.device));
    set_current(context)?;
    gpu.measured()
}

/// A limit may cost memory, in its context.
fn limit(limit: CUlimit, value: usize) -> Outcome {
    let gpu = gpu()?;
    let mut read = 0;
    let context = create(gpu)?;
    let with = gpu.free()?;
    says!([SUCCESS, OOM, INVALID], cuCtxSetLimit(limit, value));
    ok!(cuCtxGetLimit(&mut read, limit));
    that!(gpu.free()? <= with, "a limit has given memory back");
    destroy(context)?;
    set_current(gpu.context)?;
    gpu.back()
}

fn heap_limit() -> Outcome {
    limit(CU_LIMIT_MALLOC_HEAP_SIZE, 32 << 20)
}

fn stack_limit() -> Outcome {
    limit(CU_LIMIT_STACK_SIZE, 4096)
}

/// Stack bytes for each thread, of which all threads that can be resident need about an eighth of the device.
fn stack_of_an_eighth(gpu: Gpu) -> Outcome<(usize, usize)> {
    let processors = gpu.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let each = gpu.attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?;
    let threads = (processors * each) as usize;
    Ok((threads, gpu.part(8)? / threads / 256 * 256))
}

fn set_stack(bytes: usize) -> Outcome {
    ok!(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, bytes));
    ok!(cuCtxSynchronize());
    Ok(())
}

/// A larger stack is taken when it is set, and given back when a smaller one is: the memory is there for others again.
fn lower_stack(gpu: Gpu) -> Outcome {
    let (threads, more) = stack_of_an_eighth(gpu)?;
    let mut first = 0;
    ok!(cuCtxGetLimit(&mut first, CU_LIMIT_STACK_SIZE));
    for _ in 0..3 {
        set_stack(first + more)?;
        gpu.took(more * threads, PIECE)?;
        set_stack(first)?;
        gpu.back()?;
        gpu.release(gpu.alloc(gpu.before - gpu.part(16)?)?)?;
    }
    Ok(())
}

fn lower_stack_in_steps(gpu: Gpu) -> Outcome {
    let (threads, more) = stack_of_an_eighth(gpu)?;
    let mut first = 0;
    ok!(cuCtxGetLimit(&mut first, CU_LIMIT_STACK_SIZE));
    let mut largest = 0;
    for times in [1, 2, 4, 2, 1] {
        let bytes = times * more * threads;
        largest = bytes.max(largest);
        set_stack(first + times * more)?;
        // How much of it a card's driver gives back at once is not known.
        gpu.took(bytes, largest - bytes + PIECE)?;
    }
    set_stack(first)?;
    gpu.back()
}

fn unknown_limit(_: Gpu) -> Outcome {
    let (bad, mut value) = ([INVALID, CUresult::ERROR_UNSUPPORTED_LIMIT], 0);
    says!([bad[0], bad[1]], cuCtxSetLimit(9999, 1));
    says!([bad[0], bad[1]], cuCtxGetLimit(&mut value, 9999));
    Ok(())
}

fn current_after_destroy(gpu: Gpu) -> Outcome {
    let mut current = CUcontext::NULL;
    destroy(create(gpu)?)?;
    ok!(cuCtxGetCurrent(&mut current));
    that!(current == gpu.context, "another context is current");
    Ok(())
}

fn destroy_twice(gpu: Gpu) -> Outcome {
    let context = create(gpu)?;
    destroy(context)?;
    says!(
        [CUresult::ERROR_INVALID_CONTEXT, CUresult::ERROR_CONTEXT_IS_DESTROYED],
        cuCtxDestroy_v2(context)
    );
    set_current(gpu.context)?;
    gpu.back()
}

fn destroy_nothing(gpu: Gpu) -> Outcome {
    says!([CUresult::ERROR_INVALID_CONTEXT, INVALID], cuCtxDestroy_v2(CUcontext::NULL));
    gpu.back()
}

fn destroy_primary(gpu: Gpu) -> Outcome {
    let mut context = CUcontext::NULL;
    ok!(cuDevicePrimaryCtxRetain(&mut context, gpu.device));
    let with = gpu.measured()?;
    says!([CUresult::ERROR_INVALID_CONTEXT, INVALID], cuCtxDestroy_v2(context));
    with.back()
}

fn create_for_no_device(gpu: Gpu) -> Outcome {
    let mut context = CUcontext::NULL;
    for device in [99, -1, i32::MAX] {
        says!(CUresult::ERROR_INVALID_DEVICE, cuCtxCreate_v2(&mut context, 0, device));
        says!(CUresult::ERROR_INVALID_DEVICE, cuDevicePrimaryCtxRetain(&mut context, device));
    }
    gpu.back()
}

fn bad_flags(gpu: Gpu) -> Outcome {
    let mut context = CUcontext::NULL;
    for flags in [3, u32::MAX, 1 << 16] {
        says!(INVALID, cuCtxCreate_v2(&mut context, flags, gpu.device));
    }
    gpu.back()
}

fn null_out(gpu: Gpu) -> Outcome {
    says!(INVALID, cuCtxCreate_v2(std::ptr::null_mut(), 0, gpu.device));
    says!(INVALID, cuDevicePrimaryCtxRetain(std::ptr::null_mut(), gpu.device));
    gpu.back()
}

fn use_after_destroy(gpu: Gpu) -> Outcome {
    let context = create(gpu)?;
    let at = gpu.alloc(gpu.part(8)?)?;
    destroy(context)?;
    set_current(gpu.context)?;
    says!(INVALID, cuMemFree_v2(at));
    gpu.back()
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

fn of_another_thread(gpu: Gpu) -> Outcome {
    let context = create(gpu)?;
    gpu.alloc(gpu.part(8)?)?;
    set_current(gpu.context)?;
    let ended = std::thread::spawn(move || destroy(context)).join();
    ended.unwrap_or_else(|_| fail("a thread panicked"))?;
    gpu.back()
}

/// A context over a part of the multiprocessors.
fn green(gpu: Gpu) -> Outcome {
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
    gpu.took(0, gpu.part(4)?)
}
