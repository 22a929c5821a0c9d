//! Link options: the soname that programs ask the loader for, and symbolic binding of its own calls, even
//! when another library with the same names (a shim) was loaded before it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
