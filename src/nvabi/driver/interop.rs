//! Memory and events shared with other processes, other APIs and graphics.
//!
//! The Direct3D and NvMedia calls do not exist on Linux and are not here.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_interop_fn {
    ($callback:ident) => {
        $callback! {
            [pass, sim, 4010] cuIpcGetEventHandle(p_handle: *mut CUipcEventHandle, event: CUevent);
            [pass, sim, 4010] cuIpcOpenEventHandle(
                ph_event: *mut CUevent, handle: CUipcEventHandle,
            );
            [hook, sim, 4010] cuIpcGetMemHandle(p_handle: *mut CUipcMemHandle, dptr: CUdeviceptr);
            [hook, sim, 4010] cuIpcOpenMemHandle(
                pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: u32,
            );
            [hook, sim, 11000] cuIpcOpenMemHandle_v2(
                pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: u32,
            );
            [hook, sim, 4010] cuIpcCloseMemHandle(dptr: CUdeviceptr);
            [hook, sim, 10000] cuImportExternalMemory(
                ext_mem_out: *mut CUexternalMemory,
                mem_handle_desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
            );
            [hook, sim, 10000] cuExternalMemoryGetMappedBuffer(
                dev_ptr: *mut CUdeviceptr, ext_mem: CUexternalMemory, buffer_desc: *const c_void,
            );
            [hook, none, 10000] cuExternalMemoryGetMappedMipmappedArray(
                mipmap: *mut CUmipmappedArray, ext_mem: CUexternalMemory,
                mipmap_desc: *const c_void,
            );
            [hook, sim, 10000] cuDestroyExternalMemory(ext_mem: CUexternalMemory);
            [pass, none, 10000] cuImportExternalSemaphore(
                ext_sem_out: *mut CUexternalSemaphore, sem_handle_desc: *const c_void,
            );
            [pass, none, 10000] cuSignalExternalSemaphoresAsync(
                ext_sem_array: *const CUexternalSemaphore, params_array: *const c_void,
                num_ext_sems: u32, stream: CUstream,
            );
            [pass, none, 10000] cuSignalExternalSemaphoresAsync_ptsz(
                ext_sem_array: *const CUexternalSemaphore, params_array: *const c_void,
                num_ext_sems: u32, stream: CUstream,
            );
            [pass, none, 10000] cuWaitExternalSemaphoresAsync(
                ext_sem_array: *const CUexternalSemaphore, params_array: *const c_void,
                num_ext_sems: u32, stream: CUstream,
            );
            [pass, none, 10000] cuWaitExternalSemaphoresAsync_ptsz(
                ext_sem_array: *const CUexternalSemaphore, params_array: *const c_void,
                num_ext_sems: u32, stream: CUstream,
            );
            [pass, none, 10000] cuDestroyExternalSemaphore(ext_sem: CUexternalSemaphore);
            [pass, none, 3000] cuGraphicsUnregisterResource(resource: CUgraphicsResource);
            [pass, none, 3000] cuGraphicsSubResourceGetMappedArray(
                p_array: *mut CUarray, resource: CUgraphicsResource, array_index: u32,
                mip_level: u32,
            );
            [pass, none, 5000] cuGraphicsResourceGetMappedMipmappedArray(
                p_mipmapped_array: *mut CUmipmappedArray, resource: CUgraphicsResource,
            );
            [pass, none, 3000] cuGraphicsResourceGetMappedPointer(
                p_dev_ptr: *mut CUdeviceptr_v1, p_size: *mut u32, resource: CUgraphicsResource,
            );
            [pass, none, 3020] cuGraphicsResourceGetMappedPointer_v2(
                p_dev_ptr: *mut CUdeviceptr, p_size: *mut usize, resource: CUgraphicsResource,
            );
            [pass, none, 3000] cuGraphicsResourceSetMapFlags(
                resource: CUgraphicsResource, flags: u32,
            );
            [pass, none, 6050] cuGraphicsResourceSetMapFlags_v2(
                resource: CUgraphicsResource, flags: u32,
            );
            [pass, none, 3000] cuGraphicsMapResources(
                count: u32, resources: *mut CUgraphicsResource, h_stream: CUstream,
            );
            [pass, none, 7000] cuGraphicsMapResources_ptsz(
                count: u32, resources: *mut CUgraphicsResource, h_stream: CUstream,
            );
            [pass, none, 3000] cuGraphicsUnmapResources(
                count: u32, resources: *mut CUgraphicsResource, h_stream: CUstream,
            );
            [pass, none, 7000] cuGraphicsUnmapResources_ptsz(
                count: u32, resources: *mut CUgraphicsResource, h_stream: CUstream,
            );
            [pass, none, 3000] cuGraphicsGLRegisterBuffer(
                p_cuda_resource: *mut CUgraphicsResource, buffer: u32, flags: u32,
            );
            [pass, none, 3000] cuGraphicsGLRegisterImage(
                p_cuda_resource: *mut CUgraphicsResource, image: u32, target: u32, flags: u32,
            );
            [pass, none, 4010] cuGLGetDevices(
                p_cuda_device_count: *mut u32, p_cuda_devices: *mut CUdevice,
                cuda_device_count: u32, device_list: CUGLDeviceList,
            );
            [pass, none, 6050] cuGLGetDevices_v2(
                p_cuda_device_count: *mut u32, p_cuda_devices: *mut CUdevice,
                cuda_device_count: u32, device_list: CUGLDeviceList,
            );
            [pass, none, 2000] cuGLCtxCreate(p_ctx: *mut CUcontext, flags: u32, device: CUdevice);
            [pass, none, 3020] cuGLCtxCreate_v2(
                p_ctx: *mut CUcontext, flags: u32, device: CUdevice,
            );
            [pass, none, 2000] cuGLInit();
            [pass, none, 2000] cuGLRegisterBufferObject(buffer: u32);
            [pass, none, 2000] cuGLMapBufferObject(
                dptr: *mut CUdeviceptr_v1, size: *mut u32, buffer: u32,
            );
            [pass, none, 3020] cuGLMapBufferObject_v2(
                dptr: *mut CUdeviceptr, size: *mut usize, buffer: u32,
            );
            [pass, none, 7000] cuGLMapBufferObject_v2_ptds(
                dptr: *mut CUdeviceptr, size: *mut usize, buffer: u32,
            );
            [pass, none, 2000] cuGLUnmapBufferObject(buffer: u32);
            [pass, none, 2000] cuGLUnregisterBufferObject(buffer: u32);
            [pass, none, 2030] cuGLSetBufferObjectMapFlags(buffer: u32, flags: u32);
            [pass, none, 2030] cuGLMapBufferObjectAsync(
                dptr: *mut CUdeviceptr_v1, size: *mut u32, buffer: u32, h_stream: CUstream,
            );
            [pass, none, 3020] cuGLMapBufferObjectAsync_v2(
                dptr: *mut CUdeviceptr, size: *mut usize, buffer: u32, h_stream: CUstream,
            );
            [pass, none, 7000] cuGLMapBufferObjectAsync_v2_ptsz(
                dptr: *mut CUdeviceptr, size: *mut usize, buffer: u32, h_stream: CUstream,
            );
            [pass, none, 2030] cuGLUnmapBufferObjectAsync(buffer: u32, h_stream: CUstream);
            [pass, none, 7000] cuGraphicsEGLRegisterImage(
                p_cuda_resource: *mut CUgraphicsResource, image: *mut c_void, flags: u32,
            );
            [pass, none, 7000] cuEGLStreamConsumerConnect(
                conn: *mut CUeglStreamConnection, stream: *mut c_void,
            );
            [pass, none, 8000] cuEGLStreamConsumerConnectWithFlags(
                conn: *mut CUeglStreamConnection, stream: *mut c_void, flags: u32,
            );
            [pass, none, 7000] cuEGLStreamConsumerDisconnect(conn: *mut CUeglStreamConnection);
            [pass, none, 7000] cuEGLStreamConsumerAcquireFrame(
                conn: *mut CUeglStreamConnection, p_cuda_resource: *mut CUgraphicsResource,
                p_stream: *mut CUstream, timeout: u32,
            );
            [pass, none, 7000] cuEGLStreamConsumerReleaseFrame(
                conn: *mut CUeglStreamConnection, p_cuda_resource: CUgraphicsResource,
                p_stream: *mut CUstream,
            );
            [pass, none, 7000] cuEGLStreamProducerConnect(
                conn: *mut CUeglStreamConnection, stream: *mut c_void, width: i32, height: i32,
            );
            [pass, none, 7000] cuEGLStreamProducerDisconnect(conn: *mut CUeglStreamConnection);
            [pass, none, 7000] cuEGLStreamProducerPresentFrame(
                conn: *mut CUeglStreamConnection, eglframe: CUeglFrame, p_stream: *mut CUstream,
            );
            [pass, none, 7000] cuEGLStreamProducerReturnFrame(
                conn: *mut CUeglStreamConnection, eglframe: *mut CUeglFrame,
                p_stream: *mut CUstream,
            );
            [pass, none, 7000] cuGraphicsResourceGetMappedEglFrame(
                egl_frame: *mut CUeglFrame, resource: CUgraphicsResource, index: u32,
                mip_level: u32,
            );
            [pass, none, 9000] cuEventCreateFromEGLSync(
                ph_event: *mut CUevent, egl_sync: *mut c_void, flags: u32,
            );
            [pass, none, 3010] cuVDPAUGetDevice(
                p_device: *mut CUdevice, vdp_device: u32, vdp_get_proc_address: *mut c_void,
            );
            [pass, none, 3010] cuVDPAUCtxCreate(
                p_ctx: *mut CUcontext, flags: u32, device: CUdevice, vdp_device: u32,
                vdp_get_proc_address: *mut c_void,
            );
            [pass, none, 3020] cuVDPAUCtxCreate_v2(
                p_ctx: *mut CUcontext, flags: u32, device: CUdevice, vdp_device: u32,
                vdp_get_proc_address: *mut c_void,
            );
            [pass, none, 3010] cuGraphicsVDPAURegisterVideoSurface(
                p_cuda_resource: *mut CUgraphicsResource, vdp_surface: u32, flags: u32,
            );
            [pass, none, 3010] cuGraphicsVDPAURegisterOutputSurface(
                p_cuda_resource: *mut CUgraphicsResource, vdp_surface: u32, flags: u32,
            );
        }
    };
}
