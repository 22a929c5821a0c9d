//! Configuration files of other programs: read with a size limit, replaced atomically.
//!
//! An engine that reads its file during a write must see the old or the new one. So the new file is
//! written beside the old one, gets its owner and mode, and is renamed over it. A link is followed as an
//! editor follows it: its target is changed, and it stays a link. A file that is not regular, or larger
//! than 1 MiB, is not touched.

use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Largest configuration file that is read, bytes.
const BYTES_MAX: u64 = 1 << 20;
/// Suffix of a backup's name. No engine's pattern for configuration files matches it.
const BACKUP: &str = ".before-gpuslice";

/// Name of the empty file in a directory that setup has made. No engine's pattern matches it.
const MADE: &str = ".made-by-gpuslice-setup";

/// A file's real path: follows links as far as they exist.
///
/// # Errors
/// A link leads nowhere, or a directory on the way cannot be searched.
pub fn real(path: &Path) -> Result<PathBuf> {
    match fs::canonicalize(path) {
        Ok(real) => Ok(real),
        Err(error) if error.kind() == ErrorKind::NotFound => match fs::symlink_metadata(path) {
            Ok(_) => bail!("{} is a link that leads nowhere; fix or remove it", path.display()),
            Err(_) => std::path::absolute(path).context("cannot find the current directory"),
        },
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// A file's text, `None` if there is no file.
///
/// # Errors
/// It is not a regular file, is too large, not UTF-8, or cannot be read.
pub fn read(path: &Path) -> Result<Option<String>> {
    let named = || path.display().to_string();
    // Do not block on a FIFO of that name.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(named),
    };
    if !file.metadata().with_context(named)?.is_file() {
        bail!("{} is not a regular file; it is left unchanged", path.display());
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).with_context(named)?;
    if bytes.len() as u64 > BYTES_MAX {
        bail!(
            "{} is larger than {BYTES_MAX} bytes; check that it is a configuration",
            path.display()
        );
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let before = String::from_utf8_lossy(&error.as_bytes()[..valid]).into_owned();
            bail!("{} is not UTF-8 at {}", path.display(), place(&before))
        }
    }
}

/// Line and column after this text, counted from 1.
pub fn place(before: &str) -> String {
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    format!("line {line}, column {column}")
}

/// Path of a file's backup.
pub fn backup_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(BACKUP);
    name.into()
}

/// Makes the missing directories above a file, and marks them as made here.
///
/// # Errors
/// One cannot be made or marked.
pub fn make_dirs(path: &Path) -> Result<()> {
    let missing: Vec<&Path> = path.ancestors().skip(1).take_while(|it| !it.exists()).collect();
    for dir in missing.into_iter().rev() {
        let made = fs::create_dir(dir).and_then(|()| File::create_new(dir.join(MADE)));
        made.with_context(|| denied(path))?;
    }
    Ok(())
}

/// Removes the directories above these files that were made here and are empty. Those that others use stay, and lose
/// their mark, so that no later undo removes them.
///
/// # Errors
/// One cannot be read or removed.
pub fn remove_made_dirs<'a>(files: impl Iterator<Item = &'a Path>) -> Result<()> {
    let dirs: BTreeSet<&Path> = files.flat_map(|file| file.ancestors().skip(1)).collect();
    // A directory comes after those above it.
    for dir in dirs.into_iter().rev() {
        let mark = dir.join(MADE);
        if !fs::symlink_metadata(&mark).is_ok_and(|it| it.is_file() && it.len() == 0) {
            continue;
        }
        let named = || denied(dir);
        fs::remove_file(&mark).with_context(named)?;
        match fs::remove_dir(dir) {
            Err(why) if why.kind() != ErrorKind::DirectoryNotEmpty => {
                return Err(why).with_context(named);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Replaces a file, or creates it with the directories above it.
///
/// # Errors
/// The directory cannot be written; the file is unchanged.
pub fn write(path: &Path, text: &str) -> Result<()> {
    write_like(path, path, text)
}

/// As [`write()`], with the owner and mode of another file, so that a copy is no more readable.
///
/// # Errors
/// As [`write()`].
pub fn write_like(like: &Path, path: &Path, text: &str) -> Result<()> {
    written(like, path, text).with_context(|| denied(path))
}

fn written(like: &Path, path: &Path, text: &str) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir)?;
    let mut new = tempfile::Builder::new().prefix(".gpuslice-").suffix(".new").tempfile_in(dir)?;
    new.write_all(text.as_bytes())?;
    let mode = match fs::metadata(like) {
        Ok(old) => {
            let own = new.as_file().metadata()?;
            if (old.uid(), old.gid()) != (own.uid(), own.gid()) {
                fchown(new.as_file(), Some(old.uid()), Some(old.gid()))?;
            }
            old.mode() & 0o7777
        }
        Err(_) => 0o644,
    };
    new.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    new.as_file().sync_all()?;
    new.persist(path).map_err(|error| error.error)?;
    File::open(dir)?.sync_all()?;
    Ok(())
}

/// Removes an existing file.
///
/// # Errors
/// It cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    fs::remove_file(path).with_context(|| denied(path))
}

fn denied(path: &Path) -> String {
    match nix::unistd::geteuid().is_root() {
        true => format!("writing {}", path.display()),
        false => format!("cannot write {}, which usually needs root", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_is_replaced_and_keeps_its_mode_and_its_links() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, link) = (dir.path().join("a/b/file"), dir.path().join("link"));
        assert_eq!(read(&file).expect("none"), None);
        write(&file, "one").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("ours");
        symlink(&file, &link).expect("a link");
        write(&real(&link).expect("it leads somewhere"), "two").expect("written");
        assert_eq!(read(&file).expect("there").as_deref(), Some("two"));
        assert_eq!(fs::metadata(&file).expect("there").mode() & 0o7777, 0o600);
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        let left = fs::read_dir(file.parent().expect("a directory")).expect("ours");
        assert_eq!(left.count(), 1, "nothing else is left beside it");
        fs::remove_file(&file).expect("ours");
        assert!(real(&link).is_err_and(|why| why.to_string().contains("leads nowhere")));
    }

    #[test]
    fn directories_that_were_made_are_removed_once_they_are_empty() {
        let dir = tempfile::tempdir().expect("a directory");
        let there = dir.path().join("there");
        fs::create_dir(&there).expect("ours");
        let files = ["there/a/b/one", "there/a/two", "there/c/three"].map(|it| dir.path().join(it));
        for file in &files {
            make_dirs(file).expect("made");
            make_dirs(file).expect("they are there");
            write(file, "").expect("written");
        }
        fs::write(there.join("c/another's"), "").expect("written");
        for file in &files {
            fs::remove_file(file).expect("ours");
        }
        remove_made_dirs(files.iter().map(PathBuf::as_path)).expect("removed");
        let left = |dir: &Path| -> Vec<OsString> {
            fs::read_dir(dir).expect("there").map(|it| it.expect("an entry").file_name()).collect()
        };
        assert_eq!(left(&there), ["c"]);
        assert_eq!(left(&there.join("c")), ["another's"]);
        fs::remove_file(there.join("c/another's")).expect("ours");
        remove_made_dirs(files.iter().map(PathBuf::as_path)).expect("nothing to do");
        assert!(there.join("c").exists(), "it is another's now");
    }

    #[test]
    fn a_file_that_is_no_configuration_is_left_unchanged() {
        let dir = tempfile::tempdir().expect("a directory");
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let (big, raw) = (dir.path().join("big"), dir.path().join("raw"));
        fs::write(&big, " ".repeat(1 + BYTES_MAX as usize)).expect("written");
        fs::write(&raw, b"a\nb\xff").expect("written");
        for (path, why) in [
            (dir.path(), "not a regular file"),
            (&pipe, "not a regular file"),
            (&big, "larger than"),
            (&raw, "not UTF-8 at line 2, column 2"),
        ] {
            let said = read(path).expect_err("refused").to_string();
            assert!(said.contains(why), "{said}");
        }
        let below = dir.path().join("raw/below");
        assert!(write(&below, "x").is_err());
    }
}
