//! The mounts of a container: source, target and access of each; pure.
//!
//! Two injection methods lead every program to the shim. *Mount*: the shim is bind-mounted over each
//! of the driver's libraries in the container's library directories. *Preload*: `/etc/ld.so.preload`
//! names the shim, whose SONAME also catches programs that bring a driver of their own. The real
//! driver is at a private path that only the shim uses.

use crate::error::Error;
use gpuslice_wire::admin::Mounts;
use gpuslice_wire::text::HostPath;
use std::path::PathBuf;

/// The tenant directory, with the shim's socket and the real driver.
pub(crate) const TENANT_DIR: &str = "run/gpuslice";
/// The preloaded shim, as `/etc/ld.so.preload` names it.
pub(crate) const PRELOAD_LINE: &str = "/run/gpuslice/libgpuslice.so";
/// Name of that library in the tenant directory.
pub(crate) const PRELOAD_NAME: &str = "libgpuslice.so";
/// The loader's preload list, below the root.
pub(crate) const PRELOAD_PATH: &str = "etc/ld.so.preload";
/// The merged `/etc/ld.so.preload`, on the host's side of the tenant directory.
pub(crate) const PRELOAD_LIST: &str = "ld.so.preload";

/// The loaders' default directories, in the order of Debian, Red Hat and others.
pub(crate) const LIBRARY_DIRS: [&str; 6] =
    ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib64", "lib64", "usr/lib", "lib"];

/// Driver directories of images and engines, found through `LD_LIBRARY_PATH` or through entries of the
/// loader's configuration that may be created after the hook: CUDA's forward compatibility (also as in
/// NVIDIA's images) and the volumes of older engines. A `*` ends a component.
pub(crate) const DRIVER_DIRS: [&str; 5] = [
    "usr/local/cuda*/compat",
    "usr/local/cuda*/compat/lib",
    "usr/local/cuda*/compat/lib.real",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
];

/// How a mount is protected in the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// A library: read-only, may be mapped executable.
    Library,
    /// Data or sockets: read-only, not executable.
    ReadOnly,
    /// The simulated device: writable.
    Device,
}

/// One mount with a fixed target below the container's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bind {
    /// Host path.
    pub from: PathBuf,
    /// Path below the root, without a leading slash.
    pub to: String,
    /// Protection.
    pub access: Access,
    /// A directory rather than a file.
    pub directory: bool,
}

/// A library to mount over the driver's, wherever the container has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cover {
    /// Host path of the shim or the NVML shim.
    pub from: PathBuf,
    /// Prefix of the file names to cover: `libcuda.so`.
    pub stem: &'static str,
    /// The name to create if the container has none.
    pub soname: &'static str,
}

/// All of a container's mounts, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Host path of the tenant directory.
    pub dir: PathBuf,
    /// Mounts at fixed paths.
    pub binds: Vec<Bind>,
    /// Mount injection.
    pub covers: Vec<Cover>,
}

impl Plan {
    /// The plan for a granted slice.
    ///
    /// # Errors
    /// A path of the daemon's is not absolute: daemon and hook have different versions.
    pub fn of(mounts: &Mounts) -> Result<Plan, Error> {
        let bind = |from: &HostPath, to: String, access, directory| Bind {
            from: from.as_str().into(),
            to,
            access,
            directory,
        };
        let file = |from, to| bind(from, format!("{TENANT_DIR}/{to}"), Access::Library, false);
        let mut binds = vec![
            bind(&mounts.dir, TENANT_DIR.into(), Access::ReadOnly, true),
            file(&mounts.cuda, "driver/libcuda.so.1"),
        ];
        let mut covers = vec![Cover {
            from: mounts.mount.as_str().into(),
            stem: "libcuda.so",
            soname: "libcuda.so.1",
        }];
        if !mounts.nvml.is_empty() {
            binds.push(file(&mounts.nvml, "driver/libnvidia-ml.so.1"));
            covers.push(Cover {
                from: mounts.nvml_shim.as_str().into(),
                stem: "libnvidia-ml.so",
                soname: "libnvidia-ml.so.1",
            });
        }
        binds.push(file(&mounts.preload, PRELOAD_NAME));
        if !mounts.device.is_empty() {
            let to = "dev/gpuslice-sim".to_owned();
            binds.push(bind(&mounts.device, to, Access::Device, true));
        }
        let relative = binds.iter().map(|bind| &bind.from).find(|from| !from.is_absolute());
        match relative {
            Some(path) => {
                Err(Error::Daemon(format!("its daemon named {path:?}, not an absolute path")))
            }
            None => Ok(Plan { dir: mounts.dir.as_str().into(), binds, covers }),
        }
    }
}

/// The shim's line, then the container's own preload list. The shim comes before a driver that an image
/// preloads itself, and before anything that ends the list for a loader, such as a NUL.
pub(crate) fn merged_preload(own: &[u8]) -> Vec<u8> {
    let ours = format!("{PRELOAD_LINE}\n").into_bytes();
    match own.starts_with(&ours) {
        true => own.to_vec(),
        false => [&ours[..], own].concat(),
    }
}

/// Whether a cover belongs over a file of a library directory: over `libcuda.so`, `libcuda.so.1`,
/// `libcuda.so.580.105.08`; not over `libcudart.so`.
pub(crate) fn covered(name: &str, stem: &str) -> bool {
    name.strip_prefix(stem).is_some_and(|rest| {
        rest.is_empty()
            || rest
                .strip_prefix('.')
                .is_some_and(|v| v.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> HostPath {
        HostPath::new(text).expect("short")
    }

    fn mounts() -> Mounts {
        Mounts {
            dir: path("/r/c/x"),
            cuda: path("/d/libcuda.so.1"),
            nvml: path("/d/libnvidia-ml.so.1"),
            preload: path("/l/libgpuslice.so"),
            mount: path("/l/libgpuslice_mount.so"),
            nvml_shim: path("/l/libgpuslice_nvml.so"),
            device: HostPath::EMPTY,
        }
    }

    #[test]
    fn the_tenant_directory_comes_first_and_only_the_device_is_writable() {
        let plan = Plan::of(&mounts()).expect("absolute");
        assert_eq!((plan.binds[0].to.as_str(), plan.covers.len()), (TENANT_DIR, 2));
        assert!(plan.binds.iter().all(|bind| bind.access != Access::Device));
        let plan =
            Plan::of(&Mounts { device: path("/dev/shm/x"), nvml: HostPath::EMPTY, ..mounts() })
                .expect("absolute");
        let writable: Vec<_> =
            plan.binds.iter().filter(|bind| bind.access == Access::Device).collect();
        assert_eq!((writable.len(), writable[0].to.as_str()), (1, "dev/gpuslice-sim"));
        assert!(Plan::of(&Mounts { cuda: path("libcuda.so.1"), ..mounts() }).is_err());
    }

    #[test]
    fn preload_lists_merge() {
        let ours = format!("{PRELOAD_LINE}\n");
        let merged = |own: &[u8]| merged_preload(own);
        assert_eq!(merged(b""), ours.as_bytes());
        assert_eq!(merged(b"/a.so"), format!("{ours}/a.so").as_bytes());
        assert_eq!(merged(ours.as_bytes()), ours.as_bytes());
        // Lists that mention the shim without loading it, or would load another driver before it.
        for own in [
            format!("# {ours}").into_bytes(),
            [b"\0\n", ours.as_bytes()].concat(),
            format!("/opt/libcuda.so.1\n{ours}").into_bytes(),
            b"\xff\n".to_vec(),
        ] {
            assert_eq!(merged(&own), [ours.as_bytes(), &own].concat());
        }
    }

    #[test]
    fn names_that_are_covered() {
        for name in ["libcuda.so", "libcuda.so.1", "libcuda.so.580.105.08"] {
            assert!(covered(name, "libcuda.so"), "{name}");
        }
        for name in ["libcudart.so", "libcuda.so.1.bak", "libcuda.sox", "xlibcuda.so"] {
            assert!(!covered(name, "libcuda.so"), "{name}");
        }
    }
}
