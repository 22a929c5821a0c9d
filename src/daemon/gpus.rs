//! The node's GPUs as NVML reports them at the start: identity, index, memory, description. Without NVML in the driver
//! directory, a child process asks CUDA instead ([`crate::probe`]).

use crate::fabric;
use crate::mps::MpsProcess;
use crate::nvml::{Device, Nvml, NvmlError};
use crate::paths::Driver;
use gpuslice_engine::NoSlices;
use gpuslice_wire::ids::{GpuUuid, NvmlIndex};
use gpuslice_wire::limits::{GPUS_MAX, NAME_BYTES_MAX};
use gpuslice_wire::node::Numa;
use gpuslice_wire::text::{Name, Text, is_seen};
use gpuslice_wire::units::Bytes;
use std::path::{Path, PathBuf};

/// A GPU of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Identity.
    pub uuid: GpuUuid,
    /// NVML's index.
    pub index: NvmlIndex,
    /// Physical memory.
    pub total: Bytes,
    /// Why no slice of it is given.
    pub no_slices: Option<NoSlices>,
    /// Its description.
    pub about: About,
}

/// A GPU's description: what NVML says about it, which decides nothing. Unknown parts are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The product's name.
    pub product: Text<96>,
    /// PCI address as the kernel writes it: `0000:3b:00.0`.
    pub pci: Text<32>,
    /// NUMA node.
    pub numa: Numa,
    /// Compute capability, major and minor.
    pub capability: [u8; 2],
    /// The driver's version.
    pub driver: Text<80>,
    /// Number of its device node.
    pub minor: Option<u32>,
    /// Name of the group of GPUs that NVLink connects it with.
    pub island: Text<64>,
    /// NVLinks to each GPU, by its place among the node's.
    pub links: [u8; GPUS_MAX],
    /// NVML's level of the way to each of them.
    pub near: [u8; GPUS_MAX],
}

impl About {
    /// What NVML says about a GPU.
    fn of(nvml: &Nvml, device: &Device<'_>) -> About {
        let pci = device.pci().map(|address| kernel_address(&address)).unwrap_or_default();
        let part = |number: i32| u8::try_from(number).unwrap_or(0);
        About {
            product: shown(&device.product().unwrap_or_default()),
            pci: shown(&pci),
            numa: Numa(numa_node(&pci)),
            capability: device
                .capability()
                .map_or([0; 2], |(major, minor)| [major, minor].map(part)),
            driver: shown(&nvml.driver_version().unwrap_or_default()),
            minor: device.minor().ok(),
            near: [u8::MAX; GPUS_MAX],
            ..About::default()
        }
    }
}

/// The beginning of a text that fits, without characters that are not seen.
fn shown<const N: usize>(text: &str) -> Text<N> {
    let clean: String = text.chars().filter(|c| is_seen(*c)).collect();
    Text::new(&clean[..clean.floor_char_boundary(N)]).unwrap_or(Text::EMPTY)
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

/// The node's GPUs cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// NVML does not start.
    #[error("{}: {why}; check that nvidia-smi works on this node", .library.display())]
    Start {
        /// The library asked.
        library: PathBuf,
        /// Why it does not start.
        why: String,
    },
    /// An NVML call failed.
    #[error("{}: {why}; check that nvidia-smi works on this node", .library.display())]
    Nvml {
        /// The library asked.
        library: PathBuf,
        /// The call and its answer.
        why: NvmlError,
    },
    /// The UUID is not a GPU's, such as that of a MIG instance.
    #[error(
        "GPU {index} has the UUID {uuid:?}, which is not a GPU's; MIG instances cannot be sliced"
    )]
    Uuid {
        /// NVML's index.
        index: u32,
        /// The UUID as reported.
        uuid: String,
    },
    /// There is no NVML, and asking CUDA failed.
    #[error(
        "{library} has no libnvidia-ml.so.1 beside it, and asking it for its GPUs failed: {why}"
    )]
    Probe {
        /// The library asked.
        library: String,
        /// What went wrong.
        why: String,
    },
    /// The driver works and shows no GPU.
    #[error("the driver in {} shows no GPU; check that nvidia-smi -L lists this node's", .0.display())]
    None(PathBuf),
    /// A simulated GPU in a real driver's place: its files could not be mounted into containers.
    #[error("the driver in {} is a copy of the simulated GPU's; name that one's own directory instead (gpuslice sim libraries)", .0.display())]
    Copied(PathBuf),
    /// More GPUs than one daemon serves.
    #[error("{0} GPUs are more than the {GPUS_MAX} that one daemon serves")]
    TooMany(u32),
}

/// All GPUs of the driver, at least one. No process that `may_be_slices` counts as MPS.
///
/// # Errors
/// [`GpuError`].
pub fn find(
    driver: &Driver,
    may_be_slices: &dyn Fn(&MpsProcess) -> bool,
) -> Result<Vec<Gpu>, GpuError> {
    let gpus = ask(driver, may_be_slices)?;
    let simulated = gpus.iter().any(|gpu| gpu.uuid.is_simulated());
    match () {
        () if gpus.is_empty() => Err(GpuError::None(driver.dir.clone())),
        () if simulated && !driver.is_simulated() => Err(GpuError::Copied(driver.dir.clone())),
        () => Ok(gpus),
    }
}

/// A product's name as text of bounded length; characters that do not show are left out.
pub fn product_of(name: &str) -> Name {
    let mut text: String = name.chars().filter(|c| is_seen(*c)).collect();
    text.truncate(text.floor_char_boundary(NAME_BYTES_MAX));
    Name::new(text.trim()).unwrap_or(Name::EMPTY)
}

/// Asks NVML for all GPUs.
fn ask(driver: &Driver, may_be_slices: &dyn Fn(&MpsProcess) -> bool) -> Result<Vec<Gpu>, GpuError> {
    if driver.nvml.is_empty() {
        let library = driver.cuda.as_str();
        let found = crate::probe::ask(library)
            .map_err(|why| GpuError::Probe { library: library.to_owned(), why })?;
        let gpu = |(index, (uuid, total, product)): (u32, (GpuUuid, Bytes, Name))| Gpu {
            uuid,
            index: NvmlIndex(index),
            total,
            no_slices: None,
            about: About {
                product: shown(product.as_str()),
                near: [u8::MAX; GPUS_MAX],
                ..About::default()
            },
        };
        return Ok((0..).zip(found).map(gpu).collect());
    }
    let library = Path::new(driver.nvml.as_str());
    let nvml =
        Nvml::open(library).map_err(|why| GpuError::Start { library: library.to_owned(), why })?;
    let failed = |why| GpuError::Nvml { library: library.to_owned(), why };
    let count = nvml.count().map_err(failed)?;
    if count as usize > GPUS_MAX {
        return Err(GpuError::TooMany(count));
    }
    let gpu = |index| {
        let device = nvml.at(index).map_err(failed)?;
        let uuid = device.uuid().map_err(failed)?;
        let uuid = uuid.parse().map_err(|_| GpuError::Uuid { index, uuid })?;
        let total = device.total().map_err(failed)?;
        let no_slices = device.no_slices(may_be_slices).map_err(failed)?;
        let index = NvmlIndex(index);
        Ok(Gpu { uuid, index, total, no_slices, about: About::of(&nvml, &device) })
    };
    let (mut gpus, mut left_out) = (Vec::new(), None);
    for index in 0..count {
        match gpu(index) {
            Ok(gpu) => gpus.push(gpu),
            // One that fell off the bus keeps none of the others from being served.
            Err(GpuError::Nvml { library, why }) => {
                tracing::error!(gpu = index, %why, "this GPU does not answer and has no slices: check it with nvidia-smi -i {index}; gpusliced logs when it answers");
                left_out.get_or_insert(GpuError::Nvml { library, why });
            }
            Err(why) => return Err(why),
        }
    }
    if let (Some(why), true) = (left_out, gpus.is_empty()) {
        return Err(why);
    }
    let indices: Vec<NvmlIndex> = gpus.iter().map(|gpu| gpu.index).collect();
    fabric::of(&nvml, indices.into_iter()).describe(gpus.iter_mut().map(|gpu| &mut gpu.about));
    Ok(gpus)
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

    #[test]
    fn a_description_is_shortened_and_plain() {
        assert_eq!(shown::<4>("a\u{202e}bcdef").as_str(), "abcd");
    }
}
