//! Whose a slice is, among containers of the same id.
//!
//! Ids are unique within a runtime's state directory, not on a node. A second container of an id is
//! refused its slice, its runtime cleans up after it, and that includes calling us for `poststop`:
//! then the first container's slice must stay. So the hook notes in the slice's directory for
//! which bundle it got the slice; what the note tells of the host is a device's and an inode's
//! number.

use crate::sys::file;
use gpuslice_wire::ids::ContainerId;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Name of the note.
const NOTE: &str = "container";

/// Notes in a slice's directory that it is for this bundle.
pub(crate) fn note(dir: &Path, bundle: &Path) -> io::Result<()> {
    file::create(&dir.join(NOTE))?.write_all(identity(bundle)?.as_bytes())
}

/// Whether a container's slice was got for another bundle. One without a note is nobody else's.
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
        let (slice, first, second) = (dir.join("c/web"), dir.join("1"), dir.join("2"));
        for dir in [&slice, &first, &second] {
            fs::create_dir_all(dir).expect("a directory");
        }
        let web = ContainerId::new("web").expect("an id");
        assert!(!is_anothers(&dir, web, &second));
        note(&slice, &first).expect("written");
        assert!(is_anothers(&dir, web, &second));
        assert!(!is_anothers(&dir, web, &first));
        fs::remove_dir_all(&dir).expect("ours");
    }
}
