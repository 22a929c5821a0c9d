//! The files of a slice. They are made once for a process of tests, and each slice has copies.

use super::built::built;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/apps/stub");
/// Where a slice has its driver, its program and a library that is linked to the driver.
const NAMES: [&str; 3] = ["d/libcuda.so.1", "probe", "plugin.so"];
/// Fixed paths of the mount-injected library, and what a slice has in their place.
const FIXED: [(&str, &str); 2] =
    [("/run/gpuslice/driver", "d"), ("/run/gpuslice/tenant.sock", "tenant.sock")];

/// The files of [`NAMES`], open and without a name, so that nothing is left of them when the tests end.
type Compiled = Arc<[File; 3]>;

fn cc(args: &[&str]) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(&compiler).args(args).status().expect("a C compiler");
    assert!(status.success(), "{compiler} {args:?}");
}

fn compile(option: &str) -> Compiled {
    let home = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(home.path().join("d")).expect("a directory");
    let [driver, probe, plugin] =
        NAMES.map(|name| home.path().join(name).to_str().expect("plain").to_owned());
    let source = |name: &str| format!("{SOURCES}/{name}");
    let soname = "-Wl,-soname,libcuda.so.1";
    let visible = ["-shared", "-fPIC", "-fvisibility=hidden", soname, option];
    cc(&[&["-O1", "-o", &driver, &source("stub.c")], &visible[..]].concat());
    cc(&["-O1", "-o", &probe, &source("probe.c"), "-ldl", "-lpthread"]);
    cc(&["-o", &plugin, "-shared", "-fPIC", &source("plugin.c"), &driver]);
    Arc::new([driver, probe, plugin].map(|path| File::open(path).expect("compiled")))
}

/// What was compiled with this option for the driver.
fn compiled(option: &str) -> Compiled {
    static ALL: Mutex<BTreeMap<String, Compiled>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock().unwrap_or_else(|error| panic!("an earlier compilation: {error}"));
    all.entry(option.to_owned()).or_insert_with(|| compile(option)).clone()
}

/// Puts driver, program and plugin below `home`. Another process writes them: one that another test forks meanwhile
/// would have the program open for writing, and nothing could execute it.
pub fn put(home: &Path, option: &str) {
    for (file, name) in compiled(option).iter().zip(NAMES) {
        let from = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let copied = Command::new("cp").arg("-L").arg(from).arg(home.join(name)).status();
        assert!(copied.expect("cp starts").success(), "no {name}");
    }
}

/// The mount-injected library, and where it has each of [`FIXED`].
fn library() -> &'static (Vec<u8>, [Vec<usize>; 2]) {
    static LIBRARY: OnceLock<(Vec<u8>, [Vec<usize>; 2])> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let path = built("gpuslice-shim-mount", "libgpuslice_mount.so");
        let bytes = std::fs::read(path).expect("built");
        let places = FIXED.map(|(old, _)| {
            let parts = bytes.windows(old.len()).enumerate();
            parts.filter(|(_, part)| *part == old.as_bytes()).map(|(at, _)| at).collect()
        });
        (bytes, places)
    })
}

/// `name` below `home`, padded with slashes to the length of `like`.
fn drawn_out(home: &Path, name: &str, like: &str) -> String {
    let (home, width) = (home.to_str().expect("plain"), like.len());
    let slashes = width.checked_sub(home.len() + name.len()).expect("a short home");
    format!("{home}{}{name}", "/".repeat(slashes))
}

/// A copy of the mount-injected library with its fixed paths moved below `home`.
pub fn moved(home: &Path, to: &Path) {
    let (bytes, places) = library();
    let mut bytes = bytes.clone();
    for ((old, name), places) in FIXED.iter().zip(places) {
        assert!(!places.is_empty(), "{old} is not in the library");
        let new = drawn_out(home, name, old);
        for at in places {
            bytes[*at..at + new.len()].copy_from_slice(new.as_bytes());
        }
    }
    std::fs::write(to, bytes).expect("a copy");
}
