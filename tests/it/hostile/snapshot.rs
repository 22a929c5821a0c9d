//! Snapshots of a directory tree that show any modification: every inode's number, type, owner,
//! mode, size, times of change and content. The access time is left out.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// One file of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    inode: (u64, u64),
    mode: u32,
    owner: (u32, u32),
    links: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    content: Vec<u8>,
}

/// All of it, by path.
pub type Snapshot = BTreeMap<PathBuf, Entry>;

/// Takes a snapshot of a directory and everything in it, following no link.
pub fn snapshot(dir: &Path) -> Snapshot {
    let mut all = Snapshot::new();
    look(dir, &mut all);
    all
}

fn look(path: &Path, all: &mut Snapshot) {
    let meta = fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let kind = meta.file_type();
    let content = if kind.is_symlink() {
        let to = fs::read_link(path).expect("a link");
        to.to_string_lossy().into_owned().into_bytes()
    } else if kind.is_file() && !kind.is_fifo() {
        fs::read(path).expect("readable")
    } else {
        Vec::new()
    };
    let entry = Entry {
        inode: (meta.dev(), meta.ino()),
        mode: meta.mode(),
        owner: (meta.uid(), meta.gid()),
        links: meta.nlink(),
        size: meta.size(),
        modified: (meta.mtime(), meta.mtime_nsec()),
        changed: (meta.ctime(), meta.ctime_nsec()),
        content,
    };
    all.insert(path.to_owned(), entry);
    if kind.is_dir() {
        for entry in fs::read_dir(path).expect("a directory") {
            look(&entry.expect("an entry").path(), all);
        }
    }
}

/// Paths that differ between two snapshots.
pub fn touched(before: &Snapshot, after: &Snapshot) -> Vec<PathBuf> {
    let either = before.keys().chain(after.keys());
    let mut touched: Vec<PathBuf> =
        either.filter(|path| before.get(*path) != after.get(*path)).cloned().collect();
    touched.sort();
    touched.dedup();
    touched
}

#[test]
fn a_touch_is_noticed() {
    let root = tempfile::tempdir().expect("a directory");
    let (dir, file) = (root.path().join("d"), root.path().join("d/f"));
    fs::create_dir(&dir).expect("a directory");
    fs::write(&file, "x").expect("a file");
    let before = snapshot(root.path());
    assert_eq!(touched(&before, &snapshot(root.path())), [""; 0].map(PathBuf::from));
    fs::write(&file, "y").expect("a file");
    assert_eq!(touched(&before, &snapshot(root.path())), [file]);
    fs::write(dir.join("g"), "").expect("a file");
    assert_eq!(touched(&before, &snapshot(root.path())).len(), 3);
}
