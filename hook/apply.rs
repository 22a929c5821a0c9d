//! Carries out a plan in a container's mount namespace, by descriptors only.
//!
//! Order matters. Sources are opened on the host, as detached copies already protected, before the
//! container's namespace is entered: nothing in an image can choose a source. Targets are opened
//! in the namespace below the root's descriptor with links resolved as inside the container. What
//! is mounted is what was opened, however the image's names change meanwhile.

use crate::error::Error;
use crate::plan::{self, Access, Bind, Cover, LIBRARY_DIRS, PRELOAD_LIST, PRELOAD_NAME, Plan};
use crate::sys::{
    self, ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, ATTR_RDONLY, RESOLVE_BENEATH_PLAIN,
    RESOLVE_CONTAINER,
};
use caps::{CapSet, Capability};
use std::collections::HashSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// Most of a driver's file names one cover can lie over: `.so`, `.so.1` and two versions.
const COVERS_MAX: usize = 4;
/// Largest `/etc/ld.so.preload` of an image that is merged, bytes.
const PRELOAD_BYTES_MAX: u64 = 16 << 10;

/// Mounts everything. On an error the container does not start, and its namespace goes with it.
///
/// # Errors
/// [`Error::Mount`] naming the step.
pub(crate) fn apply(plan: &Plan, pid: i32, rootfs: &Path) -> Result<(), Error> {
    let sources = Sources::open(plan)?;
    let namespace = sys::mount_namespace(pid).map_err(Error::mount("finding the container"))?;
    drop_capabilities().map_err(Error::mount("dropping capabilities"))?;
    sys::enter(&namespace).map_err(Error::mount("entering the container"))?;
    let root = sys::open_dir(rootfs).map_err(Error::mount("opening its root filesystem"))?;
    for (bind, source) in plan.binds.iter().zip(&sources.binds) {
        let target = target(&root, &bind.to, bind.directory);
        let mounted = target.and_then(|target| sys::move_mount(source, &target));
        mounted.map_err(Error::mount(format!("/{}", bind.to)))?;
    }
    for (cover, copies) in plan.covers.iter().zip(sources.covers) {
        lay_over(&root, cover, copies).map_err(Error::mount(cover.soname))?;
    }
    preload(&root, &sources.list, &sources.list_mount).map_err(Error::mount("/etc/ld.so.preload"))
}

/// All sources, opened on the host.
struct Sources {
    binds: Vec<OwnedFd>,
    covers: Vec<Vec<OwnedFd>>,
    list: File,
    list_mount: OwnedFd,
}

impl Sources {
    fn open(plan: &Plan) -> Result<Sources, Error> {
        // Mount points within the tenant directory, which is read-only once it is mounted.
        let list_path = plan.dir.join(PRELOAD_LIST);
        let point = File::create(plan.dir.join(PRELOAD_NAME));
        point.map_err(Error::mount(format!(
            "{}/{PRELOAD_NAME}",
            plan.dir.display()
        )))?;
        let list =
            File::create(&list_path).map_err(Error::mount(list_path.display().to_string()))?;
        let list_mount = source(&list_path, Access::ReadOnly)?;
        let binds = plan
            .binds
            .iter()
            .map(|bind: &Bind| source(&bind.from, bind.access));
        let copies = |cover: &Cover| {
            (0..COVERS_MAX)
                .map(|_| source(&cover.from, Access::Library))
                .collect()
        };
        let covers = plan.covers.iter().map(copies).collect::<Result<_, _>>()?;
        Ok(Sources {
            binds: binds.collect::<Result<_, _>>()?,
            covers,
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
    let open = || {
        let mount = sys::open_tree(&fs::canonicalize(path)?)?;
        sys::protect(&mount, attributes)?;
        Ok(mount)
    };
    open().map_err(Error::mount(path.display().to_string()))
}

/// From here on only what entering a namespace and mounting in it need.
fn drop_capabilities() -> io::Result<()> {
    let needed = [
        Capability::CAP_SYS_ADMIN,    // setns, move_mount
        Capability::CAP_SYS_CHROOT,   // setns into a mount namespace
        Capability::CAP_DAC_OVERRIDE, // mount points in directories of other users
    ];
    let held = caps::read(None, CapSet::Permitted).map_err(io::Error::other)?;
    let keep: HashSet<Capability> = needed
        .into_iter()
        .filter(|cap| held.contains(cap))
        .collect();
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &keep).map_err(io::Error::other)?;
    }
    Ok(())
}

fn name(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Opens a directory below the root, making what is missing one component at a time.
fn directory(root: &OwnedFd, path: &str) -> io::Result<OwnedFd> {
    let mut at = 0;
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    let mut parent = sys::openat2(root, c".", flags, RESOLVE_CONTAINER)?;
    while at < path.len() {
        let end = path[at..].find('/').map_or(path.len(), |slash| at + slash);
        let (component, so_far) = (name(&path[at..end])?, name(&path[..end])?);
        parent = match sys::openat2(root, &so_far, flags, RESOLVE_CONTAINER) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                sys::mkdirat(&parent, &component)?;
                sys::openat2(root, &so_far, flags, RESOLVE_CONTAINER)?
            }
            other => other?,
        };
        at = end + 1;
    }
    Ok(parent)
}

/// Opens (making it if missing) the file or directory a mount goes onto.
fn target(root: &OwnedFd, path: &str, is_directory: bool) -> io::Result<OwnedFd> {
    if is_directory {
        return directory(root, path);
    }
    let (parent, last) = path.rsplit_once('/').unwrap_or(("", path));
    file(&directory(root, parent)?, last)
}

/// A regular file of that very directory, made empty if missing; a link is refused.
fn file(parent: &OwnedFd, last: &str) -> io::Result<OwnedFd> {
    let last = name(last)?;
    let make = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_WRONLY;
    match sys::openat2(parent, &last, make, RESOLVE_BENEATH_PLAIN) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        // A mount point that exists on a read-only file system is all that is needed.
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {}
        Err(error) => return Err(error),
    }
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let file = sys::openat2(parent, &last, flags, RESOLVE_BENEATH_PLAIN)?;
    if sys::is_regular(&file)? {
        Ok(file)
    } else {
        Err(io::Error::other("not a regular file"))
    }
}

/// Lays copies of a library over every file of the driver's in the loader's directories; where
/// there is none, over a new one in the first of them.
fn lay_over(root: &OwnedFd, cover: &Cover, copies: Vec<OwnedFd>) -> io::Result<()> {
    let mut copies = copies.into_iter();
    let (mut first, mut laid, mut seen) = (None, 0, Vec::new());
    for path in LIBRARY_DIRS {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let Ok(dir) = sys::openat2(root, &name(path)?, flags, RESOLVE_CONTAINER) else {
            continue;
        };
        // `/lib` is mostly a link to `usr/lib`: one directory is looked at once.
        let identity = sys::identity(&dir)?;
        if seen.contains(&identity) {
            continue;
        }
        seen.push(identity);
        for found in drivers_in(&dir, cover.stem)? {
            let copy = copies
                .next()
                .ok_or(io::Error::other("too many versions of the driver"))?;
            sys::move_mount(&copy, &file(&dir, &found)?)?;
            laid += 1;
        }
        first = first.or(Some(dir));
    }
    if laid > 0 {
        return Ok(());
    }
    let dir = match first {
        Some(dir) => dir,
        None => directory(root, LIBRARY_DIRS[4])?,
    };
    let copy = copies
        .next()
        .ok_or(io::Error::other("no copy of the library"))?;
    sys::move_mount(&copy, &file(&dir, cover.soname)?)
}

/// Names of the driver's regular files in an open directory, in order.
fn drivers_in(dir: &OwnedFd, stem: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd()))? {
        let entry = entry?;
        let Ok(found) = entry.file_name().into_string() else {
            continue;
        };
        if plan::covered(&found, stem) && entry.file_type()?.is_file() {
            names.push(found);
        }
    }
    names.sort();
    Ok(names)
}

/// Mounts the image's own preload list with our line added.
fn preload(root: &OwnedFd, mut list: &File, mount: &OwnedFd) -> io::Result<()> {
    let etc = directory(root, "etc")?;
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut own = Vec::new();
    match sys::openat2(&etc, c"ld.so.preload", flags, RESOLVE_BENEATH_PLAIN) {
        Ok(old) if sys::is_regular(&old)? => {
            File::from(old)
                .take(PRELOAD_BYTES_MAX + 1)
                .read_to_end(&mut own)?;
        }
        Ok(_) => return Err(io::Error::other("the image's is not a regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if own.len() as u64 > PRELOAD_BYTES_MAX {
        return Err(io::Error::other("the image's is too large"));
    }
    list.write_all(&plan::merged_preload(&own))?;
    sys::move_mount(mount, &file(&etc, "ld.so.preload")?)
}
