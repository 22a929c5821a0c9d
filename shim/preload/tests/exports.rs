//! Exports of the preloaded shim.

#[path = "../../suite/built.rs"]
mod built;
#[path = "../../suite/elf.rs"]
mod elf;

use gpuslice_nvabi::DRIVER;
use std::collections::BTreeSet;

#[test]
fn exports_the_whole_driver_and_nothing_else() {
    let library = built::built("gpuslice-shim-preload", "libgpuslice.so");
    let table = DRIVER.iter();
    let expect: BTreeSet<String> = table.map(|row| row.name.to_owned()).collect();
    assert_eq!(elf::exports(&library), expect);
    elf::is_lean(&library, "libcuda.so.1", &[]);
    assert!(!elf::imports(&library).iter().any(|name| name.starts_with("cu")));
}
