//! The NVML table, cut into families of one file each.

mod device;
mod device_set;
mod event;
mod fabric;
mod partition;
mod power;
mod process;
mod system;
mod vgpu;

/// Expands `$callback! { rows }` once per family of the NVML table, always in the same order. This is the one
/// list of the families.
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
