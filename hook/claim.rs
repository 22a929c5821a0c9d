//! The owner of a slice, among containers with the same id.
//!
//! Ids are unique within a runtime's state directory, not on a node. A second container with the same id
//! gets no slice, and its runtime calls the hook for `poststop` as part of its clean-up. The first
//! container's slice must then stay. So the hook records in the slice's directory the bundle that owns
//! it. The record reveals only a device number and an inode number of the host.

use crate::sys::file;
use gpuslice_wire::ids::ContainerId;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Name of the record.
const NOTE: &str = "container";

/// Records this bundle as the owner beside the directory that the container sees.
pub(crate) fn note(inside: &Path, bundle: &Path) -> io::Result<()> {
    file::create(&inside.with_file_name(NOTE))?.write_all(identity(bundle)?.as_bytes())
}

/// Whether a container's slice belongs to another bundle; false without a record.
pub(crate) fn is_anothers(runtime_dir: &Path, container: ContainerId, bundle: &Path) -> bool {
    let note = runtime_dir.join("c").join(container.as_str()).join(NOTE);
    match (fs::read(note), identity(bundle)) {
        (Ok(noted), Ok(own)) => !noted.starts_with(own.as_bytes()),
        _ => false,
    }
}

fn identity(bundle: &Path) -> io::Result<String> {
    fs::metadata(bundle).map(|meta| format!("{}:{}\n", meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_keeps_others_away() {
        let dir = std::env::temp_dir().join(format!("gpuslice-claim-{}", std::process::id()));
        let (inside, first, second) = (dir.join("c/web/inside"), dir.join("1"), dir.join("2"));
        for dir in [&inside, &first, &second] {
            fs::create_dir_all(dir).expect("a directory");
        }
        let web = ContainerId::new("web").expect("an id");
        assert!(!is_anothers(&dir, web, &second));
        note(&inside, &first).expect("written");
        assert!(is_anothers(&dir, web, &second));
        assert!(!is_anothers(&dir, web, &first));
        fs::remove_dir_all(&dir).expect("ours");
    }
}
