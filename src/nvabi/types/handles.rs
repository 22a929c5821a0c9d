//! Handles: pointers that the driver returns and the caller never dereferences.
//!
//! Each is its own type, so that a stream can never be passed where an event belongs; all are one
//! pointer wide and null when absent.

use super::*;
use core::ptr::without_provenance_mut;

/// Declares one pointer-sized handle type per line.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// The absent handle.
            pub const NULL: Self = Self(core::ptr::null_mut());

            /// Whether this is the absent handle.
            pub const fn is_null(self) -> bool {
                self.0.is_null()
            }
        }

        // SAFETY: a handle is a name, never dereferenced here; the driver's own calls are thread-
        // safe.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
    )*};
}

handles! {
    /// A context.
    CUcontext;
    /// A loaded module.
    CUmodule;
    /// A kernel in a loaded module.
    CUfunction;
    /// A kernel of a library, not tied to a context.
    CUkernel;
    /// A loaded library, not tied to a context.
    CUlibrary;
    /// A stream; null is the default stream, see `CU_STREAM_LEGACY`.
    CUstream;
    /// An event.
    CUevent;
    /// An array.
    CUarray;
    /// A mipmapped array.
    CUmipmappedArray;
    /// A texture reference (deprecated).
    CUtexref;
    /// A surface reference (deprecated).
    CUsurfref;
    /// A graph.
    CUgraph;
    /// A node of a graph.
    CUgraphNode;
    /// An executable graph.
    CUgraphExec;
    /// A memory pool.
    CUmemoryPool;
    /// A user object whose life a graph can hold.
    CUuserObject;
    /// A link in progress.
    CUlinkState;
    /// Memory imported from another API.
    CUexternalMemory;
    /// A semaphore imported from another API.
    CUexternalSemaphore;
    /// A resource registered from a graphics API.
    CUgraphicsResource;
    /// A green context.
    CUgreenCtx;
    /// A description of device resources.
    CUdevResourceDesc;
    /// A connection to an EGL stream.
    CUeglStreamConnection;
    /// A registered device notification.
    CUasyncCallbackHandle;
    /// A registered log callback.
    CUlogsCallbackHandle;
    /// A registered core-dump callback.
    CUcoredumpCallbackHandle;
    /// A checkpoint operation in progress.
    CUcheckpointOperationHandle;
    /// A device.
    nvmlDevice_t;
    /// A unit (S-class systems).
    nvmlUnit_t;
    /// A set of events to wait for.
    nvmlEventSet_t;
    /// A MIG GPU instance.
    nvmlGpuInstance_t;
    /// A MIG compute instance.
    nvmlComputeInstance_t;
    /// A sample of the performance monitor.
    nvmlGpmSample_t;
}

/// A device ordinal of the driver API.
pub type CUdevice = i32;
/// An address in a device's (or the unified) address space.
pub type CUdeviceptr = u64;
/// An address of the 32-bit API before CUDA 3.2.
pub type CUdeviceptr_v1 = u32;
/// A physical allocation made by `cuMemCreate`.
pub type CUmemGenericAllocationHandle = u64;
/// A texture object.
pub type CUtexObject = u64;
/// A surface object.
pub type CUsurfObject = u64;
/// The handle of a conditional graph node.
pub type CUgraphConditionalHandle = u64;
/// A logical endpoint's id.
pub type CUlogicalEndpointId = u32;
/// A position in the driver's log.
pub type CUlogIterator = u32;

/// The legacy default stream, named explicitly.
pub const CU_STREAM_LEGACY: CUstream = CUstream(without_provenance_mut(1));
/// The calling thread's default stream, named explicitly.
pub const CU_STREAM_PER_THREAD: CUstream = CUstream(without_provenance_mut(2));

/// A function the driver calls on the host when a stream or graph reaches it.
pub type CUhostFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;
/// A function the driver calls on the host when a stream reaches it, with the stream's state.
pub type CUstreamCallback =
    Option<unsafe extern "C" fn(stream: CUstream, status: CUresult, user_data: *mut c_void)>;
/// Dynamic shared memory, in bytes, that a block of a given size needs.
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(block_size: i32) -> usize>;
/// A device notification; only passed through.
pub type CUasyncCallback = *mut c_void;
/// A core-dump notification; only passed through.
pub type CUcoredumpStatusCallback = *mut c_void;
/// A recapture notification; only passed through.
pub type CUgraphRecaptureCallback = *mut c_void;
/// A log notification; only passed through.
pub type CUlogsCallback = *mut c_void;
