//! The structures of memory calls: locations, pools, physical allocations, handles between
//! processes.
//!
//! Layouts are those of cuda.h 13.5; every size and offset below was read from the header with a C
//! compiler and is held by `layout!`. Older headers have the same layouts; some bytes named here
//! are reserved there.

use super::*;

/// The location of memory: a device, the host, or one NUMA node.
///
/// `id` is a union in the header from CUDA 13 on (a locality domain of a device in its two low
/// bytes); for devices and NUMA nodes it is the plain number.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUmemLocation {
    pub kind: CUmemLocationType,
    pub id: i32,
}
layout!(CUmemLocation, 8, kind: 0, id: 4);

/// A 16-byte identifier: of a device, or of an export table.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUuuid {
    pub bytes: [c_char; 16],
}
layout!(CUuuid, 16, bytes: 0);

/// An opaque name of a device allocation that another process can open.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUipcMemHandle {
    pub reserved: [c_char; 64],
}
layout!(CUipcMemHandle, 64, reserved: 0);

/// An opaque name of an event that another process can open.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUipcEventHandle {
    pub reserved: [c_char; 64],
}
layout!(CUipcEventHandle, 64, reserved: 0);

/// A device's access rights to a mapping.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAccessDesc {
    pub location: CUmemLocation,
    pub flags: CUmemAccess_flags,
}
layout!(CUmemAccessDesc, 12, location: 0, flags: 8);

/// The properties of a memory pool; `max_size` is in bytes, 0 = limited by the device alone.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemPoolProps {
    pub alloc_type: CUmemAllocationType,
    pub handle_types: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32_security_attributes: *mut c_void,
    pub max_size: usize,
    pub usage: u16,
    pub gpu_direct_rdma_capable: u8,
    pub reserved: [u8; 53],
}
layout!(
    CUmemPoolProps,
    88,
    alloc_type: 0, handle_types: 4, location: 8, win32_security_attributes: 16, max_size: 24,
    usage: 32, gpu_direct_rdma_capable: 34, reserved: 35,
);

/// The flags inside `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAllocationFlags {
    pub compression_type: u8,
    pub gpu_direct_rdma_capable: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}
layout!(
    CUmemAllocationFlags,
    8,
    compression_type: 0, gpu_direct_rdma_capable: 1, usage: 2, reserved: 4,
);

/// The properties of a physical allocation (`cuMemCreate`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemAllocationProp {
    pub kind: CUmemAllocationType,
    pub requested_handle_types: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32_handle_meta_data: *mut c_void,
    pub alloc_flags: CUmemAllocationFlags,
}
layout!(
    CUmemAllocationProp,
    32,
    kind: 0, requested_handle_types: 4, location: 8, win32_handle_meta_data: 16, alloc_flags: 24,
);

/// An opaque name of a pool allocation for another process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemPoolPtrExportData {
    pub reserved: [u8; 64],
}
layout!(CUmemPoolPtrExportData, 64, reserved: 0);

/// The shape of a multicast object; `size` in bytes per device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmulticastObjectProp {
    pub num_devices: u32,
    pub size: usize,
    pub handle_types: u64,
    pub flags: u64,
}
layout!(CUmulticastObjectProp, 32, num_devices: 0, size: 8, handle_types: 16, flags: 24);

/// How one or several copies of a batch may read their source.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemcpyAttributes {
    pub src_access_order: CUmemcpySrcAccessOrder,
    pub src_loc_hint: CUmemLocation,
    pub dst_loc_hint: CUmemLocation,
    pub flags: u32,
}
layout!(CUmemcpyAttributes, 24, src_access_order: 0, src_loc_hint: 4, dst_loc_hint: 12, flags: 20);

/// One step of `cuMemMapArrayAsync`: a part of a sparse array, and the memory to map into it or to unmap.
/// `resource` is an array or a mipmapped array. In the header, `subresource` is a union of eight 32-bit
/// numbers (level, layer, offsets, extents) and of layer, offset and size of a mip tail.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUarrayMapInfo {
    pub resource_type: u32,
    pub resource: *mut c_void,
    pub subresource_type: CUarraySparseSubresourceType,
    pub subresource: [u64; 4],
    pub mem_operation_type: CUmemOperationType,
    pub mem_handle_type: u32,
    pub mem_handle: CUmemGenericAllocationHandle,
    pub offset: u64,
    pub device_bit_mask: u32,
    pub flags: u32,
    pub reserved: [u32; 2],
}
layout!(
    CUarrayMapInfo,
    96,
    resource_type: 0, resource: 8, subresource_type: 16, subresource: 24, mem_operation_type: 56,
    mem_handle_type: 60, mem_handle: 64, offset: 72, device_bit_mask: 80, flags: 84, reserved: 88,
);

/// Memory of another API or process; `handle` is a descriptor in its first bytes, or pointers.
/// `size` is in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
    pub kind: u32,
    pub handle: [u64; 2],
    pub size: u64,
    pub flags: u32,
    pub reserved: [u32; 16],
}
layout!(
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
    104,
    kind: 0, handle: 8, size: 24, flags: 32, reserved: 36,
);
