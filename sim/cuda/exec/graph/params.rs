//! The driver's descriptions of nodes, read and written.

use super::super::api::{Shape, launch_of, memops};
use super::super::stream::{EventKey, shared};
use super::super::task::{HostCall, Launch, Operation, OperationKind, Task};
use super::memory::Memory;
use super::{named, state};
use crate::context::{find, named_or_current};
use crate::entry::{In, refuse_if};
use gpuslice_nvabi::types::*;
use std::ffi::c_void;

/// A kernel node's task: a function's, or a library's kernel.
pub fn kernel(params: &CUDA_KERNEL_NODE_PARAMS_v1, kern: CUkernel) -> Result<Task, CUresult> {
    let function = if params.func.is_null() { CUfunction(kern.0) } else { params.func };
    let shape = Shape {
        grid: [params.grid_dim_x, params.grid_dim_y, params.grid_dim_z],
        block: [params.block_dim_x, params.block_dim_y, params.block_dim_z],
        shared_bytes: params.shared_mem_bytes,
    };
    let each = In::vouched(params.kernel_params.cast_const());
    let extra = In::vouched(params.extra.cast_const());
    Ok(Task::Kernel(launch_of(function, shape, each, extra, false)?))
}

/// A launch as the program may read it; its arguments live as long as the node.
pub fn of_kernel(launch: &Launch) -> CUDA_KERNEL_NODE_PARAMS_v1 {
    let addresses = &launch.params.addresses;
    let params = if addresses.is_empty() { std::ptr::null() } else { addresses.as_ptr() };
    CUDA_KERNEL_NODE_PARAMS_v1 {
        func: CUfunction(launch.key.to_pointer()),
        grid_dim_x: launch.grid[0],
        grid_dim_y: launch.grid[1],
        grid_dim_z: launch.grid[2],
        block_dim_x: launch.block[0],
        block_dim_y: launch.block[1],
        block_dim_z: launch.block[2],
        shared_mem_bytes: launch.shared_bytes,
        kernel_params: params.cast_mut().cast::<*mut c_void>(),
        extra: std::ptr::null_mut(),
    }
}

/// A copy node's task.
pub fn copy(params: &CUDA_MEMCPY3D, context: CUcontext) -> Result<Task, CUresult> {
    named_or_current(context)?;
    Ok(Task::Move(Operation::of(OperationKind::Copy(*params))?))
}

/// A fill node's task.
pub fn fill(params: &CUDA_MEMSET_NODE_PARAMS_v1, context: CUcontext) -> Result<Task, CUresult> {
    named_or_current(context)?;
    Ok(Task::Move(Operation::of(OperationKind::Fill(*params))?))
}

/// A host node's task.
pub fn host(params: &CUDA_HOST_NODE_PARAMS_v1) -> Result<Task, CUresult> {
    refuse_if(params.func.is_none())?;
    let call = HostCall::Function(params.func, params.user_data as usize);
    Ok(Task::Host(call))
}

/// An event that exists.
pub fn event(event: CUevent) -> Result<EventKey, CUresult> {
    let key: EventKey = named(event.0)?;
    let lives = shared()?.with(|model| model.event(key).is_some());
    if lives { Ok(key) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// An allocation node's task; its address goes into the description.
pub fn alloc(params: &mut CUDA_MEM_ALLOC_NODE_PARAMS_v1) -> Result<Task, CUresult> {
    let location = params.pool_props.location;
    let pinned = params.pool_props.alloc_type == CU_MEM_ALLOCATION_TYPE_PINNED;
    if !pinned || location.kind != CU_MEM_LOCATION_TYPE_DEVICE || params.bytesize == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let current = named_or_current(CUcontext::NULL)?;
    refuse_if(current.device != location.id)?;
    let memory = Memory::new(current, params.bytesize as u64)?;
    params.dptr = memory.address;
    Ok(Task::Alloc(memory))
}

/// An allocation as the program may read it.
pub fn of_alloc(memory: &Memory) -> CUDA_MEM_ALLOC_NODE_PARAMS_v1 {
    let location = CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: memory.device };
    CUDA_MEM_ALLOC_NODE_PARAMS_v1 {
        pool_props: CUmemPoolProps {
            alloc_type: CU_MEM_ALLOCATION_TYPE_PINNED,
            handle_types: CU_MEM_HANDLE_TYPE_NONE,
            location,
            win32_security_attributes: std::ptr::null_mut(),
            max_size: 0,
            usage: 0,
            gpu_direct_rdma_capable: 0,
            reserved: [0; 53],
        },
        access_descs: std::ptr::null(),
        access_desc_count: 0,
        bytesize: memory.bytes as usize,
        dptr: memory.address,
    }
}

/// A child graph's task: a copy of the graph, or the graph itself.
pub fn child(graph: CUgraph, ownership: CUgraphChildGraphNodeOwnership) -> Result<Task, CUresult> {
    let graph = named(graph.0)?;
    let graphs = &mut state().graphs;
    let embedded = match ownership {
        CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE => super::calls::clone_of(graphs, graph)?,
        CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE => graph,
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    graphs.graph_mut(embedded)?.embedded = true;
    Ok(Task::Child(embedded))
}

/// The task of a node of any kind.
pub fn any(params: &mut CUgraphNodeParams) -> Result<Task, CUresult> {
    let of = &mut params.params;
    // SAFETY (of all reads below): the kind says which member the program has set; all members
    // are plain numbers and pointers, of which any bits are a value.
    match params.kind {
        CU_GRAPH_NODE_TYPE_KERNEL => {
            // SAFETY: see above.
            let params = unsafe { of.kernel };
            kernel(&params.v1, params.kern)
        }
        CU_GRAPH_NODE_TYPE_MEMCPY => {
            // SAFETY: see above.
            let params = unsafe { of.memcpy };
            copy(&params.copy_params, params.copy_ctx)
        }
        CU_GRAPH_NODE_TYPE_MEMSET => {
            // SAFETY: see above.
            let params = unsafe { of.memset };
            fill(&params.v1, params.ctx)
        }
        CU_GRAPH_NODE_TYPE_HOST => {
            // SAFETY: see above; a function's address is null or the program's.
            host(&unsafe { of.host }.v1)
        }
        CU_GRAPH_NODE_TYPE_GRAPH => {
            // SAFETY: see above.
            let params = unsafe { of.graph };
            child(params.graph, params.ownership)
        }
        CU_GRAPH_NODE_TYPE_EMPTY => Ok(Task::Empty),
        // SAFETY: see above.
        CU_GRAPH_NODE_TYPE_WAIT_EVENT => Ok(Task::Await(event(unsafe { of.event_wait }.event)?)),
        CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
            // SAFETY: see above.
            Ok(Task::Record(event(unsafe { of.event_record }.event)?))
        }
        // SAFETY: see above.
        CU_GRAPH_NODE_TYPE_MEM_ALLOC => alloc(unsafe { &mut of.alloc }),
        // SAFETY: see above.
        CU_GRAPH_NODE_TYPE_MEM_FREE => free(unsafe { of.free }.dptr),
        CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => {
            // SAFETY: see above.
            let params = unsafe { of.mem_op };
            find(params.ctx)?;
            let list = memops(In::vouched(params.param_array.cast_const()), params.count)?;
            Ok(Task::Memops(list.into()))
        }
        _ => Err(CUresult::ERROR_NOT_SUPPORTED),
    }
}

/// A free node's task: only memory of graphs can be freed by one.
pub fn free(address: CUdeviceptr) -> Result<Task, CUresult> {
    let found = crate::allocations::find(address).filter(|found| found.base == address);
    match found.map(|found| found.kind) {
        Some(crate::allocations::Kind::Graph) => Ok(Task::Free(address)),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}
