//! Several threads of one process on one device.

use crate::words::*;
use gpuslice_nvabi::types::*;

family!("threads":
    eight_race, eight_alloc_and_free, free_from_another_thread, eight_fill_and_free,
    eight_ordered, eight_create, eight_contexts, one_refused_others_go_on,
    ended_thread_leaves_its_memory, free_twice_at_once;
);

/// Does something in eight threads, each with the context current.
pub fn eight<T: Send>(gpu: Gpu, work: impl Fn(usize) -> Outcome<T> + Sync) -> Outcome<Vec<T>> {
    let work = &work;
    std::thread::scope(|scope| {
        let start = |number: usize| {
            scope.spawn(move || {
                set_current(gpu.context)?;
                work(number)
            })
        };
        let all: Vec<_> = (0..8).map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Outcome<T>>| {
            thread.join().unwrap_or_else(|_| fail("a thread panicked"))
        };
        all.into_iter().map(join).collect()
    })
}

fn eight_race(gpu: Gpu) -> Outcome {
    let step = gpu.part(64)?;
    let all = eight(gpu, |_| gpu.fill(step))?.concat();
    gpu.fitted(all.len(), step)?;
    gpu.release_all(all)?;
    gpu.back()
}

fn eight_alloc_and_free(gpu: Gpu) -> Outcome {
    let most = gpu.part(64)?;
    eight(gpu, |number| {
        let (mut random, mut held) = (Random(100 + number as u64), Vec::new());
        for _ in 0..400 {
            if held.len() > 4 {
                gpu.release(held.swap_remove(random.below(held.len())))?;
            }
            held.push(gpu.alloc(1 + random.below(most))?);
        }
        gpu.release_all(held)
    })?;
    gpu.back()
}

fn free_from_another_thread(gpu: Gpu) -> Outcome {
    for _ in 0..20 {
        let all = eight(gpu, |_| gpu.alloc(gpu.part(32)?))?;
        gpu.release_all(all)?;
    }
    gpu.back()
}

fn eight_fill_and_free(gpu: Gpu) -> Outcome {
    let step = gpu.part(64)?;
    eight(gpu, |_| {
        for _ in 0..5 {
            gpu.release_all(gpu.fill(step)?)?;
        }
        Ok(())
    })?;
    gpu.back()
}

fn eight_ordered(gpu: Gpu) -> Outcome {
    eight(gpu, |_| {
        let stream = gpu.stream()?;
        for _ in 0..50 {
            let at = crate::pool::ordered(gpu.part(64)?, stream)?;
            ok!(cuMemFreeAsync(at, stream));
        }
        ok!(cuStreamSynchronize(stream));
        Ok(())
    })?;
    gpu.synchronize()?;
    gpu.back()
}

fn eight_create(gpu: Gpu) -> Outcome {
    eight(gpu, |_| {
        for _ in 0..50 {
            ok!(cuMemRelease(crate::vmm::create(gpu, gpu.part(32)?)?));
        }
        Ok(())
    })?;
    gpu.back()
}

fn eight_contexts(gpu: Gpu) -> Outcome {
    eight(gpu, |_| {
        let mut context = CUcontext::NULL;
        for _ in 0..5 {
            let code = says!([SUCCESS, OOM], cuCtxCreate_v2(&mut context, 0, gpu.device));
            if code == SUCCESS {
                gpu.alloc(512)?;
                ok!(cuCtxDestroy_v2(context));
            }
        }
        Ok(())
    })?;
    gpu.back()
}

fn one_refused_others_go_on(gpu: Gpu) -> Outcome {
    let total = gpu.total()?;
    eight(gpu, |number| {
        for _ in 0..100 {
            let mut at = 0;
            if number == 0 {
                says!(OOM, cuMemAlloc_v2(&mut at, total));
            } else {
                gpu.release(gpu.alloc(gpu.part(64)?)?)?;
            }
        }
        Ok(())
    })?;
    gpu.back()
}

fn ended_thread_leaves_its_memory(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(32)?;
    let all = eight(gpu, |_| gpu.alloc(bytes))?;
    gpu.took(8 * bytes, 8 * GRAIN)?;
    gpu.usable(all[7], bytes)?;
    gpu.release_all(all)
}

/// Several free the same memory: it is freed once, and its bytes are counted once. A card's driver told two threads
/// that they had freed it.
fn free_twice_at_once(gpu: Gpu) -> Outcome {
    for _ in 0..50 {
        let at = gpu.alloc(gpu.part(32)?)?;
        let codes = eight(gpu, |_| Ok(says!([SUCCESS, INVALID], cuMemFree_v2(at))))?;
        let right = codes.iter().filter(|code| **code == SUCCESS).count();
        that!(right >= 1, "no thread freed the memory");
        gpu.back()?;
    }
    Ok(())
}
