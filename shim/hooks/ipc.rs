//! Memory of one process in another, by a legacy handle (`cuIpcGetMemHandle`).
//!
//! A process that exports memory reports a digest of the handle to the daemon, and a process that opens a
//! handle asks about that digest. Memory of the own container is charged already, to the process that
//! allocated it. Memory of another container is refused or charged here as well, from the first opening to
//! the last closing, as the node configures.
//!
//! Opening a refused handle returns `CUDA_ERROR_INVALID_HANDLE`, one of the call's documented errors.
//! Libraries that try this method first (for buffers of processes of any origin) take it for "not
//! reachable this way" and use another method.

use super::shared::shared;
use crate::guard::Outcome;
use crate::memory::physical::Name;
use crate::real;
use crate::resolve::call::check;
use crate::slice::{self, Charging, handles, released};
use core::sync::atomic::Ordering::Relaxed;
use gpuslice_nvabi::types::*;
use gpuslice_wire::page::FOREIGN_CHARGE;
use gpuslice_wire::tenant::HandleKey;

/// FNV-1a. Two handles with one digest give no advantage: a process that reports a handle of another
/// container makes its own container pay for that memory.
fn digest(handle: &CUipcMemHandle) -> HandleKey {
    let step =
        |sum: u64, byte: &c_char| (sum ^ u64::from(*byte as u8)).wrapping_mul(0x0100_0000_01b3);
    HandleKey(handle.reserved.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

hooks! {
    guard cuIpcGetMemHandle(p_handle: *mut CUipcMemHandle, dptr: CUdeviceptr) as |call| {
        let result = shared(call);
        if result == CUresult::SUCCESS
            && let Some(slice) = slice::attached()
        {
            // SAFETY: the driver has just written there and answered success.
            slice
                .handles
                .share(&slice.daemon, digest(unsafe { &*p_handle }));
        }
        Ok(result)
    };
}

/// Opens `handle` by `call`.
///
/// # Safety
/// `call` writes the address to `pdptr` when it answers success.
unsafe fn opened(
    pdptr: *const CUdeviceptr,
    handle: &CUipcMemHandle,
    call: impl FnOnce() -> CUresult,
) -> Outcome {
    let Some(slice) = slice::get()? else {
        return Ok(call());
    };
    if handles::is_ours(&slice.daemon, digest(handle)) {
        return Ok(shared(call));
    }
    if slice.daemon.container().foreign.load(Relaxed) != FOREIGN_CHARGE {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    let result = shared(call);
    if result != CUresult::SUCCESS {
        return Ok(result);
    }
    // SAFETY: the driver has just written there and answered success.
    let address = unsafe { *pdptr };
    match charge(address) {
        Ok(()) => Ok(result),
        Err(refused) => {
            let _ = real!(cuIpcCloseMemHandle(address));
            Err(refused)
        }
    }
}

/// Charges another container's memory, which has just been opened here: its size is known only now. If it was
/// open before, it is one more reference.
fn charge(address: CUdeviceptr) -> Result<(), CUresult> {
    let (mut base, mut bytes) = (0, 0);
    check(real!(cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address)))?;
    let name = Name::Opened(address);
    let Some(slice) = slice::attached() else {
        return Ok(());
    };
    let known = slice.physical().refer(name);
    let (allocation, context) = if let Some(allocation) = known {
        (allocation, 0)
    } else {
        let Some(charging) = Charging::here(bytes)? else {
            return Ok(());
        };
        let context = charging.context;
        let allocation = slice.physical().begin(Some(charging.into_charge()));
        (allocation, context)
    };
    let dropped = slice.physical().add(name, context, allocation);
    slice.drop_references(dropped);
    Ok(())
}

hooks! {
    guard cuIpcOpenMemHandle(
        pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: u32,
    ) as |call| {
        // SAFETY: the application's own pointer, which the driver checks and writes.
        unsafe { opened(pdptr, &handle, call) }
    };

    guard cuIpcOpenMemHandle_v2(
        pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: u32,
    ) as |call| {
        // SAFETY: the application's own pointer, which the driver checks and writes.
        unsafe { opened(pdptr, &handle, call) }
    };

    guard cuIpcCloseMemHandle(dptr: CUdeviceptr) as |call| released(Name::Opened(dptr), call);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_tell_handles_apart_and_never_change() {
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // Processes with different versions of this library must agree.
        assert_eq!(digest(&handle), HandleKey(0xb9b2_3f3a_46fd_0825));
        for at in 0..64 {
            let before = digest(&handle);
            handle.reserved[at] = -1;
            assert_ne!(digest(&handle), before, "byte {at}");
        }
    }
}
