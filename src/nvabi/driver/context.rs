//! Start, devices, contexts and peer access.
//!
//! A context holds a program's memory and work, and it takes device memory itself (hundreds of MiB on a large
//! card). So the shim hooks its creation and destruction, and the size of the device, which must read as the
//! slice's. `cuCtxCreate` has four forms: 32-bit, today's default, with an SM count (`_v3`), with a structure
//! (`_v4`).

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_context_fn {
    ($callback:ident) => {
        $callback! {
            [hook, sim, 2000] cuInit(flags: u32);
            [pass, sim, 2020] cuDriverGetVersion(driver_version: *mut i32);
            [pass, sim, 2000] cuDeviceGet(device: *mut CUdevice, ordinal: i32);
            [pass, sim, 2000] cuDeviceGetCount(count: *mut i32);
            [pass, sim, 2000] cuDeviceGetName(name: *mut c_char, len: i32, dev: CUdevice);
            [pass, sim, 9020] cuDeviceGetUuid(uuid: *mut CUuuid, dev: CUdevice);
            [pass, sim, 11040] cuDeviceGetUuid_v2(uuid: *mut CUuuid, dev: CUdevice);
            [pass, none, 10000] cuDeviceGetLuid(
                luid: *mut c_char, device_node_mask: *mut u32, dev: CUdevice,
            );
            [hook, none, 2000] cuDeviceTotalMem(bytes: *mut u32, dev: CUdevice);
            [hook, sim, 3020] cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice);
            [pass, none, 11010] cuDeviceGetTexture1DLinearMaxWidth(
                max_width_in_elements: *mut usize, format: CUarray_format, num_channels: u32,
                dev: CUdevice,
            );
            [pass, sim, 2000] cuDeviceGetAttribute(
                pi: *mut i32, attrib: CUdevice_attribute, dev: CUdevice,
            );
            [pass, none, 13000] cuDeviceGetHostAtomicCapabilities(
                capabilities: *mut u32, operations: *const CUatomicOperation, count: u32,
                dev: CUdevice,
            );
            [pass, none, 10020] cuDeviceGetNvSciSyncAttributes(
                nv_sci_sync_attr_list: *mut c_void, dev: CUdevice, flags: i32,
            );
            [pass, none, 11040] cuDeviceGetExecAffinitySupport(
                pi: *mut i32, kind: CUexecAffinityType, dev: CUdevice,
            );
            [pass, none, 11030] cuFlushGPUDirectRDMAWrites(
                target: CUflushGPUDirectRDMAWritesTarget, scope: CUflushGPUDirectRDMAWritesScope,
            );
            [pass, sim, 2000] cuDeviceGetProperties(prop: *mut CUdevprop, dev: CUdevice);
            [pass, sim, 2000] cuDeviceComputeCapability(
                major: *mut i32, minor: *mut i32, dev: CUdevice,
            );
            [hook, sim, 7000] cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice);
            [hook, sim, 7000] cuDevicePrimaryCtxRelease(dev: CUdevice);
            [hook, sim, 11000] cuDevicePrimaryCtxRelease_v2(dev: CUdevice);
            [pass, sim, 7000] cuDevicePrimaryCtxSetFlags(dev: CUdevice, flags: u32);
            [pass, sim, 11000] cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32);
            [pass, sim, 7000] cuDevicePrimaryCtxGetState(
                dev: CUdevice, flags: *mut u32, active: *mut i32,
            );
            [hook, sim, 7000] cuDevicePrimaryCtxReset(dev: CUdevice);
            [hook, sim, 11000] cuDevicePrimaryCtxReset_v2(dev: CUdevice);
            [hook, sim, 2000] cuCtxCreate(pctx: *mut CUcontext, flags: u32, dev: CUdevice);
            [hook, sim, 3020] cuCtxCreate_v2(pctx: *mut CUcontext, flags: u32, dev: CUdevice);
            [hook, sim, 11040] cuCtxCreate_v3(
                pctx: *mut CUcontext, params_array: *mut CUexecAffinityParam, num_params: i32,
                flags: u32, dev: CUdevice,
            );
            [hook, sim, 12050] cuCtxCreate_v4(
                pctx: *mut CUcontext, ctx_create_params: *mut CUctxCreateParams, flags: u32,
                dev: CUdevice,
            );
            [hook, sim, 2000] cuCtxDestroy(ctx: CUcontext);
            [hook, sim, 4000] cuCtxDestroy_v2(ctx: CUcontext);
            [pass, sim, 2000] cuCtxPushCurrent(ctx: CUcontext);
            [pass, sim, 4000] cuCtxPushCurrent_v2(ctx: CUcontext);
            [pass, sim, 2000] cuCtxPopCurrent(pctx: *mut CUcontext);
            [pass, sim, 4000] cuCtxPopCurrent_v2(pctx: *mut CUcontext);
            [pass, sim, 4000] cuCtxSetCurrent(ctx: CUcontext);
            [pass, sim, 4000] cuCtxGetCurrent(pctx: *mut CUcontext);
            [pass, sim, 2000] cuCtxGetDevice(device: *mut CUdevice);
            [pass, sim, 13000] cuCtxGetDevice_v2(device: *mut CUdevice, ctx: CUcontext);
            [pass, sim, 7000] cuCtxGetFlags(flags: *mut u32);
            [pass, sim, 12010] cuCtxSetFlags(flags: u32);
            [pass, sim, 12000] cuCtxGetId(ctx: CUcontext, ctx_id: *mut u64);
            [hook, sim, 2000] cuCtxSynchronize();
            [hook, sim, 13000] cuCtxSynchronize_v2(ctx: CUcontext);
            [hook, sim, 3010] cuCtxSetLimit(limit: CUlimit, value: usize);
            [pass, sim, 3010] cuCtxGetLimit(pvalue: *mut usize, limit: CUlimit);
            [pass, sim, 3020] cuCtxGetCacheConfig(pconfig: *mut CUfunc_cache);
            [pass, sim, 3020] cuCtxSetCacheConfig(config: CUfunc_cache);
            [pass, sim, 3020] cuCtxGetApiVersion(ctx: CUcontext, version: *mut u32);
            [pass, sim, 5050] cuCtxGetStreamPriorityRange(
                least_priority: *mut i32, greatest_priority: *mut i32,
            );
            [pass, sim, 11000] cuCtxResetPersistingL2Cache();
            [pass, none, 11040] cuCtxGetExecAffinity(
                p_exec_affinity: *mut CUexecAffinityParam, kind: CUexecAffinityType,
            );
            [pass, none, 12050] cuCtxRecordEvent(h_ctx: CUcontext, h_event: CUevent);
            [pass, none, 12050] cuCtxWaitEvent(h_ctx: CUcontext, h_event: CUevent);
            [hook, sim, 2000] cuCtxAttach(pctx: *mut CUcontext, flags: u32);
            [hook, sim, 2000] cuCtxDetach(ctx: CUcontext);
            [pass, sim, 4020] cuCtxGetSharedMemConfig(p_config: *mut CUsharedconfig);
            [pass, sim, 4020] cuCtxSetSharedMemConfig(config: CUsharedconfig);
            [pass, none, 12040] cuDeviceRegisterAsyncNotification(
                device: CUdevice, callback_func: CUasyncCallback, user_data: *mut c_void,
                callback: *mut CUasyncCallbackHandle,
            );
            [pass, none, 12040] cuDeviceUnregisterAsyncNotification(
                device: CUdevice, callback: CUasyncCallbackHandle,
            );
            [pass, sim, 4010] cuDeviceGetByPCIBusId(dev: *mut CUdevice, pci_bus_id: *const c_char);
            [pass, sim, 4010] cuDeviceGetPCIBusId(pci_bus_id: *mut c_char, len: i32, dev: CUdevice);
            [pass, sim, 4000] cuDeviceCanAccessPeer(
                can_access_peer: *mut i32, dev: CUdevice, peer_dev: CUdevice,
            );
            [pass, sim, 4000] cuCtxEnablePeerAccess(peer_context: CUcontext, flags: u32);
            [pass, sim, 4000] cuCtxDisablePeerAccess(peer_context: CUcontext);
            [pass, sim, 8000] cuDeviceGetP2PAttribute(
                value: *mut i32, attrib: CUdevice_P2PAttribute, src_device: CUdevice,
                dst_device: CUdevice,
            );
            [pass, none, 13000] cuDeviceGetP2PAtomicCapabilities(
                capabilities: *mut u32, operations: *const CUatomicOperation, count: u32,
                src_device: CUdevice, dst_device: CUdevice,
            );
        }
    };
}
