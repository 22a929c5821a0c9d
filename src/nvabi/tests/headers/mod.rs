//! NVIDIA's headers as the judge of the table: found in `target/headers`, fetched once if missing.
//!
//! The headers are not ours to ship, but NVIDIA publishes them as Python wheels of a few hundred
//! KiB. They are read with a line scanner, not a C compiler, so that the test runs where only Rust
//! is: what it needs is which names are declared and how `#define` maps them to exported symbols.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One wheel and the directory under `target/headers` its headers go to.
pub struct Wheel {
    pub package: &'static str,
    pub version: &'static str,
    pub directory: &'static str,
}

const fn wheel(package: &'static str, version: &'static str, directory: &'static str) -> Wheel {
    Wheel { package, version, directory }
}

/// The driver's headers that the table is compared with.
pub const CUDA: [Wheel; 4] = [
    wheel("nvidia-cuda-runtime-cu11", "11.8.89", "cuda-11.8"),
    wheel("nvidia-cuda-runtime-cu12", "12.4.127", "cuda-12.4"),
    wheel("nvidia-cuda-runtime-cu12", "12.9.79", "cuda-12.9"),
    wheel("nvidia-cuda-runtime", "13.5.37", "cuda-13.5"),
];

/// NVML's headers, and the number column 3 holds for a function first seen in each.
pub const NVML: [(Wheel, u32); 4] = [
    (wheel("nvidia-nvml-dev-cu11", "11.8.86", "nvml-11.8"), 11080),
    (wheel("nvidia-nvml-dev-cu12", "12.4.127", "nvml-12.4"), 12040),
    (wheel("nvidia-nvml-dev-cu12", "12.9.79", "nvml-12.9"), 12090),
    (wheel("nvidia-nvml-dev", "13.5.37", "nvml-13.5"), 13050),
];

/// Declared for Windows only, behind `#ifdef _WIN32`.
const WINDOWS_ONLY: &str = "cuWGLGetDevice";

/// Takes the wheel named by its first argument out of the index, and the headers we read out of the
/// wheel into the second; a directory appears whole or not at all.
const FETCH: &str = r#"
import glob, os, subprocess, sys, tempfile, zipfile
wheel, into = sys.argv[1:]
os.makedirs(os.path.dirname(into), exist_ok=True)
with tempfile.TemporaryDirectory(dir=os.path.dirname(into)) as work:
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps",
                    "--no-binary", ":none:", "--timeout", "20", "--retries", "1",
                    "--disable-pip-version-check", "-d", work, wheel], check=True)
    os.makedirs(work + "/out/include")
    for path in glob.glob(work + "/*.whl"):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                base = os.path.basename(name)
                if base.startswith(("cuda", "nvml")) and name.endswith("/include/" + base):
                    with open(work + "/out/include/" + base, "wb") as out:
                        out.write(archive.read(name))
    try:
        os.rename(work + "/out", into)
    except OSError:
        if not os.path.isdir(into):
            raise
"#;

/// The include directory of `wheel`, fetched if need be; a printed reason where that cannot be
/// done.
pub fn include(wheel: &Wheel) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/headers");
    let into = root.join(wheel.directory);
    if !into.is_dir() {
        let spec = format!("{}=={}", wheel.package, wheel.version);
        let fetched = Command::new("python3").args(["-c", FETCH, &spec]).arg(&into).output();
        let reason = match fetched {
            Ok(out) if out.status.success() => None,
            Ok(out) => Some(last_line(&String::from_utf8_lossy(&out.stderr))),
            Err(error) => Some(format!("python3: {error}")),
        };
        if let Some(reason) = reason {
            let line = format!("SKIP headers of {spec}: they could not be fetched: {reason}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            return None;
        }
    }
    Some(into.join("include"))
}

fn last_line(text: &str) -> String {
    text.trim().lines().last().unwrap_or("no message").to_string()
}

/// A header's text without comments; a missing file is empty (not every wheel has every header).
fn code(path: &Path) -> String {
    let text = match std::fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => return String::new(),
    };
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(start) = rest.find("/*") {
        out.push_str(&rest[..start]);
        rest = rest[start..].find("*/").map_or("", |end| &rest[start + end + 2..]);
    }
    out.push_str(rest);
    out.lines().map(|l| l.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// The word at the start of `text`.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// The symbols a driver must export for programs built with this header, in any of its modes.
///
/// The header declares `cuMemAlloc` after `#define cuMemAlloc cuMemAlloc_v2`, and `cuMemcpyHtoD`
/// after `#define cuMemcpyHtoD __CUDA_API_PTDS(cuMemcpyHtoD_v2)`; at its end it undefines the
/// names and declares the old forms. Reading lines in order with the definitions in force gives
/// all of them; a name with a stream suffix stands for itself and its suffixed variant.
pub fn exported_by_cuda(include: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in ["cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h"] {
        let mut defined: BTreeMap<String, String> = BTreeMap::new();
        // A few declarations break the line before the name.
        let text = code(&include.join(file)).replace("CUresult CUDAAPI\n", "CUresult CUDAAPI ");
        for line in text.lines() {
            let line = line.trim();
            if let Some(directive) = line.strip_prefix('#') {
                define(directive.trim_start(), &mut defined);
            } else if let Some(at) = line.find("CUDAAPI cu") {
                declare(word(&line[at + "CUDAAPI ".len()..]), &defined, &mut names);
            }
        }
    }
    names.remove(WINDOWS_ONLY);
    names
}

fn define(directive: &str, defined: &mut BTreeMap<String, String>) {
    if let Some(rest) = directive.strip_prefix("define") {
        let rest = rest.trim_start();
        let name = word(rest);
        let value = rest[name.len()..].trim();
        let maps = value.starts_with("cu") || value.starts_with("__CUDA_API_PT");
        if name.starts_with("cu") && maps {
            defined.insert(name.to_string(), value.to_string());
        }
    } else if let Some(rest) = directive.strip_prefix("undef") {
        defined.remove(word(rest.trim_start()));
    }
}

fn declare(name: &str, defined: &BTreeMap<String, String>, names: &mut BTreeSet<String>) {
    let Some(value) = defined.get(name) else {
        names.insert(name.to_string());
        return;
    };
    let suffix = [("__CUDA_API_PTDS(", "_ptds"), ("__CUDA_API_PTSZ(", "_ptsz")]
        .iter()
        .find_map(|(prefix, suffix)| Some((value.strip_prefix(prefix)?, suffix)));
    match suffix {
        Some((inner, suffix)) => {
            let symbol = word(inner);
            names.insert(symbol.to_string());
            names.insert(format!("{symbol}{suffix}"));
        }
        None => {
            names.insert(word(value).to_string());
        }
    }
}

/// The functions NVML declares, versioned and not.
pub fn declared_by_nvml(include: &Path) -> BTreeSet<String> {
    let text = code(&include.join("nvml.h"));
    text.lines()
        .filter_map(|line| line.split_once("DECLDIR "))
        .map(|(_, rest)| word(rest.trim_start_matches("char*").trim_start()).to_string())
        .filter(|name| name.starts_with("nvml"))
        .collect()
}

/// For each base name and stream suffix, the versions `PFN_<base>_v<version><suffix>` exist for.
pub fn versions_in_typedefs(include: &Path) -> BTreeMap<(String, String), BTreeSet<u32>> {
    let mut versions: BTreeMap<_, BTreeSet<u32>> = BTreeMap::new();
    for api in ["cuda", "cudaGL", "cudaEGL", "cudaVDPAU", "cudaProfiler"] {
        let text = code(&include.join(format!("{api}Typedefs.h")));
        for line in text.lines().filter(|line| line.contains("typedef CUresult")) {
            let Some((_, rest)) = line.split_once("*PFN_") else {
                continue;
            };
            let (name, suffix) = split_suffix(word(rest));
            let Some((base, version)) = name.rsplit_once("_v") else {
                continue;
            };
            let Ok(version) = version.parse() else {
                continue;
            };
            versions.entry((base.into(), suffix.into())).or_default().insert(version);
        }
    }
    versions.remove(&(WINDOWS_ONLY.into(), String::new()));
    versions
}

/// A name and its stream suffix ("" where it has none).
pub fn split_suffix(name: &str) -> (&str, &str) {
    for suffix in ["_ptsz", "_ptds"] {
        if let Some(base) = name.strip_suffix(suffix) {
            return (base, suffix);
        }
    }
    (name, "")
}
