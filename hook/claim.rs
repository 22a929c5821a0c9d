//! Whose a slice is, among containers of the same id.
//!
//! Ids are unique within a runtime's state directory, not on a node. A second container of an id is
//! refused its slice, its runtime cleans up after it, and that includes calling us for `poststop`:
//! then the first container's slice must stay. So the hook notes in the slice's directory for
//! which bundle it got the slice; what the note tells of the host is a device's and an inode's
//! number. A second line has the container's first process, by its number and the time of its start:
//! a daemon that was away when the container ended sees by it that nobody will tell.

use crate::read::read_capped;
use crate::sys::file;
use gpuslice_wire::ids::ContainerId;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Name of the note; the daemon reads it too.
const NOTE: &str = "container";
/// What the kernel says of a process in one line is a tenth of that.
const STAT_BYTES_MAX: u64 = 4 << 10;

/// Notes in a slice's directory that it is for this bundle, and for the container of this process.
pub(crate) fn note(dir: &Path, bundle: &Path, pid: i32) -> io::Result<()> {
    let stat = file::open_file(format!("/proc/{pid}/stat").as_ref())?;
    let stat = read_capped(stat, STAT_BYTES_MAX, "the process").map_err(io::Error::other)?;
    let stat = String::from_utf8_lossy(&stat);
    // After the program's name, which may have anything in it, come 19 fields and then the start.
    let start = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().nth(19));
    let start = start.ok_or(io::ErrorKind::InvalidData)?;
    let note = format!("{}{pid} {start}\n", identity(bundle)?);
    file::create(&dir.join(NOTE))?.write_all(note.as_bytes())
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
        note(&slice, &first, std::process::id() as i32).expect("written");
        assert!(is_anothers(&dir, web, &second));
        assert!(!is_anothers(&dir, web, &first));
        fs::remove_dir_all(&dir).expect("ours");
    }
}
