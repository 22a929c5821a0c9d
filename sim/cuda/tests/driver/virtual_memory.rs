//! Virtual memory management.

use crate::harness::{MIB, alloc, context_on, free_bytes, get, pattern, put};
use gpuslice_nvabi::types::*;

/// Properties of memory on a device that can be exported.
pub fn on_device(id: i32) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        requested_handle_types: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id },
        win32_handle_meta_data: std::ptr::null_mut(),
        alloc_flags: CUmemAllocationFlags {
            compression_type: 0,
            gpu_direct_rdma_capable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Access to read and write.
pub fn open_to(id: i32) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id },
        flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

scenarios! {
    memory_lives_as_long_as_a_mapping("mem=256MiB,context=64MiB") {
        context_on(0);
        let before = free_bytes();
        let (mut step, mut handle, mut address) = (0, 0, 0);
        ok!(cuMemGetAllocationGranularity(&mut step, &on_device(0), 0));
        assert_eq!(step, 2 * MIB);
        ok!(cuMemAddressReserve(&mut address, 8 * MIB, 0, 0, 0));
        ok!(cuMemCreate(&mut handle, 4 * MIB, &on_device(0), 0));
        assert_eq!(before - free_bytes(), 4 * MIB);
        ok!(cuMemMap(address + 2 * MIB as u64, 4 * MIB, 0, handle, 0));
        let mapped = address + 2 * MIB as u64;
        let mut byte = 0_u8;
        refused!(ERROR_INVALID_VALUE, cuMemcpyDtoH_v2((&raw mut byte).cast(), mapped, 1));
        let mut access = 9;
        let place = CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
        ok!(cuMemGetAccess(&mut access, &place, mapped));
        assert_eq!(access, 0);
        ok!(cuMemSetAccess(mapped, 4 * MIB, &open_to(0), 1));
        put(mapped, &pattern(4 * MIB, 2));
        ok!(cuMemRelease(handle));
        refused!(ERROR_INVALID_VALUE, cuMemRelease(handle));
        assert_eq!(before - free_bytes(), 4 * MIB, "mapped memory stays");
        assert_eq!(get(mapped, 4 * MIB), pattern(4 * MIB, 2));
        refused!(ERROR_INVALID_VALUE, cuMemAddressFree(address, 8 * MIB));
        ok!(cuMemRetainAllocationHandle(&mut handle, (mapped + 5) as *mut c_void));
        ok!(cuMemUnmap(mapped, 4 * MIB));
        assert_eq!(before - free_bytes(), 4 * MIB, "the handle holds it");
        ok!(cuMemRelease(handle));
        assert_eq!(before, free_bytes());
        ok!(cuMemUnmap(mapped, 4 * MIB));
        refused!(ERROR_INVALID_VALUE, cuMemcpyDtoH_v2((&raw mut byte).cast(), mapped, 1));
        ok!(cuMemAddressFree(address, 8 * MIB));
        refused!(ERROR_INVALID_VALUE, cuMemUnmap(mapped, 4 * MIB));
        refused!(ERROR_INVALID_VALUE, cuMemAddressFree(address, 8 * MIB));
    }

    neighbours_are_one_range("mem=256MiB,context=64MiB") {
        context_on(0);
        let (mut one, mut two, mut address) = (0, 0, 0);
        let step = 2 * MIB;
        ok!(cuMemAddressReserve(&mut address, 2 * step, 0, 0, 0));
        ok!(cuMemCreate(&mut one, step, &on_device(0), 0));
        ok!(cuMemCreate(&mut two, 2 * step, &on_device(0), 0));
        ok!(cuMemMap(address, step, 0, one, 0));
        ok!(cuMemMap(address + step as u64, step, step, two, 0));
        ok!(cuMemSetAccess(address, 2 * step, &open_to(0), 1));
        let bytes = pattern(1000, 6);
        put(address + step as u64 - 500, &bytes);
        assert_eq!(get(address + step as u64 - 500, 1000), bytes);
        // The same memory at another address.
        let mut again = 0;
        ok!(cuMemAddressReserve(&mut again, 2 * step, 4 * step, 0, 0));
        assert!(again.is_multiple_of(4 * step as u64));
        ok!(cuMemMap(again, 2 * step, 0, two, 0));
        ok!(cuMemSetAccess(again, 2 * step, &open_to(0), 1));
        assert_eq!(get(again + step as u64, 500), bytes[500..]);
        ok!(cuMemUnmap(address, 2 * step));
        assert_eq!(get(again + step as u64, 500), bytes[500..]);
    }

    what_cannot_be("mem=256MiB") {
        context_on(0);
        let (mut handle, mut address) = (0, 0);
        let step = 2 * MIB;
        refused!(ERROR_INVALID_VALUE, cuMemCreate(&mut handle, 0, &on_device(0), 0));
        refused!(ERROR_INVALID_VALUE, cuMemCreate(&mut handle, MIB, &on_device(0), 0));
        refused!(ERROR_INVALID_DEVICE, cuMemCreate(&mut handle, step, &on_device(3), 0));
        refused!(ERROR_OUT_OF_MEMORY, cuMemCreate(&mut handle, 1 << 40, &on_device(0), 0));
        refused!(ERROR_INVALID_VALUE, cuMemAddressReserve(&mut address, MIB, 0, 0, 0));
        refused!(ERROR_OUT_OF_MEMORY, cuMemAddressReserve(&mut address, 1 << 60, 0, 0, 0));
        ok!(cuMemCreate(&mut handle, step, &on_device(0), 0));
        ok!(cuMemAddressReserve(&mut address, 4 * step, 0, 0, 0));
        refused!(ERROR_INVALID_VALUE, cuMemMap(address, 2 * step, 0, handle, 0));
        refused!(ERROR_INVALID_VALUE, cuMemMap(address, step, step, handle, 0));
        refused!(ERROR_INVALID_VALUE, cuMemMap(address + 512, step, 0, handle, 0));
        refused!(ERROR_INVALID_VALUE, cuMemMap(alloc(8 * MIB), step, 0, handle, 0));
        refused!(ERROR_INVALID_VALUE, cuMemMap(address, step, 0, 0x1234, 0));
        ok!(cuMemMap(address, step, 0, handle, 0));
        refused!(ERROR_INVALID_VALUE, cuMemMap(address, step, 0, handle, 0));
        refused!(ERROR_INVALID_VALUE, cuMemSetAccess(address, 2 * step, &open_to(0), 1));
        refused!(ERROR_INVALID_VALUE, cuMemUnmap(address, 2 * step));
        refused!(ERROR_INVALID_VALUE, cuMemFree_v2(address));
        ok!(cuMemUnmap(address, step));
        ok!(cuMemRelease(handle));
    }
}
