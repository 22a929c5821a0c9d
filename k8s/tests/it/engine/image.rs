//! An image of this machine's own files: no registry is asked.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The image's name.
pub const NAME: &str = "localhost/gpuslice-k8s-test:1";
/// What it has in `/bin` beside the tenant.
const PROGRAMS: [&str; 4] = ["/bin/sh", "/bin/sleep", "/bin/cat", "/bin/ls"];

/// What a program printed.
pub fn printed(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

/// Writes an archive as `docker save` writes it, of an image with `tenant`; its path.
pub fn archive(dir: &Path, tenant: &Path) -> PathBuf {
    let root = dir.join("rootfs");
    for name in ["bin", "dev", "etc", "proc", "run", "sys", "tmp", "usr/lib/x86_64-linux-gnu"] {
        fs::create_dir_all(root.join(name)).expect("a directory");
    }
    let programs = PROGRAMS.iter().map(Path::new).chain([tenant]);
    for program in programs {
        let name = program.file_name().expect("a name");
        fs::copy(program, root.join("bin").join(name)).expect("copied");
        for library in libraries(program) {
            let place = root.join(library.strip_prefix("/").expect("absolute"));
            fs::create_dir_all(place.parent().expect("a directory")).expect("a directory");
            fs::copy(&library, place).expect("copied");
        }
    }
    let layer = dir.join("layer.tar");
    printed(Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&layer).arg("."));
    let sum = printed(Command::new("sha256sum").arg(&layer));
    let sum = sum.split_whitespace().next().expect("a sum");
    let config = serde_json::json!({
        "architecture": "amd64", "os": "linux",
        "config": { "Cmd": ["/bin/sleep", "infinity"], "Env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{sum}")] },
    });
    let manifest = serde_json::json!([
        { "Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"] }
    ]);
    fs::write(dir.join("config.json"), config.to_string()).expect("written");
    fs::write(dir.join("manifest.json"), manifest.to_string()).expect("written");
    let whole = dir.join("image.tar");
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(dir).arg("-cf").arg(&whole);
    printed(tar.args(["config.json", "manifest.json", "layer.tar"]));
    whole
}

/// The libraries that a program needs.
fn libraries(program: &Path) -> BTreeSet<PathBuf> {
    let listed = printed(Command::new("ldd").arg(program));
    let words = listed.split_whitespace().filter(|word| word.starts_with('/'));
    words.map(PathBuf::from).collect()
}
