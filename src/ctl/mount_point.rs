//! The directory that commands mount their slice on, shared by all commands that run at a time.
//!
//! Removing a directory detaches mounts on it in other namespaces, so only the last user removes it, and
//! only if a command created it. Each command holds a shared lock while it runs; a command that gets the
//! exclusive lock at its end is the last. A directory that existed before, a daemon's or a package's,
//! has another mode and stays.
//!
//! All users can open the directory, so any of them can hold the exclusive lock for as long as they like. A command
//! waits for it only as long as the removal of a directory can take.

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a command waits for another one that removes the directory, which is one system call.
const REMOVAL_MAX: Duration = Duration::from_secs(2);

/// Mode of a directory that a command created. All users can open it to lock it. The sticky bit
/// distinguishes it from directories of daemons and packages.
const TEMPORARY: u32 = 0o1755;

/// A held directory.
pub struct MountPoint {
    path: PathBuf,
    lock: Option<Flock<File>>,
}

impl MountPoint {
    /// Holds `path`, creating it if it is missing.
    ///
    /// # Errors
    /// It cannot be created or opened; `WouldBlock`: another process keeps it locked.
    pub fn hold(path: &Path) -> io::Result<MountPoint> {
        loop {
            match fs::create_dir(path) {
                // Independent of the caller's umask.
                Ok(()) => fs::set_permissions(path, Permissions::from_mode(TEMPORARY))?,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            let dir = match File::open(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue, // just removed
                // Another user's daemon owns it. It can be mounted on, and it stays.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    return Ok(MountPoint { path: path.to_owned(), lock: None });
                }
                opened => opened?,
            };
            let lock = share(dir)?;
            // Between opening and locking the last user may have removed it.
            if is_at(&lock, path) {
                return Ok(MountPoint { path: path.to_owned(), lock: Some(lock) });
            }
        }
    }
}

/// Locks a directory beside other commands.
fn share(mut dir: File) -> io::Result<Flock<File>> {
    let until = Instant::now() + REMOVAL_MAX;
    loop {
        match Flock::lock(dir, FlockArg::LockSharedNonblock) {
            Err((same, Errno::EWOULDBLOCK)) if Instant::now() < until => dir = same,
            locked => return locked.map_err(|(_, errno)| errno.into()),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether an open directory is still the one at that path.
pub fn is_at(dir: &File, path: &Path) -> bool {
    let identity = |meta: &fs::Metadata| (meta.dev(), meta.ino());
    match (dir.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(there)) => identity(&ours) == identity(&there),
        _ => false,
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        let Some(lock) = self.lock.take() else { return };
        let made = lock.metadata().is_ok_and(|meta| meta.mode() & 0o7777 == TEMPORARY);
        if made && lock.relock(FlockArg::LockExclusiveNonblock).is_ok() {
            // Fails if a daemon has created files in it meanwhile; then it is the daemon's.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_user_removes_what_was_made() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("point");
        let first = MountPoint::hold(&path).expect("held");
        let second = MountPoint::hold(&path).expect("held");
        drop(first);
        assert!(path.exists(), "the second still uses it");
        drop(second);
        assert!(!path.exists(), "nobody uses it");
    }

    #[test]
    fn another_users_exclusive_lock_is_not_waited_for() {
        let root = tempfile::tempdir().expect("a directory");
        let dir = || File::open(root.path()).expect("a directory");
        let theirs = Flock::lock(dir(), FlockArg::LockExclusive).expect("free");
        let error = MountPoint::hold(root.path()).err().expect("it is locked");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        drop(theirs);
        let _theirs = Flock::lock(dir(), FlockArg::LockShared).expect("free");
        assert!(MountPoint::hold(root.path()).is_ok());
    }

    #[test]
    fn what_was_there_before_stays() {
        let root = tempfile::tempdir().expect("a directory");
        let (own, full) = (root.path().join("own"), root.path().join("full"));
        fs::create_dir(&own).expect("a directory");
        drop(MountPoint::hold(&own).expect("held"));
        assert!(own.exists());
        let held = MountPoint::hold(&full).expect("held");
        fs::write(full.join("admin.sock"), "").expect("a file");
        drop(held);
        assert!(full.exists());
        assert!(MountPoint::hold(Path::new("/proc/none")).is_err());
    }
}
