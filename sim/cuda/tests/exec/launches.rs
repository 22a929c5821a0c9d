//! What the driver checks of launches, and all the ways to launch.

use crate::common::{MS, World, event, milliseconds, stream, together, word};
use crate::harness::{alloc, context_on};
use gpuslice_nvabi::types::*;
use std::ptr::{null_mut, without_provenance_mut};

fn config(stream: CUstream, grid: u32, block: u32) -> CUlaunchConfig {
    CUlaunchConfig {
        grid_dim_x: grid,
        grid_dim_y: 1,
        grid_dim_z: 1,
        block_dim_x: block,
        block_dim_y: 1,
        block_dim_z: 1,
        shared_mem_bytes: 0,
        h_stream: stream,
        attrs: null_mut(),
        num_attrs: 0,
    }
}

/// Launches without arguments.
fn launch(f: CUfunction, grid: [u32; 3], block: [u32; 3], shared: u32) -> CUresult {
    let none = null_mut();
    let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
    call!(cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, CUstream::NULL, none, none))
}

scenarios! {
    impossible_launches("") {
        let world = World::new();
        let plain = world.function(c"plain");
        let invalid = CUresult::ERROR_INVALID_VALUE;
        assert_eq!(launch(plain, [1, 1, 1], [1024, 1, 1], 0), CUresult::SUCCESS);
        assert_eq!(launch(plain, [0, 1, 1], [1, 1, 1], 0), invalid);
        assert_eq!(launch(plain, [1, 65_536, 1], [1, 1, 1], 0), invalid);
        assert_eq!(launch(plain, [1, 1, 1], [1, 1, 0], 0), invalid);
        assert_eq!(launch(plain, [1, 1, 1], [1025, 1, 1], 0), invalid);
        assert_eq!(launch(plain, [1, 1, 1], [32, 32, 2], 0), invalid);
        assert_eq!(launch(plain, [1, 1, 1], [1, 1, 65], 0), invalid);
        assert_eq!(launch(plain, [1, 1, 1], [1, 1, 1], (48 << 10) + 1), invalid);
        let dynamic = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        ok!(cuFuncSetAttribute(plain, dynamic, 100 << 10));
        assert_eq!(launch(plain, [1, 1, 1], [1, 1, 1], 100 << 10), CUresult::SUCCESS);
        refused!(ERROR_INVALID_VALUE, cuFuncSetAttribute(plain, dynamic, 228 << 10));
        // A kernel made for at most 128 threads, and one that wants arguments.
        let (mixed, many) = (world.function(c"mixed"), CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES);
        assert_eq!(launch(mixed, [1, 1, 1], [129, 1, 1], 0), many);
        assert_eq!(launch(mixed, [1, 1, 1], [128, 1, 1], 0), invalid);
        let handle = CUresult::ERROR_INVALID_HANDLE;
        assert_eq!(launch(CUfunction::NULL, [1, 1, 1], [1, 1, 1], 0), handle);
        assert_eq!(launch(CUfunction(world.module.0), [1, 1, 1], [1, 1, 1], 0), handle);
        // A kernel of one context cannot run in a stream of another.
        context_on(0);
        assert_eq!(launch(plain, [1, 1, 1], [1, 1, 1], 0), handle);
    }

    arguments_in_one_buffer("") {
        let world = World::new();
        let counter = alloc(4);
        let mut buffer = [2 * MS, counter];
        let mut size = 16_usize;
        let mut extra: [*mut c_void; 5] = [
            without_provenance_mut(1),
            buffer.as_mut_ptr().cast(),
            without_provenance_mut(2),
            (&raw mut size).cast(),
            null_mut(),
        ];
        let (start, end) = (event(), event());
        let spin = world.function(c"spin");
        let (none, extra) = (null_mut(), extra.as_mut_ptr());
        together(&world, CUstream::NULL, || {
            ok!(cuEventRecord(start, CUstream::NULL));
            ok!(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, none, extra));
            // The arguments were copied: what becomes of the buffer does not matter.
            buffer = [0, 0];
            assert_eq!(buffer, [0, 0]);
            ok!(cuEventRecord(end, CUstream::NULL));
        });
        ok!(cuCtxSynchronize());
        let time = milliseconds(start, end);
        assert!((1.9..2.1).contains(&time), "{time} ms");
        assert_eq!(word(counter), 1);
        refused!(
            ERROR_INVALID_VALUE,
            cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, extra, extra)
        );
    }

    every_thread_counts("") {
        let world = World::new();
        let (counter, spin) = (alloc(4), world.function(c"spin"));
        let (mut ns, mut at) = (MS, counter);
        let mut params: [*mut c_void; 2] = [(&raw mut ns).cast(), (&raw mut at).cast()];
        let (p, none, stream) = (params.as_mut_ptr(), null_mut(), stream(0));
        ok!(cuLaunchKernel(spin, 2, 3, 1, 4, 1, 1, 0, stream, p, none));
        ok!(cuLaunchKernel_ptsz(spin, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, p, none));
        ok!(cuLaunchKernelEx(&config(stream, 1, 1), spin, p, none));
        ok!(cuLaunchKernelEx_ptsz(&config(CUstream::NULL, 1, 1), spin, p, none));
        ok!(cuLaunchCooperativeKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, p));
        let mut list = [CUDA_LAUNCH_PARAMS {
            function: spin,
            grid_dim_x: 1,
            grid_dim_y: 1,
            grid_dim_z: 1,
            block_dim_x: 1,
            block_dim_y: 1,
            block_dim_z: 1,
            shared_mem_bytes: 0,
            h_stream: stream,
            kernel_params: p,
        }];
        ok!(cuLaunchCooperativeKernelMultiDevice(list.as_mut_ptr(), 1, 0));
        ok!(cuCtxSynchronize());
        assert_eq!(word(counter), 24 + 5);
    }

    cooperative_grids_must_fit("") {
        let world = World::new();
        let (plain, none) = (world.function(c"plain"), null_mut());
        let mut blocks = 0;
        ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, plain, 1024, 0));
        assert_eq!(blocks, 2);
        let most = 132 * 2;
        let null = CUstream::NULL;
        ok!(cuLaunchCooperativeKernel(plain, most, 1, 1, 1024, 1, 1, 0, null, none));
        refused!(
            ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
            cuLaunchCooperativeKernel(plain, most + 1, 1, 1, 1024, 1, 1, 0, null, none)
        );
        let mut attribute = CUlaunchAttribute {
            id: CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            pad: [0; 4],
            value: CUlaunchAttributeValue { bytes: [0; 64] },
        };
        attribute.value.bytes[0] = 1;
        let mut big = config(null, most + 1, 1024);
        (big.attrs, big.num_attrs) = (&mut attribute, 1);
        refused!(
            ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
            cuLaunchKernelEx(&big, plain, none, none)
        );
        let (mut grid, mut block) = (0, 0);
        ok!(cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, plain, None, 0, 0));
        assert_eq!((grid, block), (264, 1024));
        let mut left = 0;
        ok!(cuOccupancyAvailableDynamicSMemPerBlock(&mut left, plain, 2, 256));
        assert_eq!(left, 113 << 10);
    }

    other_kernels_take_time_by_their_grid("") {
        let world = World::new();
        let plain = world.function(c"plain");
        let (start, end) = (event(), event());
        together(&world, CUstream::NULL, || {
            ok!(cuEventRecord(start, CUstream::NULL));
            // 100 waves of 2112 blocks, and 2 microseconds for the launch.
            assert_eq!(launch(plain, [211_200, 1, 1], [1, 1, 1], 0), CUresult::SUCCESS);
            ok!(cuEventRecord(end, CUstream::NULL));
        });
        ok!(cuCtxSynchronize());
        let time = milliseconds(start, end);
        assert!((1.0..1.02).contains(&time), "{time} ms");
    }
}
