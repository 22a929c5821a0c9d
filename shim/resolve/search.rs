//! Finds the real driver.
//!
//! This library carries the driver's SONAME, so asking the loader for `libcuda.so.1` would return
//! this library itself. The real one is opened by absolute path, in this order: the private mount that the
//! hook makes in a container, the directory given by `gpuslice run`, the loader's usual places. A
//! candidate that is this file under another name (a mount over the driver's path) is skipped.
//!
//! It is opened with local scope: its names must not precede this library's for other libraries.

use super::Library;
use core::ffi::{CStr, c_void};
use core::ptr::NonNull;
use std::ffi::{CString, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Directory into which the hook mounts the real libraries.
const PRIVATE: &str = "/run/gpuslice/driver";
/// Directories used by distributions and container toolkits.
const USUAL: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/run/opengl-driver/lib",
];

fn file_name(library: Library) -> &'static str {
    match library {
        Library::Driver => "libcuda.so.1",
        Library::Nvml => "libnvidia-ml.so.1",
    }
}

/// Opens the real library.
pub fn open(library: Library) -> Option<NonNull<c_void>> {
    let us = own_file().as_deref().and_then(identity);
    directories()
        .into_iter()
        .map(|directory| directory.join(file_name(library)))
        .filter(|path| identity(path).is_some_and(|file| Some(file) != us))
        .find_map(|path| load(&path))
}

fn directories() -> Vec<PathBuf> {
    let list = |name| std::env::var_os(name).unwrap_or_default();
    let mut all = vec![PathBuf::from(PRIVATE)];
    all.extend(absolute(&list("GPUSLICE_DRIVER_DIR")));
    all.extend(absolute(&list("LD_LIBRARY_PATH")));
    all.extend(configured());
    all.extend(USUAL.iter().map(PathBuf::from));
    all
}

/// The absolute directories of a colon-separated list; relative ones are ignored.
fn absolute(list: &OsStr) -> Vec<PathBuf> {
    std::env::split_paths(list).filter(|path| path.is_absolute()).collect()
}

/// Directories listed in `/etc/ld.so.conf.d`, where container toolkits add the driver's.
fn configured() -> Vec<PathBuf> {
    let Ok(files) = fs::read_dir("/etc/ld.so.conf.d") else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = files.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let lines = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let line_paths = |text: String| -> Vec<PathBuf> {
        text.lines().map(str::trim).filter(|l| l.starts_with('/')).map(PathBuf::from).collect()
    };
    files.into_iter().map(lines).flat_map(line_paths).collect()
}

/// Device and inode of a regular, non-empty file (an unused mount point is empty).
fn identity(path: &Path) -> Option<(u64, u64)> {
    let file = fs::metadata(path).ok()?;
    (file.is_file() && file.len() > 0).then(|| (file.dev(), file.ino()))
}

/// The path this library was loaded from.
fn own_file() -> Option<PathBuf> {
    // SAFETY: all-zero bytes are a valid Dl_info.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    let here = own_file as fn() -> Option<PathBuf>;
    // SAFETY: any address may be asked for; `info` is writable.
    if unsafe { libc::dladdr(here as *const c_void, &raw mut info) } == 0
        || info.dli_fname.is_null()
    {
        return None;
    }
    // SAFETY: dladdr gives a NUL-terminated name that lives as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

fn load(path: &Path) -> Option<NonNull<c_void>> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: loads the driver, as the application asked by calling it.
    NonNull::new(unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_and_empty_directories_are_skipped() {
        let list = OsStr::new("/a::relative:/b/c:");
        assert_eq!(absolute(list), [PathBuf::from("/a"), PathBuf::from("/b/c")]);
    }

    #[test]
    fn our_own_file_has_an_identity() {
        let us = own_file().expect("loaded from somewhere");
        assert!(identity(&us).is_some(), "{}", us.display());
        assert_eq!(identity(Path::new("/dev/null")), None);
    }
}
