//! Exports of the mount-injected shim.

#[path = "../../suite/built.rs"]
mod built;
#[path = "../../suite/elf.rs"]
mod elf;

use gpuslice_nvabi::{DRIVER, Shim};
use std::collections::BTreeSet;

#[test]
fn exports_the_hooks_and_needs_the_real_driver() {
    let library = built::built("gpuslice-shim-mount", "libgpuslice_mount.so");
    let table = DRIVER.iter();
    let hooks = table.filter(|row| row.shim == Shim::Hook);
    let expect: BTreeSet<String> = hooks.map(|row| row.name.to_owned()).collect();
    assert_eq!(elf::exports(&library), expect);
    elf::is_lean(&library, "libcuda.so.1", &["/run/gpuslice/driver/libcuda.so.1"]);
    assert!(!elf::imports(&library).iter().any(|name| name.starts_with("cu")));
}
