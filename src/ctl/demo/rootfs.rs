//! A root filesystem just large enough for one dynamically linked program: the program, the loader,
//! and the libraries `ldd` names. Glibc, because the driver's libraries need it.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes `root` with `program` as `/tenant` in it.
///
/// # Errors
/// `ldd` is missing or the disk is full.
pub fn build(root: &Path, program: &Path) -> Result<()> {
    for dir in ["proc", "dev", "sys", "run", "tmp", "etc"] {
        fs::create_dir_all(root.join(dir)).with_context(|| root.display().to_string())?;
    }
    copy(program, &root.join("tenant"))?;
    let listed = Command::new("ldd").arg(program).output().context("ldd (package libc-bin)")?;
    if !listed.status.success() {
        bail!("ldd {}: {}", program.display(), String::from_utf8_lossy(&listed.stderr).trim());
    }
    let mut libraries = parse_ldd(&String::from_utf8_lossy(&listed.stdout));
    // What the shim and the simulated driver need beyond the program.
    libraries.extend(
        ["libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6", "libgcc_s.so.1"]
            .map(beside_libc),
    );
    for library in libraries.iter().filter(|library| library.exists()) {
        let to = root.join(library.strip_prefix("/").unwrap_or(library));
        fs::create_dir_all(to.parent().unwrap_or(root))?;
        if !to.exists() {
            copy(library, &to)?;
        }
    }
    Ok(())
}

/// The absolute paths in ldd's output: `libc.so.6 => /lib/…/libc.so.6 (0x…)` and the loader's own.
fn parse_ldd(text: &str) -> Vec<PathBuf> {
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    paths.map(PathBuf::from).collect()
}

/// Where the loader looks, on this machine and so in the container.
const LIBRARY_DIRS: [&str; 3] = ["/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64"];

fn beside_libc(name: &str) -> PathBuf {
    let found = LIBRARY_DIRS.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists());
    found.unwrap_or_default()
}

/// The directory of the C library.
pub fn library_dir() -> Option<PathBuf> {
    beside_libc("libc.so.6").parent().map(Path::to_owned)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_names_paths() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x2)\n\t/lib64/ld.so (0x3)\n";
        assert_eq!(parse_ldd(text), [PathBuf::from("/lib/x/libc.so.6"), "/lib64/ld.so".into()]);
        assert!(parse_ldd("\tstatically linked\n").is_empty());
    }
}
