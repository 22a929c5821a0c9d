//! Link options of the preload door; what each is for stands in `shim/door.rs`.

include!("../door.rs");

fn main() {
    door("libcuda.so.1");
}
