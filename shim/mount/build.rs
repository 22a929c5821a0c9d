//! Link options of the mount-injected shim; `shim/cdylib.rs` explains each.

include!("../cdylib.rs");

/// Where the real driver is mounted in a container.
const REAL: &str = "/run/gpuslice/driver/libcuda.so.1";

fn main() {
    link_cdylib("libcuda.so.1");
    need(REAL);
}

/// Makes the library need `path`. The file is not there when we link, and a needed entry is what the
/// linker finds as SONAME in a library it links: so it links an empty one of that SONAME.
fn need(path: &str) {
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let stub = format!("{out}/libreal.so");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = std::process::Command::new(&compiler)
        .args(["-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", &stub])
        .arg(format!("-Wl,-soname,{path}"))
        .status()
        .unwrap_or_else(|error| panic!("cannot run {compiler}: {error}"));
    assert!(status.success(), "{compiler} did not make {stub}: {status}");
    // What comes before is linked as needed too: rustc says so at the front.
    for arg in ["--no-as-needed", &stub, "--as-needed"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{arg}");
    }
}
