//! Arrays and mipmapped arrays: memory in the layout textures read, charged like any other.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_array_fn {
    ($callback:ident) => {
        $callback! {
            [hook, none, 2000] cuArrayCreate(
                p_handle: *mut CUarray, p_allocate_array: *const c_void,
            );
            [hook, sim, 3020] cuArrayCreate_v2(
                p_handle: *mut CUarray, p_allocate_array: *const CUDA_ARRAY_DESCRIPTOR,
            );
            [pass, none, 2000] cuArrayGetDescriptor(
                p_array_descriptor: *mut c_void, h_array: CUarray,
            );
            [pass, sim, 3020] cuArrayGetDescriptor_v2(
                p_array_descriptor: *mut CUDA_ARRAY_DESCRIPTOR, h_array: CUarray,
            );
            [pass, sim, 11010] cuArrayGetSparseProperties(
                sparse_properties: *mut CUDA_ARRAY_SPARSE_PROPERTIES, array: CUarray,
            );
            [pass, sim, 11010] cuMipmappedArrayGetSparseProperties(
                sparse_properties: *mut CUDA_ARRAY_SPARSE_PROPERTIES, mipmap: CUmipmappedArray,
            );
            [pass, sim, 11060] cuArrayGetMemoryRequirements(
                memory_requirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUarray,
                device: CUdevice,
            );
            [pass, sim, 11060] cuMipmappedArrayGetMemoryRequirements(
                memory_requirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, mipmap: CUmipmappedArray,
                device: CUdevice,
            );
            [pass, none, 11020] cuArrayGetPlane(
                p_plane_array: *mut CUarray, h_array: CUarray, plane_idx: u32,
            );
            [hook, sim, 2000] cuArrayDestroy(h_array: CUarray);
            [hook, none, 2000] cuArray3DCreate(
                p_handle: *mut CUarray, p_allocate_array: *const c_void,
            );
            [hook, sim, 3020] cuArray3DCreate_v2(
                p_handle: *mut CUarray, p_allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR,
            );
            [pass, none, 2000] cuArray3DGetDescriptor(
                p_array_descriptor: *mut c_void, h_array: CUarray,
            );
            [pass, sim, 3020] cuArray3DGetDescriptor_v2(
                p_array_descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, h_array: CUarray,
            );
            [hook, sim, 5000] cuMipmappedArrayCreate(
                p_handle: *mut CUmipmappedArray,
                p_mipmapped_array_desc: *const CUDA_ARRAY3D_DESCRIPTOR, num_mipmap_levels: u32,
            );
            [pass, sim, 5000] cuMipmappedArrayGetLevel(
                p_level_array: *mut CUarray, h_mipmapped_array: CUmipmappedArray, level: u32,
            );
            [hook, sim, 5000] cuMipmappedArrayDestroy(h_mipmapped_array: CUmipmappedArray);
        }
    };
}
