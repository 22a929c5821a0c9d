//! Stream memory operations: waits on words and writes to them, by the device.

use super::super::task::{Memop, Task};
use super::super::{resolve, submit};
use crate::allocations::word;
use crate::context::current;
use crate::entry::{In, Outcome, refuse_if};
use gpuslice_nvabi::types::*;

/// Operations a call may hand over at once.
const MOST: u32 = 256;

fn wait(address: u64, value: u64, wide: bool, flags: u32) -> Result<Memop, CUresult> {
    let known = CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH;
    refuse_if(flags & !known != 0 || !word::is_word(address, wide))?;
    Ok(Memop::Wait { address, value, wide, flags })
}

fn write(address: u64, value: u64, wide: bool, flags: u32) -> Result<Memop, CUresult> {
    let known = flags & !CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER == 0;
    refuse_if(!known || !word::is_word(address, wide))?;
    Ok(Memop::Write { address, value, wide })
}

/// Reads a list of operations.
pub fn memops(list: In<CUstreamBatchMemOpParams>, count: u32) -> Result<Vec<Memop>, CUresult> {
    refuse_if(count > MOST)?;
    let list = list.list(count as usize)?;
    list.iter().map(one).collect()
}

fn one(params: &CUstreamBatchMemOpParams) -> Result<Memop, CUresult> {
    // SAFETY: every member begins with the operation, which the program has set.
    let operation = unsafe { params.operation };
    // SAFETY: plain numbers in all members; which of them mean something is decided below.
    let word = unsafe { params.wait_value };
    let (address, value, flags) = (word.address, word.value64, word.flags);
    let narrow = value & u64::from(u32::MAX);
    match operation {
        CU_STREAM_MEM_OP_WAIT_VALUE_32 => wait(address, narrow, false, flags),
        CU_STREAM_MEM_OP_WAIT_VALUE_64 => wait(address, value, true, flags),
        CU_STREAM_MEM_OP_WRITE_VALUE_32 => write(address, narrow, false, flags),
        CU_STREAM_MEM_OP_WRITE_VALUE_64 => write(address, value, true, flags),
        CU_STREAM_MEM_OP_BARRIER | CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES => Ok(Memop::Barrier),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

fn queue(stream: CUstream, ops: Vec<Memop>) -> Outcome {
    current()?;
    submit(resolve(stream)?, Task::Memops(ops.into()))
}

pub fn cuStreamWaitValue32_v2(
    stream: CUstream,
    addr: CUdeviceptr,
    value: u32,
    flags: u32,
) -> Outcome {
    queue(stream, vec![wait(addr, u64::from(value), false, flags)?])
}
pub use cuStreamWaitValue32_v2 as cuStreamWaitValue32_v2_ptsz;

pub fn cuStreamWaitValue64_v2(
    stream: CUstream,
    addr: CUdeviceptr,
    value: u64,
    flags: u32,
) -> Outcome {
    queue(stream, vec![wait(addr, value, true, flags)?])
}
pub use cuStreamWaitValue64_v2 as cuStreamWaitValue64_v2_ptsz;

pub fn cuStreamWriteValue32_v2(
    stream: CUstream,
    addr: CUdeviceptr,
    value: u32,
    flags: u32,
) -> Outcome {
    queue(stream, vec![write(addr, u64::from(value), false, flags)?])
}
pub use cuStreamWriteValue32_v2 as cuStreamWriteValue32_v2_ptsz;

pub fn cuStreamWriteValue64_v2(
    stream: CUstream,
    addr: CUdeviceptr,
    value: u64,
    flags: u32,
) -> Outcome {
    queue(stream, vec![write(addr, value, true, flags)?])
}
pub use cuStreamWriteValue64_v2 as cuStreamWriteValue64_v2_ptsz;

pub fn cuStreamBatchMemOp_v2(
    stream: CUstream,
    count: u32,
    param_array: In<CUstreamBatchMemOpParams>,
    flags: u32,
) -> Outcome {
    refuse_if(flags != 0)?;
    queue(stream, memops(param_array, count)?)
}
pub use cuStreamBatchMemOp_v2 as cuStreamBatchMemOp_v2_ptsz;
