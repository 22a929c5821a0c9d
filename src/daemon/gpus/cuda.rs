//! Asks a CUDA driver for its GPUs, where there is no NVML.

// For calls into the driver.
#![allow(unsafe_code)]

use super::list::ListedGpu;
use gpuslice_nvabi::sig;
use gpuslice_nvabi::types::{CUresult, CUuuid};
use gpuslice_wire::ids::GpuUuid;
use std::path::Path;

/// The driver's GPUs, in CUDA's order.
///
/// # Errors
/// Which call failed.
pub fn devices(library: &Path) -> Result<Vec<ListedGpu>, String> {
    // SAFETY: loading the driver runs its constructors, as intended.
    let driver = unsafe { libloading::Library::new(library) }.map_err(|error| error.to_string())?;
    let missing = |error: libloading::Error| error.to_string();
    // SAFETY: the driver's functions of these names have the table's signatures.
    let (init, count_of, uuid_of, total_of, name_of) = unsafe {
        (
            driver.get::<sig::cuInit>(b"cuInit\0").map_err(missing)?,
            driver.get::<sig::cuDeviceGetCount>(b"cuDeviceGetCount\0").map_err(missing)?,
            driver.get::<sig::cuDeviceGetUuid>(b"cuDeviceGetUuid\0").map_err(missing)?,
            driver.get::<sig::cuDeviceTotalMem_v2>(b"cuDeviceTotalMem_v2\0").map_err(missing)?,
            driver.get::<sig::cuDeviceGetName>(b"cuDeviceGetName\0").map_err(missing)?,
        )
    };
    let check = |call: &str, result: CUresult| match result {
        CUresult::SUCCESS => Ok(()),
        CUresult(code) => Err(format!("{call} answered {code}")),
    };
    let mut count = 0;
    // SAFETY: `count` is a live local.
    unsafe {
        check("cuInit", init(0))?;
        check("cuDeviceGetCount", count_of(&mut count))?;
    }
    let mut all = Vec::new();
    for device in 0..count {
        let (mut uuid, mut total) = (CUuuid { bytes: [0; 16] }, 0);
        let mut name = [0; 256];
        // SAFETY: all pointers are to live locals; the last byte of the name's is not the driver's to write.
        unsafe {
            check("cuDeviceGetUuid", uuid_of(&mut uuid, device))?;
            check("cuDeviceTotalMem", total_of(&mut total, device))?;
            check("cuDeviceGetName", name_of(name.as_mut_ptr(), 255, device))?;
        }
        let name: Vec<u8> = name.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
        all.push(ListedGpu {
            uuid: GpuUuid(uuid.bytes.map(|byte| byte as u8)).to_string(),
            index: device as u32,
            total: total as u64,
            product: String::from_utf8_lossy(&name).into_owned(),
            ..ListedGpu::default()
        });
    }
    Ok(all)
}
