//! Link options: the soname that programs ask the loader for, and symbolic binding of its own calls, even
//! when another library with the same names (a shim) was loaded before it. The library is never
//! unloaded: its threads may be running.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
