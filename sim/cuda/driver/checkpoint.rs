//! Checkpoints of other processes: `cuCheckpointProcess...`, as the header of CUDA 12.8 has them.
//!
//! The caller names its target by its pid. Neither custom storage nor another GPU is simulated: arguments that ask for
//! one are refused.

use super::process;
use crate::entry::{In, Out, Outcome, refuse_if};
use gpuslice_nvabi::types::*;
use gpuslice_sim_device::{CheckpointError, Machine, ProcessState};

/// The CUDA version of the first driver that has checkpoints.
const SINCE: (u32, u32) = (12, 8);

/// The machine, if its driver has checkpoints.
fn machine() -> Result<&'static Machine, CUresult> {
    let machine = process()?.machine;
    match machine.driver() >= SINCE {
        true => Ok(machine),
        false => Err(CUresult::ERROR_NOT_SUPPORTED),
    }
}

fn code(error: CheckpointError) -> CUresult {
    match error {
        CheckpointError::NoProcess | CheckpointError::Shared => CUresult::ERROR_INVALID_VALUE,
        CheckpointError::WrongState => CUresult::ERROR_ILLEGAL_STATE,
        CheckpointError::TimedOut => CUresult::ERROR_NOT_READY,
        CheckpointError::NotSupported => CUresult::ERROR_NOT_SUPPORTED,
        CheckpointError::OutOfMemory => CUresult::ERROR_OUT_OF_MEMORY,
        CheckpointError::Spent => CUresult::ERROR_OPERATING_SYSTEM,
        CheckpointError::Failed => CUresult::ERROR_UNKNOWN,
    }
}

/// The arguments, where the caller gave any.
fn optional<T: Copy>(args: In<T>) -> Result<Option<T>, CUresult> {
    if args.is_null() { Ok(None) } else { args.get().map(Some) }
}

pub fn cuCheckpointProcessGetState(pid: i32, state: Out<CUprocessState>) -> Outcome {
    state.require()?;
    state.set(match machine()?.process_state(pid).map_err(code)? {
        ProcessState::Running => CU_PROCESS_STATE_RUNNING,
        ProcessState::Locked => CU_PROCESS_STATE_LOCKED,
        ProcessState::Checkpointed => CU_PROCESS_STATE_CHECKPOINTED,
        ProcessState::Failed | ProcessState::Lost => CU_PROCESS_STATE_FAILED,
    })
}

pub fn cuCheckpointProcessLock(pid: i32, args: In<CUcheckpointLockArgs>) -> Outcome {
    let args = optional(args)?.unwrap_or_default();
    refuse_if(args.reserved0 != 0 || args.reserved1 != [0; 7])?;
    machine()?.lock_process(pid, args.timeout_ms).map_err(code)
}

pub fn cuCheckpointProcessCheckpoint(pid: i32, args: In<CUcheckpointCheckpointArgs>) -> Outcome {
    if let Some(args) = optional(args)? {
        refuse_if(args.reserved != [0; 7] || !args.custom_storage.is_null())?;
    }
    machine()?.checkpoint_process(pid).map_err(code)
}

pub fn cuCheckpointProcessRestore(pid: i32, args: In<CUcheckpointRestoreArgs>) -> Outcome {
    if let Some(args) = optional(args)? {
        let storage = !args.custom_storage.is_null() || args.gpu_pairs_count != 0;
        refuse_if(args.reserved != [0; 5] || storage)?;
    }
    machine()?.restore_process(pid).map_err(code)
}

pub fn cuCheckpointProcessUnlock(pid: i32, args: In<CUcheckpointUnlockArgs>) -> Outcome {
    refuse_if(optional(args)?.is_some_and(|args| args.reserved != [0; 8]))?;
    machine()?.unlock_process(pid).map_err(code)
}
