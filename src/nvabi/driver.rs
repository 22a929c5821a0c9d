//! The driver table, cut into families of one file each.

mod array;
mod context;
mod copy;
mod endpoint;
mod event;
mod graph;
mod graph_node;
mod green;
mod interop;
mod launch;
mod memory;
mod misc;
mod module;
mod pool;
mod set;
mod stream;
mod stream_ops;
mod texture;
mod vmm;

/// Expands `$callback! { rows }` once per family of the driver table, always in the same order. This is the
/// one list of the families.
#[macro_export]
macro_rules! for_each_driver_fn {
    ($callback:ident) => {
        $crate::for_each_driver_context_fn!($callback);
        $crate::for_each_driver_memory_fn!($callback);
        $crate::for_each_driver_set_fn!($callback);
        $crate::for_each_driver_copy_fn!($callback);
        $crate::for_each_driver_pool_fn!($callback);
        $crate::for_each_driver_vmm_fn!($callback);
        $crate::for_each_driver_array_fn!($callback);
        $crate::for_each_driver_texture_fn!($callback);
        $crate::for_each_driver_stream_fn!($callback);
        $crate::for_each_driver_stream_ops_fn!($callback);
        $crate::for_each_driver_event_fn!($callback);
        $crate::for_each_driver_launch_fn!($callback);
        $crate::for_each_driver_module_fn!($callback);
        $crate::for_each_driver_graph_fn!($callback);
        $crate::for_each_driver_graph_node_fn!($callback);
        $crate::for_each_driver_interop_fn!($callback);
        $crate::for_each_driver_green_fn!($callback);
        $crate::for_each_driver_endpoint_fn!($callback);
        $crate::for_each_driver_misc_fn!($callback);
    };
}
