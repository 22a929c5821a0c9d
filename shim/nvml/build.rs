//! Link options of the NVML twin; what each is for stands in `shim/door.rs`.

include!("../door.rs");

fn main() {
    door("libnvidia-ml.so.1");
}
