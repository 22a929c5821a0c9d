//! Entry points by name, errors, the profiler, logs, core dumps and checkpoints.
//!
//! Every runtime since CUDA 11.3 finds all other functions by `cuGetProcAddress`. So an interposing library
//! must hook it, or its hooks are bypassed.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_misc_fn {
    ($callback:ident) => {
        $callback! {
            [pass, sim, 6000] cuGetErrorString(error: CUresult, p_str: *mut *const c_char);
            [pass, sim, 6000] cuGetErrorName(error: CUresult, p_str: *mut *const c_char);
            [hook, sim, 11030] cuGetProcAddress(
                symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: i32, flags: u64,
            );
            [hook, sim, 12000] cuGetProcAddress_v2(
                symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: i32, flags: u64,
                symbol_status: *mut CUdriverProcAddressQueryResult,
            );
            [pass, none, 12010] cuCoredumpGetAttribute(
                attrib: CUcoredumpSettings, value: *mut c_void, size: *mut usize,
            );
            [pass, none, 12010] cuCoredumpGetAttributeGlobal(
                attrib: CUcoredumpSettings, value: *mut c_void, size: *mut usize,
            );
            [pass, none, 12010] cuCoredumpSetAttribute(
                attrib: CUcoredumpSettings, value: *mut c_void, size: *mut usize,
            );
            [pass, none, 12010] cuCoredumpSetAttributeGlobal(
                attrib: CUcoredumpSettings, value: *mut c_void, size: *mut usize,
            );
            [pass, none, 13020] cuCoredumpRegisterStartCallback(
                callback: CUcoredumpStatusCallback, user_data: *mut c_void,
                callback_out: *mut CUcoredumpCallbackHandle,
            );
            [pass, none, 13020] cuCoredumpRegisterCompleteCallback(
                callback: CUcoredumpStatusCallback, user_data: *mut c_void,
                callback_out: *mut CUcoredumpCallbackHandle,
            );
            [pass, none, 13020] cuCoredumpDeregisterStartCallback(
                callback: CUcoredumpCallbackHandle,
            );
            [pass, none, 13020] cuCoredumpDeregisterCompleteCallback(
                callback: CUcoredumpCallbackHandle,
            );
            [pass, sim, 3000] cuGetExportTable(
                pp_export_table: *mut *const c_void, p_export_table_id: *const CUuuid,
            );
            [pass, none, 12090] cuLogsRegisterCallback(
                callback_func: CUlogsCallback, user_data: *mut c_void,
                callback_out: *mut CUlogsCallbackHandle,
            );
            [pass, none, 12090] cuLogsUnregisterCallback(callback: CUlogsCallbackHandle);
            [pass, none, 12090] cuLogsCurrent(iterator_out: *mut CUlogIterator, flags: u32);
            [pass, none, 12090] cuLogsDumpToFile(
                iterator: *mut CUlogIterator, path_to_file: *const c_char, flags: u32,
            );
            [pass, none, 12090] cuLogsDumpToMemory(
                iterator: *mut CUlogIterator, buffer: *mut c_char, size: *mut usize, flags: u32,
            );
            [pass, none, 12080] cuCheckpointProcessGetRestoreThreadId(pid: i32, tid: *mut i32);
            [pass, sim, 12080] cuCheckpointProcessGetState(pid: i32, state: *mut CUprocessState);
            [pass, sim, 12080] cuCheckpointProcessLock(pid: i32, args: *mut CUcheckpointLockArgs);
            [pass, sim, 12080] cuCheckpointProcessCheckpoint(
                pid: i32, args: *mut CUcheckpointCheckpointArgs,
            );
            [pass, sim, 12080] cuCheckpointProcessRestore(pid: i32, args: *mut CUcheckpointRestoreArgs);
            [pass, none, 13040] cuCheckpointOperationComplete(handle: CUcheckpointOperationHandle);
            [pass, sim, 12080] cuCheckpointProcessUnlock(pid: i32, args: *mut CUcheckpointUnlockArgs);
            [pass, sim, 4000] cuProfilerInitialize(
                config_file: *const c_char, output_file: *const c_char, output_mode: CUoutput_mode,
            );
            [pass, sim, 4000] cuProfilerStart();
            [pass, sim, 4000] cuProfilerStop();
        }
    };
}
