//! Link options of the preloaded shim; `shim/cdylib.rs` explains each.

include!("../cdylib.rs");

fn main() {
    link_cdylib("libcuda.so.1");
}
