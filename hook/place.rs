//! Mount points in a container: where the hook may mount, and what it may create for that.
//!
//! Every path is opened below the root's descriptor, with links resolved as inside the container, one
//! component at a time. An existing file is used wherever it is, because a mount does not change the file
//! it covers. A *created* file could land on a file system that is not the container's own, so:
//! - a file is created on the root's own mount only, never in a volume, where it would persist and be
//!   visible to others;
//! - a directory is also created in a mount of the configuration at that very path (often `/run` and
//!   `/dev`), but never at the target of an image's link, such as `/sys`;
//! - nothing is created in a directory of the host.

use crate::sys::file::{self, CONTAINER, MountId, PLAIN, Status, name, openat2};
use crate::sys::process::as_owner;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Host directories that a container may have mounted, with the parents of the hook's mounts.
const HOST_DIRS: [&str; 3] = ["/", "/run", "/dev"];

/// The host's own directories, recorded before the hook enters the container.
pub(crate) struct Host(Vec<(u32, u32, u64)>);

impl Host {
    /// Records them; a directory that the host lacks cannot be in a container.
    pub fn note() -> io::Result<Host> {
        let mut noted = Vec::new();
        for dir in HOST_DIRS {
            match file::status_at(Path::new(dir)) {
                Ok(status) if status.directory => noted.push(status.identity),
                Err(error) if dir == "/" => return Err(error),
                // Missing, or a link, as `/var/run` may be.
                _ => {}
            }
        }
        Ok(Host(noted))
    }

    fn owns(&self, dir: &Status) -> bool {
        self.0.contains(&dir.identity)
    }
}

/// A container's root directory; the hook is in its mount namespace.
pub(crate) struct Root {
    dir: OwnedFd,
    mount: MountId,
    host: Host,
    /// The container's root is the host's.
    hosts: bool,
}

impl Root {
    /// Opens it by its path on the host.
    pub fn open(path: &Path, host: Host) -> io::Result<Root> {
        let dir = file::open_dir(path)?;
        let status = file::status(&dir)?;
        Ok(Root { dir, mount: status.mount, hosts: host.owns(&status), host })
    }

    /// Opens a path, with links resolved as in the container.
    pub fn open_at(&self, path: &str, flags: i32) -> io::Result<OwnedFd> {
        openat2(&self.dir, &name(path)?, flags, CONTAINER)
    }

    /// Opens a directory, creating missing components.
    pub fn directory(&self, path: &str) -> io::Result<OwnedFd> {
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        match self.open_at(path, flags) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found,
        }
        let (parent_path, last) = path.rsplit_once('/').unwrap_or((".", path));
        let parent = match parent_path {
            "." => self.open_at(".", flags)?,
            _ => self.directory(parent_path)?,
        };
        if !self.is_own(&parent)? && !self.is_volume_at(&parent, parent_path)? {
            return Err(not_here(parent_path, last));
        }
        let last = name(last)?;
        make(&parent, || file::mkdirat(&parent, &last))?;
        self.open_at(path, flags)
    }

    /// Opens the target of a mount, a file or directory, creating it if missing.
    pub fn target(&self, path: &str, is_directory: bool) -> io::Result<OwnedFd> {
        if is_directory {
            return self.directory(path);
        }
        let (parent, last) = path.rsplit_once('/').unwrap_or((".", path));
        self.file(&self.directory(parent)?, parent, last)
    }

    /// A regular file of that very directory, created empty if missing; a link is refused.
    pub fn file(&self, parent: &OwnedFd, parent_path: &str, last: &str) -> io::Result<OwnedFd> {
        if let Some(found) = existing(parent, last)? {
            return Ok(found);
        }
        if !self.is_own(parent)? {
            return Err(not_here(parent_path, last));
        }
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_WRONLY;
        let name = name(last)?;
        make(parent, || openat2(parent, &name, flags, PLAIN).map(drop))?;
        existing(parent, last)?.ok_or(io::ErrorKind::NotFound.into())
    }

    /// Whether a file may be created in a directory: it is on the container's own file system.
    pub fn is_own(&self, dir: &OwnedFd) -> io::Result<bool> {
        Ok(!self.hosts && file::status(dir)?.mount == self.mount)
    }

    /// Whether a directory is in a mount that the container's configuration put at this path.
    fn is_volume_at(&self, dir: &OwnedFd, path: &str) -> io::Result<bool> {
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let Ok(plain) = openat2(&self.dir, &name(path)?, flags, PLAIN) else {
            return Ok(false);
        };
        let (plain, dir) = (file::status(&plain)?, file::status(dir)?);
        Ok(plain.identity == dir.identity && !self.host.owns(&dir))
    }
}

/// An existing regular file under its own name, held by `O_PATH`: to open an image's device file could
/// already affect the host.
pub(crate) fn existing(parent: &OwnedFd, last: &str) -> io::Result<Option<OwnedFd>> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    match openat2(parent, &name(last)?, flags, PLAIN) {
        Ok(found) if file::status(&found)?.regular => Ok(Some(found)),
        Ok(_) => Err(io::Error::other("not a regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates an entry, if necessary as the directory's owner.
fn make(parent: &OwnedFd, act: impl Fn() -> io::Result<()>) -> io::Result<()> {
    match act() {
        Err(error) if error.raw_os_error() == Some(libc::EOVERFLOW) => {
            as_owner(file::status(parent)?.owner, act)
        }
        done => done,
    }
}

fn not_here(parent: &str, last: &str) -> io::Error {
    let parent = parent.trim_start_matches('.');
    io::Error::other(format!(
        "nothing is made in the container's /{parent}, which is a volume or the host's own; \
         put an empty {last} there or mount it elsewhere"
    ))
}
