//! The arguments of checkpoints. Each may be absent, and its reserved bytes are zero.

use super::*;

/// Of `cuCheckpointProcessLock`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUcheckpointLockArgs {
    /// 0: waits for as long as it takes.
    pub timeout_ms: u32,
    pub reserved0: u32,
    pub reserved1: [u64; 7],
}
layout!(CUcheckpointLockArgs, 64, timeout_ms: 0, reserved0: 4, reserved1: 8);

/// Of `cuCheckpointProcessCheckpoint`. Custom storage is of newer drivers; without it, memory goes to the host.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUcheckpointCheckpointArgs {
    pub custom_storage: *mut c_void,
    pub reserved: [u64; 7],
}
layout!(CUcheckpointCheckpointArgs, 64, custom_storage: 0, reserved: 8);

/// Of `cuCheckpointProcessRestore`. Pairs of GPUs are of newer drivers; without them, each GPU is its own successor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUcheckpointRestoreArgs {
    pub gpu_pairs: *mut c_void,
    pub gpu_pairs_count: u32,
    pub padding0: u32,
    pub custom_storage: *mut c_void,
    pub reserved: [u64; 5],
}
layout!(
    CUcheckpointRestoreArgs, 64, gpu_pairs: 0, gpu_pairs_count: 8, custom_storage: 16, reserved: 24
);

/// Of `cuCheckpointProcessUnlock`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUcheckpointUnlockArgs {
    pub reserved: [u64; 8],
}
layout!(CUcheckpointUnlockArgs, 64, reserved: 0);
