//! Files that are replaced at once, and directories with the modes that the daemon's need.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Creates a directory and its parents with mode 0711, whatever the umask.
pub(super) fn make_dir(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o711).create(dir) {
        Ok(()) => fs::set_permissions(dir, Permissions::from_mode(0o711)),
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // Some file systems report this for a directory that cannot be created in an existing parent.
        Err(why) if why.kind() == io::ErrorKind::NotFound => match dir.parent() {
            Some(parent) if !parent.exists() => {
                make_dir(parent)?;
                make_dir(dir)
            }
            _ => Err(why),
        },
        Err(why) => Err(why),
    }
}

/// Removes a file or a directory tree, if it exists, without following links.
///
/// # Errors
/// A system call failed.
pub fn remove_tree(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(why) if why.kind() == io::ErrorKind::NotADirectory => fs::remove_file(dir),
        done => done,
    }
}

/// Replaces a file atomically and durably.
pub(super) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_file_through(path, (&path.with_extension("new"), 0o600), bytes)
}

/// Replaces a file atomically and durably, through a file in the same directory, with this mode whatever the umask.
///
/// # Errors
/// A system call failed; the old file is unchanged, unless the directory could not be written to its disk.
pub fn replace_file_through(
    path: &Path,
    (beside, mode): (&Path, u32),
    bytes: &[u8],
) -> io::Result<()> {
    // Opened first: a daemon without descriptors must fail before it has replaced the file.
    let dir = File::open(path.parent().unwrap_or(Path::new("/")))?;
    replace(path, (beside, mode), bytes, File::sync_all)?;
    dir.sync_all()
}

/// As [`replace_file_through`], and does not wait for a disk: for a file that is made again after a loss of power.
///
/// # Errors
/// A system call failed; the old file is unchanged.
pub fn replace_passing_file(path: &Path, beside: (&Path, u32), bytes: &[u8]) -> io::Result<()> {
    replace(path, beside, bytes, |_| Ok(()))
}

fn replace(
    path: &Path,
    (beside, mode): (&Path, u32),
    bytes: &[u8],
    sync: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let written = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(beside)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.set_permissions(Permissions::from_mode(mode))?;
            sync(&file)
        })
        .and_then(|()| fs::rename(beside, path));
    if written.is_err() {
        let _ = fs::remove_file(beside); // the first error is the one to report
    }
    written
}
