//! Events: recorded into a stream, and the time between two of them.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_event_fn {
    ($callback:ident) => {
        $callback! {
            [pass, sim, 2000] cuEventCreate(ph_event: *mut CUevent, flags: u32);
            [pass, sim, 2000] cuEventRecord(h_event: CUevent, h_stream: CUstream);
            [pass, sim, 7000] cuEventRecord_ptsz(h_event: CUevent, h_stream: CUstream);
            [pass, sim, 11010] cuEventRecordWithFlags(
                h_event: CUevent, h_stream: CUstream, flags: u32,
            );
            [pass, sim, 11010] cuEventRecordWithFlags_ptsz(
                h_event: CUevent, h_stream: CUstream, flags: u32,
            );
            [pass, sim, 2000] cuEventQuery(h_event: CUevent);
            [hook, sim, 2000] cuEventSynchronize(h_event: CUevent);
            [pass, sim, 2000] cuEventDestroy(h_event: CUevent);
            [pass, sim, 4000] cuEventDestroy_v2(h_event: CUevent);
            [pass, sim, 2000] cuEventElapsedTime(
                p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent,
            );
            [pass, sim, 12080] cuEventElapsedTime_v2(
                p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent,
            );
        }
    };
}
