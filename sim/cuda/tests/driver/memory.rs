//! Device, managed and host memory: capacity, bad sizes, bad pointers, what can be asked.

use crate::harness::{MIB, alloc, context_on, free_bytes, get, pattern, put};
use gpuslice_nvabi::types::*;
use std::ptr::null_mut;

scenarios! {
    capacity_is_exact("mem=256MiB,context=64MiB") {
        context_on(0);
        assert_eq!(free_bytes(), 192 * MIB);
        let mut pointers: Vec<_> = (0..96).map(|_| alloc(2 * MIB)).collect();
        assert_eq!(free_bytes(), 0);
        refused!(ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&mut 0, 1));
        ok!(cuMemFree_v2(pointers.swap_remove(13)));
        // Freed pages need not lie side by side.
        ok!(cuMemFree_v2(pointers.swap_remove(50)));
        let pieces = alloc(4 * MIB);
        put(pieces, &pattern(4 * MIB, 5));
        assert_eq!(get(pieces, 4 * MIB), pattern(4 * MIB, 5));
        refused!(ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&mut 0, 1));
        for pointer in pointers {
            ok!(cuMemFree_v2(pointer));
        }
        ok!(cuMemFree_v2(pieces));
        assert_eq!(free_bytes(), 192 * MIB);
        alloc(192 * MIB);
    }

    small_allocations_share_pages("mem=256MiB,context=64MiB") {
        context_on(0);
        let before = free_bytes();
        let pointers: Vec<_> = (1..=1000).map(alloc).collect();
        assert!(before - free_bytes() <= 2 * MIB, "1000 small ones took {}", before - free_bytes());
        let mut sorted = pointers.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().all(|pointer| pointer.is_multiple_of(256)));
        for (at, pointer) in pointers.iter().enumerate() {
            put(*pointer, &pattern(at + 1, at as u32));
        }
        for (at, pointer) in pointers.iter().enumerate() {
            assert_eq!(get(*pointer, at + 1), pattern(at + 1, at as u32));
            ok!(cuMemFree_v2(*pointer));
        }
        assert_eq!(free_bytes(), before);
        // What is kept for the next small one can be had for a large one.
        let all = alloc(before);
        ok!(cuMemFree_v2(all));
    }

    impossible_sizes("mem=256MiB") {
        context_on(0);
        let mut pointer = 7;
        refused!(ERROR_INVALID_VALUE, cuMemAlloc_v2(&mut pointer, 0));
        refused!(ERROR_INVALID_VALUE, cuMemAlloc_v2(null_mut(), 64));
        for size in [257 * MIB, 1 << 40, usize::MAX, usize::MAX - 4096, isize::MAX as usize] {
            refused!(ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&mut pointer, size));
        }
        let mut pitch = 0;
        let half = 1 << 33;
        refused!(ERROR_OUT_OF_MEMORY, cuMemAllocPitch_v2(&mut pointer, &mut pitch, half, half, 4));
        refused!(ERROR_OUT_OF_MEMORY,
            cuMemAllocPitch_v2(&mut pointer, &mut pitch, usize::MAX, 1, 4));
        refused!(ERROR_INVALID_VALUE, cuMemAllocPitch_v2(&mut pointer, &mut pitch, 64, 0, 4));
        refused!(ERROR_INVALID_VALUE, cuMemAllocPitch_v2(&mut pointer, &mut pitch, 64, 4, 3));
        assert_eq!(pointer, 7, "an error writes nothing");
    }

    pitch_is_a_multiple_of_512("mem=256MiB,context=64MiB") {
        context_on(0);
        let (mut pointer, mut pitch) = (0, 0);
        ok!(cuMemAllocPitch_v2(&mut pointer, &mut pitch, 100, 8000, 4));
        assert_eq!(pitch, 512);
        assert!(192 * MIB - free_bytes() >= 512 * 8000);
        let (mut base, mut size) = (0, 0);
        ok!(cuMemGetAddressRange_v2(&mut base, &mut size, pointer + 513));
        assert_eq!((base, size), (pointer, 512 * 8000));
    }

    pointers_that_are_none("") {
        context_on(0);
        let pointer = alloc(4096);
        refused!(ERROR_INVALID_VALUE, cuMemFree_v2(pointer + 512));
        refused!(ERROR_INVALID_VALUE, cuMemFree_v2(0xdead_beef));
        ok!(cuMemFree_v2(0));
        ok!(cuMemFree_v2(pointer));
        refused!(ERROR_INVALID_VALUE, cuMemFree_v2(pointer));
        let (mut base, mut size) = (0, 0);
        refused!(ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&mut base, &mut size, pointer));
    }

    freeing_needs_no_current_context("mem=256MiB,context=64MiB") {
        let context = context_on(0);
        let (before, mut host) = (free_bytes(), null_mut());
        let (small, large) = (alloc(64), alloc(5 * MIB));
        ok!(cuMemHostAlloc(&mut host, 64, 0));
        ok!(cuCtxPopCurrent_v2(null_mut()));
        ok!(cuMemFree_v2(small));
        ok!(cuMemFree_v2(large));
        ok!(cuMemFreeHost(host));
        refused!(ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&mut 0, 64));
        ok!(cuCtxPushCurrent_v2(context));
        assert_eq!(free_bytes(), before);
    }

    there_may_be_more_managed_memory_than_the_device_has("mem=256MiB,context=64MiB") {
        let _ = context_on(0);
        let free = free_bytes();
        let (mut large, mut more, mut none) = (0, 0, 0);
        let (len, global) = (512 * MIB, CU_MEM_ATTACH_GLOBAL);
        ok!(cuMemAllocManaged(&mut large, len, global));
        refused!(ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&mut none, len));
        assert_eq!(free_bytes(), free);
        let bytes = pattern(4096, 7);
        put(large + (len - 4096) as u64, &bytes);
        ok!(cuMemsetD8_v2(large, 9, 4096));
        assert_eq!(get(large + (len - 4096) as u64, 4096), bytes);
        // SAFETY: managed memory can be used by the host.
        assert_eq!(unsafe { (large as *const u8).add(4095).read() }, 9);
        let mut managed = 0_u32;
        let managed_is = CU_POINTER_ATTRIBUTE_IS_MANAGED;
        ok!(cuPointerGetAttribute((&raw mut managed).cast(), managed_is, large));
        assert_eq!(managed, 1);
        ok!(cuMemAllocManaged(&mut more, len, global));
        ok!(cuMemFreeAsync(more, CUstream::NULL));
        ok!(cuMemFree_v2(large));
        ok!(cuCtxSynchronize());
        refused!(ERROR_INVALID_VALUE, cuMemFree_v2(large));
        refused!(ERROR_INVALID_VALUE, cuMemFree_v2(more));
        // More than the host has as well.
        refused!(ERROR_OUT_OF_MEMORY, cuMemAllocManaged(&mut none, 1 << 50, global));
        refused!(ERROR_OUT_OF_MEMORY, cuMemAllocManaged(&mut none, usize::MAX, global));
    }

    managed_memory_is_everybodys("mem=256MiB,context=64MiB") {
        context_on(0);
        let mut pointer = 0;
        refused!(ERROR_INVALID_VALUE, cuMemAllocManaged(&mut pointer, 64, 0));
        ok!(cuMemAllocManaged(&mut pointer, 3 * MIB, CU_MEM_ATTACH_GLOBAL));
        assert_eq!(free_bytes(), 188 * MIB);
        put(pointer, b"from the device");
        // SAFETY: managed memory can be used by the host.
        let seen = unsafe { std::slice::from_raw_parts(pointer as *const u8, 15) };
        assert_eq!(seen, b"from the device");
        let mut managed = 0_u32;
        ok!(cuPointerGetAttribute(
            (&raw mut managed).cast(),
            CU_POINTER_ATTRIBUTE_IS_MANAGED,
            pointer
        ));
        assert_eq!(managed, 1);
        ok!(cuMemAdvise(pointer, MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 0));
        let mut device = -9;
        ok!(cuMemRangeGetAttribute(
            (&raw mut device).cast(),
            4,
            CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
            pointer,
            MIB
        ));
        assert_eq!(device, 0);
        refused!(ERROR_INVALID_VALUE, cuMemAdvise(alloc(64), 64, 1, 0));
        ok!(cuMemFree_v2(pointer));
    }

    host_memory_is_known("") {
        context_on(0);
        let mut pointer = null_mut();
        refused!(ERROR_INVALID_VALUE, cuMemHostAlloc(&mut pointer, 0, 0));
        refused!(ERROR_INVALID_VALUE, cuMemHostAlloc(&mut pointer, 64, 0x80));
        refused!(ERROR_OUT_OF_MEMORY, cuMemHostAlloc(&mut pointer, usize::MAX, 0));
        ok!(cuMemHostAlloc(&mut pointer, 10_000, CU_MEMHOSTALLOC_WRITECOMBINED));
        let (mut device, mut flags) = (0, 0);
        ok!(cuMemHostGetDevicePointer_v2(&mut device, pointer, 0));
        assert_eq!(device, pointer as u64);
        ok!(cuMemHostGetFlags(&mut flags, pointer));
        assert_ne!(flags & CU_MEMHOSTALLOC_WRITECOMBINED, 0);
        refused!(ERROR_INVALID_VALUE, cuMemFree_v2(device));
        ok!(cuMemFreeHost(pointer));
        refused!(ERROR_INVALID_VALUE, cuMemFreeHost(pointer));

        let mut own = vec![0_u8; 8192];
        let own: *mut c_void = own.as_mut_ptr().cast();
        ok!(cuMemHostRegister_v2(own, 8192, CU_MEMHOSTREGISTER_PORTABLE));
        refused!(ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(own, 4096, 0));
        ok!(cuMemHostUnregister(own));
        refused!(ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(own));
        refused!(ERROR_INVALID_VALUE, cuMemHostRegister_v2(null_mut(), 64, 0));
    }

    pointers_can_be_asked("") {
        let context = context_on(0);
        let pointer = alloc(1000);
        let ask = |attribute, at| {
            let mut value = u64::MAX;
            let result = call!(cuPointerGetAttribute((&raw mut value).cast(), attribute, at));
            (result, value)
        };
        let word = |attribute| ask(attribute, pointer + 999).1;
        assert_eq!(word(CU_POINTER_ATTRIBUTE_CONTEXT), context.0 as u64);
        assert_eq!(word(CU_POINTER_ATTRIBUTE_MEMORY_TYPE) as u32, CU_MEMORYTYPE_DEVICE);
        assert_eq!(word(CU_POINTER_ATTRIBUTE_DEVICE_POINTER), pointer + 999);
        assert_eq!(word(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) as u32, 0);
        assert_eq!(word(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), pointer);
        assert_eq!(word(CU_POINTER_ATTRIBUTE_RANGE_SIZE), 1000);
        assert_eq!(ask(CU_POINTER_ATTRIBUTE_CONTEXT, pointer + 1000).0,
            CUresult::ERROR_INVALID_VALUE);
        assert_eq!(ask(999, pointer).0, CUresult::ERROR_INVALID_VALUE);
        let (mut kind, mut id) = (9_u32, 9_u64);
        let mut places = [(&raw mut kind).cast::<c_void>(), (&raw mut id).cast()];
        let mut which = [CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_BUFFER_ID];
        let (which, places) = (which.as_mut_ptr(), places.as_mut_ptr());
        ok!(cuPointerGetAttributes(2, which, places, 0x1000));
        assert_eq!((kind, id), (0, 0), "nothing is known of it, and that is no error");
        ok!(cuPointerGetAttributes(2, which, places, pointer));
        assert_eq!(kind, CU_MEMORYTYPE_DEVICE);
        assert_ne!(id, 0);
    }

    many_threads_at_once("mem=512MiB,context=64MiB") {
        let context = context_on(0);
        let before = free_bytes();
        let work = move |seed: u64| {
            ok!(cuCtxSetCurrent(context));
            let mut random = seed;
            let mut held: Vec<(u64, usize, u32)> = Vec::new();
            for round in 0..400_u32 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if random >> 63 == 0 || held.is_empty() {
                    let size = 1 + (random >> 20) as usize % (1 << (10 + random % 13));
                    let pointer = alloc(size);
                    put(pointer, &pattern(size.min(5000), round));
                    held.push((pointer, size, round));
                } else {
                    let at = (random >> 8) as usize % held.len();
                    let (pointer, size, made) = held.swap_remove(at);
                    let size = size.min(5000);
                    assert_eq!(get(pointer, size), pattern(size, made));
                    ok!(cuMemFree_v2(pointer));
                }
            }
            for (pointer, ..) in held {
                ok!(cuMemFree_v2(pointer));
            }
        };
        let threads: Vec<_> = (1..=4).map(|seed| std::thread::spawn(move || work(seed))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(free_bytes(), before);
    }
}
