//! The replacement door: the shim over every file of the driver's in the loader's directories.

use crate::place::{Root, existing};
use crate::plan::{Cover, LIBRARY_DIRS, covered};
use crate::sys::file;
use crate::sys::mount::{self, MountId};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

/// Most of a driver's files one cover lies over. Images built beside a driver keep an empty file
/// of every version they met.
const COVERS_MAX: usize = 64;

/// A mount that was made: its path below the root, and what must be found there.
pub(crate) type Laid = (String, MountId);

/// A library directory of the container.
pub(crate) struct Dir {
    path: &'static str,
    dir: OwnedFd,
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
        for found in drivers_in(&dir.dir, cover.stem)? {
            all.push((dir, found));
        }
    }
    if all.len() > COVERS_MAX {
        return Err(io::Error::other("too many versions of the driver"));
    }
    if all.is_empty() {
        return new(root, dirs, cover, &copy).map(|laid| vec![laid]);
    }
    let mut laid = Vec::new();
    for (at, (dir, found)) in all.into_iter().enumerate() {
        let target = existing(&dir.dir, &found)?.ok_or(io::ErrorKind::NotFound)?;
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
    mount::id_of(copy)
}

fn new(root: &Root, dirs: &[Dir], cover: &Cover, copy: &OwnedFd) -> io::Result<Laid> {
    let mut own = None;
    for dir in dirs {
        if root.is_own(&dir.dir)? {
            own = Some(dir);
            break;
        }
    }
    let made;
    let Dir { path, dir } = match own.or(dirs.first()) {
        Some(dir) => dir,
        None => {
            let path = LIBRARY_DIRS[4];
            let dir = root.directory(path)?;
            made = Dir { path, dir };
            &made
        }
    };
    let target = root.file(dir, path, cover.soname)?;
    Ok((format!("{path}/{}", cover.soname), lay(copy, &target)?))
}

/// The loader's directories that the container has; one with several names (`/lib` is mostly a
/// link to `usr/lib`) once.
pub(crate) fn library_dirs(root: &Root) -> io::Result<Vec<Dir>> {
    let (mut dirs, mut seen) = (Vec::new(), Vec::new());
    for path in LIBRARY_DIRS {
        let dir = match root.open_at(path, libc::O_RDONLY | libc::O_DIRECTORY) {
            Ok(dir) => dir,
            // Also a file, or a link that leads nowhere: no loader finds a library below it.
            Err(error) if is_missing(&error) => continue,
            // One we cannot look into may well be one the container's loader can.
            Err(error) => return Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
        };
        let identity = file::status(&dir)?.identity;
        if !seen.contains(&identity) {
            seen.push(identity);
            dirs.push(Dir { path, dir });
        }
    }
    Ok(dirs)
}

fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Names of the driver's regular files in an open directory, in order.
fn drivers_in(dir: &OwnedFd, stem: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(file::known(dir))? {
        let entry = entry?;
        let Ok(found) = entry.file_name().into_string() else {
            continue;
        };
        if covered(&found, stem) && entry.file_type()?.is_file() {
            names.push(found);
        }
    }
    names.sort();
    Ok(names)
}
