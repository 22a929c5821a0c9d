//! Arrays and mipmapped arrays.

use crate::harness::{MIB, alloc, context_on, free_bytes, get, pattern, put};
use gpuslice_nvabi::types::*;
use std::ptr::null_mut;

/// A shape of floats.
fn shape(width: usize, height: usize, depth: usize) -> CUDA_ARRAY3D_DESCRIPTOR {
    let (format, num_channels, flags) = (CU_AD_FORMAT_FLOAT, 1, 0);
    CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format, num_channels, flags }
}

scenarios! {
    bytes_go_through_an_array("mem=256MiB,context=64MiB") {
        context_on(0);
        let before = free_bytes();
        let mut array = CUarray::NULL;
        let line = CUDA_ARRAY_DESCRIPTOR {
            width: 300,
            height: 0,
            format: CU_AD_FORMAT_UNSIGNED_INT8,
            num_channels: 4,
        };
        ok!(cuArrayCreate_v2(&mut array, &line));
        let bytes = pattern(1200, 4);
        ok!(cuMemcpyHtoA_v2(array, 0, bytes.as_ptr().cast(), 1200));
        let pointer = alloc(1200);
        ok!(cuMemcpyAtoD_v2(pointer, array, 200, 1000));
        assert_eq!(get(pointer, 1000), bytes[200..]);
        put(pointer, &[9; 16]);
        ok!(cuMemcpyDtoA_v2(array, 8, pointer, 16));
        let mut back = vec![0_u8; 32];
        ok!(cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), array, 0, 32));
        assert_eq!(back[8..24], [9; 16]);
        assert_eq!(back[..8], bytes[..8]);
        refused!(ERROR_INVALID_VALUE, cuMemcpyAtoD_v2(pointer, array, 201, 1000));
        refused!(ERROR_INVALID_HANDLE, cuMemcpyAtoD_v2(pointer, CUarray::NULL, 0, 10));
        let mut told = line;
        ok!(cuArrayGetDescriptor_v2(&mut told, array));
        assert_eq!((told.width, told.height, told.num_channels), (300, 0, 4));
        ok!(cuArrayDestroy(array));
        refused!(ERROR_INVALID_HANDLE, cuArrayDestroy(array));
        refused!(ERROR_INVALID_HANDLE, cuArrayGetDescriptor_v2(&mut told, array));
        ok!(cuMemFree_v2(pointer));
        assert_eq!(free_bytes(), before);
    }

    a_line_takes_eight_rows("mem=256MiB,context=64MiB") {
        context_on(0);
        let before = free_bytes();
        let mut array = CUarray::NULL;
        ok!(cuArray3DCreate_v2(&mut array, &shape(131_072, 0, 0)));
        assert_eq!(before - free_bytes(), 4 * MIB);
        ok!(cuArrayDestroy(array));
        assert_eq!(before, free_bytes());
    }

    an_array_takes_memory("mem=256MiB,context=64MiB") {
        context_on(0);
        let before = free_bytes();
        let mut array = CUarray::NULL;
        ok!(cuArray3DCreate_v2(&mut array, &shape(1024, 1024, 8)));
        assert_eq!(before - free_bytes(), 32 * MIB);
        refused!(ERROR_OUT_OF_MEMORY,
            cuArray3DCreate_v2(&mut array, &shape(4096, 4096, 16)));
        refused!(ERROR_INVALID_VALUE, cuArray3DCreate_v2(&mut array, &shape(0, 4, 4)));
        refused!(ERROR_INVALID_VALUE, cuArray3DCreate_v2(null_mut(), &shape(4, 4, 4)));
        let mut need =
            CUDA_ARRAY_MEMORY_REQUIREMENTS { size: 0, alignment: 0, reserved: [0; 4] };
        refused!(ERROR_INVALID_VALUE, cuArrayGetMemoryRequirements(&mut need, array, 0));
        let later = CUDA_ARRAY3D_DESCRIPTOR {
            flags: CUDA_ARRAY3D_DEFERRED_MAPPING,
            ..shape(1024, 1024, 0)
        };
        let mut unmapped = CUarray::NULL;
        ok!(cuArray3DCreate_v2(&mut unmapped, &later));
        ok!(cuArrayGetMemoryRequirements(&mut need, unmapped, 0));
        assert_eq!(need.size, 4 * MIB);
        assert_eq!(before - free_bytes(), 32 * MIB);
        ok!(cuArrayDestroy(array));
        ok!(cuArrayDestroy(unmapped));
        assert_eq!(before, free_bytes());
    }

    a_mipmap_owns_its_levels("mem=256MiB,context=64MiB") {
        context_on(0);
        let before = free_bytes();
        let (mut mipmap, mut level) = (CUmipmappedArray::NULL, CUarray::NULL);
        ok!(cuMipmappedArrayCreate(&mut mipmap, &shape(1024, 1024, 0), 4));
        assert!(before - free_bytes() >= 5 * MIB);
        ok!(cuMipmappedArrayGetLevel(&mut level, mipmap, 2));
        let mut told = shape(0, 0, 0);
        ok!(cuArray3DGetDescriptor_v2(&mut told, level));
        assert_eq!((told.width, told.height), (256, 256));
        let bytes = pattern(1024, 8);
        ok!(cuMemcpyHtoA_v2(level, 0, bytes.as_ptr().cast(), 1024));
        let held = free_bytes();
        ok!(cuArrayDestroy(level));
        assert_eq!(free_bytes(), held, "a level has no memory of its own");
        refused!(ERROR_INVALID_HANDLE, cuArrayDestroy(CUarray(mipmap.0)));
        let mut other = CUarray::NULL;
        refused!(ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&mut other, mipmap, 4));
        ok!(cuMipmappedArrayDestroy(mipmap));
        refused!(ERROR_INVALID_HANDLE, cuMipmappedArrayDestroy(mipmap));
        refused!(ERROR_INVALID_HANDLE, cuArray3DGetDescriptor_v2(&mut told, level));
        assert_eq!(free_bytes(), before);
    }
}
