//! The driver's own memory limits as a program meets them: it enters a control group, and the
//! driver holds it there.

use crate::harness::{MIB, alloc, context_on, skip};
use gpuslice_nvabi::types::*;
use gpuslice_sim_device::{Machine, UNLIMITED};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

/// A control group below another one; this process is in it until the end.
struct Inside {
    root: PathBuf,
    slice: PathBuf,
    leaf: PathBuf,
}

impl Inside {
    /// `None` where groups cannot be made, with the reason printed.
    fn new() -> Option<Self> {
        let Some(root) = gpuslice_host::cgroup::mount() else {
            skip("there is no unified hierarchy of control groups here");
            return None;
        };
        let slice = root.join(format!("gpuslice-sim-cuda-{}", std::process::id()));
        let leaf = slice.join("leaf");
        if let Err(error) = std::fs::create_dir_all(&leaf) {
            skip(&format!("no control group can be made: {error}"));
            return None;
        }
        let inside = Self { root, slice, leaf };
        enter(&inside.leaf);
        Some(inside)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        enter(&self.root);
        for dir in [&self.leaf, &self.slice] {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

fn enter(group: &Path) {
    let pid = std::process::id().to_string();
    std::fs::write(group.join("cgroup.procs"), pid).unwrap();
}

fn limit(group: &Path, hard: u64) {
    let machine = Machine::observe().unwrap();
    machine.set_limits(0, group, 0, hard).unwrap();
}

/// Free and total MiB.
fn info() -> (usize, usize) {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    (free / MIB, total / MIB)
}

scenarios! {
    a_limit_is_what_a_program_sees("mem=256MiB,context=32MiB,limits=dmem") {
        let Some(inside) = Inside::new() else { return };
        limit(&inside.leaf, 128 << 20);
        context_on(0);
        assert_eq!(info(), (96, 128));
        let large = alloc(64 * MIB);
        refused!(ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&mut 0, 40 * MIB));
        let (mut stream, mut pooled) = (CUstream(null_mut()), 0);
        ok!(cuStreamCreate(&mut stream, 0));
        refused!(ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&mut pooled, 40 * MIB, stream));
        let heap = 8 * MIB + 40 * MIB;
        refused!(ERROR_OUT_OF_MEMORY, cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap));
        assert_eq!(info(), (32, 128), "what was refused left nothing");
        let mut managed = 0;
        ok!(cuMemAllocManaged(&mut managed, 100 * MIB, CU_MEM_ATTACH_GLOBAL));
        assert_eq!(info(), (32, 128), "managed memory is not covered");
        ok!(cuMemFree_v2(managed));
        ok!(cuMemFree_v2(large));
        refused!(ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&mut 0, 98 * MIB));
        alloc(96 * MIB);
        refused!(ERROR_OUT_OF_MEMORY, cuCtxCreate_v2(&mut CUcontext(null_mut()), 0, 0));
        limit(&inside.leaf, UNLIMITED);
        assert_eq!(info(), (128, 256));
    }

    a_limit_above_holds_and_does_not_show("mem=256MiB,context=32MiB,limits=misc") {
        let Some(inside) = Inside::new() else { return };
        limit(&inside.slice, 128 << 20);
        context_on(0);
        assert_eq!(info(), (224, 256));
        refused!(ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&mut 0, 98 * MIB));
        alloc(96 * MIB);
        enter(&inside.root);
        alloc(96 * MIB);
        enter(&inside.leaf);
        refused!(ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&mut 0, 2 * MIB));
    }

    a_driver_without_limits_takes_no_notice("mem=256MiB,context=32MiB") {
        let Some(inside) = Inside::new() else { return };
        let machine = Machine::observe().unwrap();
        assert!(machine.set_limits(0, &inside.leaf, 0, 1 << 20).is_err());
        context_on(0);
        assert_eq!(info(), (224, 256));
    }
}
