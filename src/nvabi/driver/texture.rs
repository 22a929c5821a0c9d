//! Texture and surface references (deprecated), texture and surface objects, tensor maps.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_texture_fn {
    ($callback:ident) => {
        $callback! {
            [pass, none, 2000] cuTexRefSetArray(h_tex_ref: CUtexref, h_array: CUarray, flags: u32);
            [pass, none, 5000] cuTexRefSetMipmappedArray(
                h_tex_ref: CUtexref, h_mipmapped_array: CUmipmappedArray, flags: u32,
            );
            [pass, none, 2000] cuTexRefSetAddress(
                byte_offset: *mut u32, h_tex_ref: CUtexref, dptr: CUdeviceptr_v1, bytes: u32,
            );
            [pass, none, 3020] cuTexRefSetAddress_v2(
                byte_offset: *mut usize, h_tex_ref: CUtexref, dptr: CUdeviceptr, bytes: usize,
            );
            [pass, none, 2020] cuTexRefSetAddress2D(
                h_tex_ref: CUtexref, desc: *const c_void, dptr: CUdeviceptr_v1, pitch: u32,
            );
            [pass, none, 3020] cuTexRefSetAddress2D_v2(
                h_tex_ref: CUtexref, desc: *const CUDA_ARRAY_DESCRIPTOR, dptr: CUdeviceptr,
                pitch: usize,
            );
            [pass, none, 4010] cuTexRefSetAddress2D_v3(
                h_tex_ref: CUtexref, desc: *const CUDA_ARRAY_DESCRIPTOR, dptr: CUdeviceptr,
                pitch: usize,
            );
            [pass, none, 2000] cuTexRefSetFormat(
                h_tex_ref: CUtexref, fmt: CUarray_format, num_packed_components: i32,
            );
            [pass, none, 2000] cuTexRefSetAddressMode(
                h_tex_ref: CUtexref, dim: i32, am: CUaddress_mode,
            );
            [pass, none, 2000] cuTexRefSetFilterMode(h_tex_ref: CUtexref, fm: CUfilter_mode);
            [pass, none, 5000] cuTexRefSetMipmapFilterMode(h_tex_ref: CUtexref, fm: CUfilter_mode);
            [pass, none, 5000] cuTexRefSetMipmapLevelBias(h_tex_ref: CUtexref, bias: f32);
            [pass, none, 5000] cuTexRefSetMipmapLevelClamp(
                h_tex_ref: CUtexref, min_mipmap_level_clamp: f32, max_mipmap_level_clamp: f32,
            );
            [pass, none, 5000] cuTexRefSetMaxAnisotropy(h_tex_ref: CUtexref, max_aniso: u32);
            [pass, none, 8000] cuTexRefSetBorderColor(
                h_tex_ref: CUtexref, p_border_color: *mut f32,
            );
            [pass, none, 2000] cuTexRefSetFlags(h_tex_ref: CUtexref, flags: u32);
            [pass, none, 2000] cuTexRefGetAddress(pdptr: *mut CUdeviceptr_v1, h_tex_ref: CUtexref);
            [pass, none, 3020] cuTexRefGetAddress_v2(pdptr: *mut CUdeviceptr, h_tex_ref: CUtexref);
            [pass, none, 2000] cuTexRefGetArray(ph_array: *mut CUarray, h_tex_ref: CUtexref);
            [pass, none, 5000] cuTexRefGetMipmappedArray(
                ph_mipmapped_array: *mut CUmipmappedArray, h_tex_ref: CUtexref,
            );
            [pass, none, 2000] cuTexRefGetAddressMode(
                pam: *mut CUaddress_mode, h_tex_ref: CUtexref, dim: i32,
            );
            [pass, none, 2000] cuTexRefGetFilterMode(pfm: *mut CUfilter_mode, h_tex_ref: CUtexref);
            [pass, none, 2000] cuTexRefGetFormat(
                p_format: *mut CUarray_format, p_num_channels: *mut i32, h_tex_ref: CUtexref,
            );
            [pass, none, 5000] cuTexRefGetMipmapFilterMode(
                pfm: *mut CUfilter_mode, h_tex_ref: CUtexref,
            );
            [pass, none, 5000] cuTexRefGetMipmapLevelBias(pbias: *mut f32, h_tex_ref: CUtexref);
            [pass, none, 5000] cuTexRefGetMipmapLevelClamp(
                pmin_mipmap_level_clamp: *mut f32, pmax_mipmap_level_clamp: *mut f32,
                h_tex_ref: CUtexref,
            );
            [pass, none, 5000] cuTexRefGetMaxAnisotropy(pmax_aniso: *mut i32, h_tex_ref: CUtexref);
            [pass, none, 8000] cuTexRefGetBorderColor(
                p_border_color: *mut f32, h_tex_ref: CUtexref,
            );
            [pass, none, 2000] cuTexRefGetFlags(p_flags: *mut u32, h_tex_ref: CUtexref);
            [pass, none, 2000] cuTexRefCreate(p_tex_ref: *mut CUtexref);
            [pass, none, 2000] cuTexRefDestroy(h_tex_ref: CUtexref);
            [pass, none, 3000] cuSurfRefSetArray(
                h_surf_ref: CUsurfref, h_array: CUarray, flags: u32,
            );
            [pass, none, 3000] cuSurfRefGetArray(ph_array: *mut CUarray, h_surf_ref: CUsurfref);
            [pass, none, 5000] cuTexObjectCreate(
                p_tex_object: *mut CUtexObject, p_res_desc: *const c_void,
                p_tex_desc: *const c_void, p_res_view_desc: *const c_void,
            );
            [pass, none, 5000] cuTexObjectDestroy(tex_object: CUtexObject);
            [pass, none, 5000] cuTexObjectGetResourceDesc(
                p_res_desc: *mut c_void, tex_object: CUtexObject,
            );
            [pass, none, 5000] cuTexObjectGetTextureDesc(
                p_tex_desc: *mut c_void, tex_object: CUtexObject,
            );
            [pass, none, 5000] cuTexObjectGetResourceViewDesc(
                p_res_view_desc: *mut c_void, tex_object: CUtexObject,
            );
            [pass, none, 5000] cuSurfObjectCreate(
                p_surf_object: *mut CUsurfObject, p_res_desc: *const c_void,
            );
            [pass, none, 5000] cuSurfObjectDestroy(surf_object: CUsurfObject);
            [pass, none, 5000] cuSurfObjectGetResourceDesc(
                p_res_desc: *mut c_void, surf_object: CUsurfObject,
            );
            [pass, none, 12000] cuTensorMapEncodeTiled(
                tensor_map: *mut c_void, tensor_data_type: CUtensorMapDataType, tensor_rank: u32,
                global_address: *mut c_void, global_dim: *const u64, global_strides: *const u64,
                box_dim: *const u32, element_strides: *const u32,
                interleave: CUtensorMapInterleave, swizzle: CUtensorMapSwizzle,
                l2_promotion: CUtensorMapL2promotion, oob_fill: CUtensorMapFloatOOBfill,
            );
            [pass, none, 12000] cuTensorMapEncodeIm2col(
                tensor_map: *mut c_void, tensor_data_type: CUtensorMapDataType, tensor_rank: u32,
                global_address: *mut c_void, global_dim: *const u64, global_strides: *const u64,
                pixel_box_lower_corner: *const i32, pixel_box_upper_corner: *const i32,
                channels_per_pixel: u32, pixels_per_column: u32, element_strides: *const u32,
                interleave: CUtensorMapInterleave, swizzle: CUtensorMapSwizzle,
                l2_promotion: CUtensorMapL2promotion, oob_fill: CUtensorMapFloatOOBfill,
            );
            [pass, none, 12080] cuTensorMapEncodeIm2colWide(
                tensor_map: *mut c_void, tensor_data_type: CUtensorMapDataType, tensor_rank: u32,
                global_address: *mut c_void, global_dim: *const u64, global_strides: *const u64,
                pixel_box_lower_corner_width: i32, pixel_box_upper_corner_width: i32,
                channels_per_pixel: u32, pixels_per_column: u32, element_strides: *const u32,
                interleave: CUtensorMapInterleave, mode: CUtensorMapIm2ColWideMode,
                swizzle: CUtensorMapSwizzle, l2_promotion: CUtensorMapL2promotion,
                oob_fill: CUtensorMapFloatOOBfill,
            );
            [pass, none, 12000] cuTensorMapReplaceAddress(
                tensor_map: *mut c_void, global_address: *mut c_void,
            );
            [pass, none, 13050] cuTensorMapSetAllocationClass(
                tensor_map: *mut c_void, alloc_class: CUtensorMapAllocClass,
                out_alloc_class: *mut CUtensorMapAllocClass,
            );
        }
    };
}
