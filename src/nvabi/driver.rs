//! The driver table, cut into families of one file each.

use crate::table::{Function, Shim, Sim, column};

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

/// Expands `$callback! { rows }` once per family of the driver table, always in the same order.
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

/// Defines one slice of a family's rows.
macro_rules! family {
    ($([$shim:ident, $sim:ident, $since:literal] $name:ident($($args:tt)*);)*) => {
        &[$(Function {
            name: stringify!($name),
            since: $since,
            shim: column!($shim),
            sim: column!($sim),
        }),*]
    };
}

/// The families in the order of `for_each_driver_fn!`.
pub(crate) const FAMILIES: &[&[Function]] = &[
    crate::for_each_driver_context_fn!(family),
    crate::for_each_driver_memory_fn!(family),
    crate::for_each_driver_set_fn!(family),
    crate::for_each_driver_copy_fn!(family),
    crate::for_each_driver_pool_fn!(family),
    crate::for_each_driver_vmm_fn!(family),
    crate::for_each_driver_array_fn!(family),
    crate::for_each_driver_texture_fn!(family),
    crate::for_each_driver_stream_fn!(family),
    crate::for_each_driver_stream_ops_fn!(family),
    crate::for_each_driver_event_fn!(family),
    crate::for_each_driver_launch_fn!(family),
    crate::for_each_driver_module_fn!(family),
    crate::for_each_driver_graph_fn!(family),
    crate::for_each_driver_graph_node_fn!(family),
    crate::for_each_driver_interop_fn!(family),
    crate::for_each_driver_green_fn!(family),
    crate::for_each_driver_endpoint_fn!(family),
    crate::for_each_driver_misc_fn!(family),
];
