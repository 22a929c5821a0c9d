//! Asks a CUDA driver for its GPUs, where there is no NVML.
//!
//! A driver maps hundreds of megabytes and starts threads, which would stay in the daemon. So a child process
//! of the same program loads it, prints a line per GPU (`UUID bytes product`) and ends.

// For calls into the driver.
#![allow(unsafe_code)]

use crate::gpus::product_of;
use gpuslice_nvabi::sig;
use gpuslice_nvabi::types::{CUresult, CUuuid};
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::limits::GPUS_MAX;
use gpuslice_wire::text::Name;
use gpuslice_wire::units::Bytes;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs the child and parses its output: identity, memory and product of each GPU, in CUDA's order.
///
/// # Errors
/// What failed, in the child's words if it printed any.
pub fn ask(library: &str) -> Result<Vec<(GpuUuid, Bytes, Name)>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.arg("--probe-cuda").arg(library).stdin(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    parse(&String::from_utf8_lossy(&output.stdout))
}

fn parse(text: &str) -> Result<Vec<(GpuUuid, Bytes, Name)>, String> {
    let gpu = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (uuid, total) = (words.next()?, words.next()?);
        let product = product_of(words.next().unwrap_or_default());
        Some((uuid.parse().ok()?, Bytes(total.parse().ok()?), product))
    };
    let gpus: Option<Vec<(GpuUuid, Bytes, Name)>> = text.lines().map(gpu).collect();
    gpus.filter(|all| all.len() <= GPUS_MAX).ok_or_else(|| format!("it printed {text:?}"))
}

/// The child: loads the driver and prints its GPUs.
///
/// # Errors
/// Which call failed.
pub fn print(library: &Path) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    for (uuid, total, product) in devices(library)? {
        writeln!(out, "{} {total} {product}", GpuUuid(uuid)).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn devices(library: &Path) -> Result<Vec<([u8; 16], usize, Name)>, String> {
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
        let product = product_of(&String::from_utf8_lossy(&name));
        all.push((uuid.bytes.map(|byte| byte as u8), total, product));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_childs_output_is_checked() {
        let uuid = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";
        let gpus = parse(&format!("{uuid} 1024\n")).expect("one GPU");
        assert_eq!((gpus.len(), gpus[0].1), (1, Bytes(1024)));
        let gpus = parse(&format!("{uuid} 1024 NVIDIA \u{202e}H200\n")).expect("one GPU");
        assert_eq!(gpus[0].2.as_str(), "NVIDIA H200");
        for bad in
            ["x", &format!("{uuid}\n"), &format!("{uuid} -1\n"), &format!("{uuid} 1\n").repeat(17)]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
