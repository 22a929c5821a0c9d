//! Multicast objects and logical endpoints: memory under one more name; see [`crate::memory::physical::bound`].
//!
//! The objects themselves are no memory of a known size. They have handles, mappings and descriptors like
//! memory, so they are physical allocations without a charge, and end in the same way. An imported object
//! ends for this process with its last reference here. If other processes still hold it, memory that this
//! process bound to it stays in the driver, and only the daemon's measurement covers it.

use crate::guard::Outcome;
use crate::memory::physical::bound::{self, Place};
use crate::memory::physical::{Name, PhysicalAllocation};
use crate::slice::{self, Slice, released};
use gpuslice_nvabi::types::*;

/// Creates an object by `call`; `name` returns its name after success.
fn object(name: impl FnOnce() -> Name, call: impl FnOnce() -> CUresult) -> Outcome {
    let Some(slice) = slice::get()? else {
        return Ok(call());
    };
    let result = call();
    if result == CUresult::SUCCESS {
        let mut table = slice.physical();
        let allocation = table.begin(None);
        let gone = table.create(name(), 0, allocation);
        drop(table);
        slice.drop_references(gone);
    }
    Ok(result)
}

/// Binds memory to an object by `call`; `counted` are the references to it, counted already.
fn binding(
    slice: &Slice,
    object: Name,
    place: Place,
    counted: impl IntoIterator<Item = PhysicalAllocation>,
    call: impl FnOnce() -> CUresult,
) -> Outcome {
    let counted = Vec::from_iter(counted);
    let result = call();
    if result != CUresult::SUCCESS {
        slice.drop_references(counted);
        return Ok(result);
    }
    let mut table = slice.physical();
    for allocation in counted {
        table.bind(object, place, allocation);
    }
    Ok(result)
}

/// Binds the memory of a handle.
fn bind_handle(
    object: Name,
    device: Option<CUdevice>,
    (offset, bytes): (u64, u64),
    memory: CUmemGenericAllocationHandle,
    call: impl FnOnce() -> CUresult,
) -> Outcome {
    let Some(slice) = slice::attached() else {
        return Ok(call());
    };
    let place = place(slice, device, offset, bytes);
    let counted = slice.physical().refer(Name::Handle(memory));
    binding(slice, object, place, counted, call)
}

/// Binds the memory that is mapped at an address.
fn bind_address(
    object: Name,
    device: Option<CUdevice>,
    (offset, bytes): (u64, u64),
    address: u64,
    call: impl FnOnce() -> CUresult,
) -> Outcome {
    let Some(slice) = slice::attached() else {
        return Ok(call());
    };
    let place = place(slice, device, offset, bytes);
    let counted = slice.physical().refer_within(address, bytes);
    binding(slice, object, place, counted, call)
}

/// Unbinds the memory in a part of an object by `call`.
fn unbinding(
    object: Name,
    device: CUdevice,
    (offset, bytes): (u64, u64),
    call: impl FnOnce() -> CUresult,
) -> Outcome {
    let Some(slice) = slice::attached() else {
        return Ok(call());
    };
    let place = place(slice, Some(device), offset, bytes);
    let gone = slice.physical().unbind(object, place);
    let result = call();
    if result == CUresult::SUCCESS {
        slice.drop_references(bound::allocations(gone));
    } else {
        slice.physical().rebind(object, gone);
    }
    Ok(result)
}

fn place(slice: &Slice, device: Option<CUdevice>, offset: u64, bytes: u64) -> Place {
    let lane = device.and_then(|device| slice.lane_of(device).ok());
    Place { lane: lane.flatten(), offset, bytes }
}

hooks! {
    guard cuMulticastCreate(
        mc_handle: *mut CUmemGenericAllocationHandle, prop: *const CUmulticastObjectProp,
    ) as |call| {
        // SAFETY: read after the driver wrote it and answered success.
        let name = || Name::Handle(unsafe { *mc_handle });
        object(name, call)
    };

    guard cuMulticastBindMem(
        mc_handle: CUmemGenericAllocationHandle, mc_offset: usize,
        mem_handle: CUmemGenericAllocationHandle, mem_offset: usize, size: usize, flags: u64,
    ) as |call| {
        let (object, part) = (Name::Handle(mc_handle), (mc_offset as u64, size as u64));
        bind_handle(object, None, part, mem_handle, call)
    };

    guard cuMulticastBindMem_v2(
        mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize,
        mem_handle: CUmemGenericAllocationHandle, mem_offset: usize, size: usize, flags: u64,
    ) as |call| {
        let (object, part) = (Name::Handle(mc_handle), (mc_offset as u64, size as u64));
        bind_handle(object, Some(dev), part, mem_handle, call)
    };

    guard cuMulticastBindAddr(
        mc_handle: CUmemGenericAllocationHandle, mc_offset: usize, memptr: CUdeviceptr, size: usize,
        flags: u64,
    ) as |call| {
        let (object, part) = (Name::Handle(mc_handle), (mc_offset as u64, size as u64));
        bind_address(object, None, part, memptr, call)
    };

    guard cuMulticastBindAddr_v2(
        mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize,
        memptr: CUdeviceptr, size: usize, flags: u64,
    ) as |call| {
        let (object, part) = (Name::Handle(mc_handle), (mc_offset as u64, size as u64));
        bind_address(object, Some(dev), part, memptr, call)
    };

    guard cuMulticastUnbind(
        mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize, size: usize,
    ) as |call| {
        let (object, part) = (Name::Handle(mc_handle), (mc_offset as u64, size as u64));
        unbinding(object, dev, part, call)
    };

    guard cuLogicalEndpointCreate(le_id: CUlogicalEndpointId, prop: *const c_void) as |call|
        object(|| Name::Endpoint(le_id), call);

    guard cuLogicalEndpointImport(
        le_id: CUlogicalEndpointId, handle: *const c_void,
        handle_type: CUlogicalEndpointIpcHandleType,
    ) as |call| object(|| Name::Endpoint(le_id), call);

    guard cuLogicalEndpointDestroy(le_id: CUlogicalEndpointId) as |call|
        released(Name::Endpoint(le_id), call);

    guard cuLogicalEndpointBindMem(
        le_id: CUlogicalEndpointId, dev: CUdevice, offset: u64,
        mem_handle: CUmemGenericAllocationHandle, mem_offset: u64, size: u64, flags: u64,
    ) as |call| {
        let object = Name::Endpoint(le_id);
        bind_handle(object, Some(dev), (offset, size), mem_handle, call)
    };

    guard cuLogicalEndpointBindAddr(
        le_id: CUlogicalEndpointId, dev: CUdevice, offset: u64, ptr: *mut c_void, size: u64,
        flags: u64,
    ) as |call| {
        let object = Name::Endpoint(le_id);
        bind_address(object, Some(dev), (offset, size), ptr as u64, call)
    };

    guard cuLogicalEndpointUnbind(
        le_id: CUlogicalEndpointId, dev: CUdevice, offset: u64, size: u64,
    ) as |call| unbinding(Name::Endpoint(le_id), dev, (offset, size), call);
}
