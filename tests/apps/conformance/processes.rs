//! Several processes on one device: together they never have more than the device. When one has
//! ended, however it ended, its memory is available to the others.

use crate::child::{self, Helper};
use crate::words::*;
use gpuslice_nvabi::types::*;
use std::os::unix::process::CommandExt;

family!("processes":
    see_each_other, see_the_same, cannot_pass_the_cap, what_one_frees_the_other_has,
    unused_room_goes_to_who_needs_it, killed_gives_back, ended_gives_back, leaked_gives_back,
    half_of_them_killed, sixty_four, forked_child_leaves_the_parent, forked_child_may_exec,
    orphan_is_charged, exec_gives_back, free_of_a_sibling, two_race, four_race;
    bare: forked_child_has_no_driver,
);

/// A helper that holds so many bytes.
fn holder(bytes: usize) -> Outcome<Helper> {
    let mut helper = Helper::start("hold", &[&bytes.to_string()])?;
    helper.says("held")?;
    Ok(helper)
}

/// The helper: allocates, says so, waits.
pub fn hold(words: &[String]) -> Outcome {
    let gpu = gpu()?;
    let [bytes] = words else {
        return fail("hold needs a size");
    };
    let bytes = bytes.parse().or_else(fail)?;
    if bytes > 0 {
        gpu.alloc(bytes)?;
    }
    child::say("held")?;
    child::listen();
    Ok(())
}

fn see_each_other(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(4)?;
    let helper = holder(bytes)?;
    that!(gpu.free()? + bytes <= gpu.before, "the other's memory is not taken");
    helper.end()?;
    gpu.back_after_others()
}

/// A helper that prints the free memory on request.
pub fn look(words: &[String]) -> Outcome {
    let gpu = gpu()?;
    let [bytes] = words else {
        return fail("look needs a size");
    };
    gpu.alloc(bytes.parse().or_else(fail)?)?;
    child::say("ready")?;
    while child::listen().is_some() {
        child::say(&gpu.free()?.to_string())?;
    }
    Ok(())
}

/// All processes see the same number of free bytes.
fn see_the_same(gpu: Gpu) -> Outcome {
    let mut helper = Helper::start("look", &[&gpu.part(8)?.to_string()])?;
    helper.says("ready")?;
    for round in 1..4 {
        gpu.alloc(gpu.part(32)? * round)?;
        helper.tell("look")?;
        let there: usize = helper.hears()?.parse().or_else(fail)?;
        that!(gpu.free()?.abs_diff(there) <= GRAIN, "{there} there, {} here", gpu.free()?);
    }
    helper.end()
}

fn cannot_pass_the_cap(gpu: Gpu) -> Outcome {
    let helper = holder(gpu.part(2)?)?;
    let mut at = 0;
    says!(OOM, cuMemAlloc_v2(&mut at, gpu.part(2)?));
    helper.end()?;
    let at = gpu.alloc(gpu.part(2)?)?;
    gpu.release(at)
}

/// A helper that fills its memory on command, prints the bytes it got, and waits.
pub fn fill(words: &[String]) -> Outcome {
    let gpu = gpu()?;
    let [step] = words else {
        return fail("fill needs a step");
    };
    let step = step.parse().or_else(fail)?;
    child::say("ready")?;
    child::listen();
    let all = gpu.fill(step)?;
    child::say(&(all.len() * step).to_string())?;
    child::listen();
    Ok(())
}

/// `count` helpers fill the cap at the same time.
fn fill_together(gpu: Gpu, count: usize) -> Outcome {
    let before = gpu.before;
    let step = gpu.part(128)?;
    let step_text = step.to_string();
    let mut all: Vec<Helper> =
        (0..count).map(|_| Helper::start("fill", &[&step_text])).collect::<Outcome<_>>()?;
    for helper in &mut all {
        helper.says("ready")?;
    }
    for helper in &mut all {
        helper.tell("go")?;
    }
    let mut sum = 0;
    for helper in &mut all {
        sum += helper.hears()?.parse::<usize>().or_else(fail)?;
    }
    that!(sum <= before, "together they have {sum} bytes of {before}");
    that!(sum + before / 4 + count * gpu.part(8)? >= before, "they got only {sum} of {before}");
    all.into_iter().try_for_each(Helper::end)?;
    gpu.back_after_others()
}

fn two_race(gpu: Gpu) -> Outcome {
    fill_together(gpu, 2)
}

fn four_race(gpu: Gpu) -> Outcome {
    fill_together(gpu, 4)
}

/// A helper that allocates and frees as it is told.
pub fn grow(_: &[String]) -> Outcome {
    let (gpu, mut held) = (gpu()?, Vec::new());
    child::say("ready")?;
    while let Some(word) = child::listen() {
        match word.parse::<usize>() {
            Ok(bytes) => {
                let mut at = 0;
                let code = says!([SUCCESS, OOM], cuMemAlloc_v2(&mut at, bytes));
                if code == SUCCESS {
                    held.push(at);
                }
                child::say(if code == SUCCESS { "got" } else { "refused" })?;
            }
            Err(_) => {
                gpu.release_all(std::mem::take(&mut held))?;
                child::say("freed")?;
            }
        }
    }
    Ok(())
}

fn what_one_frees_the_other_has(gpu: Gpu) -> Outcome {
    let mut helper = Helper::start("grow", &[])?;
    helper.says("ready")?;
    let (most, mut at) = (gpu.part(4)? * 3 - gpu.part(16)?, 0);
    for _ in 0..5 {
        helper.tell(&most.to_string())?;
        helper.says("got")?;
        says!(OOM, cuMemAlloc_v2(&mut at, most));
        helper.tell("free")?;
        helper.says("freed")?;
        // At once: no process may keep memory that it does not use.
        at = gpu.alloc(most)?;
        helper.tell(&most.to_string())?;
        helper.says("refused")?;
        gpu.release(at)?;
    }
    helper.end()
}

/// Many small allocations leave room reserved that is not used.
fn unused_room_goes_to_who_needs_it(gpu: Gpu) -> Outcome {
    let mut helpers = Vec::new();
    for _ in 0..3 {
        let mut helper = Helper::start("grow", &[])?;
        helper.says("ready")?;
        for _ in 0..20 {
            helper.tell(&(GRAIN / 2).to_string())?;
            helper.says("got")?;
        }
        helper.tell("free")?;
        helper.says("freed")?;
        helpers.push(helper);
    }
    let free = gpu.free()?;
    let at = gpu.alloc(free - gpu.part(32)?)?;
    gpu.release(at)?;
    helpers.into_iter().try_for_each(Helper::end)
}

fn killed_gives_back(gpu: Gpu) -> Outcome {
    for _ in 0..5 {
        holder(gpu.part(2)?)?.kill()?;
        gpu.back_after_others()?;
    }
    Ok(())
}

fn ended_gives_back(gpu: Gpu) -> Outcome {
    holder(gpu.part(2)?)?.end()?;
    gpu.back_after_others()
}

/// Nothing is cleared up before the next one starts: the dead one's memory is there for it.
fn leaked_gives_back(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(2)? + gpu.part(8)?;
    for _ in 0..8 {
        holder(bytes)?.kill()?;
    }
    gpu.back_after_others()
}

fn half_of_them_killed(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(32)?;
    let mut all: Vec<Helper> = (0..4).map(|_| holder(bytes)).collect::<Outcome<_>>()?;
    for _ in 0..2 {
        all.remove(0).kill()?;
    }
    for helper in all {
        helper.end()?;
    }
    gpu.back_after_others()
}

/// A helper that initialises the driver and holds nothing.
pub fn idle(_: &[String]) -> Outcome {
    let mut total = 0;
    ok!(cuInit(0));
    ok!(cuDeviceTotalMem_v2(&mut total, 0));
    child::say(&total.to_string())?;
    child::listen();
    Ok(())
}

fn sixty_four(gpu: Gpu) -> Outcome {
    let total = gpu.total()?;
    let mut all: Vec<Helper> =
        (0..64).map(|_| Helper::start("idle", &[])).collect::<Outcome<_>>()?;
    for helper in &mut all {
        helper.says(&total.to_string())?;
    }
    gpu.back_after_others()?;
    all.into_iter().try_for_each(Helper::end)?;
    gpu.back_after_others()
}

/// Runs something in a forked child; it answers a number of up to 250.
fn forked(work: impl FnOnce() -> u8) -> Outcome<i32> {
    // SAFETY: the child calls the driver, which says that it may not, and leaves without unwinding.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let answer = work();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(answer)) };
    }
    that!(pid > 0, "no child");
    let mut status = 0;
    // SAFETY: waits for a child of ours.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    that!(libc::WIFEXITED(status), "the child ended with status {status:#x}");
    Ok(libc::WEXITSTATUS(status))
}

fn forked_child_has_no_driver() -> Outcome {
    use gpuslice_apps::api::calls;
    let gpu = gpu()?;
    let at = gpu.alloc(GRAIN)?;
    let wrong = forked(|| {
        let (mut other, mut free, mut total) = (0, 0, 0);
        let answers = [
            calls::cuMemAlloc_v2(&mut other, GRAIN),
            calls::cuMemGetInfo_v2(&mut free, &mut total),
            calls::cuMemFree_v2(at),
            calls::cuInit(0),
            calls::cuDeviceTotalMem_v2(&mut total, 0),
            calls::cuMemAllocAsync(&mut other, GRAIN, CUstream::NULL),
        ];
        let wrong = answers.iter().position(|code| *code != CUresult::ERROR_NOT_INITIALIZED);
        wrong.map_or(0, |at| at as u8 + 1)
    })?;
    that!(wrong == 0, "call {wrong} is not refused in a forked child");
    gpu.release(at)
}

fn forked_child_leaves_the_parent(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(4)?;
    let at = gpu.alloc(bytes)?;
    for _ in 0..5 {
        forked(|| 0)?;
    }
    gpu.took(bytes, GRAIN)?;
    gpu.usable(at, bytes)?;
    gpu.release(at)?;
    gpu.back_after_others()
}

fn forked_child_may_exec(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(4)?;
    gpu.alloc(bytes)?;
    holder(bytes)?.end()?;
    gpu.took_after_others(bytes, GRAIN)
}

/// A process whose parents are gone is charged and refused like any other.
fn orphan_is_charged(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(4)?;
    let (mut ends, me) = ([0; 2], std::env::current_exe().or_else(fail)?);
    // SAFETY: makes two descriptors.
    that!(unsafe { libc::pipe(ends.as_mut_ptr()) } == 0, "no pipe");
    let (from, keep) = (ends[0], ends[1]);
    forked(|| {
        // SAFETY: a second fork, of a process that only becomes another program.
        if unsafe { libc::fork() } == 0 {
            // SAFETY: system calls on descriptors of ours.
            unsafe {
                libc::setsid();
                libc::dup2(from, 0);
                libc::close(keep);
            }
            let mut command = std::process::Command::new(me);
            command.args([child::ROLE, "hold", &bytes.to_string()]);
            let _ = command.stdout(std::process::Stdio::null()).exec();
        }
        0
    })?;
    eventually("an orphan is charged", || Ok(gpu.free()? + bytes <= gpu.before))?;
    // SAFETY: closes descriptors of ours; with the last writer gone the orphan ends.
    unsafe {
        libc::close(keep);
        libc::close(from);
    }
    gpu.back_after_others()
}

/// A process that becomes another program holds nothing of the one it was.
fn exec_gives_back(gpu: Gpu) -> Outcome {
    let script = format!("exec {0} {1} hold 0", "\"$0\"", child::ROLE);
    let me = std::env::current_exe().or_else(fail)?;
    let mut command = std::process::Command::new("sh");
    command.arg("-c").arg(script).arg(me).stdin(std::process::Stdio::null());
    let ended = command.stdout(std::process::Stdio::null()).status().or_else(fail)?;
    that!(ended.success(), "it ended with {ended}");
    gpu.back_after_others()
}

/// Addresses of one process mean nothing in another.
fn free_of_a_sibling(gpu: Gpu) -> Outcome {
    let helper = holder(gpu.part(8)?)?;
    let gpu = gpu.measured()?;
    for at in [4096u64, 1 << 40, 0x7000_0000_0000] {
        says!(INVALID, cuMemFree_v2(at));
    }
    gpu.back_after_others()?;
    helper.end()
}
