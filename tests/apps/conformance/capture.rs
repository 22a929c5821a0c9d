//! While a stream is captured, calls that may wait for the device are forbidden: to all threads, to the
//! capturing thread, or to none, depending on the mode. A forbidden call invalidates the capture and
//! takes nothing.

use crate::words::*;
use gpuslice_nvabi::types::*;

family!("capture":
    alloc_in_relaxed_mode, alloc_of_another_thread_in_global_mode,
    alloc_of_another_thread_in_thread_local_mode, free_in_thread_local_mode,
    free_in_relaxed_mode, exchanged_mode, queries_are_allowed, create_is_allowed,
    ordered_alloc_is_captured, after_the_end, array_in_thread_local_mode,
    host_memory_in_thread_local_mode, alloc_in_global_mode, alloc_in_thread_local_mode;
);

const REFUSED: CUresult = CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED;

fn begin(gpu: Gpu, mode: CUstreamCaptureMode) -> Outcome<CUstream> {
    let stream = gpu.stream()?;
    ok!(cuStreamBeginCapture_v2(stream, mode));
    Ok(stream)
}

fn end(stream: CUstream) -> Outcome {
    let mut graph = CUgraph::NULL;
    ok!(cuStreamEndCapture(stream, &mut graph));
    Ok(())
}

fn invalid(stream: CUstream) -> Outcome {
    let mut graph = CUgraph::NULL;
    says!(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &mut graph));
    Ok(())
}

fn forbidden(gpu: Gpu, mode: CUstreamCaptureMode) -> Outcome {
    let mut at = 0;
    let stream = begin(gpu, mode)?;
    says!(REFUSED, cuMemAlloc_v2(&mut at, gpu.part(8)?));
    invalid(stream)?;
    gpu.back()
}

fn alloc_in_global_mode(gpu: Gpu) -> Outcome {
    forbidden(gpu, CU_STREAM_CAPTURE_MODE_GLOBAL)
}

fn alloc_in_thread_local_mode(gpu: Gpu) -> Outcome {
    forbidden(gpu, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
}

fn alloc_in_relaxed_mode(gpu: Gpu) -> Outcome {
    let stream = begin(gpu, CU_STREAM_CAPTURE_MODE_RELAXED)?;
    let at = gpu.alloc(gpu.part(8)?)?;
    gpu.took(gpu.part(8)?, GRAIN)?;
    end(stream)?;
    gpu.release(at)?;
    gpu.back()
}

/// What another thread does.
fn elsewhere(gpu: Gpu, work: impl FnOnce() -> Outcome + Send) -> Outcome {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            set_current(gpu.context)?;
            work()
        });
        thread.join().unwrap_or_else(|_| fail("a thread panicked"))
    })
}

fn alloc_of_another_thread_in_global_mode(gpu: Gpu) -> Outcome {
    let stream = begin(gpu, CU_STREAM_CAPTURE_MODE_GLOBAL)?;
    elsewhere(gpu, move || {
        let mut at = 0;
        says!(REFUSED, cuMemAlloc_v2(&mut at, GRAIN));
        Ok(())
    })?;
    invalid(stream)?;
    gpu.back()
}

fn alloc_of_another_thread_in_thread_local_mode(gpu: Gpu) -> Outcome {
    let stream = begin(gpu, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    elsewhere(gpu, move || {
        let at = gpu.alloc(gpu.part(8)?)?;
        gpu.release(at)
    })?;
    end(stream)?;
    gpu.back()
}

fn free_in_thread_local_mode(gpu: Gpu) -> Outcome {
    let bytes = gpu.part(8)?;
    let at = gpu.alloc(bytes)?;
    let stream = begin(gpu, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    says!(REFUSED, cuMemFree_v2(at));
    invalid(stream)?;
    gpu.took(bytes, GRAIN)?;
    gpu.release(at)?;
    gpu.back()
}

fn free_in_relaxed_mode(gpu: Gpu) -> Outcome {
    let at = gpu.alloc(gpu.part(8)?)?;
    let stream = begin(gpu, CU_STREAM_CAPTURE_MODE_RELAXED)?;
    gpu.release(at)?;
    end(stream)?;
    gpu.back()
}

/// A thread may lift the ban for a while: allocators do.
fn exchanged_mode(gpu: Gpu) -> Outcome {
    let stream = begin(gpu, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
    let at = gpu.alloc(gpu.part(8)?)?;
    ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
    that!(mode == CU_STREAM_CAPTURE_MODE_RELAXED, "mode {mode} comes back");
    end(stream)?;
    gpu.took(gpu.part(8)?, GRAIN)?;
    gpu.release(at)
}

fn queries_are_allowed(gpu: Gpu) -> Outcome {
    let stream = begin(gpu, CU_STREAM_CAPTURE_MODE_GLOBAL)?;
    let (mut total, mut status) = (0, 7);
    gpu.info()?;
    ok!(cuDeviceTotalMem_v2(&mut total, gpu.device));
    ok!(cuStreamIsCapturing(stream, &mut status));
    that!(status == CU_STREAM_CAPTURE_STATUS_ACTIVE, "capture status {status}");
    end(stream)
}

/// Physical memory waits for nothing.
fn create_is_allowed(gpu: Gpu) -> Outcome {
    let stream = begin(gpu, CU_STREAM_CAPTURE_MODE_GLOBAL)?;
    let handle = crate::vmm::create(gpu, gpu.part(8)?)?;
    gpu.took(gpu.part(8)?, GRAIN)?;
    ok!(cuMemRelease(handle));
    end(stream)?;
    gpu.back()
}

fn ordered_alloc_is_captured(gpu: Gpu) -> Outcome {
    let mut at = 0;
    let stream = begin(gpu, CU_STREAM_CAPTURE_MODE_GLOBAL)?;
    ok!(cuMemAllocAsync(&mut at, gpu.part(8)?, stream));
    end(stream)?;
    gpu.back()
}

fn after_the_end(gpu: Gpu) -> Outcome {
    end(begin(gpu, CU_STREAM_CAPTURE_MODE_GLOBAL)?)?;
    let at = gpu.alloc(gpu.part(8)?)?;
    gpu.release(at)?;
    gpu.back()
}

fn array_in_thread_local_mode(gpu: Gpu) -> Outcome {
    let mut array = CUarray::NULL;
    let (format, num_channels) = (CU_AD_FORMAT_FLOAT, 1);
    let shape = CUDA_ARRAY_DESCRIPTOR { width: 4096, height: 4096, format, num_channels };
    let stream = begin(gpu, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    says!(REFUSED, cuArrayCreate_v2(&mut array, &shape));
    invalid(stream)?;
    gpu.back()
}

fn host_memory_in_thread_local_mode(gpu: Gpu) -> Outcome {
    let mut at = std::ptr::null_mut();
    let stream = begin(gpu, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    says!(REFUSED, cuMemHostAlloc(&mut at, GRAIN, 0));
    invalid(stream)?;
    gpu.back()
}
