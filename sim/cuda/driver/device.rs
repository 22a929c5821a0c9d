//! Devices: their number, names and sizes.

use super::process::process;
use crate::driver::attributes;
use crate::entry::{In, Out, Outcome, refuse_if};
use gpuslice_nvabi::types::{CUdevice, CUdevice_attribute, CUdevprop, CUresult, CUuuid};
use gpuslice_sim_device::GpuInfo;
use std::ffi::c_char;

/// `0000:11:00.0`, as the driver writes a PCI address.
fn bus_id(gpu: &GpuInfo) -> String {
    let (domain, bus, device) = gpu.pci;
    format!("{domain:04x}:{bus:02x}:{device:02x}.0").to_uppercase()
}

/// Puts a text into a buffer of `len` bytes, cut to fit, closed by a zero.
fn put_text(text: &str, buffer: crate::entry::Out<c_char>, len: i32) -> crate::entry::Outcome {
    let room = usize::try_from(len).unwrap_or(0);
    refuse_if(buffer.is_null() || room == 0)?;
    for (at, byte) in text.bytes().take(room - 1).chain([0]).enumerate() {
        buffer.set_at(at, byte as c_char)?;
    }
    Ok(())
}

/// A C string of at most `most` bytes; not UTF-8 or longer is an invalid value.
pub fn text(from: crate::entry::In<c_char>, most: usize) -> Result<String, CUresult> {
    let mut bytes = Vec::new();
    for at in 0..most {
        match from.at(at)? {
            0 => return String::from_utf8(bytes).map_err(|_| CUresult::ERROR_INVALID_VALUE),
            byte => bytes.push(byte as u8),
        }
    }
    Err(CUresult::ERROR_INVALID_VALUE)
}

pub fn cuDeviceGetCount(count: Out<i32>) -> Outcome {
    count.set(process()?.gpus.len() as i32)
}

pub fn cuDeviceGet(device: Out<CUdevice>, ordinal: i32) -> Outcome {
    device.require()?;
    process()?.gpu(ordinal)?;
    device.set(ordinal)
}

pub fn cuDeviceGetName(name: Out<c_char>, len: i32, dev: CUdevice) -> Outcome {
    put_text(&process()?.gpu(dev)?.name, name, len)
}

pub fn cuDeviceGetUuid(uuid: Out<CUuuid>, dev: CUdevice) -> Outcome {
    let bytes = process()?.gpu(dev)?.uuid.map(|byte| byte as _);
    uuid.set(CUuuid { bytes })
}
pub use cuDeviceGetUuid as cuDeviceGetUuid_v2;

pub fn cuDeviceTotalMem_v2(bytes: Out<usize>, dev: CUdevice) -> Outcome {
    bytes.set(process()?.gpu(dev)?.total_bytes as usize)
}

pub fn cuDeviceGetAttribute(pi: Out<i32>, attrib: CUdevice_attribute, dev: CUdevice) -> Outcome {
    pi.require()?;
    let gpu = process()?.gpu(dev)?;
    let value = attributes::value(gpu, attrib);
    pi.set(value.ok_or(CUresult::ERROR_INVALID_VALUE)?)
}

pub fn cuDeviceGetProperties(prop: Out<CUdevprop>, dev: CUdevice) -> Outcome {
    prop.set(attributes::properties(process()?.gpu(dev)?))
}

pub fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, dev: CUdevice) -> Outcome {
    minor.require()?;
    let (high, low) = process()?.gpu(dev)?.compute_capability;
    major.set(high as i32)?;
    minor.set(low as i32)
}

pub fn cuDeviceGetPCIBusId(id: Out<c_char>, len: i32, dev: CUdevice) -> Outcome {
    put_text(&bus_id(process()?.gpu(dev)?), id, len)
}

pub fn cuDeviceGetByPCIBusId(dev: Out<CUdevice>, id: In<c_char>) -> Outcome {
    dev.require()?;
    let wanted = text(id, 32)?.to_uppercase();
    let found = process()?.gpus.iter().position(|gpu| {
        let full = bus_id(gpu);
        // The domain and the function may be left out.
        full == wanted || full[5..] == wanted || full[..full.len() - 2] == wanted
    });
    dev.set(found.ok_or(CUresult::ERROR_INVALID_DEVICE)? as CUdevice)
}
