//! Carries out a plan in a container's mount namespace, by descriptors only.
//!
//! Order matters. Sources are opened on the host, as detached and protected copies, before the hook
//! enters the container's namespace, so an image cannot choose a source. Targets are opened in the
//! namespace below the root's descriptor (`place.rs` has the rules). A mount goes onto the opened target,
//! however the image's names change meanwhile. At the end the hook looks up every path once more, as the
//! container's programs will; it must lead to the mount.

use crate::cover::{Mounted, library_dirs, mount_over};
use crate::error::Error;
use crate::place::{Host, Root};
use crate::plan::{self, Access, Bind, Cover, PRELOAD_LIST, PRELOAD_NAME, PRELOAD_PATH, Plan};
use crate::sys::mount::{self, ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, ATTR_RDONLY};
use crate::sys::process::Right;
use crate::sys::{file, process};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Largest `/etc/ld.so.preload` of an image that is merged, bytes.
const PRELOAD_BYTES_MAX: u64 = 16 << 10;

/// Paths of the two C libraries' loaders, on the supported architectures.
const GLIBC: [&str; 2] = ["lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1"];
const MUSL: [&str; 2] = ["lib/ld-musl-x86_64.so.1", "lib/ld-musl-aarch64.so.1"];
/// The error for an image that has only musl.
const NO_GLIBC: &str = "the image has musl and no glibc, which NVIDIA's driver needs; use an image \
     with glibc, or, if only static programs run in it, give gpuslice-hook --allow-musl (gpuslice-runtime: \
     \"allow-musl\" in /etc/gpuslice/runtime.json)";

/// Capabilities for entering a namespace and mounting in it.
const NEEDED: &[Right] = &[
    Right::SysAdmin,    // setns, move_mount
    Right::SysChroot,   // setns into a mount namespace
    Right::DacOverride, // mount points in directories of other users
    Right::SetUid,      // mount points as a user namespace's root
    Right::SetGid,      // the same
];

/// A container, before the hook enters it.
pub(crate) struct Found {
    host: Host,
    namespace: File,
}

/// Finds the container by its first process.
///
/// # Errors
/// [`Error::Mount`]: it has ended, or shares the host's mounts.
pub(crate) fn find(pid: i32) -> Result<Found, Error> {
    let host = Host::note().map_err(Error::mount("looking at the host"))?;
    let namespace = process::mount_namespace(pid).map_err(Error::mount("finding the container"))?;
    Ok(Found { host, namespace })
}

/// Mounts everything. On an error the container does not start, and its namespace goes with it.
///
/// # Errors
/// [`Error::Mount`] naming the step; [`Error::Denied`] if nothing in the image could use it.
pub(crate) fn apply(
    plan: &Plan,
    container: Found,
    rootfs: &Path,
    allow_musl: bool,
) -> Result<(), Error> {
    let sources = Sources::open(plan)?;
    process::keep(NEEDED).map_err(Error::mount("dropping capabilities"))?;
    process::enter(&container.namespace).map_err(Error::mount("entering the container"))?;
    let root = Root::open(rootfs, container.host);
    let root = root.map_err(Error::mount("opening its root filesystem"))?;
    if !allow_musl && has_only_musl(&root) {
        return Err(Error::Denied(NO_GLIBC.to_owned()));
    }
    mount_and_verify(&root, plan, sources)
}

/// Mounts everything, then verifies each mount from the container's side.
pub(crate) fn mount_and_verify(root: &Root, plan: &Plan, sources: Sources) -> Result<(), Error> {
    for (path, mount) in mount_all(root, plan, sources)? {
        let found = root.open_at(&path, libc::O_PATH);
        let right = found.and_then(|found| match file::status(&found)?.mount == mount {
            true => Ok(()),
            false => Err(io::Error::other(
                "another file is there now; the image changed while the hook ran",
            )),
        });
        right.map_err(Error::mount(format!("/{path}")))?;
    }
    Ok(())
}

/// Whether the image has musl's loader and not glibc's. NVIDIA's driver and the shim need glibc, and musl's
/// loader does not read `/etc/ld.so.preload`. An image with neither loader has static programs, or a
/// loader at another path, and is accepted.
fn has_only_musl(root: &Root) -> bool {
    let there = |path| root.open_at(path, libc::O_PATH).is_ok();
    MUSL.into_iter().any(there) && !GLIBC.into_iter().any(there)
}

fn mount_all(root: &Root, plan: &Plan, sources: Sources) -> Result<Vec<Mounted>, Error> {
    let mut mounted = Vec::new();
    for (bind, source) in plan.binds.iter().zip(&sources.binds) {
        let target = root.target(&bind.to, bind.directory);
        let status = target
            .and_then(|target| mount::move_onto(source, &target))
            .and_then(|()| file::status(source))
            .map_err(Error::mount(format!("/{}", bind.to)))?;
        mounted.push((bind.to.clone(), status.mount));
    }
    let dirs = library_dirs(root, &plan.covers).map_err(Error::mount("its library directories"))?;
    for (cover, copy) in plan.covers.iter().zip(sources.covers) {
        mounted.extend(mount_over(root, &dirs, cover, copy).map_err(Error::mount(cover.soname))?);
    }
    let listed = preload(root, &sources.list, &sources.list_mount);
    mounted.push(listed.map_err(Error::mount(format!("/{PRELOAD_PATH}")))?);
    Ok(mounted)
}

/// All sources, opened on the host.
pub(crate) struct Sources {
    binds: Vec<OwnedFd>,
    covers: Vec<OwnedFd>,
    list: File,
    list_mount: OwnedFd,
}

impl Sources {
    pub(crate) fn open(plan: &Plan) -> Result<Sources, Error> {
        // Mount points within the tenant directory, which is read-only once it is mounted.
        let made = |name: &str| {
            let path = plan.dir.join(name);
            file::create(&path).map_err(Error::mount(path.display().to_string()))
        };
        made(PRELOAD_NAME)?;
        let list = made(PRELOAD_LIST)?;
        let list_mount = source(&plan.dir.join(PRELOAD_LIST), Access::ReadOnly)?;
        let binds = plan.binds.iter();
        let binds = binds.map(|bind: &Bind| source(&bind.from, bind.access));
        let covers = plan.covers.iter();
        let covers = covers.map(|cover: &Cover| source(&cover.from, Access::Library));
        Ok(Sources {
            binds: binds.collect::<Result<_, _>>()?,
            covers: covers.collect::<Result<_, _>>()?,
            list,
            list_mount,
        })
    }
}

fn source(path: &Path, access: Access) -> Result<OwnedFd, Error> {
    let attributes = match access {
        Access::Library => ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV,
        Access::ReadOnly => ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC,
        Access::Device => ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC,
    };
    mount::copy_of(path)
        .and_then(|copy| mount::protect(&copy, attributes).map(|()| copy))
        .map_err(Error::mount(path.display().to_string()))
}

/// Mounts the image's own preload list with our line added.
fn preload(root: &Root, mut list: &File, mount: &OwnedFd) -> io::Result<Mounted> {
    let (parent, last) = PRELOAD_PATH.split_once('/').unwrap_or((".", PRELOAD_PATH));
    let dir = root.directory(parent)?;
    let target = root.file(&dir, parent, last)?;
    let mut own = Vec::new();
    if !file::status(&target)?.empty {
        let old = file::reopen(&target)?;
        old.take(PRELOAD_BYTES_MAX + 1).read_to_end(&mut own)?;
    }
    if own.len() as u64 > PRELOAD_BYTES_MAX {
        return Err(io::Error::other("the image's is too large"));
    }
    list.write_all(&plan::merged_preload(&own))?;
    mount::move_onto(mount, &target)?;
    Ok((PRELOAD_PATH.to_owned(), file::status(mount)?.mount))
}
