//! All numbers are exact at once: whatever was allocated or freed, the next query says so, of every
//! interface, in every thread and process. No case here waits for a number.

use crate::child::{self, Helper};
use crate::nvml;
use crate::words::*;
use gpuslice_nvabi::types::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

family!("exact":
    fill_free_ask, large_free_ask, small_free_ask, pool_free_ask, context_free_ask, managed_free_ask,
    eight_threads_fill_free_ask, a_thread_asks_while_others_race, a_thread_asks_during_refusals,
    eight_processes_fill_free_ask, a_process_asks_after_its_sibling,
    nvml_fill_free_ask, nvml_pool_free_ask, nvml_context_free_ask, nvml_in_another_process,
    nvml_list_fill_free_ask, nvml_list_in_another_process, nvml_after_eight_threads,
    nvml_after_eight_processes;
);

/// `bytes` less are free than before: no more, and no less.
fn less(gpu: Gpu, bytes: usize) -> Outcome {
    let (free, before) = (gpu.free()?, gpu.before);
    that!(
        (free + bytes).abs_diff(before) <= GRAIN,
        "{free} bytes are free of {before} after {bytes} were taken"
    );
    Ok(())
}

/// Fills the device piece by piece and frees it, and asks after every call.
fn fill_and_free(gpu: Gpu, step: usize, check: impl Fn(usize) -> Outcome) -> Outcome {
    let mut held = Vec::new();
    while (held.len() + 1) * step + GRAIN <= gpu.before {
        held.push(gpu.alloc(step)?);
        check(held.len() * step)?;
    }
    while let Some(at) = held.pop() {
        gpu.release(at)?;
        check(held.len() * step)?;
    }
    Ok(())
}

fn fill_free_ask(gpu: Gpu) -> Outcome {
    for n in [3, 16, 100] {
        fill_and_free(gpu, gpu.part(n)?, |held| less(gpu, held))?;
    }
    Ok(())
}

fn large_free_ask(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)? * 6;
    for _ in 0..50 {
        let at = gpu.alloc(bytes)?;
        less(gpu, bytes)?;
        gpu.release(at)?;
        less(gpu, 0)?;
    }
    Ok(())
}

/// Small allocations share pieces of the device.
fn small_free_ask(gpu: Gpu) -> Outcome {
    for bytes in [256, 4096, 100_000] {
        let all: Vec<_> = (0..100).map(|_| gpu.alloc(bytes)).collect::<Outcome<_>>()?;
        let free = gpu.free()?;
        that!(free <= gpu.before, "{free} bytes are free, {} before", gpu.before);
        that!(gpu.before - free <= 125 * bytes + 2 * GRAIN, "{free} bytes are free");
        gpu.release_all(all)?;
        less(gpu, 0)?;
    }
    Ok(())
}

fn pool_free_ask(gpu: Gpu) -> Outcome {
    let (stream, bytes) = (gpu.stream()?, gpu.part(4)?);
    for _ in 0..10 {
        let at = crate::pool::ordered(bytes, stream)?;
        gpu.took_at_most(bytes + crate::pool::PIECE)?;
        that!(gpu.free()? + bytes <= gpu.before + GRAIN, "{} bytes are free", gpu.free()?);
        ok!(cuMemFreeAsync(at, stream));
        ok!(cuStreamSynchronize(stream));
        less(gpu, 0)?;
    }
    Ok(())
}

fn context_free_ask(gpu: Gpu) -> Outcome {
    for _ in 0..5 {
        let (mut context, bytes) = (CUcontext::NULL, gpu.part(8)?);
        ok!(cuCtxCreate_v2(&mut context, 0, gpu.device));
        let gpu = gpu.measured()?;
        gpu.alloc(bytes)?;
        less(gpu, bytes)?;
        ok!(cuCtxDestroy_v2(context));
        set_current(gpu.context)?;
        that!(gpu.free()? + GRAIN >= gpu.before, "{} bytes are free", gpu.free()?);
    }
    less(gpu, 0)
}

/// Managed memory is on the device once the device uses it, or at once; freed, it is gone.
fn managed_free_ask(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    for _ in 0..20 {
        let mut at = 0;
        ok!(cuMemAllocManaged(&mut at, bytes, CU_MEM_ATTACH_GLOBAL));
        gpu.took_at_most(bytes + GRAIN)?;
        gpu.release(at)?;
        less(gpu, 0)?;
    }
    Ok(())
}

/// When eight threads have filled the device together, each sees that it is full, and when all have freed,
/// each sees that it is empty.
fn eight_threads_fill_free_ask(gpu: Gpu) -> Outcome {
    let (step, all, held) = (gpu.part(100)?, Barrier::new(8), AtomicUsize::new(0));
    // A thread that fails still comes to the barriers, so that none waits for it.
    let rounds = crate::threads::eight(gpu, |number| {
        let mut outcome = Ok(());
        let mut note =
            |checked: Outcome| outcome = std::mem::replace(&mut outcome, Ok(())).and(checked);
        for _ in 0..20 {
            let filled = gpu.fill(step + number * GRAIN);
            let mine = filled.as_ref().map_or(0, |all| all.len() * (step + number * GRAIN));
            held.fetch_add(mine, Ordering::SeqCst);
            all.wait();
            note(less(gpu, held.load(Ordering::SeqCst)));
            all.wait();
            held.fetch_sub(mine, Ordering::SeqCst);
            note(filled.and_then(|all| gpu.release_all(all)));
            all.wait();
            note(less(gpu, 0));
            all.wait();
        }
        outcome
    });
    rounds.map(drop)
}

/// A thread holds a known amount while others allocate and free large blocks: what it sees is that amount, and
/// at most what the others can have.
fn a_thread_asks_while_others_race(gpu: Gpu) -> Outcome {
    let (mine, most) = (gpu.part(4)?, gpu.part(16)?);
    let at = gpu.alloc(mine)?;
    crate::threads::eight(gpu, |number| {
        let mut random = Random(7 + number as u64);
        for _ in 0..2_000 {
            if number > 0 {
                gpu.release(gpu.alloc(1 + random.below(most))?)?;
                continue;
            }
            let (free, before) = (gpu.free()?, gpu.before);
            that!(free + mine <= before + GRAIN, "{free} of {before} are free, {mine} are held");
            let least = before - mine - 7 * (most + GRAIN) - GRAIN;
            that!(free >= least, "{free} of {before} are free, at least {least} must be");
        }
        Ok(())
    })?;
    less(gpu, mine)?;
    gpu.release(at)?;
    less(gpu, 0)
}

/// Requests that are refused take nothing, not for an instant, though much was freed before each.
fn a_thread_asks_during_refusals(gpu: Gpu) -> Outcome {
    let (large, total) = (gpu.part(2)?, gpu.total()?);
    crate::threads::eight(gpu, |number| {
        for _ in 0..300 {
            match number {
                0 => gpu.release(gpu.alloc(large)?)?,
                1 => {
                    let mut at = 0;
                    says!(OOM, cuMemAlloc_v2(&mut at, total));
                }
                _ => {
                    let (free, least) = (gpu.free()?, gpu.before - large - GRAIN);
                    that!(free >= least, "{free} bytes are free, at least {least} must be");
                }
            }
        }
        Ok(())
    })?;
    less(gpu, 0)
}

/// A helper that holds as many bytes as it is told, and answers with the free bytes that it sees.
pub fn exact(_: &[String]) -> Outcome {
    let (gpu, mut held) = (gpu()?, Vec::new());
    child::say("ready")?;
    while let Some(word) = child::listen() {
        match word.split_once(' ') {
            Some(("take", bytes)) => held.push(gpu.alloc(bytes.parse().or_else(fail)?)?),
            Some(("free", _)) => gpu.release_all(std::mem::take(&mut held))?,
            Some(("small", _)) => held.extend(small_blocks(gpu)?),
            _ => {}
        }
        child::say(&gpu.free()?.to_string())?;
    }
    Ok(())
}

/// Eight threads allocate small blocks and free half of them, so that the cache of each is somewhere between empty and
/// full. What they keep.
fn small_blocks(gpu: Gpu) -> Outcome<Vec<CUdeviceptr>> {
    let all = crate::threads::eight(gpu, |number| {
        let mut kept = Vec::new();
        for block in 0..40 {
            let at = gpu.alloc(4096 * (1 + number))?;
            match block % 2 {
                0 => kept.push(at),
                _ => gpu.release(at)?,
            }
        }
        Ok(kept)
    })?;
    Ok(all.concat())
}

fn answer(helper: &mut Helper, word: &str) -> Outcome<usize> {
    helper.tell(word)?;
    helper.hears()?.parse().or_else(fail)
}

/// Eight helpers, or as many as have contexts in three quarters of the memory: a card's take 0.5 GiB each.
fn helpers(gpu: Gpu) -> Outcome<Vec<Helper>> {
    let context = (gpu.total()? - gpu.before).max(GRAIN);
    let count = (gpu.before / 4 * 3 / context).min(8);
    if count < 2 {
        return skip("the device has no room for the contexts of two processes more");
    }
    let mut all: Vec<Helper> =
        (0..count).map(|_| Helper::start("exact", &[])).collect::<Outcome<_>>()?;
    for helper in &mut all {
        helper.says("ready")?;
    }
    Ok(all)
}

/// After each step of one process, it and all others see the same, at once.
fn eight_processes_fill_free_ask(gpu: Gpu) -> Outcome {
    let mut all = helpers(gpu)?;
    let gpu = gpu.measured()?;
    let bytes = gpu.before / 10 / GRAIN * GRAIN;
    let count = all.len();
    for _ in 0..3 {
        for step in 1..=2 * count {
            let (word, held) = if step <= count {
                (format!("take {bytes}"), step * bytes)
            } else {
                ("free all".to_owned(), (2 * count - step) * bytes)
            };
            let seen = answer(&mut all[(step - 1) % count], &word)?;
            let there = answer(&mut all[step % count], "ask")?;
            that!(
                (seen + held).abs_diff(gpu.before) <= 9 * GRAIN
                    && seen.abs_diff(there) <= 8 * GRAIN,
                "{seen} and {there} bytes are free of {} after {held} were taken",
                gpu.before
            );
            that!(gpu.free()?.abs_diff(seen) <= 8 * GRAIN, "{seen} there, {} here", gpu.free()?);
        }
    }
    all.into_iter().try_for_each(Helper::end)
}

fn a_process_asks_after_its_sibling(gpu: Gpu) -> Outcome {
    let mut helper = Helper::start("exact", &[])?;
    helper.says("ready")?;
    let gpu = gpu.measured()?;
    for n in [2, 3, 8, 50] {
        let bytes = gpu.part(n)?;
        answer(&mut helper, &format!("take {bytes}"))?;
        less(gpu, bytes)?;
        answer(&mut helper, "free all")?;
        less(gpu, 0)?;
        let at = gpu.alloc(bytes)?;
        let seen = answer(&mut helper, "ask")?;
        that!((seen + bytes).abs_diff(gpu.before) <= GRAIN, "{seen} bytes are free there");
        gpu.release(at)?;
    }
    for _ in 0..10 {
        for word in ["small blocks", "free all"] {
            let there = answer(&mut helper, word)?;
            let here = gpu.free()?;
            that!(
                here.abs_diff(there) <= GRAIN,
                "{word}: {there} bytes are free there, {here} here"
            );
        }
    }
    helper.end()
}

/// Both versions of NVML say that `bytes` more are used than before.
fn nvml_more(device: nvmlDevice_t, before: u64, bytes: usize) -> Outcome {
    let (one, two) = (nvml::memory(device)?, nvml::memory_v2(device)?);
    for (used, free, total) in [(one.used, one.free, one.total), (two.used, two.free, two.total)] {
        that!(
            used.abs_diff(before + bytes as u64) <= GRAIN as u64,
            "{used} bytes are used, {before} before {bytes} were taken"
        );
        that!(free <= total - used, "{free} of {total} bytes are free, {used} are used");
    }
    Ok(())
}

fn nvml_fill_free_ask(gpu: Gpu) -> Outcome {
    let device = nvml::nvml(gpu)?;
    let before = nvml::memory(device)?.used;
    for n in [3, 16] {
        fill_and_free(gpu, gpu.part(n)?, |held| nvml_more(device, before, held))?;
    }
    Ok(())
}

fn nvml_pool_free_ask(gpu: Gpu) -> Outcome {
    let (device, stream, bytes) = (nvml::nvml(gpu)?, gpu.stream()?, gpu.part(4)?);
    let before = nvml::memory(device)?.used;
    for _ in 0..10 {
        let at = crate::pool::ordered(bytes, stream)?;
        let used = nvml::memory(device)?.used;
        that!(used + GRAIN as u64 >= before + bytes as u64, "{used} bytes are used");
        ok!(cuMemFreeAsync(at, stream));
        ok!(cuStreamSynchronize(stream));
        nvml_more(device, before, 0)?;
    }
    Ok(())
}

fn nvml_context_free_ask(gpu: Gpu) -> Outcome {
    let device = nvml::nvml(gpu)?;
    let before = nvml::memory(device)?.used;
    for _ in 0..5 {
        let mut context = CUcontext::NULL;
        ok!(cuCtxCreate_v2(&mut context, 0, gpu.device));
        let (cost, used) = (gpu.before - gpu.free()?, nvml::memory(device)?.used);
        that!(
            used.abs_diff(before + cost as u64) <= GRAIN as u64,
            "{used} used, {before} before {cost}"
        );
        ok!(cuCtxDestroy_v2(context));
        set_current(gpu.context)?;
        nvml_more(device, before, 0)?;
    }
    Ok(())
}

/// A helper that uses NVML alone, and answers with the used bytes: of the device, and of the process `pid`.
pub fn nvml_only(words: &[String]) -> Outcome {
    let [uuid, pid] = words else {
        return fail("nvml needs a UUID and a pid");
    };
    let (device, pid) = (nvml::of_uuid(uuid)?, pid.parse().or_else(fail)?);
    child::say("ready")?;
    while child::listen().is_some() {
        let (one, two) = (nvml::memory(device)?.used, nvml::memory_v2(device)?.used);
        let process = nvml::listed(device, pid)?.map_or(0, |one| one.used_gpu_memory);
        child::say(&format!("{one} {two} {process}"))?;
    }
    Ok(())
}

fn seen(helper: &mut Helper) -> Outcome<[u64; 3]> {
    helper.tell("look")?;
    let line = helper.hears()?;
    let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
    let numbers = numbers.or_else(fail)?;
    numbers.try_into().or_else(|_| fail("not three numbers"))
}

fn watcher(gpu: Gpu) -> Outcome<Helper> {
    let uuid = nvml::uuid(gpu)?;
    let mut helper = Helper::start("nvml", &[&uuid, &nvml::me().to_string()])?;
    helper.says("ready")?;
    Ok(helper)
}

fn nvml_in_another_process(gpu: Gpu) -> Outcome {
    nvml::nvml(gpu)?;
    let mut helper = watcher(gpu)?;
    let before = seen(&mut helper)?;
    fill_and_free(gpu, gpu.part(5)?, |held| {
        let mut helper = watcher(gpu)?;
        let now = seen(&mut helper)?;
        for version in 0..2 {
            let expected = before[version] + held as u64;
            that!(
                now[version].abs_diff(expected) <= GRAIN as u64,
                "{now:?}, {before:?} before {held}"
            );
        }
        helper.end()
    })?;
    // The same by a process that has been there all the time.
    let at = gpu.alloc(gpu.part(3)?)?;
    let full = seen(&mut helper)?[0];
    that!(full.abs_diff(before[0] + gpu.part(3)? as u64) <= GRAIN as u64, "{full} bytes are used");
    gpu.release(at)?;
    that!(seen(&mut helper)?[0].abs_diff(before[0]) <= GRAIN as u64, "it is not free again");
    helper.end()
}

/// What NVML says of this process. All ones: not known, as in some containers and under some drivers.
fn of_this_process(device: nvmlDevice_t) -> Outcome<u64> {
    let used = nvml::listed(device, nvml::me())?.map(|one| one.used_gpu_memory);
    match used {
        Some(used) if used != u64::MAX => Ok(used),
        _ => skip("NVML does not know what this process uses"),
    }
}

fn nvml_list_fill_free_ask(gpu: Gpu) -> Outcome {
    let device = nvml::nvml(gpu)?;
    let before = of_this_process(device)?;
    fill_and_free(gpu, gpu.part(7)?, |held| {
        let used = of_this_process(device)?;
        that!(
            used.abs_diff(before + held as u64) <= GRAIN as u64,
            "this process uses {used} bytes, {before} before {held} were taken"
        );
        Ok(())
    })
}

fn nvml_list_in_another_process(gpu: Gpu) -> Outcome {
    of_this_process(nvml::nvml(gpu)?)?;
    let mut helper = watcher(gpu)?;
    let before = seen(&mut helper)?[2];
    let bytes = gpu.part(3)?;
    for _ in 0..5 {
        let at = gpu.alloc(bytes)?;
        let used = seen(&mut helper)?[2];
        that!(
            used.abs_diff(before + bytes as u64) <= GRAIN as u64,
            "{used} bytes, {before} before"
        );
        gpu.release(at)?;
        let used = seen(&mut helper)?[2];
        that!(used.abs_diff(before) <= GRAIN as u64, "{used} bytes are left, {before} before");
    }
    helper.end()
}

/// Each time eight threads have allocated, and each time they have freed, NVML says so.
fn nvml_after_eight_threads(gpu: Gpu) -> Outcome {
    let (device, mut helper) = (nvml::nvml(gpu)?, watcher(gpu)?);
    let (before, there) = (nvml::memory(device)?.used, seen(&mut helper)?[0]);
    let mut random = Random(11);
    for _ in 0..30 {
        let bytes = (1 + random.below(gpu.part(10)? / GRAIN)) * GRAIN;
        let all = crate::threads::eight(gpu, |_| gpu.alloc(bytes))?;
        nvml_more(device, before, 8 * bytes)?;
        let used = seen(&mut helper)?[0];
        that!(used.abs_diff(there + 8 * bytes as u64) <= GRAIN as u64, "{used} are used there");
        let all = std::sync::Mutex::new(all);
        crate::threads::eight(gpu, |_| {
            let at = all.lock().ok().and_then(|mut all| all.pop());
            at.map_or_else(|| fail("no memory is left to free"), |at| gpu.release(at))
        })?;
        nvml_more(device, before, 0)?;
        let used = seen(&mut helper)?[0];
        that!(used.abs_diff(there) <= GRAIN as u64, "{used} are used there, {there} before");
    }
    helper.end()
}

/// Each time one of eight processes has allocated or freed, NVML says so here.
fn nvml_after_eight_processes(gpu: Gpu) -> Outcome {
    let device = nvml::nvml(gpu)?;
    let mut all = helpers(gpu)?;
    let (before, bytes) = (nvml::memory(device)?.used, gpu.free()? / 10 / GRAIN * GRAIN);
    for _ in 0..3 {
        for (helper, held) in all.iter_mut().zip(1..) {
            answer(helper, &format!("take {bytes}"))?;
            nvml_more(device, before, held * bytes)?;
        }
        let count = all.len();
        for (helper, held) in all.iter_mut().zip((0..count).rev()) {
            answer(helper, "free all")?;
            nvml_more(device, before, held * bytes)?;
        }
    }
    all.into_iter().try_for_each(Helper::end)
}
