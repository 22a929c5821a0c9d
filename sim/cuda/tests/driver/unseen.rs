//! Device memory that no call names: contexts, raised limits, modules; and what others are shown of
//! a process.

use crate::harness::{MIB, alloc, context_on, free_bytes};
use gpuslice_nvabi::types::*;
use gpuslice_sim_device::Machine;
use std::ptr::null_mut;

const MODULE: &[u8] =
    b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry a() { ret; }\0";

/// What NVML shows of this process and of the device, in MiB.
fn shown() -> (usize, usize) {
    let machine = Machine::observe().unwrap();
    let own = machine.processes(0).unwrap();
    let own = own.iter().map(|process| process.used_bytes).sum::<u64>();
    let device = machine.mem_info(0).unwrap().used;
    (own as usize / MIB, device as usize / MIB)
}

fn load(module: &mut CUmodule) -> CUresult {
    call!(cuModuleLoadData(module, MODULE.as_ptr().cast()))
}

scenarios! {
    the_first_context_of_a_process_costs_more("mem=1GiB,context=64MiB,first=32MiB") {
        ok!(cuInit(0));
        assert_eq!(shown(), (0, 0), "cuInit takes nothing");
        let first = context_on(0);
        assert_eq!(shown(), (96, 96));
        let second = context_on(0);
        assert_eq!(shown(), (160, 160));
        ok!(cuCtxDestroy_v2(second));
        ok!(cuCtxDestroy_v2(first));
        assert_eq!(shown(), (0, 0));
        context_on(0);
        assert_eq!(shown(), (96, 96));
    }

    a_raised_limit_takes_memory("mem=1GiB,context=64MiB,sms=4") {
        let context = context_on(0);
        let whole = free_bytes();
        let taken = || (whole - free_bytes()) / MIB;
        ok!(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 4 * MIB));
        assert_eq!(taken(), 0, "the default is part of the context");
        ok!(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 40 * MIB));
        assert_eq!(taken(), 32);
        ok!(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 72 * MIB));
        assert_eq!((taken(), shown()), (64, (128, 128)));
        refused!(ERROR_OUT_OF_MEMORY, cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 2048 * MIB));
        let mut value = 0;
        ok!(cuCtxGetLimit(&mut value, CU_LIMIT_MALLOC_HEAP_SIZE));
        assert_eq!((value, taken()), (72 * MIB, 64), "a refusal changes nothing");
        ok!(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 40 * MIB));
        assert_eq!(taken(), 32);
        ok!(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 9 * MIB));
        assert_eq!(taken(), 40);
        // A stack for each of 4 * 2048 threads.
        ok!(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
        assert_eq!(taken(), 48);
        refused!(ERROR_OUT_OF_MEMORY, cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 512 << 10));
        ok!(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
        assert_eq!(taken(), 40);
        ok!(cuCtxDestroy_v2(context));
        assert_eq!(shown(), (0, 0), "it goes with the context");
    }

    a_module_takes_memory_until_it_is_unloaded("mem=256MiB,context=64MiB,module=4MiB") {
        context_on(0);
        let mut module = CUmodule(null_mut());
        for _ in 0..100 {
            assert_eq!(load(&mut module), CUresult::SUCCESS);
            assert_eq!(shown(), (68, 68));
            ok!(cuModuleUnload(module));
            assert_eq!(shown(), (64, 64));
        }
        let mut library = CUlibrary(null_mut());
        let (no_options, no_values) = (null_mut(), null_mut());
        ok!(cuLibraryLoadData(
            &mut library, MODULE.as_ptr().cast(), no_options, no_values, 0,
            null_mut(), null_mut(), 0,
        ));
        assert_eq!(shown(), (64, 64), "a library is in no context yet");
        ok!(cuLibraryGetModule(&mut module, library));
        ok!(cuLibraryGetModule(&mut module, library));
        assert_eq!(shown(), (68, 68));
        ok!(cuLibraryUnload(library));
        assert_eq!(shown(), (64, 64));
        let most = alloc(190 * MIB);
        assert_eq!(load(&mut module), CUresult::ERROR_OUT_OF_MEMORY);
        assert_eq!(shown(), (254, 254), "a refusal leaves nothing");
        ok!(cuMemFree_v2(most));
        assert_eq!(load(&mut module), CUresult::SUCCESS);
    }

    a_large_image_takes_as_much("mem=256MiB,context=64MiB") {
        let context = context_on(0);
        let mut text = MODULE[..MODULE.len() - 1].to_vec();
        text.resize(9 * MIB, b'\n');
        text.push(0);
        let mut module = CUmodule(null_mut());
        ok!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
        assert_eq!(shown(), (74, 74));
        ok!(cuCtxDestroy_v2(context));
        assert_eq!(shown(), (0, 0));
    }

    modules_without_memory("mem=256MiB,context=64MiB,module=0B") {
        context_on(0);
        assert_eq!(load(&mut CUmodule(null_mut())), CUresult::SUCCESS);
        assert_eq!(shown(), (64, 64));
    }

    managed_memory_is_shown_for_the_device_alone("mem=256MiB,context=64MiB") {
        context_on(0);
        let (mut small, mut large) = (0, 0);
        ok!(cuMemAllocManaged(&mut small, 100, CU_MEM_ATTACH_GLOBAL));
        ok!(cuMemAllocManaged(&mut large, 60 * MIB, CU_MEM_ATTACH_GLOBAL));
        assert_eq!(shown(), (64, 126));
        alloc(10 * MIB);
        assert_eq!(shown(), (74, 136));
        ok!(cuMemFree_v2(small));
        ok!(cuMemFree_v2(large));
        assert_eq!(shown(), (74, 74));
        refused!(ERROR_INVALID_VALUE, cuMemAllocManaged(&mut small, 0, CU_MEM_ATTACH_GLOBAL));
    }
}
