//! Attributes of pools, read and set.

use super::{Pool, named, pools};
use crate::driver::process;
use crate::entry::{In, Out, Outcome, refuse_if};
use gpuslice_nvabi::types::*;
use std::ffi::c_void;

/// An attribute's value: most are counts of bytes, some are switches or names of kinds.
enum Value {
    Int(i32),
    Bytes(u64),
}

impl Pool {
    fn value(&self, attribute: CUmemPool_attribute) -> Option<Value> {
        let arena = &self.arena;
        Some(match attribute {
            CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
            | CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
            | CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                Value::Int(self.reuse[attribute as usize - 1])
            }
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => Value::Bytes(self.release_threshold),
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => Value::Bytes(arena.reserved),
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => Value::Bytes(arena.reserved_high),
            CU_MEMPOOL_ATTR_USED_MEM_CURRENT => Value::Bytes(arena.used),
            CU_MEMPOOL_ATTR_USED_MEM_HIGH => Value::Bytes(arena.used_high),
            CU_MEMPOOL_ATTR_ALLOCATION_TYPE => Value::Int(CU_MEM_ALLOCATION_TYPE_PINNED as i32),
            CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES => Value::Int(self.handle_types as i32),
            CU_MEMPOOL_ATTR_LOCATION_ID => Value::Int(self.device),
            CU_MEMPOOL_ATTR_LOCATION_TYPE => Value::Int(CU_MEM_LOCATION_TYPE_DEVICE as i32),
            CU_MEMPOOL_ATTR_MAX_POOL_SIZE => Value::Bytes(self.max_size),
            CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED => Value::Int(0),
            _ => return None,
        })
    }
}

pub fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    attr: CUmemPool_attribute,
    value: Out<c_void>,
) -> Outcome {
    value.require()?;
    let mut pools = pools();
    let found = pools.pool(named(pool.0)?)?.value(attr);
    match found.ok_or(CUresult::ERROR_INVALID_VALUE)? {
        Value::Int(number) => value.cast().set(number),
        Value::Bytes(number) => value.cast().set(number),
    }
}

pub fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attr: CUmemPool_attribute,
    value: In<c_void>,
) -> Outcome {
    let (int, bytes) = (value.cast::<i32>(), value.cast::<u64>());
    let mut pools = pools();
    let pool = pools.pool(named(pool.0)?)?;
    match attr {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
        | CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
        | CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
            pool.reuse[attr as usize - 1] = i32::from(int.get()? != 0);
        }
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => pool.release_threshold = bytes.get()?,
        // A high-water mark can only be set back to the present.
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH if bytes.get()? == 0 => {
            pool.arena.reserved_high = pool.arena.reserved;
        }
        CU_MEMPOOL_ATTR_USED_MEM_HIGH if bytes.get()? == 0 => {
            pool.arena.used_high = pool.arena.used;
        }
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    }
    Ok(())
}

pub fn cuMemPoolSetAccess(pool: CUmemoryPool, map: In<CUmemAccessDesc>, count: usize) -> Outcome {
    let key = named(pool.0)?;
    for access in map.list(count)? {
        process()?.gpu(access.location.id)?;
        let device = access.location.kind == CU_MEM_LOCATION_TYPE_DEVICE;
        let known = [CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE];
        let mut pools = pools();
        let pool = pools.pool(key)?;
        // The pool's own device cannot lose its access.
        let lost =
            access.location.id == pool.device && access.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
        refuse_if(!device || lost || !known.contains(&access.flags))?;
        pool.access.insert(access.location.id, access.flags);
    }
    Ok(())
}

pub fn cuMemPoolGetAccess(
    flags: Out<CUmemAccess_flags>,
    mem_pool: CUmemoryPool,
    location: In<CUmemLocation>,
) -> Outcome {
    flags.require()?;
    let location = location.get()?;
    process()?.gpu(location.id)?;
    let mut pools = pools();
    let pool = pools.pool(named(mem_pool.0)?)?;
    let default = if location.id == pool.device {
        CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    } else {
        CU_MEM_ACCESS_FLAGS_PROT_NONE
    };
    flags.set(pool.access.get(&location.id).copied().unwrap_or(default))
}
