//! The node's GPUs as NVML reports them at the start: identity, index, memory. Without NVML in the driver
//! directory, a child process asks CUDA instead ([`crate::probe`]).

use crate::nvml::{Nvml, NvmlError};
use crate::paths::Driver;
use gpuslice_wire::ids::{GpuUuid, NvmlIndex};
use gpuslice_wire::limits::{GPUS_MAX, NAME_BYTES_MAX};
use gpuslice_wire::text::{Name, is_seen};
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
    /// Its product's name; empty if it is unknown.
    pub product: Name,
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

/// All GPUs of the driver, at least one.
///
/// # Errors
/// [`GpuError`].
pub fn find(driver: &Driver) -> Result<Vec<Gpu>, GpuError> {
    let gpus = ask(driver)?;
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
fn ask(driver: &Driver) -> Result<Vec<Gpu>, GpuError> {
    if driver.nvml.is_empty() {
        let library = driver.cuda.as_str();
        let found = crate::probe::ask(library)
            .map_err(|why| GpuError::Probe { library: library.to_owned(), why })?;
        let gpu = |(index, (uuid, total, product))| {
            let index = NvmlIndex(index);
            Gpu { uuid, index, total, product }
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
        let (total, product) = (device.total().map_err(failed)?, device.product());
        Ok(Gpu { uuid, index: NvmlIndex(index), total, product: product_of(&product) })
    };
    (0..count).map(gpu).collect()
}
