//! Paths of the runtime directory, the driver and the shim.
//!
//! A driver is a directory with `libcuda.so.1` and mostly `libnvidia-ml.so.1`. If one is named, only that one is
//! used, otherwise only the system's. A node with a broken driver must not serve GPUs that compute nothing, so
//! the simulated GPU's driver, which the build puts beside the programs in `sim/`, must be named.

use crate::command_line::CommandLine;
use crate::config::{Absolute, DaemonConfig};
use crate::simulated;
use gpuslice_host::layout::{self, NoDriver};
use gpuslice_wire::text::{HostPath, Text};
use std::env;
use std::io;
use std::path::{Path, PathBuf};

/// A file or directory is missing or unusable.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// A directory without a driver in it.
    #[error("{}: {why}; driver_dir must hold libcuda.so.1, and libnvidia-ml.so.1 if there is one", .dir.display())]
    NoDriver {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// The system's driver is missing, and no other is named.
    #[error("{why}; or name another driver with driver_dir, for a simulated GPU {}", .simulated.display())]
    Missing {
        /// What is missing.
        why: NoDriver,
        /// The simulated GPU's driver directory.
        simulated: PathBuf,
    },
    /// A path that messages cannot carry.
    #[error("{}: {why}; choose a shorter path of plain characters", .path.display())]
    Unrepresentable {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The program's own path is unknown.
    #[error("cannot find this program's own path: {0}; give shim_dir and driver_dir")]
    NoSelf(io::Error),
    /// The simulated GPU cannot be created as `GPUSLICE_SIM` and related variables ask, or cannot be used.
    #[error("{0}")]
    Simulated(String),
}

/// The driver mounted into containers.
#[derive(Debug)]
pub struct Driver {
    /// Its directory, for messages.
    pub dir: PathBuf,
    /// The real `libcuda.so.1`.
    pub cuda: HostPath,
    /// The real `libnvidia-ml.so.1`.
    pub nvml: HostPath,
    /// The directory of the simulated GPU's files; empty on a real driver.
    pub device: HostPath,
}

impl Driver {
    /// Whether its GPUs are simulated.
    pub fn is_simulated(&self) -> bool {
        !self.device.is_empty()
    }
}

/// The shim's libraries.
#[derive(Debug)]
pub struct Shim {
    /// For preload injection.
    pub preload: HostPath,
    /// For mount injection.
    pub mount: HostPath,
    /// In the place of NVML.
    pub nvml_shim: HostPath,
}

/// All paths.
#[derive(Debug)]
pub struct Paths {
    /// Directory of sockets and records.
    pub runtime_dir: PathBuf,
    /// The driver.
    pub driver: Driver,
    /// The shim.
    pub shim: Shim,
}

impl Paths {
    /// The directory of sockets and records; the command line overrides the configuration.
    ///
    /// # Errors
    /// [`PathError::NoSelf`].
    pub fn runtime_dir(options: &CommandLine, config: &DaemonConfig) -> Result<PathBuf, PathError> {
        let runtime = options.runtime_dir.clone().or_else(|| configured(&config.runtime_dir));
        std::path::absolute(runtime.unwrap_or_else(layout::runtime_dir)).map_err(PathError::NoSelf)
    }

    /// Finds the other paths, in the same way.
    ///
    /// # Errors
    /// [`PathError`].
    pub fn find(
        options: &CommandLine,
        config: &DaemonConfig,
        runtime_dir: PathBuf,
    ) -> Result<Paths, PathError> {
        let exe = env::current_exe().map_err(PathError::NoSelf)?;
        let beside = exe.parent().unwrap_or(Path::new("/"));
        let driver = options.driver_dir.clone().or_else(|| configured(&config.driver_dir));
        let driver = match driver {
            Some(dir) => Driver::at(&dir)?,
            None => Driver::at(&system_driver(beside)?)?,
        };
        let shim = configured(&config.shim_dir).unwrap_or_else(|| default_shim_dir(beside));
        Ok(Paths { runtime_dir, driver, shim: Shim::at(&shim)? })
    }
}

fn configured(value: &Option<Absolute>) -> Option<PathBuf> {
    value.as_ref().map(|dir| dir.0.clone())
}

impl Driver {
    /// The driver in `dir`: `libcuda.so.1`, and `libnvidia-ml.so.1` if there is one. Paths keep these names, which
    /// programs look for, even if they are links.
    fn at(dir: &Path) -> Result<Driver, PathError> {
        let no_driver = |why| PathError::NoDriver { dir: dir.to_owned(), why };
        let dir = std::path::absolute(dir).map_err(no_driver)?;
        let (cuda, nvml) = (dir.join("libcuda.so.1"), dir.join("libnvidia-ml.so.1"));
        cuda.canonicalize().map_err(no_driver)?;
        let device = match layout::is_simulated(&cuda) {
            true => host_path(&simulated::prepare(&cuda).map_err(PathError::Simulated)?)?,
            false => HostPath::EMPTY,
        };
        Ok(Driver {
            cuda: host_path(&cuda)?,
            nvml: match nvml.exists() {
                true => host_path(&nvml)?,
                false => HostPath::EMPTY,
            },
            device,
            dir,
        })
    }
}

impl Shim {
    fn at(dir: &Path) -> Result<Shim, PathError> {
        let part = |name: &str| {
            let path = dir.join(name);
            if !path.exists() {
                tracing::warn!(path = %path.display(), "missing; containers cannot use it");
            }
            host_path(&path)
        };
        Ok(Shim {
            preload: part("libgpuslice.so")?,
            mount: part("libgpuslice_mount.so")?,
            nvml_shim: part("libgpuslice_nvml.so")?,
        })
    }
}

/// A path as a field of a message.
///
/// # Errors
/// Longer than the field, or not plain text.
pub fn host_path(path: &Path) -> Result<HostPath, PathError> {
    let wrong = |why: String| PathError::Unrepresentable { path: path.to_owned(), why };
    let text = path.to_str().ok_or_else(|| wrong("not UTF-8".to_owned()))?;
    Text::new(text).map_err(|why| wrong(why.to_string()))
}

fn system_driver(beside: &Path) -> Result<PathBuf, PathError> {
    layout::system_driver().map_err(|why| PathError::Missing {
        why,
        simulated: layout::part(beside, "sim").unwrap_or_else(|| beside.join("sim")),
    })
}

fn default_shim_dir(beside: &Path) -> PathBuf {
    let preload = layout::part(beside, "libgpuslice.so");
    preload.as_deref().and_then(Path::parent).unwrap_or(beside).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_driver_keeps_the_file_names_that_programs_look_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let missing = Driver::at(dir.path()).expect_err("no driver");
        assert!(missing.to_string().contains("must hold libcuda.so.1"), "{missing}");
        for (name, real) in
            [("libcuda.so.1", "libcuda.so.999.1"), ("libnvidia-ml.so.1", "libnvidia-ml.so.999.1")]
        {
            std::fs::write(dir.path().join(real), "").expect("a file");
            symlink(real, dir.path().join(name)).expect("a link");
        }
        let driver = Driver::at(dir.path()).expect("a driver");
        assert!(driver.cuda.as_str().ends_with("/libcuda.so.1"));
        assert!(driver.nvml.as_str().ends_with("/libnvidia-ml.so.1"));
        assert!(driver.device.is_empty());
        std::fs::remove_file(dir.path().join("libnvidia-ml.so.1")).expect("removed");
        let bare = Driver::at(dir.path()).expect("a driver without NVML");
        assert!(bare.nvml.is_empty());
    }

    #[test]
    fn long_paths_are_refused_not_cut() {
        let long = PathBuf::from(format!("/{}", "x".repeat(300)));
        assert!(host_path(&long).is_err());
        assert!(host_path(Path::new("/a\nb")).is_err());
    }
}
