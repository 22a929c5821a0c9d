//! Mount injection: mounts the shim over every driver file in the loader's directories and in those
//! where images keep a driver of their own.
//!
//! Files are covered, not links: a later hook or `ldconfig` may create `libcuda.so.1`, which then
//! leads to a file that the shim already covers.

use crate::place::{Root, existing};
use crate::plan::{Cover, DRIVER_DIRS, LIBRARY_DIRS, covered};
use crate::sys::file::{self, MountId};
use crate::sys::mount;
use std::io;
use std::os::fd::OwnedFd;

/// Largest number of driver files that one cover is mounted over. Images built beside a driver keep an
/// empty file of every version they met.
const COVERS_MAX: usize = 64;

/// A completed mount: its path below the root, and its mount id.
pub(crate) type Mounted = (String, MountId);

/// A library directory of the container.
pub(crate) struct Dir {
    path: String,
    dir: OwnedFd,
    /// It is one of the loader's, so a file may be created in it.
    loaders: bool,
    /// Its files to cover.
    drivers: Vec<String>,
}

/// Mounts a library over every driver file; without one, over a new file in the first directory that is
/// the container's own.
pub(crate) fn mount_over(
    root: &Root,
    dirs: &[Dir],
    cover: &Cover,
    copy: OwnedFd,
) -> io::Result<Vec<Mounted>> {
    let mut all = Vec::new();
    for dir in dirs {
        let drivers = dir.drivers.iter();
        all.extend(drivers.filter(|name| covered(name, cover.stem)).map(|name| (dir, name)));
    }
    if all.len() > COVERS_MAX {
        return Err(io::Error::other("too many versions of the driver"));
    }
    if all.is_empty() {
        return new(root, dirs, cover, &copy).map(|mounted| vec![mounted]);
    }
    let mut mounted = Vec::new();
    for (at, (dir, found)) in all.into_iter().enumerate() {
        let target = existing(&dir.dir, found)?.ok_or(io::ErrorKind::NotFound)?;
        let path = format!("{}/{found}", dir.path);
        match at {
            0 => mounted.push((path, mount_onto(&copy, &target)?)),
            _ => mounted.push((path, mount_onto(&mount::another(&copy)?, &target)?)),
        }
    }
    Ok(mounted)
}

fn mount_onto(copy: &OwnedFd, target: &OwnedFd) -> io::Result<MountId> {
    mount::move_onto(copy, target)?;
    Ok(file::status(copy)?.mount)
}

fn new(root: &Root, dirs: &[Dir], cover: &Cover, copy: &OwnedFd) -> io::Result<Mounted> {
    let mut own = None;
    let mut loaders = dirs.iter().filter(|dir| dir.loaders);
    let first = loaders.clone().next();
    for dir in loaders.by_ref() {
        if root.is_own(&dir.dir)? {
            own = Some(dir);
            break;
        }
    }
    let made;
    let Dir { path, dir, .. } = match own.or(first) {
        Some(dir) => dir,
        None => {
            let path = LIBRARY_DIRS[4];
            let dir = root.directory(path)?;
            made = Dir { path: path.to_owned(), dir, loaders: true, drivers: Vec::new() };
            &made
        }
    };
    let target = root.file(dir, path, cover.soname)?;
    Ok((format!("{path}/{}", cover.soname), mount_onto(copy, &target)?))
}

/// The container's loader directories and driver directories. A directory with several names (`/lib` is
/// usually a link to `usr/lib`) appears, and is read, once.
pub(crate) fn library_dirs(root: &Root, covers: &[Cover]) -> io::Result<Vec<Dir>> {
    let mut paths: Vec<(String, bool)> = LIBRARY_DIRS.map(|path| (path.to_owned(), true)).into();
    for pattern in DRIVER_DIRS {
        paths.extend(matching(root, pattern)?.into_iter().map(|path| (path, false)));
    }
    let (mut dirs, mut seen) = (Vec::new(), Vec::new());
    for (path, loaders) in paths {
        let Some(dir) = open_dir(root, &path)? else {
            continue;
        };
        let identity = file::status(&dir)?.identity;
        if !seen.contains(&identity) {
            seen.push(identity);
            let drivers = drivers_in(&dir, covers)?;
            dirs.push(Dir { path, dir, loaders, drivers });
        }
    }
    Ok(dirs)
}

/// Paths in a container that match a pattern with at most one `*`.
fn matching(root: &Root, pattern: &str) -> io::Result<Vec<String>> {
    let Some((before, after)) = pattern.split_once('*') else {
        return Ok(vec![pattern.to_owned()]);
    };
    let (parent, stem) = before.rsplit_once('/').unwrap_or((".", before));
    let Some(dir) = open_dir(root, parent)? else {
        return Ok(Vec::new());
    };
    let mut paths = Vec::new();
    file::entries(&dir, |name, _| {
        // A loader's configuration names no directory that is not UTF-8.
        if let Ok(name) = str::from_utf8(name)
            && name.starts_with(stem)
        {
            paths.push(format!("{parent}/{name}{after}"));
        }
    })?;
    paths.sort();
    Ok(paths)
}

/// Opens a directory of the container, if it exists.
fn open_dir(root: &Root, path: &str) -> io::Result<Option<OwnedFd>> {
    match root.open_at(path, libc::O_RDONLY | libc::O_DIRECTORY) {
        Ok(dir) => Ok(Some(dir)),
        // Also a file or a dangling link: no loader finds a library below it.
        Err(error) if is_missing(&error) => Ok(None),
        // A directory that the hook cannot read may be readable for the container's loader.
        Err(error) => Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Names of the drivers' regular files in an open directory, in order.
fn drivers_in(dir: &OwnedFd, covers: &[Cover]) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    file::entries(dir, |name, kind| {
        if let Ok(name) = str::from_utf8(name)
            && covers.iter().any(|cover| covered(name, cover.stem))
        {
            found.push((name.to_owned(), kind));
        }
    })?;
    let mut names = Vec::new();
    for (name, kind) in found {
        let regular = match kind {
            libc::DT_UNKNOWN => file::status_in(dir, &name)?.regular,
            kind => kind == libc::DT_REG,
        };
        if regular {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
