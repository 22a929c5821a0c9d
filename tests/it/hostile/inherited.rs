//! A hook that inherits the container's environment. Some versions of runc pass it to hooks of the
//! stage createContainer: an image's `LD_PRELOAD` then is code that runs as the host's root
//! (NVIDIAScape). The hook is static, so no loader reads any variable.

use crate::harness::bundle::{Bundle, hook};
use serde_json::json;
use std::path::Path;
use std::process::Command;

/// A library that makes a file when it is loaded.
fn mark(library: &Path, mark: &Path) {
    let source = format!(
        "#include <fcntl.h>\n__attribute__((constructor)) static void begin(void) \
         {{ open({:?}, O_CREAT | O_WRONLY, 0600); }}\n",
        mark.display().to_string()
    );
    let file = library.with_extension("c");
    std::fs::write(&file, source).expect("a source");
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-o"]).arg(library).arg(&file);
    assert!(gcc.status().expect("gcc").success());
}

#[test]
fn an_images_environment_is_no_code_of_ours() {
    let test = "an_images_environment_is_no_code_of_ours";
    let place = tempfile::tempdir().expect("a directory");
    let (left, evil) = (place.path().join("mark"), place.path().join("evil.so"));
    mark(&evil, &left);
    for runtime in ["runc", "crun"] {
        let Some(hook) = hook(test, runtime) else {
            continue;
        };
        let root = tempfile::tempdir().expect("a directory");
        // Runs a container with a program of the host's as its hook; whether the mark is there.
        let marked = |program: &Path| {
            let path = program.to_owned();
            let bundle = Bundle::new(root.path(), "scape", runtime, root.path())
                .annotation("gpuslice.io/memory", "1GiB")
                .variable("LD_PRELOAD=./evil.so:/proc/self/cwd/evil.so")
                .edit(move |config| {
                    let bare = json!([{ "path": path, "args": ["hook"] }]);
                    config["hooks"] = json!({ "createRuntime": bare, "createContainer": bare });
                });
            std::fs::copy(&evil, bundle.rootfs().join("evil.so")).expect("a copy");
            bundle.run(&hook);
            std::fs::remove_file(&left).is_ok()
        };
        if !marked(Path::new("/bin/true")) {
            eprintln!("{runtime} hands nothing down here; nothing is shown by this test");
        }
        assert!(!marked(&hook), "{runtime}");
    }
}
