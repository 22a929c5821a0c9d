//! Events: Xid errors, clock changes and so on, waited for on a set.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_nvml_event_fn {
    ($callback:ident) => {
        $callback! {
            [pass, sim, 12040] nvmlDeviceGetCurrentClocksEventReasons(
                device: nvmlDevice_t, clocks_event_reasons: *mut u64,
            ) -> nvmlReturn_t;
            [pass, sim, 12040] nvmlDeviceGetSupportedClocksEventReasons(
                device: nvmlDevice_t, supported_clocks_event_reasons: *mut u64,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlEventSetCreate(set: *mut nvmlEventSet_t) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceRegisterEvents(
                device: nvmlDevice_t, event_types: u64, set: nvmlEventSet_t,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlDeviceGetSupportedEventTypes(
                device: nvmlDevice_t, event_types: *mut u64,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlEventSetWait(
                set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeoutms: u32,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlEventSetWait_v2(
                set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeoutms: u32,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlEventSetWait_v3(
                set: nvmlEventSet_t, params: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlEventSetRegisterGpuOperationalEvents_v1(
                event_set: nvmlEventSet_t, config: *const c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlEventSetGetContextCount_v1(
                set: nvmlEventSet_t, params: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlEventSetGetContextInfo_v1(
                set: nvmlEventSet_t, params: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlEventSetGetContextData_v1(
                set: nvmlEventSet_t, params: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, none, 13050] nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1(
                set: nvmlEventSet_t, params: *mut c_void,
            ) -> nvmlReturn_t;
            [pass, sim, 11080] nvmlEventSetFree(set: nvmlEventSet_t) -> nvmlReturn_t;
            [pass, none, 12090] nvmlSystemEventSetCreate(request: *mut c_void) -> nvmlReturn_t;
            [pass, none, 12090] nvmlSystemEventSetFree(request: *mut c_void) -> nvmlReturn_t;
            [pass, none, 12090] nvmlSystemRegisterEvents(request: *mut c_void) -> nvmlReturn_t;
            [pass, none, 12090] nvmlSystemEventSetWait(request: *mut c_void) -> nvmlReturn_t;
        }
    };
}
