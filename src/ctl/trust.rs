//! Whether a daemon may be trusted.
//!
//! # Problem
//! A daemon's answers name libraries that `gpuslice run` loads, and text that commands print. Without
//! XDG_RUNTIME_DIR an ordinary user's default runtime directory is `/tmp/gpuslice-UID`. Any other user can
//! create a directory of that name first and listen there.
//!
//! # Idea
//! Two facts are checked before anything is read from a daemon. The directory is not a link, belongs to
//! this user or to root, and no other user can write it. The process that listens on the socket runs as
//! this user or as root. The directory is opened once; the checks and the use share that descriptor.

use anyhow::Result;
use nix::fcntl::{OFlag, open};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::geteuid;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Permission bits that let other users create files in a directory.
const WRITABLE: u32 = 0o022;

/// Why a daemon is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum Untrusted {
    /// The last component of the path is a link. Links before it are as trusted as their owners.
    #[error(
        "{} is a link, which another user may have made; name the directory itself with --runtime-dir", .0.display()
    )]
    Link(PathBuf),
    /// Another user's directory.
    #[error("{} belongs to user {user}, not to this user or root; remove it, or name another directory with --runtime-dir", .dir.display())]
    Owner {
        /// The directory.
        dir: PathBuf,
        /// Its owner.
        user: u32,
    },
    /// A directory that other users can write.
    #[error("{} can be written by other users; make it this user's alone (chmod go-w), or name another directory with --runtime-dir", .0.display())]
    Writable(PathBuf),
    /// Another user's daemon.
    #[error("the process that listens at {} runs as user {user}, not as this user or root; ask as that user, or name another daemon with --runtime-dir", .socket.display())]
    Listener {
        /// Its socket.
        socket: PathBuf,
        /// Its user.
        user: u32,
    },
}

/// Whether this process trusts a user.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

/// Opens a runtime directory that only this user or root can have filled.
///
/// # Errors
/// The system's error as a [`nix::Error`], or [`Untrusted`].
pub fn directory(dir: &Path) -> Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let opened = open(dir, flags, Mode::empty())?;
    let status = fstat(&opened)?;
    match status.st_mode & libc::S_IFMT {
        libc::S_IFDIR => {}
        libc::S_IFLNK => return Err(Untrusted::Link(dir.to_owned()).into()),
        _ => return Err(nix::Error::ENOTDIR.into()),
    }
    if !is_trusted(status.st_uid) {
        let (dir, user) = (dir.to_owned(), status.st_uid);
        return Err(Untrusted::Owner { dir, user }.into());
    }
    match status.st_mode & WRITABLE {
        0 => Ok(opened),
        _ => Err(Untrusted::Writable(dir.to_owned()).into()),
    }
}

/// Checks the user of the process that listens on `path`.
///
/// # Errors
/// The system's error as a [`nix::Error`], or [`Untrusted`].
pub fn listener(connection: impl AsFd, path: &Path) -> Result<()> {
    let user = getsockopt(&connection, PeerCredentials)?.uid();
    match is_trusted(user) {
        true => Ok(()),
        false => Err(Untrusted::Listener { socket: path.to_owned(), user }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn refusal(dir: &Path) -> String {
        directory(dir).expect_err("refused").to_string()
    }

    #[test]
    fn only_a_directory_of_ones_own_is_looked_into() {
        let root = tempfile::tempdir().expect("a directory");
        let own = root.path().join("own");
        fs::create_dir(&own).expect("made");
        assert!(directory(&own).is_ok());
        assert!(directory(&own.join("..")).is_ok());
        for mode in [0o777, 0o720, 0o702, 0o1777] {
            fs::set_permissions(&own, Permissions::from_mode(mode)).expect("a mode");
            assert!(refusal(&own).contains("can be written"), "{mode:o}");
        }
        fs::set_permissions(&own, Permissions::from_mode(0o711)).expect("a mode");
        assert!(directory(&own).is_ok());
        let link = root.path().join("link");
        symlink(&own, &link).expect("a link");
        assert!(refusal(&link).contains("is a link"));
        let file = root.path().join("file");
        fs::write(&file, "").expect("a file");
        assert!(refusal(&file).contains("ENOTDIR"), "{}", refusal(&file));
        assert!(refusal(&root.path().join("none")).contains("ENOENT"));
        if geteuid().is_root() {
            std::os::unix::fs::chown(&own, Some(65534), None).expect("given away");
            assert!(refusal(&own).contains("belongs to user 65534"));
        }
    }
}
