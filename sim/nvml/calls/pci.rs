//! Where a device sits, and how it is connected.

use super::health::constant;
use crate::abi::Outcome;
use crate::abi::{In, Out};
use crate::session::{gpu, handle, machine};
use core::ffi::c_char;
use gpuslice_nvabi::types::*;

/// No card's device id: 0x0000 below NVIDIA's vendor id.
const PCI_ID: u32 = 0x0000_10de;
/// PCI class "3D controller".
const BASE_CLASS: u32 = 3;
const SUB_CLASS: u32 = 2;

fn padded<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (place, byte) in array.iter_mut().zip(text.bytes().take(N - 1)) {
        *place = byte as c_char;
    }
    array
}

/// `[domain:]bus:device[.function]` in hexadecimal.
fn parse(text: &str) -> Option<(u32, u8, u8)> {
    let (text, function) = text.rsplit_once('.').unwrap_or((text, "0"));
    let parts: Vec<&str> = text.split(':').collect();
    let (domain, bus, device) = match parts[..] {
        [bus, device] => ("0", bus, device),
        [domain, bus, device] => (domain, bus, device),
        _ => return None,
    };
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let byte = |text: &str| number(text).and_then(|number| u8::try_from(number).ok());
    (number(function)? == 0).then_some((number(domain)?, byte(bus)?, byte(device)?))
}

pub(crate) fn nvmlDeviceGetHandleByPciBusId(
    bus_id: In<c_char>,
    device: Out<nvmlDevice_t>,
) -> Outcome {
    let machine = machine()?;
    let wanted = parse(&bus_id.text()?).ok_or(nvmlReturn_t::ERROR_INVALID_ARGUMENT)?;
    let found = machine.gpus().iter().find(|gpu| gpu.pci == wanted);
    device.put(handle(found.ok_or(nvmlReturn_t::ERROR_NOT_FOUND)?.index))
}

pub(crate) fn nvmlDeviceGetHandleByPciBusId_v2(
    bus_id: In<c_char>,
    device: Out<nvmlDevice_t>,
) -> Outcome {
    nvmlDeviceGetHandleByPciBusId(bus_id, device)
}

pub(crate) fn nvmlDeviceGetPciInfo(device: nvmlDevice_t, pci: Out<nvmlPciInfo_t>) -> Outcome {
    let (domain, bus, slot) = gpu(device)?.1.pci;
    pci.put(nvmlPciInfo_t {
        bus_id_legacy: padded(&format!("{domain:04X}:{bus:02X}:{slot:02X}.0")),
        domain,
        bus: bus.into(),
        device: slot.into(),
        pci_device_id: PCI_ID,
        pci_sub_system_id: PCI_ID,
        bus_id: padded(&format!("{domain:08X}:{bus:02X}:{slot:02X}.0")),
    })
}

pub(crate) fn nvmlDeviceGetPciInfo_v2(device: nvmlDevice_t, pci: Out<nvmlPciInfo_t>) -> Outcome {
    nvmlDeviceGetPciInfo(device, pci)
}
pub(crate) use nvmlDeviceGetPciInfo_v2 as nvmlDeviceGetPciInfo_v3;

pub(crate) fn nvmlDeviceGetPciInfoExt(device: nvmlDevice_t, pci: Out<nvmlPciInfoExt_t>) -> Outcome {
    let (domain, bus, slot) = gpu(device)?.1.pci;
    if pci.get()?.version != nvmlPciInfoExt_v1 {
        return Err(nvmlReturn_t::ERROR_ARGUMENT_VERSION_MISMATCH);
    }
    pci.put(nvmlPciInfoExt_t {
        version: nvmlPciInfoExt_v1,
        domain,
        bus: bus.into(),
        device: slot.into(),
        pci_device_id: PCI_ID,
        pci_sub_system_id: PCI_ID,
        base_class: BASE_CLASS,
        sub_class: SUB_CLASS,
        bus_id: padded(&format!("{domain:08X}:{bus:02X}:{slot:02X}.0")),
    })
}

pub(crate) fn nvmlDeviceGetBusType(device: nvmlDevice_t, kind: Out<nvmlBusType_t>) -> Outcome {
    constant(device, kind, NVML_BUS_TYPE_PCIE)
}

/// The link is a PCIe 5.0 x16 one.
const GENERATION: u32 = 5;
const WIDTH: u32 = 16;
const SPEED_MBPS: u32 = 32_000;

pub(crate) fn nvmlDeviceGetMaxPcieLinkGeneration(device: nvmlDevice_t, out: Out<u32>) -> Outcome {
    constant(device, out, GENERATION)
}
pub(crate) use nvmlDeviceGetMaxPcieLinkGeneration as nvmlDeviceGetGpuMaxPcieLinkGeneration;
pub(crate) use nvmlDeviceGetMaxPcieLinkGeneration as nvmlDeviceGetCurrPcieLinkGeneration;

pub(crate) fn nvmlDeviceGetMaxPcieLinkWidth(device: nvmlDevice_t, out: Out<u32>) -> Outcome {
    constant(device, out, WIDTH)
}
pub(crate) use nvmlDeviceGetMaxPcieLinkWidth as nvmlDeviceGetCurrPcieLinkWidth;

pub(crate) fn nvmlDeviceGetPcieSpeed(device: nvmlDevice_t, out: Out<u32>) -> Outcome {
    constant(device, out, SPEED_MBPS)
}

/// In KiB/s; copies of the simulated device do not cross a bus.
pub(crate) fn nvmlDeviceGetPcieThroughput(
    device: nvmlDevice_t,
    counter: nvmlPcieUtilCounter_t,
    value: Out<u32>,
) -> Outcome {
    gpu(device)?;
    match counter {
        NVML_PCIE_UTIL_TX_BYTES | NVML_PCIE_UTIL_RX_BYTES => value.put(0),
        _ => Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT),
    }
}

pub(crate) fn nvmlDeviceGetPcieReplayCounter(device: nvmlDevice_t, out: Out<u32>) -> Outcome {
    constant(device, out, 0)
}

pub(crate) fn nvmlDeviceGetTopologyCommonAncestor(
    first: nvmlDevice_t,
    second: nvmlDevice_t,
    level: Out<nvmlGpuTopologyLevel_t>,
) -> Outcome {
    let same = gpu(first)?.1.index == gpu(second)?.1.index;
    level.put(if same { NVML_TOPOLOGY_INTERNAL } else { NVML_TOPOLOGY_NODE })
}

pub(crate) fn nvmlDeviceGetP2PStatus(
    first: nvmlDevice_t,
    second: nvmlDevice_t,
    _what: nvmlGpuP2PCapsIndex_t,
    status: Out<nvmlGpuP2PStatus_t>,
) -> Outcome {
    gpu(first)?;
    constant(second, status, NVML_P2P_STATUS_NOT_SUPPORTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_in_all_forms() {
        for good in ["0000:10:00.0", "00000000:10:00.0", "10:00.0", "10:0"] {
            assert_eq!(parse(good), Some((0, 0x10, 0)), "{good}");
        }
        for bad in ["", "10", "0:0:0:0", "x:y", "10:00.1", "100:00.0:"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
