//! The node's GPUs as the driver reports them at the start: identity, index, memory, description. A process lists them
//! ([`list`]), by NVML, or by CUDA where the driver's directory has no NVML.

mod cuda;
mod fabric;
pub mod list;

use crate::mps::MpsProcess;
use crate::paths::Driver;
use gpuslice_engine::NoSlices;
use gpuslice_wire::ids::{GpuUuid, NvmlIndex};
use gpuslice_wire::limits::{GPUS_MAX, NAME_BYTES_MAX};
use gpuslice_wire::node::Numa;
use gpuslice_wire::text::{Name, Text, is_seen};
use gpuslice_wire::units::Bytes;
use list::{ListedGpu, Listing};
use std::path::PathBuf;

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
    /// What the driver says about a GPU.
    fn of(gpu: &ListedGpu) -> About {
        About {
            product: shown(&gpu.product),
            pci: shown(&gpu.pci),
            numa: Numa(gpu.numa),
            capability: gpu.capability,
            driver: shown(&gpu.driver),
            minor: gpu.minor,
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

/// The node's GPUs cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// They were not listed.
    #[error("{0}")]
    NotListed(String),
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
    /// The driver works and shows no GPU.
    #[error("the driver in {} shows no GPU; check that nvidia-smi -L lists this node's", .0.display())]
    None(PathBuf),
    /// A simulated GPU in a real driver's place: its files could not be mounted into containers.
    #[error("the driver in {} is a copy of the simulated GPU's; name that one's own directory instead (gpuslice sim libraries)", .0.display())]
    Copied(PathBuf),
    /// More GPUs than one daemon serves.
    #[error("{0} GPUs are more than the {GPUS_MAX} that one daemon serves")]
    TooMany(usize),
}

/// All GPUs of the driver, at least one. No process that `may_be_slices` counts as MPS.
///
/// # Errors
/// [`GpuError`].
pub fn find(
    driver: &Driver,
    may_be_slices: impl Fn(&MpsProcess) -> bool,
) -> Result<Vec<Gpu>, GpuError> {
    let listing = list::ask(driver).map_err(GpuError::NotListed)?;
    for (gpu, why) in &listing.silent {
        tracing::error!(gpu, %why, "this GPU does not answer and has no slices: check it with nvidia-smi -i {gpu}; gpusliced logs when it answers");
    }
    let gpus = checked(&listing, may_be_slices)?;
    let simulated = gpus.iter().any(|gpu| gpu.uuid.is_simulated());
    match () {
        () if gpus.is_empty() => Err(GpuError::None(driver.dir.clone())),
        () if simulated && !driver.is_simulated() => Err(GpuError::Copied(driver.dir.clone())),
        () => Ok(gpus),
    }
}

/// The listed GPUs, if the daemon can serve so many and each has a GPU's UUID.
fn checked(
    listing: &Listing,
    may_be_slices: impl Fn(&MpsProcess) -> bool,
) -> Result<Vec<Gpu>, GpuError> {
    if listing.gpus.len() > GPUS_MAX {
        return Err(GpuError::TooMany(listing.gpus.len()));
    }
    let all = listing.gpus.iter().map(|it| {
        let uuid = it.uuid.parse();
        let bad_uuid = |_| GpuError::Uuid { index: it.index, uuid: it.uuid.clone() };
        Ok(Gpu {
            uuid: uuid.map_err(bad_uuid)?,
            index: NvmlIndex(it.index),
            total: Bytes(it.total),
            no_slices: it.modes.no_slices(&may_be_slices),
            about: About::of(it),
        })
    });
    let mut gpus = all.collect::<Result<Vec<Gpu>, GpuError>>()?;
    listing.fabric.describe(gpus.iter_mut().map(|gpu| &mut gpu.about));
    Ok(gpus)
}

/// A product's name as text of bounded length; characters that do not show are left out.
pub fn product_of(name: &str) -> Name {
    let mut text: String = name.chars().filter(|c| is_seen(*c)).collect();
    text.truncate(text.floor_char_boundary(NAME_BYTES_MAX));
    Name::new(text.trim()).unwrap_or(Name::EMPTY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_listed_is_checked() {
        let listed = |uuid: &str, number: usize| {
            let product = "NVIDIA \u{202e}H200".to_owned();
            let gpu = || ListedGpu {
                uuid: uuid.to_owned(),
                total: 1024,
                product: product.clone(),
                ..ListedGpu::default()
            };
            checked(
                &Listing { gpus: (0..number).map(|_| gpu()).collect(), ..Listing::default() },
                |_| false,
            )
        };
        let uuid = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";
        let gpus = listed(uuid, GPUS_MAX).expect("as many as are served");
        assert_eq!((gpus.len(), gpus[0].total), (GPUS_MAX, Bytes(1024)));
        assert_eq!(gpus[0].about.product.as_str(), "NVIDIA H200");
        assert!(matches!(listed(uuid, GPUS_MAX + 1), Err(GpuError::TooMany(17))));
        assert!(matches!(listed("MIG-1", 1), Err(GpuError::Uuid { index: 0, .. })));
    }

    #[test]
    fn a_description_is_shortened_and_plain() {
        assert_eq!(shown::<4>("a\u{202e}bcdef").as_str(), "abcd");
    }
}
