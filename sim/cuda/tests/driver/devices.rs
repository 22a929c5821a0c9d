//! Initialisation, entry points by name, devices.

use crate::harness::symbol;
use gpuslice_nvabi::types::*;
use gpuslice_nvabi::{DRIVER, Sim, sig};
use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};

/// Asks for an entry point by name.
fn entry(name: &str, version: i32, flags: u64) -> (CUresult, *mut c_void, u32) {
    let name = CString::new(name).unwrap();
    let (mut address, mut status) = (null_mut(), 99);
    let result =
        call!(cuGetProcAddress_v2(name.as_ptr(), &mut address, version, flags, &mut status));
    (result, address, status)
}

scenarios! {
    every_row_is_exported("") {
        for function in DRIVER {
            assert!(!symbol(function.name).is_null(), "{} is not exported", function.name);
        }
        let implemented = DRIVER.iter().filter(|row| row.sim == Sim::Implemented).count();
        assert!(implemented >= 207, "only {implemented}");
    }

    nothing_works_before_cuInit("") {
        let mut count = 0;
        refused!(ERROR_NOT_INITIALIZED, cuDeviceGetCount(&mut count));
        refused!(ERROR_NOT_INITIALIZED, cuMemAlloc_v2(&mut 0, 64));
        refused!(ERROR_NOT_INITIALIZED, cuCtxGetCurrent(&mut CUcontext(null_mut())));
        refused!(ERROR_INVALID_VALUE, cuInit(1));
        ok!(cuInit(0));
        ok!(cuInit(0));
        ok!(cuDeviceGetCount(&mut count));
        assert_eq!(count, 1);
        refused!(ERROR_INVALID_VALUE, cuDeviceGetCount(null_mut()));
        refused!(ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&mut 0, 64));
    }

    unsupported_rows_say_so("") {
        ok!(cuInit(0));
        let mut count = 0;
        refused!(ERROR_NOT_SUPPORTED, cuMulticastGetGranularity(&mut count, null(), 0));
    }

    versions_and_errors("driver=12.4") {
        let mut version = 0;
        ok!(cuDriverGetVersion(&mut version));
        assert_eq!(version, 12040);
        let mut text = null();
        ok!(cuGetErrorName(CUresult::ERROR_OUT_OF_MEMORY, &mut text));
        // SAFETY: the driver's texts are static.
        assert_eq!(unsafe { CStr::from_ptr(text) }, c"CUDA_ERROR_OUT_OF_MEMORY");
        ok!(cuGetErrorString(CUresult::ERROR_NOT_READY, &mut text));
        refused!(ERROR_INVALID_VALUE, cuGetErrorName(CUresult(-5), &mut text));
        assert!(text.is_null());
        let mut table = null();
        let id = CUuuid { bytes: [1; 16] };
        refused!(ERROR_INVALID_VALUE, cuGetExportTable(&mut table, &id));
    }

    entry_points_by_version_and_stream("driver=12.4") {
        let symbol_of = |name| (CUresult::SUCCESS, symbol(name), CU_GET_PROC_ADDRESS_SUCCESS);
        assert_eq!(entry("cuMemAlloc", 12000, 0), symbol_of("cuMemAlloc_v2"));
        assert_eq!(entry("cuMemAlloc", 2000, 0), symbol_of("cuMemAlloc"));
        assert_eq!(entry("cuCtxCreate", 11030, 0), symbol_of("cuCtxCreate_v2"));
        assert_eq!(entry("cuCtxCreate", 11040, 0), symbol_of("cuCtxCreate_v3"));
        // Newer than the driver is the driver's newest.
        assert_eq!(entry("cuCtxCreate", 13000, 0), symbol_of("cuCtxCreate_v3"));
        assert_eq!(entry("cuMemcpyHtoD", 12000, 2), symbol_of("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(entry("cuMemAllocAsync", 12000, 2), symbol_of("cuMemAllocAsync_ptsz"));
        assert_eq!(entry("cuMemAllocAsync", 12000, 1), symbol_of("cuMemAllocAsync"));
        assert_eq!(entry("cuGetProcAddress", 12000, 0), symbol_of("cuGetProcAddress_v2"));
        let missing = |status| (CUresult::ERROR_NOT_FOUND, null_mut(), status);
        let unknown = missing(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
        assert_eq!(entry("cuNoSuchThing", 12000, 0), unknown);
        assert_eq!(entry("", 12000, 0), unknown);
        assert_eq!(entry("cuMemGetMemPool", 13000, 0), unknown, "of a newer driver");
        let old = missing(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
        assert_eq!(entry("cuMemAllocAsync", 11000, 0), old);
        assert_eq!(entry("cuMemAlloc", 12000, 4).0, CUresult::ERROR_INVALID_VALUE);
        refused!(
            ERROR_INVALID_VALUE,
            cuGetProcAddress_v2(c"cuInit".as_ptr(), null_mut(), 12000, 0, null_mut())
        );
        // The address found is the function.
        let (_, address, _) = entry("cuDriverGetVersion", 12000, 0);
        let mut version = 0;
        // SAFETY: the symbol's type is the table's.
        let result = unsafe {
            std::mem::transmute::<*mut c_void, sig::cuDriverGetVersion>(address)(&mut version)
        };
        assert_eq!((result, version), (CUresult::SUCCESS, 12040));
    }

    devices_describe_themselves("devices=2,mem=1GiB/2GiB,name=One/Two,cc=8.6,sms=84") {
        ok!(cuInit(0));
        let mut name = [1; 8];
        ok!(cuDeviceGetName(name.as_mut_ptr(), 8, 1));
        assert_eq!(name[..4].iter().map(|byte| *byte as u8).collect::<Vec<_>>(), b"Two\0");
        ok!(cuDeviceGetName(name.as_mut_ptr(), 3, 0));
        assert_eq!(name[..3].iter().map(|byte| *byte as u8).collect::<Vec<_>>(), b"On\0");
        let mut bytes = 0;
        ok!(cuDeviceTotalMem_v2(&mut bytes, 1));
        assert_eq!(bytes, 2 << 30);
        let attribute = |which| {
            let mut value = -7;
            ok!(cuDeviceGetAttribute(&mut value, which, 0));
            value
        };
        assert_eq!(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 8);
        assert_eq!(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR), 6);
        assert_eq!(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 84);
        assert_eq!(attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED), 1);
        assert_eq!(attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING), 1);
        let mut value = 0;
        refused!(ERROR_INVALID_VALUE, cuDeviceGetAttribute(&mut value, 4000, 0));
        refused!(ERROR_INVALID_DEVICE, cuDeviceGetAttribute(&mut value, 1, 2));
        refused!(ERROR_INVALID_DEVICE, cuDeviceGet(&mut value, 2));
        refused!(ERROR_INVALID_DEVICE, cuDeviceGet(&mut value, -1));
        let mut id = [0; 32];
        ok!(cuDeviceGetPCIBusId(id.as_mut_ptr(), 32, 1));
        ok!(cuDeviceGetByPCIBusId(&mut value, id.as_ptr()));
        assert_eq!(value, 1);
        refused!(ERROR_INVALID_DEVICE, cuDeviceGetByPCIBusId(&mut value, c"0000:ff:1f.0".as_ptr()));
        ok!(cuDeviceCanAccessPeer(&mut value, 0, 1));
        assert_eq!(value, 1);
    }

    visible_devices_are_chosen_and_ordered(
        "devices=3,mem=1GiB/2GiB/3GiB"; CUDA_VISIBLE_DEVICES = "2,0"
    ) {
        ok!(cuInit(0));
        let mut count = 0;
        ok!(cuDeviceGetCount(&mut count));
        assert_eq!(count, 2);
        let size = |device| {
            let mut bytes = 0;
            ok!(cuDeviceTotalMem_v2(&mut bytes, device));
            bytes >> 30
        };
        assert_eq!((size(0), size(1)), (3, 1));
    }

    no_visible_device_is_no_device(""; CUDA_VISIBLE_DEVICES = "") {
        refused!(ERROR_NO_DEVICE, cuInit(0));
        refused!(ERROR_NOT_INITIALIZED, cuDeviceGetCount(&mut 0));
    }
}
