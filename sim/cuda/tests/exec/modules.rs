//! Modules, libraries and the linker.

use crate::common::{PTX, World, word};
use crate::harness::{context_on, put};
use gpuslice_nvabi::types::*;
use std::ffi::CStr;
use std::ptr::null_mut;

scenarios! {
    a_module_has_what_it_declares("") {
        let world = World::new();
        let (mut count, mut function) = (0, CUfunction::NULL);
        ok!(cuModuleGetFunctionCount(&mut count, world.module));
        assert_eq!(count, 4);
        let mut all = [CUfunction::NULL; 4];
        ok!(cuModuleEnumerateFunctions(all.as_mut_ptr(), 4, world.module));
        assert_eq!(all[0], world.function(c"spin"));
        refused!(
            ERROR_NOT_FOUND,
            cuModuleGetFunction(&mut function, world.module, c"other".as_ptr())
        );
        let (mut offset, mut size, mut params) = (0, 0, 0);
        let mixed = world.function(c"mixed");
        ok!(cuFuncGetParamCount(mixed, &mut params));
        ok!(cuFuncGetParamInfo(mixed, 2, &mut offset, &mut size));
        assert_eq!((params, offset, size), (3, 16, 20));
        refused!(ERROR_INVALID_VALUE, cuFuncGetParamInfo(mixed, 3, &mut offset, &mut size));
        let mut name = std::ptr::null();
        ok!(cuFuncGetName(&mut name, mixed));
        // SAFETY: the driver gives a text that lives as long as the module.
        assert_eq!(unsafe { CStr::from_ptr(name) }, c"mixed");
        let mut value = 0;
        ok!(cuFuncGetAttribute(&mut value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, mixed));
        assert_eq!(value, 128);
        ok!(cuFuncGetAttribute(&mut value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, mixed));
        assert_eq!(value, 1024);
        refused!(ERROR_INVALID_VALUE, cuFuncGetAttribute(&mut value, 77, mixed));
        let (mut at, mut bytes) = (0, 0);
        ok!(cuModuleGetGlobal_v2(&mut at, &mut bytes, world.module, c"counter".as_ptr()));
        assert_eq!(bytes, 4);
        put(at, &9_u32.to_ne_bytes());
        assert_eq!(word(at), 9);
        ok!(cuModuleUnload(world.module));
        refused!(ERROR_INVALID_HANDLE, cuFuncGetParamCount(mixed, &mut params));
        refused!(ERROR_INVALID_HANDLE, cuModuleUnload(world.module));
        refused!(
            ERROR_INVALID_VALUE,
            cuMemcpyDtoH_v2((&raw mut value).cast(), at, 4)
        );
    }

    what_can_be_loaded("") {
        context_on(0);
        let mut module = CUmodule::NULL;
        let mut load = |image: &CStr| call!(cuModuleLoadData(&mut module, image.as_ptr().cast()));
        assert_eq!(load(PTX), CUresult::SUCCESS);
        assert_eq!(load(c"\x7fELF\x02"), CUresult::SUCCESS);
        assert_eq!(load(c"int main() {}"), CUresult::ERROR_INVALID_IMAGE);
        assert_eq!(load(c""), CUresult::ERROR_INVALID_IMAGE);
        refused!(ERROR_FILE_NOT_FOUND, cuModuleLoad(&mut module, c"/no/such/file".as_ptr()));
        refused!(ERROR_INVALID_VALUE, cuModuleLoadData(&mut module, std::ptr::null()));
        // Of an image that is not PTX nothing is known, so every kernel is there.
        ok!(cuModuleLoadData(&mut module, c"\x7fELF\x02".as_ptr().cast()));
        let (mut any, none) = (CUfunction::NULL, null_mut());
        ok!(cuModuleGetFunction(&mut any, module, c"_Z3anyPf".as_ptr()));
        ok!(cuLaunchKernel(any, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, none, none));
        ok!(cuCtxSynchronize());
    }

    a_library_is_in_every_context("devices=2") {
        let (mut library, mut kernel, none) = (CUlibrary::NULL, CUkernel::NULL, null_mut());
        let first = context_on(0);
        let code = PTX.as_ptr().cast();
        ok!(cuLibraryLoadData(&mut library, code, none, null_mut(), 0, none, null_mut(), 0));
        ok!(cuLibraryGetKernel(&mut kernel, library, c"spin_only".as_ptr()));
        let mut count = 0;
        ok!(cuLibraryGetKernelCount(&mut count, library));
        assert_eq!(count, 4);
        let (mut one, mut two) = (CUfunction::NULL, CUfunction::NULL);
        ok!(cuKernelGetFunction(&mut one, kernel));
        context_on(1);
        ok!(cuKernelGetFunction(&mut two, kernel));
        assert_ne!(one, two);
        let mut ns = 1000_u64;
        let mut params: [*mut c_void; 1] = [(&raw mut ns).cast()];
        let (p, null) = (params.as_mut_ptr(), CUstream::NULL);
        ok!(cuLaunchKernel(two, 1, 1, 1, 1, 1, 1, 0, null, p, null_mut()));
        // A kernel may stand where a function is asked for.
        ok!(cuLaunchKernel(CUfunction(kernel.0), 1, 1, 1, 1, 1, 1, 0, null, p, null_mut()));
        refused!(
            ERROR_INVALID_HANDLE,
            cuLaunchKernel(one, 1, 1, 1, 1, 1, 1, 0, null, p, null_mut())
        );
        ok!(cuCtxSynchronize());
        let dynamic = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let mut value = 0;
        ok!(cuKernelSetAttribute(dynamic, 60_000, kernel, 0));
        ok!(cuKernelGetAttribute(&mut value, dynamic, kernel, 0));
        assert_eq!(value, 60_000);
        ok!(cuFuncGetAttribute(&mut value, dynamic, two));
        assert_eq!(value, 60_000);
        let (mut at, mut bytes) = (0, 0);
        ok!(cuLibraryGetGlobal(&mut at, &mut bytes, library, c"counter".as_ptr()));
        assert_eq!(bytes, 4);
        ok!(cuLibraryUnload(library));
        refused!(ERROR_INVALID_HANDLE, cuKernelGetFunction(&mut one, kernel));
        ok!(cuCtxSetCurrent(first));
    }

    ptx_is_linked("") {
        context_on(0);
        let (mut link, none) = (CUlinkState::NULL, null_mut());
        ok!(cuLinkCreate_v2(0, none, null_mut(), &mut link));
        let mut image = null_mut();
        let mut size = 0;
        refused!(ERROR_NO_BINARY_FOR_GPU, cuLinkComplete(link, &mut image, &mut size));
        let text = c".version 7.0 .entry one() { ret; }";
        for (name, text) in [(c"a", text), (c"b", PTX)] {
            let (data, len) = (text.as_ptr().cast_mut().cast(), text.count_bytes() + 1);
            let (kind, name) = (CU_JIT_INPUT_PTX, name.as_ptr());
            ok!(cuLinkAddData_v2(link, kind, data, len, name, 0, none, null_mut()));
        }
        ok!(cuLinkComplete(link, &mut image, &mut size));
        let mut module = CUmodule::NULL;
        ok!(cuModuleLoadData(&mut module, image));
        ok!(cuLinkDestroy(link));
        refused!(ERROR_INVALID_HANDLE, cuLinkDestroy(link));
        let mut function = CUfunction::NULL;
        for name in [c"one", c"spin"] {
            ok!(cuModuleGetFunction(&mut function, module, name.as_ptr()));
        }
    }
}
