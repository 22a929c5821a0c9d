//! Lists the driver's GPUs in a process of its own (`--list-gpus`): this program again, which loads NVML, or CUDA where
//! there is no NVML, prints what they say as JSON and ends ([`crate::one_answer`]).

use super::cuda;
use super::fabric::{self, Fabric};
use crate::modes::Modes;
use crate::nvml::{Nvml, NvmlError};
use crate::one_answer::answer;
use crate::paths::Driver;
use gpuslice_wire::ids::NvmlIndex;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io;
use std::path::Path;

/// All that the driver says.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Listing {
    /// The GPUs that answer.
    pub gpus: Vec<ListedGpu>,
    /// How they are connected.
    pub fabric: Fabric,
    /// The indices of those that do not answer, and NVML's errors.
    pub silent: Vec<(u32, NvmlError)>,
}

/// What the driver says about a GPU. Unknown parts are empty.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct ListedGpu {
    /// As the driver writes it.
    pub uuid: String,
    /// NVML's index; without NVML that of CUDA.
    pub index: u32,
    /// Physical memory, bytes.
    pub total: u64,
    /// Its modes.
    pub modes: Modes,
    /// The product's name.
    pub product: String,
    /// PCI address as the kernel writes it.
    pub pci: String,
    /// NUMA node.
    pub numa: Option<u32>,
    /// Compute capability, major and minor.
    pub capability: [u8; 2],
    /// The driver's version.
    pub driver: String,
    /// Number of its device node.
    pub minor: Option<u32>,
}

impl ListedGpu {
    fn of(nvml: &Nvml, index: u32) -> Result<ListedGpu, NvmlError> {
        let device = nvml.at(index)?;
        let pci = device.pci().map(|address| kernel_address(&address)).unwrap_or_default();
        let part = |number: i32| u8::try_from(number).unwrap_or(0);
        let capability = device.capability();
        Ok(ListedGpu {
            uuid: device.uuid()?,
            index,
            total: device.total()?.0,
            modes: device.modes()?,
            product: device.product().unwrap_or_default(),
            numa: numa_node(&pci),
            pci,
            capability: capability.map_or([0; 2], |(major, minor)| [major, minor].map(part)),
            driver: nvml.driver_version().unwrap_or_default(),
            minor: device.minor().ok(),
        })
    }
}

/// Lists a driver's GPUs in a process.
///
/// # Errors
/// Why it cannot, as a sentence.
pub fn ask(driver: &Driver) -> Result<Listing, String> {
    let arguments = ["--list-gpus", driver.cuda.as_str(), driver.nvml.as_str()];
    let library = if driver.nvml.is_empty() { &driver.cuda } else { &driver.nvml };
    let failed = |why: String| match driver.nvml.is_empty() {
        true => format!(
            "{library} has no libnvidia-ml.so.1 beside it, and asking it for its GPUs failed: {why}"
        ),
        false => format!("{library}: {why}; check that nvidia-smi works on this node"),
    };
    let printed = answer(arguments.map(OsStr::new)).map_err(failed)?;
    serde_json::from_slice(&printed).map_err(|why| failed(why.to_string()))
}

/// The process: prints the GPUs of this CUDA library, or of this NVML unless its path is empty.
///
/// # Errors
/// Which call failed.
pub fn print(cuda: &Path, nvml: &Path) -> Result<(), String> {
    let listing = match nvml.as_os_str().is_empty() {
        true => Listing { gpus: cuda::devices(cuda)?, ..Listing::default() },
        false => listed(&Nvml::open(nvml)?).map_err(|why| why.to_string())?,
    };
    serde_json::to_writer(io::stdout().lock(), &listing).map_err(|why| why.to_string())
}

/// Asks NVML for all GPUs. One that fell off the bus keeps none of the others from being served.
fn listed(nvml: &Nvml) -> Result<Listing, NvmlError> {
    let mut listing = Listing::default();
    for index in 0..nvml.count()? {
        match ListedGpu::of(nvml, index) {
            Ok(gpu) => listing.gpus.push(gpu),
            Err(why) => listing.silent.push((index, why)),
        }
    }
    if let ([], [(_, why), ..]) = (&listing.gpus[..], &listing.silent[..]) {
        return Err(why.clone());
    }
    listing.fabric = fabric::of(nvml, listing.gpus.iter().map(|gpu| NvmlIndex(gpu.index)));
    Ok(listing)
}

/// NVML's form of a PCI address (`00000000:3B:00.0`) in the kernel's form (`0000:3b:00.0`).
fn kernel_address(address: &str) -> String {
    let lower = address.to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 && domain.starts_with("0000") => {
            format!("{}:{rest}", &domain[4..])
        }
        _ => lower,
    }
}

/// The NUMA node of a PCI device; `None` where the kernel knows none.
fn numa_node(pci: &str) -> Option<u32> {
    let plain = |b: u8| b.is_ascii_hexdigit() || matches!(b, b':' | b'.');
    let path = (!pci.is_empty() && pci.bytes().all(plain))
        .then(|| format!("/sys/bus/pci/devices/{pci}/numa_node"))?;
    // The kernel writes -1 for "none".
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_the_kernel_writes_them() {
        for (nvml, kernel) in [
            ("00000000:3B:00.0", "0000:3b:00.0"),
            ("00010000:3B:00.0", "00010000:3b:00.0"),
            ("0000:3b:00.0", "0000:3b:00.0"),
            ("", ""),
        ] {
            assert_eq!(kernel_address(nvml), kernel);
        }
        for odd in ["", "..", "../../x", "0000:3b:00.0/../x"] {
            assert_eq!(numa_node(odd), None, "{odd}");
        }
    }
}
