//! The name of the slice that this process is in, for [`crate::high_water`].
//!
//! Each slice has a directory on the host, named as its container is. The directory in it has the socket to which the
//! shim connects. In a container that one is mounted at [`MOUNTED`], and the kernel tells which directory that is. A
//! process with a preloaded shim and no mount has the socket's path in its environment. The shim looks at both in the
//! same order. A container that lives in the slice of a claim sees the claim's id: such containers share one account.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

const MOUNTED: &str = "/run/gpuslice";
/// What the mounted directory has, even while a daemon that starts anew has not made its socket.
const DRIVER: &str = "/run/gpuslice/driver";

/// The name, as bytes; `None` outside of slices.
pub(crate) fn own() -> Option<Vec<u8>> {
    let is_mounted = Path::new(DRIVER).exists();
    let dir = match is_mounted {
        true => mounted(&std::fs::read("/proc/self/mountinfo").ok()?)?,
        false => Path::new(&std::env::var_os("GPUSLICE_SOCKET")?).parent()?.to_owned(),
    };
    let seen = if is_mounted { Path::new(MOUNTED) } else { &dir };
    if let Ok(claim) = std::fs::read(seen.join("claim")) {
        return Some([b"claim.".as_slice(), &claim].concat());
    }
    Some(dir.parent()?.file_name()?.as_bytes().to_owned())
}

/// The directory that is mounted last at [`MOUNTED`]: the fourth and the fifth word of a line of proc(5).
fn mounted(mountinfo: &[u8]) -> Option<PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n').rev();
    let mut words = lines.map(|line| line.split(|byte| *byte == b' ').skip(3));
    let root = words.find_map(|mut words| {
        let root = words.next()?;
        (words.next()? == MOUNTED.as_bytes()).then_some(root)
    })?;
    // The kernel adds this to a directory that was removed.
    let root = root.strip_suffix(b"//deleted").unwrap_or(root);
    Some(PathBuf::from(std::ffi::OsString::from_vec(root.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_mount_names_the_slice() {
        let line =
            |root: &str, at: &str| format!("36 35 98:0 {root} {at} rw - ext4 /dev/root rw\n");
        let text = line("/run/gpuslice/c/a/inside", MOUNTED)
            + &line("/run/gpuslice/c/b/inside", MOUNTED)
            + &line("/drv", "/run/gpuslice/driver/libcuda.so.1");
        assert_eq!(mounted(text.as_bytes()), Some("/run/gpuslice/c/b/inside".into()));
        let gone = line("/run/gpuslice/c/a/inside//deleted", MOUNTED);
        assert_eq!(mounted(gone.as_bytes()), Some("/run/gpuslice/c/a/inside".into()));
        for other in ["", "36 35 98:0\n", "x y z /a /run/gpuslice2 rw\n"] {
            assert_eq!(mounted(other.as_bytes()), None, "{other}");
        }
    }
}
