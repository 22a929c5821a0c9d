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

/// Most of a driver's files one cover lies over. Images built beside a driver keep an empty file
/// of every version they met.
const COVERS_MAX: usize = 64;

/// A mount that was made: its path below the root, and what must be found there.
pub(crate) type Laid = (String, MountId);

/// A library directory of the container.
pub(crate) struct Dir {
    path: String,
    dir: OwnedFd,
    /// A file may be made in it.
    loaders: bool,
    /// Files in it that are to be covered.
    drivers: Vec<String>,
}

/// Lays a library over every file of the driver's; where there is none, over a new one in the
/// first of the directories that is the container's own.
pub(crate) fn lay_over(
    root: &Root,
    dirs: &[Dir],
    cover: &Cover,
    copy: OwnedFd,
) -> io::Result<Vec<Laid>> {
    let mut all = Vec::new();
    for dir in dirs {
        let drivers = dir.drivers.iter();
        all.extend(
            drivers
                .filter(|name| covered(name, cover.stem))
                .map(|name| (dir, name)),
        );
    }
    if all.len() > COVERS_MAX {
        return Err(io::Error::other("too many versions of the driver"));
    }
    if all.is_empty() {
        return new(root, dirs, cover, &copy).map(|laid| vec![laid]);
    }
    let mut laid = Vec::new();
    for (at, (dir, found)) in all.into_iter().enumerate() {
        let target = existing(&dir.dir, found)?.ok_or(io::ErrorKind::NotFound)?;
        let path = format!("{}/{found}", dir.path);
        match at {
            0 => laid.push((path, lay(&copy, &target)?)),
            _ => laid.push((path, lay(&mount::another(&copy)?, &target)?)),
        }
    }
    Ok(laid)
}

fn lay(copy: &OwnedFd, target: &OwnedFd) -> io::Result<MountId> {
    mount::move_onto(copy, target)?;
    Ok(file::status(copy)?.mount)
}

fn new(root: &Root, dirs: &[Dir], cover: &Cover, copy: &OwnedFd) -> io::Result<Laid> {
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
            made = Dir {
                path: path.to_owned(),
                dir,
                loaders: true,
                drivers: Vec::new(),
            };
            &made
        }
    };
    let target = root.file(dir, path, cover.soname)?;
    Ok((format!("{path}/{}", cover.soname), lay(copy, &target)?))
}

/// The loader's directories that the container has, and those of other drivers; one with several names
/// (`/lib` is mostly a link to `usr/lib`) once, and read once.
pub(crate) fn library_dirs(root: &Root, covers: &[Cover]) -> io::Result<Vec<Dir>> {
    let mut paths: Vec<(String, bool)> = LIBRARY_DIRS.map(|path| (path.to_owned(), true)).into();
    for pattern in DRIVER_DIRS {
        paths.extend(
            matching(root, pattern)?
                .into_iter()
                .map(|path| (path, false)),
        );
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
            dirs.push(Dir {
                path,
                dir,
                loaders,
                drivers,
            });
        }
    }
    Ok(dirs)
}

/// Paths that a pattern with at most one `*` may mean in a container.
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
        // A name that is no text is none that a loader's configuration was written for.
        if let Ok(name) = str::from_utf8(name)
            && name.starts_with(stem)
        {
            paths.push(format!("{parent}/{name}{after}"));
        }
    })?;
    paths.sort();
    Ok(paths)
}

/// Opens a directory that the container may have.
fn open_dir(root: &Root, path: &str) -> io::Result<Option<OwnedFd>> {
    match root.open_at(path, libc::O_RDONLY | libc::O_DIRECTORY) {
        Ok(dir) => Ok(Some(dir)),
        // Also a file, or a link that leads nowhere: no loader finds a library below it.
        Err(error) if is_missing(&error) => Ok(None),
        // One we cannot look into may well be one the container's loader can.
        Err(error) => Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
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
