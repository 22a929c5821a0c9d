//! Link options of the NVML shim; `shim/cdylib.rs` explains each.

include!("../cdylib.rs");

fn main() {
    link_cdylib("libnvidia-ml.so.1");
}
