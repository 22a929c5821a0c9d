//! Copies and fills move real bytes, and refuse memory outside allocations.

use crate::harness::{MIB, alloc, context_on, get, pattern, put};
use gpuslice_nvabi::types::*;
use std::ptr::{null, null_mut};

/// A two-dimensional copy of nothing.
fn flat() -> CUDA_MEMCPY2D {
    CUDA_MEMCPY2D {
        src_x_in_bytes: 0,
        src_y: 0,
        src_memory_type: CU_MEMORYTYPE_UNIFIED,
        src_host: null(),
        src_device: 0,
        src_array: CUarray::NULL,
        src_pitch: 0,
        dst_x_in_bytes: 0,
        dst_y: 0,
        dst_memory_type: CU_MEMORYTYPE_UNIFIED,
        dst_host: null_mut(),
        dst_device: 0,
        dst_array: CUarray::NULL,
        dst_pitch: 0,
        width_in_bytes: 0,
        height: 0,
    }
}

scenarios! {
    bytes_go_round("devices=2") {
        let first = context_on(0);
        let bytes = pattern(5 * MIB + 13, 1);
        let (one, two) = (alloc(bytes.len()), alloc(bytes.len()));
        assert!(get(one, bytes.len()).iter().all(|byte| *byte == 0), "new memory is zero");
        put(one, &bytes);
        ok!(cuMemcpyDtoD_v2(two, one, bytes.len()));
        assert_eq!(get(two, bytes.len()), bytes);
        let second = context_on(1);
        let three = alloc(bytes.len());
        ok!(cuMemcpyPeer(three, second, two, first, bytes.len()));
        assert_eq!(get(three, bytes.len()), bytes);
        refused!(ERROR_INVALID_CONTEXT, cuMemcpyPeer(three, CUcontext::NULL, two, first, 1));
        let mut back = vec![0_u8; bytes.len()];
        ok!(cuMemcpy(back.as_mut_ptr() as u64, three, back.len()));
        assert_eq!(back, bytes);
        // Ranges that overlap.
        ok!(cuMemcpyDtoD_v2(three + 100, three, 1000));
        assert_eq!(get(three + 100, 1000), bytes[..1000]);
        ok!(cuMemcpyDtoD_v2_ptds(three, one, 100));
        ok!(cuMemcpyHtoD_v2(three, null(), 0));
    }

    ranges_that_do_not_fit("") {
        context_on(0);
        let pointer = alloc(4096);
        let mut bytes = [0_u8; 8192];
        let host: *mut c_void = bytes.as_mut_ptr().cast();
        refused!(ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(pointer, host, 4097));
        refused!(ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(pointer + 1, host, 4096));
        refused!(ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(host, pointer + 4096, 1));
        refused!(ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(host, 0xdead_0000, 16));
        refused!(ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(host, pointer, usize::MAX));
        refused!(ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(pointer, null(), 16));
        refused!(ERROR_INVALID_VALUE, cuMemcpyDtoD_v2(pointer, host as u64, 16));
        refused!(ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(0, host, 16));
        refused!(ERROR_INVALID_VALUE, cuMemsetD8_v2(pointer, 1, 4097));
        refused!(ERROR_INVALID_VALUE, cuMemsetD32_v2(pointer, 1, usize::MAX / 2));
        refused!(ERROR_INVALID_VALUE, cuMemsetD32_v2(pointer + 2, 1, 4));
        ok!(cuMemFree_v2(pointer));
        refused!(ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(pointer, host, 16));
        refused!(ERROR_INVALID_VALUE, cuMemsetD8_v2(pointer, 1, 16));
    }

    fills("") {
        context_on(0);
        let pointer = alloc(8 * MIB);
        ok!(cuMemsetD8_v2(pointer, 0xab, 8 * MIB));
        assert!(get(pointer, 8 * MIB).iter().all(|byte| *byte == 0xab));
        ok!(cuMemsetD8_v2(pointer + 5, 0, 8 * MIB - 10));
        let bytes = get(pointer, 8 * MIB);
        assert!(bytes[..5].iter().chain(&bytes[8 * MIB - 5..]).all(|byte| *byte == 0xab));
        assert!(bytes[5..8 * MIB - 5].iter().all(|byte| *byte == 0));
        ok!(cuMemsetD16_v2(pointer, 0x1234, 3));
        ok!(cuMemsetD32_v2(pointer + 8, 0xdead_beef, 2));
        assert_eq!(get(pointer, 16), [0x34, 0x12, 0x34, 0x12, 0x34, 0x12, 0, 0,
            0xef, 0xbe, 0xad, 0xde, 0xef, 0xbe, 0xad, 0xde]);
        ok!(cuMemsetD8_v2(pointer, 0, 64));
        ok!(cuMemsetD2D16_v2(pointer, 16, 0x0101, 2, 3));
        let rows = get(pointer, 48);
        for row in rows.chunks(16) {
            assert_eq!(row, [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        refused!(ERROR_INVALID_VALUE, cuMemsetD2D16_v2(pointer, 3, 1, 2, 3));
    }

    rows_and_planes("") {
        context_on(0);
        let (mut pointer, mut pitch) = (0, 0);
        ok!(cuMemAllocPitch_v2(&mut pointer, &mut pitch, 100, 10, 4));
        let bytes = pattern(100 * 10, 3);
        let mut copy = CUDA_MEMCPY2D {
            src_memory_type: CU_MEMORYTYPE_HOST,
            src_host: bytes.as_ptr().cast(),
            src_pitch: 100,
            dst_memory_type: CU_MEMORYTYPE_DEVICE,
            dst_device: pointer,
            dst_pitch: pitch,
            width_in_bytes: 100,
            height: 10,
            ..flat()
        };
        ok!(cuMemcpy2D_v2(&copy));
        assert_eq!(get(pointer + 3 * pitch as u64, 100), bytes[300..400]);
        let mut back = vec![0_u8; 20 * 4];
        let part = CUDA_MEMCPY2D {
            src_memory_type: CU_MEMORYTYPE_DEVICE,
            src_device: pointer,
            src_pitch: pitch,
            src_x_in_bytes: 50,
            src_y: 2,
            dst_memory_type: CU_MEMORYTYPE_HOST,
            dst_host: back.as_mut_ptr().cast(),
            dst_pitch: 20,
            width_in_bytes: 20,
            height: 4,
            ..flat()
        };
        ok!(cuMemcpy2DUnaligned_v2(&part));
        for (row, found) in back.chunks(20).enumerate() {
            assert_eq!(found, &bytes[(row + 2) * 100 + 50..][..20]);
        }
        copy.height = 11;
        copy.src_pitch = 0;
        refused!(ERROR_INVALID_VALUE, cuMemcpy2D_v2(&copy));
        copy.height = 10;
        copy.dst_pitch = 99;
        refused!(ERROR_INVALID_VALUE, cuMemcpy2D_v2(&copy));
        copy.dst_memory_type = 9;
        refused!(ERROR_INVALID_VALUE, cuMemcpy2D_v2(&copy));
        refused!(ERROR_INVALID_VALUE, cuMemcpy2D_v2(null()));
    }

    copies_in_streams("") {
        context_on(0);
        let pointer = alloc(MIB);
        let mut host = null_mut();
        ok!(cuMemHostAlloc(&mut host, MIB, 0));
        // SAFETY: pinned memory of this size.
        let pinned = unsafe { std::slice::from_raw_parts_mut(host.cast::<u8>(), MIB) };
        pinned.copy_from_slice(&pattern(MIB, 9));
        ok!(cuMemcpyHtoDAsync_v2(pointer, host, MIB, CUstream::NULL));
        ok!(cuMemsetD8Async(pointer, 7, 100, CUstream::NULL));
        // Pageable memory can be changed as soon as the call has returned.
        let mut short = [5_u8; 100];
        ok!(cuMemcpyHtoDAsync_v2(pointer + 100, short.as_ptr().cast(), 100, CUstream::NULL));
        short.fill(6);
        let mut back = vec![0_u8; MIB];
        ok!(cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), pointer, MIB, CUstream::NULL));
        ok!(cuCtxSynchronize());
        assert!(back[..100].iter().all(|byte| *byte == 7));
        assert!(back[100..200].iter().all(|byte| *byte == 5));
        assert_eq!(back[200..], pattern(MIB, 9)[200..]);
        ok!(cuMemFree_v2(pointer));
    }
}
