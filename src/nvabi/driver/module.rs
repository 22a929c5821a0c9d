//! Modules, libraries, kernels and the linker: they load code into a context.

/// Passes the rows of this family to `$callback!` in one expansion.
#[macro_export]
macro_rules! for_each_driver_module_fn {
    ($callback:ident) => {
        $callback! {
            [pass, sim, 2000] cuModuleLoad(module: *mut CUmodule, fname: *const c_char);
            [pass, sim, 2000] cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
            [pass, sim, 2010] cuModuleLoadDataEx(
                module: *mut CUmodule, image: *const c_void, num_options: u32,
                options: *mut CUjit_option, option_values: *mut *mut c_void,
            );
            [pass, sim, 2000] cuModuleLoadFatBinary(
                module: *mut CUmodule, fat_cubin: *const c_void,
            );
            [pass, sim, 2000] cuModuleUnload(hmod: CUmodule);
            [pass, sim, 11070] cuModuleGetLoadingMode(mode: *mut CUmoduleLoadingMode);
            [pass, sim, 2000] cuModuleGetFunction(
                hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char,
            );
            [pass, sim, 12040] cuModuleGetFunctionCount(count: *mut u32, module: CUmodule);
            [pass, sim, 12040] cuModuleEnumerateFunctions(
                functions: *mut CUfunction, num_functions: u32, module: CUmodule,
            );
            [pass, none, 2000] cuModuleGetGlobal(
                dptr: *mut CUdeviceptr_v1, bytes: *mut u32, hmod: CUmodule, name: *const c_char,
            );
            [pass, sim, 3020] cuModuleGetGlobal_v2(
                dptr: *mut CUdeviceptr, bytes: *mut usize, hmod: CUmodule, name: *const c_char,
            );
            [pass, none, 5050] cuLinkCreate(
                num_options: u32, options: *mut CUjit_option, option_values: *mut *mut c_void,
                state_out: *mut CUlinkState,
            );
            [pass, sim, 6050] cuLinkCreate_v2(
                num_options: u32, options: *mut CUjit_option, option_values: *mut *mut c_void,
                state_out: *mut CUlinkState,
            );
            [pass, none, 5050] cuLinkAddData(
                state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize,
                name: *const c_char, num_options: u32, options: *mut CUjit_option,
                option_values: *mut *mut c_void,
            );
            [pass, sim, 6050] cuLinkAddData_v2(
                state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize,
                name: *const c_char, num_options: u32, options: *mut CUjit_option,
                option_values: *mut *mut c_void,
            );
            [pass, none, 5050] cuLinkAddFile(
                state: CUlinkState, kind: CUjitInputType, path: *const c_char, num_options: u32,
                options: *mut CUjit_option, option_values: *mut *mut c_void,
            );
            [pass, sim, 6050] cuLinkAddFile_v2(
                state: CUlinkState, kind: CUjitInputType, path: *const c_char, num_options: u32,
                options: *mut CUjit_option, option_values: *mut *mut c_void,
            );
            [pass, sim, 5050] cuLinkComplete(
                state: CUlinkState, cubin_out: *mut *mut c_void, size_out: *mut usize,
            );
            [pass, sim, 5050] cuLinkDestroy(state: CUlinkState);
            [pass, none, 2000] cuModuleGetTexRef(
                p_tex_ref: *mut CUtexref, hmod: CUmodule, name: *const c_char,
            );
            [pass, none, 3000] cuModuleGetSurfRef(
                p_surf_ref: *mut CUsurfref, hmod: CUmodule, name: *const c_char,
            );
            [pass, sim, 12000] cuLibraryLoadData(
                library: *mut CUlibrary, code: *const c_void, jit_options: *mut CUjit_option,
                jit_options_values: *mut *mut c_void, num_jit_options: u32,
                library_options: *mut CUlibraryOption, library_option_values: *mut *mut c_void,
                num_library_options: u32,
            );
            [pass, sim, 12000] cuLibraryLoadFromFile(
                library: *mut CUlibrary, file_name: *const c_char, jit_options: *mut CUjit_option,
                jit_options_values: *mut *mut c_void, num_jit_options: u32,
                library_options: *mut CUlibraryOption, library_option_values: *mut *mut c_void,
                num_library_options: u32,
            );
            [pass, sim, 12000] cuLibraryUnload(library: CUlibrary);
            [pass, sim, 12000] cuLibraryGetKernel(
                p_kernel: *mut CUkernel, library: CUlibrary, name: *const c_char,
            );
            [pass, sim, 12040] cuLibraryGetKernelCount(count: *mut u32, lib: CUlibrary);
            [pass, sim, 12040] cuLibraryEnumerateKernels(
                kernels: *mut CUkernel, num_kernels: u32, lib: CUlibrary,
            );
            [pass, sim, 12000] cuLibraryGetModule(p_mod: *mut CUmodule, library: CUlibrary);
            [pass, sim, 12000] cuKernelGetFunction(p_func: *mut CUfunction, kernel: CUkernel);
            [pass, sim, 12050] cuKernelGetLibrary(p_lib: *mut CUlibrary, kernel: CUkernel);
            [pass, sim, 12000] cuLibraryGetGlobal(
                dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char,
            );
            [pass, sim, 12000] cuLibraryGetManaged(
                dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char,
            );
            [pass, none, 12000] cuLibraryGetUnifiedFunction(
                fptr: *mut *mut c_void, library: CUlibrary, symbol: *const c_char,
            );
            [pass, sim, 12000] cuKernelGetAttribute(
                pi: *mut i32, attrib: CUfunction_attribute, kernel: CUkernel, dev: CUdevice,
            );
            [pass, sim, 12000] cuKernelSetAttribute(
                attrib: CUfunction_attribute, val: i32, kernel: CUkernel, dev: CUdevice,
            );
            [pass, sim, 12000] cuKernelSetCacheConfig(
                kernel: CUkernel, config: CUfunc_cache, dev: CUdevice,
            );
            [pass, sim, 12030] cuKernelGetName(name: *mut *const c_char, hfunc: CUkernel);
            [pass, sim, 12040] cuKernelGetParamInfo(
                kernel: CUkernel, param_index: usize, param_offset: *mut usize,
                param_size: *mut usize,
            );
            [pass, sim, 13020] cuKernelGetParamCount(kernel: CUkernel, param_count: *mut usize);
        }
    };
}
