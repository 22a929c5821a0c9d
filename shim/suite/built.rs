//! The libraries under test.

use nix::unistd::{AccessFlags, access};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Once;

/// A shim library. Cargo builds libraries of C symbols for no test, so it is asked to.
///
/// Not where `GPUSLICE_TEST_STAGED` says that `packaging/stage` has built the present source: for a package alone cargo
/// selects other features, and builds all that the library needs again. In another user's build directory it cannot
/// build, and the library is what that user built.
pub fn built(package: &str, file: &str) -> PathBuf {
    static DONE: Once = Once::new();
    let test = std::env::current_exe().expect("this test");
    let profile = test.ancestors().nth(2).expect("target/<profile>/deps/test");
    let target = profile.parent().expect("target/<profile>");
    let staged = std::env::var_os("GPUSLICE_TEST_STAGED").is_some();
    let own = !staged && access(profile, AccessFlags::W_OK).is_ok();
    assert!(
        own || profile.join(file).exists(),
        "{} has no {file}, and it may not be built there now; run packaging/stage as its owner",
        profile.display()
    );
    DONE.call_once(|| {
        if !own {
            return;
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", package, "--target-dir"]).arg(target);
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo runs").success(), "cannot build {package}");
    });
    profile.join(file)
}
