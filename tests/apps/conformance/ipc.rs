//! `cuIpc*`: a device allocation that another process opens. It is the same memory: it costs nothing
//! more, and it stays until both have released it.

use crate::child::{self, Helper};
use crate::pool_limits::{digits, undigits};
use crate::words::*;
use gpuslice_nvabi::types::*;

family!("ipc":
    opened_by_a_process, opened_twice, opener_dies, maker_dies, costs_nothing_more,
    of_small_memory, of_managed_memory, of_nothing, own_handle, bad_flags, garbage,
    close_nothing, free_what_was_opened;
);

fn handle(at: CUdeviceptr) -> Outcome<CUipcMemHandle> {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    ok!(cuIpcGetMemHandle(&mut handle, at));
    Ok(handle)
}

fn written(handle: &CUipcMemHandle) -> String {
    digits(&handle.reserved.map(|byte| byte as u8))
}

/// A helper that has opened memory and read its first word, 77, this often.
fn opener(at: CUdeviceptr, times: usize) -> Outcome<Helper> {
    ok!(cuMemsetD32_v2(at, 77, 1));
    ok!(cuCtxSynchronize());
    let mut helper = Helper::start("open", &[&written(&handle(at)?), &times.to_string()])?;
    helper.says("read 77")?;
    Ok(helper)
}

/// The helper: opens, reads, waits; told to, it closes what it opened.
pub fn open(words: &[String]) -> Outcome {
    gpu()?;
    let [text, times] = words else {
        return fail("open needs a handle and a number");
    };
    let handle = CUipcMemHandle { reserved: undigits::<64>(text)?.map(|byte| byte as c_char) };
    let (times, mut at, mut read): (usize, _, _) = (times.parse().or_else(fail)?, 0, 0u32);
    for _ in 0..times {
        ok!(cuIpcOpenMemHandle_v2(&mut at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    }
    ok!(cuMemcpyDtoH_v2((&raw mut read).cast(), at, 4));
    child::say(&format!("read {read}"))?;
    while let Some(word) = child::listen() {
        match word.as_str() {
            "close" => {
                ok!(cuIpcCloseMemHandle(at));
            }
            "free" => {
                says!(INVALID, cuMemFree_v2(at));
            }
            other => return fail(format_args!("what is {other}")),
        }
        child::say("done")?;
    }
    Ok(())
}

fn opened_by_a_process(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let at = gpu.alloc(bytes)?;
    let mut helper = opener(at, 1)?;
    helper.tell("close")?;
    helper.says("done")?;
    helper.end()?;
    gpu.took_after_others(bytes, GRAIN)?;
    gpu.release(at)?;
    gpu.back_after_others()
}

fn opened_twice(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let at = gpu.alloc(bytes)?;
    let mut helper = opener(at, 2)?;
    for _ in 0..2 {
        helper.tell("close")?;
        helper.says("done")?;
    }
    helper.end()?;
    gpu.took_after_others(bytes, GRAIN)?;
    gpu.release(at)?;
    gpu.back_after_others()
}

fn opener_dies(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let at = gpu.alloc(bytes)?;
    opener(at, 1)?.kill()?;
    gpu.took_after_others(bytes, GRAIN)?;
    gpu.release(at)?;
    gpu.back_after_others()
}

/// A helper that shares memory: the maker of the next case.
pub fn share(words: &[String]) -> Outcome {
    let gpu = gpu()?;
    let [bytes] = words else {
        return fail("share needs a size");
    };
    let at = gpu.alloc(bytes.parse().or_else(fail)?)?;
    ok!(cuMemsetD32_v2(at, 77, 1));
    ok!(cuCtxSynchronize());
    child::say(&written(&handle(at)?))?;
    child::listen();
    Ok(())
}

/// Memory shared by a dead process is released when no process has it open.
fn maker_dies(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let mut maker = Helper::start("share", &[&bytes.to_string()])?;
    let text = maker.hears()?;
    let handle = CUipcMemHandle { reserved: undigits::<64>(&text)?.map(|byte| byte as c_char) };
    let (mut at, mut read) = (0, 0u32);
    ok!(cuIpcOpenMemHandle_v2(&mut at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    ok!(cuMemcpyDtoH_v2((&raw mut read).cast(), at, 4));
    that!(read == 77, "{read} is read");
    ok!(cuIpcCloseMemHandle(at));
    maker.kill()?;
    gpu.back_after_others()
}

fn costs_nothing_more(gpu: Gpu) -> Outcome {
    // Too much to be there twice.
    let bytes = gpu.part(2)? + gpu.part(16)?;
    let at = gpu.alloc(bytes)?;
    let mut helper = opener(at, 1)?;
    helper.tell("close")?;
    helper.says("done")?;
    helper.end()
}

fn of_small_memory(gpu: Gpu) -> Outcome {
    let at = gpu.alloc(256)?;
    let helper = opener(at, 1)?;
    helper.end()?;
    gpu.release(at)
}

fn of_managed_memory(_: Gpu) -> Outcome {
    let (mut at, mut handle) = (0, CUipcMemHandle { reserved: [0; 64] });
    ok!(cuMemAllocManaged(&mut at, GRAIN, CU_MEM_ATTACH_GLOBAL));
    says!(INVALID, cuIpcGetMemHandle(&mut handle, at));
    Ok(())
}

fn of_nothing(gpu: Gpu) -> Outcome {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    let at = gpu.alloc(GRAIN)?;
    says!(INVALID, cuIpcGetMemHandle(&mut handle, 1));
    says!(INVALID, cuIpcGetMemHandle(std::ptr::null_mut(), at));
    gpu.release(at)?;
    says!(INVALID, cuIpcGetMemHandle(&mut handle, at));
    Ok(())
}

/// A process does not open what is its own.
fn own_handle(gpu: Gpu) -> Outcome {
    let mut opened = 0;
    let at = gpu.alloc(gpu.part(8)?)?;
    let handle = handle(at)?;
    says!(
        [CUresult::ERROR_INVALID_CONTEXT, INVALID],
        cuIpcOpenMemHandle_v2(&mut opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    );
    gpu.release(at)?;
    gpu.back_after_others()
}

fn bad_flags(gpu: Gpu) -> Outcome {
    let mut opened = 0;
    let handle = handle(gpu.alloc(GRAIN)?)?;
    // A card's driver may look first whose handle it is.
    let own = CUresult::ERROR_INVALID_CONTEXT;
    says!([INVALID, own], cuIpcOpenMemHandle_v2(&mut opened, handle, 0));
    says!([INVALID, own], cuIpcOpenMemHandle_v2(&mut opened, handle, u32::MAX));
    Ok(())
}

fn garbage(gpu: Gpu) -> Outcome {
    let mut opened = 0;
    for byte in [0, 1, -1] {
        let handle = CUipcMemHandle { reserved: [byte; 64] };
        let flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
        let code = gpuslice_apps::api::calls::cuIpcOpenMemHandle_v2(&mut opened, handle, flags);
        that!(code != SUCCESS, "a handle of bytes {byte} opens memory");
    }
    gpu.back_after_others()
}

fn close_nothing(gpu: Gpu) -> Outcome {
    let at = gpu.alloc(gpu.part(8)?)?;
    for bad in [0, 1, at] {
        says!(
            [INVALID, CUresult::ERROR_MAP_FAILED, CUresult::ERROR_INVALID_HANDLE],
            cuIpcCloseMemHandle(bad)
        );
    }
    gpu.took_after_others(gpu.part(8)?, GRAIN)?;
    gpu.release(at)
}

/// What was opened is closed, never freed.
fn free_what_was_opened(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let at = gpu.alloc(bytes)?;
    let mut helper = opener(at, 1)?;
    helper.tell("free")?;
    helper.says("done")?;
    helper.tell("close")?;
    helper.says("done")?;
    helper.end()?;
    gpu.took_after_others(bytes, GRAIN)?;
    gpu.release(at)?;
    gpu.back_after_others()
}
