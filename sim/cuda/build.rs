//! The library calls itself what programs ask the loader for, and its own calls stay its own even
//! when another library with the same names (a shim) was loaded before it. It is never unloaded: its
//! threads may be at work.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
