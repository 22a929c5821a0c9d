//! Limits of pools: release threshold, trimming, largest size, a pool's own figures; and pools that
//! another process opens.

use crate::child::{self, Helper};
use crate::pool::{new_pool, of_pool, ordered};
use crate::query::Spin;
use crate::words::*;
use gpuslice_nvabi::types::*;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

family!("pool_limits":
    figures_when_new, used_is_what_is_held, most_bytes_of_a_pool, most_bytes_leave_the_rest,
    reuse_policies_read_back, bad_attributes, exported_to_a_process, not_exportable,
    closed_export_gives_back, access_reads_back, reserved_covers_used, highs_stay, highs_reset,
    highs_are_only_reset, threshold_reads_back, threshold_keeps, kept_is_reused,
    kept_is_given_under_pressure, kept_is_given_to_another_pool, trimmed_to_nothing,
    trimmed_to_a_part, trim_spares_the_living, gaps_of_a_full_pool, freed_before_in_its_stream,
    freed_before_beside_another_stream;
);

fn figure(pool: CUmemoryPool, attribute: CUmemPool_attribute) -> Outcome<u64> {
    let mut value = 0u64;
    ok!(cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()));
    Ok(value)
}

/// A pool that keeps everything.
fn keeper(gpu: Gpu) -> Outcome<CUmemoryPool> {
    let pool = new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?;
    let mut most = u64::MAX;
    let value = (&raw mut most).cast();
    ok!(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, value));
    Ok(pool)
}

/// Lets a pool have had these bytes.
fn passes_through(gpu: Gpu, pool: CUmemoryPool, bytes: usize) -> Outcome {
    let at = of_pool(pool, bytes)?;
    ok!(cuMemFreeAsync(at, CUstream::NULL));
    gpu.synchronize()
}

/// A pool has all memory there is, in which each second allocation is freed.
fn gaps_of_a_full_pool(gpu: Gpu) -> Outcome {
    let (pool, mut freed) = (keeper(gpu)?, Vec::new());
    for bytes in [8 << 20, 24 << 20].into_iter().cycle() {
        let mut at = 0;
        let stream = CUstream::NULL;
        match says!([SUCCESS, OOM], cuMemAllocFromPoolAsync(&mut at, bytes, pool, stream)) {
            SUCCESS if bytes > 8 << 20 => freed.push(at),
            SUCCESS => {}
            _ => break,
        }
    }
    that!(freed.len() > 4, "only {} allocations fit", freed.len());
    for &at in &freed {
        ok!(cuMemFreeAsync(at, CUstream::NULL));
    }
    gpu.synchronize()?;
    of_pool(pool, 8 << 20)?;
    Ok(())
}

/// Memory that serves each allocation only when the stream has come to the free before it. The program never waits.
fn freed_before_in_its_stream(gpu: Gpu) -> Outcome {
    let (pool, spin) = (keeper(gpu)?, Spin::load(gpu)?);
    for _ in 0..4 {
        let at = of_pool(pool, gpu.before / 4 * 3)?;
        spin.launch(20_000_000, CUstream::NULL)?;
        ok!(cuMemFreeAsync(at, CUstream::NULL));
    }
    gpu.synchronize()
}

/// The same after another stream has freed memory, too.
fn freed_before_beside_another_stream(gpu: Gpu) -> Outcome {
    let mut other = CUstream::NULL;
    ok!(cuStreamCreate(&mut other, CU_STREAM_NON_BLOCKING));
    ok!(cuMemFreeAsync(ordered(1 << 20, other)?, other));
    freed_before_in_its_stream(gpu)?;
    ok!(cuStreamDestroy_v2(other));
    Ok(())
}

fn figures_when_new(gpu: Gpu) -> Outcome {
    let pool = new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?;
    for attribute in CU_MEMPOOL_ATTR_RELEASE_THRESHOLD..=CU_MEMPOOL_ATTR_USED_MEM_HIGH {
        let value = figure(pool, attribute)?;
        that!(value == 0, "attribute {attribute} of a new pool is {value}");
    }
    Ok(())
}

fn used_is_what_is_held(gpu: Gpu) -> Outcome {
    let (pool, bytes) = (new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?, gpu.part(16)?);
    let all = [of_pool(pool, bytes)?, of_pool(pool, bytes)?];
    let used = figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
    that!(used == 2 * bytes as u64, "{used} bytes used, not twice {bytes}");
    for at in all {
        ok!(cuMemFreeAsync(at, CUstream::NULL));
    }
    gpu.synchronize()?;
    let used = figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
    that!(used == 0, "{used} bytes used when all is freed");
    Ok(())
}

fn reserved_covers_used(gpu: Gpu) -> Outcome {
    let pool = keeper(gpu)?;
    for round in 1..8 {
        of_pool(pool, gpu.part(64)? * round)?;
        let used = figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        let reserved = figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        that!(reserved >= used, "{reserved} bytes reserved for {used} used");
        gpu.took(reserved as usize, 2 * GRAIN)?;
    }
    Ok(())
}

fn highs_stay(gpu: Gpu) -> Outcome {
    let pool = keeper(gpu)?;
    let bytes = gpu.part(8)?;
    passes_through(gpu, pool, bytes)?;
    ok!(cuMemPoolTrimTo(pool, 0));
    for attribute in [CU_MEMPOOL_ATTR_USED_MEM_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH] {
        let high = figure(pool, attribute)?;
        that!(high >= bytes as u64, "attribute {attribute} is {high}");
    }
    Ok(())
}

fn highs_reset(gpu: Gpu) -> Outcome {
    let pool = keeper(gpu)?;
    passes_through(gpu, pool, gpu.part(8)?)?;
    ok!(cuMemPoolTrimTo(pool, 0));
    for attribute in [CU_MEMPOOL_ATTR_USED_MEM_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH] {
        let mut zero = 0u64;
        ok!(cuMemPoolSetAttribute(pool, attribute, (&raw mut zero).cast()));
        let high = figure(pool, attribute)?;
        that!(high == 0, "attribute {attribute} is {high} after its reset");
    }
    Ok(())
}

fn highs_are_only_reset(gpu: Gpu) -> Outcome {
    let pool = keeper(gpu)?;
    let mut some = 4096u64;
    let value = (&raw mut some).cast();
    says!(INVALID, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, value));
    says!(INVALID, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, value));
    Ok(())
}

fn threshold_reads_back(gpu: Gpu) -> Outcome {
    let pool = keeper(gpu)?;
    let threshold = figure(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)?;
    that!(threshold == u64::MAX, "{threshold} is read");
    Ok(())
}

fn threshold_keeps(gpu: Gpu) -> Outcome {
    let pool = keeper(gpu)?;
    let bytes = gpu.part(8)?;
    passes_through(gpu, pool, bytes)?;
    gpu.took(bytes, 32 << 20)
}

fn kept_is_reused(gpu: Gpu) -> Outcome {
    let pool = keeper(gpu)?;
    let bytes = gpu.part(4)?;
    for _ in 0..20 {
        passes_through(gpu, pool, bytes)?;
    }
    let reserved = figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)? as usize;
    that!(reserved < 2 * bytes, "{reserved} bytes reserved for {bytes}");
    gpu.took(reserved, 2 * GRAIN)
}

fn kept_is_given_under_pressure(gpu: Gpu) -> Outcome {
    let pool = keeper(gpu)?;
    passes_through(gpu, pool, gpu.before / 2)?;
    let at = gpu.alloc(gpu.before / 4 * 3)?;
    gpu.release(at)?;
    ok!(cuMemPoolTrimTo(pool, 0));
    gpu.back()
}

fn kept_is_given_to_another_pool(gpu: Gpu) -> Outcome {
    let pool = keeper(gpu)?;
    passes_through(gpu, pool, gpu.before / 2)?;
    let at = ordered(gpu.before / 4 * 3, CUstream::NULL)?;
    ok!(cuMemFreeAsync(at, CUstream::NULL));
    gpu.synchronize()?;
    ok!(cuMemPoolTrimTo(pool, 0));
    gpu.back()
}

fn trimmed_to_nothing(gpu: Gpu) -> Outcome {
    let pool = keeper(gpu)?;
    passes_through(gpu, pool, gpu.part(4)?)?;
    ok!(cuMemPoolTrimTo(pool, 0));
    let reserved = figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
    that!(reserved == 0, "{reserved} bytes are reserved still");
    gpu.back()
}

fn trimmed_to_a_part(gpu: Gpu) -> Outcome {
    let pool = keeper(gpu)?;
    let bytes = gpu.part(8)?;
    let all: Vec<_> = (0..4).map(|_| of_pool(pool, bytes)).collect::<Outcome<_>>()?;
    for at in all {
        ok!(cuMemFreeAsync(at, CUstream::NULL));
    }
    gpu.synchronize()?;
    ok!(cuMemPoolTrimTo(pool, bytes));
    let reserved = figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)? as usize;
    that!(reserved >= bytes, "{reserved} bytes kept of {bytes} to keep");
    gpu.took(reserved, 2 * GRAIN)
}

fn trim_spares_the_living(gpu: Gpu) -> Outcome {
    let pool = keeper(gpu)?;
    let bytes = gpu.part(8)?;
    let at = of_pool(pool, bytes)?;
    ok!(cuMemPoolTrimTo(pool, 0));
    gpu.usable(at, bytes)?;
    gpu.took(bytes, 32 << 20)
}

fn most_bytes_of_a_pool(gpu: Gpu) -> Outcome {
    let (bytes, mut at) = (gpu.part(8)?, 0);
    let pool = new_pool(gpu, 2 * bytes, CU_MEM_HANDLE_TYPE_NONE)?;
    let one = of_pool(pool, bytes)?;
    says!(OOM, cuMemAllocFromPoolAsync(&mut at, 2 * bytes, pool, CUstream::NULL));
    gpu.took(bytes, 32 << 20)?;
    ok!(cuMemFreeAsync(one, CUstream::NULL));
    gpu.synchronize()?;
    gpu.back()
}

fn most_bytes_leave_the_rest(gpu: Gpu) -> Outcome {
    let (bytes, mut at) = (gpu.part(8)?, 0);
    let pool = new_pool(gpu, bytes, CU_MEM_HANDLE_TYPE_NONE)?;
    of_pool(pool, bytes)?;
    says!(OOM, cuMemAllocFromPoolAsync(&mut at, bytes, pool, CUstream::NULL));
    // The device has room, and other allocations may use it.
    gpu.alloc(bytes)?;
    ordered(bytes, CUstream::NULL).map(drop)
}

fn reuse_policies_read_back(gpu: Gpu) -> Outcome {
    let pool = new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?;
    for attribute in CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
        ..=CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES
    {
        for want in [0i32, 1] {
            let (mut set, mut read) = (want, 7i32);
            ok!(cuMemPoolSetAttribute(pool, attribute, (&raw mut set).cast()));
            ok!(cuMemPoolGetAttribute(pool, attribute, (&raw mut read).cast()));
            that!(read == want, "attribute {attribute} is {read}, not {want}");
        }
    }
    Ok(())
}

fn bad_attributes(gpu: Gpu) -> Outcome {
    let pool = new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?;
    let mut value = 0u64;
    let to = (&raw mut value).cast();
    says!(INVALID, cuMemPoolGetAttribute(pool, 0, to));
    says!(INVALID, cuMemPoolGetAttribute(pool, 12345, to));
    says!(INVALID, cuMemPoolSetAttribute(pool, 12345, to));
    says!(INVALID, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, to));
    says!(
        INVALID,
        cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, std::ptr::null_mut())
    );
    Ok(())
}

const FD: CUmemAllocationHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// A descriptor of a pool.
fn exported(pool: CUmemoryPool) -> Outcome<OwnedFd> {
    let mut fd = -1i32;
    ok!(cuMemPoolExportToShareableHandle((&raw mut fd).cast(), pool, FD, 0));
    that!(fd >= 0, "the descriptor is {fd}");
    // SAFETY: the driver has made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// As hexadecimal digits.
pub fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Digits back to bytes.
pub fn undigits<const N: usize>(text: &str) -> Outcome<[u8; N]> {
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        let pair = text.get(2 * at..2 * at + 2).unwrap_or_default();
        *byte = u8::from_str_radix(pair, 16).or_else(|_| fail("bad digits"))?;
    }
    Ok(bytes)
}

fn exported_to_a_process(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let pool = new_pool(gpu, 0, FD)?;
    let fd = exported(pool)?;
    let at = of_pool(pool, bytes)?;
    ok!(cuMemsetD32_v2(at, 77, 1));
    let mut data = CUmemPoolPtrExportData { reserved: [0; 64] };
    ok!(cuMemPoolExportPointer(&mut data, at));
    child::inherit(fd.as_raw_fd());
    let (number, pointer) = (fd.as_raw_fd().to_string(), digits(&data.reserved));
    let mut helper = Helper::start("import-pool", &[&number, &pointer])?;
    helper.says("read 77")?;
    helper.end()?;
    ok!(cuMemFreeAsync(at, CUstream::NULL));
    gpu.synchronize()?;
    ok!(cuMemPoolDestroy(pool));
    drop(fd);
    gpu.back_after_others()
}

/// A helper that opens a pool and a pointer of it.
pub fn import(words: &[String]) -> Outcome {
    gpu()?;
    let [fd, data] = words else {
        return fail("import-pool needs a descriptor and a pointer");
    };
    let fd: usize = fd.parse().or_else(fail)?;
    let (mut pool, mut at, mut read) = (CUmemoryPool::NULL, 0, 0u32);
    let mut data = CUmemPoolPtrExportData { reserved: undigits(data)? };
    ok!(cuMemPoolImportFromShareableHandle(&mut pool, fd as *mut c_void, FD, 0));
    ok!(cuMemPoolImportPointer(&mut at, pool, &mut data));
    ok!(cuMemcpyDtoH_v2((&raw mut read).cast(), at, 4));
    // Nothing can be allocated from another process's pool.
    let mut own = 0;
    says!(INVALID, cuMemAllocFromPoolAsync(&mut own, GRAIN, pool, CUstream::NULL));
    ok!(cuMemFree_v2(at));
    child::say(&format!("read {read}"))
}

fn not_exportable(gpu: Gpu) -> Outcome {
    let (pool, mut fd) = (new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?, -1i32);
    let to = (&raw mut fd).cast();
    says!(INVALID, cuMemPoolExportToShareableHandle(to, pool, FD, 0));
    Ok(())
}

fn closed_export_gives_back(gpu: Gpu) -> Outcome {
    let pool = new_pool(gpu, 0, FD)?;
    let fd = exported(pool)?;
    passes_through(gpu, pool, gpu.part(8)?)?;
    ok!(cuMemPoolDestroy(pool));
    drop(fd);
    gpu.back()
}

fn access_reads_back(gpu: Gpu) -> Outcome {
    let (pool, mut flags) = (new_pool(gpu, 0, CU_MEM_HANDLE_TYPE_NONE)?, 0);
    let mut here = gpu.location();
    ok!(cuMemPoolGetAccess(&mut flags, pool, &mut here));
    that!(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "its own device may do {flags}");
    Ok(())
}
