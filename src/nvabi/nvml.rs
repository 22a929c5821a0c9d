//! The NVML table, cut into families of one file each.

use crate::table::{Function, Shim, Sim, column};

mod device;
mod device_set;
mod event;
mod fabric;
mod partition;
mod power;
mod process;
mod system;
mod vgpu;

/// Expands `$callback! { rows }` once per family of the NVML table, always in the same order.
#[macro_export]
macro_rules! for_each_nvml_fn {
    ($callback:ident) => {
        $crate::for_each_nvml_system_fn!($callback);
        $crate::for_each_nvml_device_fn!($callback);
        $crate::for_each_nvml_device_set_fn!($callback);
        $crate::for_each_nvml_process_fn!($callback);
        $crate::for_each_nvml_power_fn!($callback);
        $crate::for_each_nvml_event_fn!($callback);
        $crate::for_each_nvml_fabric_fn!($callback);
        $crate::for_each_nvml_partition_fn!($callback);
        $crate::for_each_nvml_vgpu_fn!($callback);
    };
}

/// Defines one slice of a family's rows.
macro_rules! family {
    ($([$shim:ident, $sim:ident, $since:literal] $name:ident($($args:tt)*) -> $ret:ty;)*) => {
        &[$(Function {
            name: stringify!($name),
            since: $since,
            shim: column!($shim),
            sim: column!($sim),
        }),*]
    };
}

/// The families in the order of `for_each_nvml_fn!`.
pub(crate) const FAMILIES: &[&[Function]] = &[
    crate::for_each_nvml_system_fn!(family),
    crate::for_each_nvml_device_fn!(family),
    crate::for_each_nvml_device_set_fn!(family),
    crate::for_each_nvml_process_fn!(family),
    crate::for_each_nvml_power_fn!(family),
    crate::for_each_nvml_event_fn!(family),
    crate::for_each_nvml_fabric_fn!(family),
    crate::for_each_nvml_partition_fn!(family),
    crate::for_each_nvml_vgpu_fn!(family),
];
