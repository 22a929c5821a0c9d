//! Images and their C library: like the driver, a slice is for programs that glibc's loader loads.

use crate::harness::bundle::{Bundle, complaint, hook, printed};
use crate::harness::eventually;
use crate::harness::node::Node;
use std::fs;
use std::path::Path;

const GLIBC: &str = "lib64/ld-linux-x86-64.so.2";
const MUSL: &str = "lib/ld-musl-x86_64.so.1";

/// A container of an image with musl's loader, which runs the hook's own program, a static one.
fn musl(node: &Node, id: &str, hook: &Path, with_glibc: bool) -> Bundle {
    let bundle = Bundle::new(node.root(), id, "runc", node.runtime_dir())
        .annotation("gpuslice.io/memory", "1GiB");
    let rootfs = bundle.rootfs();
    fs::create_dir_all(rootfs.join("lib")).expect("a directory");
    fs::write(rootfs.join(MUSL), "a loader").expect("written");
    if with_glibc {
        return bundle.command(&["/bin/cat", "/run/gpuslice/ld.so.preload"]);
    }
    bundle.add_program(hook, "bin/static");
    fs::remove_file(rootfs.join(GLIBC)).expect("glibc's loader");
    bundle.command(&["/bin/static", "nonsense"])
}

#[test]
fn an_image_with_musl_alone_is_refused() {
    let Some(hook) = hook("an_image_with_musl_alone_is_refused", "runc") else {
        return;
    };
    let node = Node::start();
    let said = complaint(&musl(&node, "alpine", &hook, false).run(&hook));
    assert!(said.contains("musl and no glibc") && said.contains("--allow-musl"), "{said}");
    eventually("its promise is taken back", || node.slice("alpine").is_none());
    // If allowed, its static program runs and prints its own error.
    let bundle = musl(&node, "allowed", &hook, false).hook_argument("--allow-musl");
    let said = complaint(&bundle.run(&hook));
    assert!(said.contains("usage: gpuslice-hook"), "{said}");
    // And with a glibc beside it, the image is like any other.
    let line = printed(&musl(&node, "both", &hook, true).run(&hook));
    assert!(line.contains("/run/gpuslice/libgpuslice.so"), "{line}");
}
