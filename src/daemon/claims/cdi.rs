//! The CDI file of each claim: the device by which a container engine passes the claim to a container.
//!
//! The device has the hook with the claim's id in its arguments, and the device nodes of the claim's GPUs. No limit is
//! in it: the daemon knows the claim's. A container with the device cannot start without the hook, so it never runs
//! without its limits. That also holds after the file was altered in any other way than by root.
//!
//! Engines read the directory when a container starts. So a file that is missing or altered is written again: at
//! the daemon's start, and when a look at it ([`LOOK_EVERY`]) shows another time, size or inode.

use crate::state::replace_passing_file;
use gpuslice_host::layout;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::owner::ClaimId;
use gpuslice_wire::units::{Duration, Instant};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The vendor of gpuslice's devices, with which its files begin.
const VENDOR: &str = "gpuslice.io";
/// The kind of claims' devices.
pub const KIND: &str = "gpuslice.io/gpu";
/// CDI version: the first in which a device's name may begin with a digit.
const VERSION: &str = "0.5.0";
/// Time between two looks at the files.
const LOOK_EVERY: Duration = Duration(1_000_000_000);
/// Largest file that is compared, bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// A file as it was written: inode, size, time of its last change.
type Stamp = (u64, u64, i64, i64);

/// A file that is to exist.
#[derive(Debug)]
struct CdiFile {
    gpus: Vec<GpuUuid>,
    stamp: Option<Stamp>,
}

/// See the file's head.
#[derive(Debug)]
pub struct CdiFiles {
    dir: PathBuf,
    hook: PathBuf,
    runtime_dir: PathBuf,
    /// The device node of each GPU that has one.
    nodes: BTreeMap<GpuUuid, PathBuf>,
    /// Finds the nodes that every container with a GPU needs.
    existing: fn() -> Vec<&'static str>,
    /// Those of the last look.
    common: Vec<&'static str>,
    files: BTreeMap<ClaimId, CdiFile>,
    /// When the files are looked at next.
    look_at: Instant,
}

impl CdiFiles {
    /// Files in `dir`, for containers of the daemon of `runtime_dir`; the GPUs have these minor numbers.
    pub fn new(
        dir: PathBuf,
        runtime_dir: &Path,
        minors: impl Iterator<Item = (GpuUuid, Option<u32>)>,
    ) -> CdiFiles {
        let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
        let beside = beside.unwrap_or_else(|| "/usr/sbin".into());
        let hook = layout::part(&beside, "gpuslice-hook");
        let nodes = minors.filter_map(|(gpu, minor)| Some((gpu, layout::gpu_node(minor?))));
        CdiFiles {
            dir,
            // A missing hook makes the engine refuse the container.
            hook: hook.unwrap_or_else(|| beside.join("gpuslice-hook")),
            runtime_dir: runtime_dir.to_owned(),
            nodes: nodes.filter(|(_, node)| node.exists()).collect(),
            existing: layout::common_nodes,
            common: layout::common_nodes(),
            files: BTreeMap::new(),
            look_at: Instant(0),
        }
    }

    /// The name of a claim's device.
    pub fn device(claim: &ClaimId) -> String {
        format!("{KIND}={claim}")
    }

    /// A claim's file.
    pub fn path(&self, claim: &ClaimId) -> PathBuf {
        self.dir.join(format!("{VENDOR}-{claim}.json"))
    }

    /// Writes a claim's file.
    ///
    /// # Errors
    /// A system call failed.
    pub fn keep(&mut self, claim: &ClaimId, gpus: &[GpuUuid]) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o755).create(&self.dir)?;
        let path = self.path(claim);
        // Engines read names that end in .json.
        let text = self.text(claim, gpus);
        replace_passing_file(&path, (&path.with_extension("new"), 0o644), text.as_bytes())?;
        let stamp = stamp_of(&path);
        self.files.insert(*claim, CdiFile { gpus: gpus.to_vec(), stamp });
        Ok(())
    }

    /// Deletes a claim's file, if there is one.
    pub fn forget(&mut self, claim: &ClaimId) {
        self.files.remove(claim);
        let path = self.path(claim);
        if let Err(why) = fs::remove_file(&path)
            && why.kind() != io::ErrorKind::NotFound
        {
            // Its hook refuses the container: there is no such claim.
            tracing::warn!(path = %path.display(), %why, "cannot delete the CDI file of a released claim");
        }
    }

    /// Writes these claims' files where they are missing or differ, and deletes those of other claims.
    pub fn restore(&mut self, claims: &[(ClaimId, Vec<GpuUuid>)]) {
        for claim in self.written() {
            if !claims.iter().any(|(known, _)| *known == claim) {
                self.forget(&claim);
            }
        }
        for (claim, gpus) in claims {
            let path = self.path(claim);
            if read(&path).is_some_and(|text| text == self.text(claim, gpus)) {
                let stamp = stamp_of(&path);
                self.files.insert(*claim, CdiFile { gpus: gpus.clone(), stamp });
            } else if let Err(why) = self.keep(claim, gpus) {
                tracing::error!(path = %path.display(), %why, "cannot write a claim's CDI file");
            }
        }
    }

    /// The claims of which a file of this daemon's is in the directory.
    fn written(&self) -> Vec<ClaimId> {
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return Vec::new();
        };
        let claim = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let id = name.strip_prefix(VENDOR)?.strip_prefix('-')?.strip_suffix(".json")?;
            let spec: Value = serde_json::from_str(&read(&entry.path())?).ok()?;
            (spec["kind"] == KIND).then(|| ClaimId::new(id).ok()).flatten()
        };
        entries.filter_map(|entry| claim(entry.ok()?)).collect()
    }

    /// When the files are looked at next, if there are any.
    pub fn deadline(&self) -> Option<Instant> {
        (!self.files.is_empty()).then_some(self.look_at)
    }

    /// Writes the files again that are missing or altered, if a look is due; each time is logged once.
    pub fn due(&mut self, now: Instant) {
        if self.files.is_empty() || now < self.look_at {
            return;
        }
        self.look_at = now.plus(LOOK_EVERY);
        self.look_at_nodes();
        // A file that could not be written has no stamp.
        let altered = |(claim, file): &(&ClaimId, &CdiFile)| {
            file.stamp.is_none() || stamp_of(&self.path(claim)) != file.stamp
        };
        let altered = self.files.iter().filter(altered);
        let altered: Vec<_> = altered.map(|(claim, file)| (*claim, file.gpus.clone())).collect();
        for (claim, gpus) in altered {
            let path = self.path(&claim);
            let what = if path.exists() { "altered" } else { "deleted" };
            match self.keep(&claim, &gpus) {
                Ok(()) => {
                    tracing::warn!(path = %path.display(), "a claim's CDI file was {what}; it is written again")
                }
                // Tried again at the next look, and not logged again.
                Err(why) => {
                    let first =
                        self.files.get_mut(&claim).is_some_and(|file| file.stamp.take().is_some());
                    if first {
                        tracing::error!(path = %path.display(), %why, "a claim's CDI file was {what} and cannot be written");
                    }
                }
            }
        }
    }

    /// Writes all files again if other device nodes exist than before: the driver makes some of them late.
    fn look_at_nodes(&mut self) {
        let common = (self.existing)();
        if self.nodes.is_empty() || common == self.common {
            return;
        }
        tracing::info!(nodes = ?common, "the driver's device nodes changed; the CDI files of claims are written again");
        self.common = common;
        let all: Vec<_> =
            self.files.iter().map(|(claim, file)| (*claim, file.gpus.clone())).collect();
        for (claim, gpus) in all {
            if let (Err(why), Some(file)) = (self.keep(&claim, &gpus), self.files.get_mut(&claim)) {
                tracing::error!(%claim, %why, "cannot write a claim's CDI file");
                file.stamp = None;
            }
        }
    }

    fn text(&self, claim: &ClaimId, gpus: &[GpuUuid]) -> String {
        const STAGE: &str = "createRuntime";
        let words = [
            "--runtime-dir",
            &self.runtime_dir.to_string_lossy(),
            "--claim",
            claim.as_str(),
            STAGE,
        ];
        let args: Vec<&str> = ["gpuslice-hook"].into_iter().chain(words).collect();
        let own = gpus.iter().filter_map(|gpu| self.nodes.get(gpu));
        let common = (self.existing)().into_iter().filter(|_| !self.nodes.is_empty());
        let nodes = own.map(PathBuf::as_path).chain(common.map(Path::new));
        let nodes: Vec<Value> = nodes.map(|node| json!({ "path": node })).collect();
        let mut edits = json!({ "hooks": [{
            "hookName": STAGE, "path": self.hook, "args": args, "env": ["PATH=/usr/bin:/bin"], "timeout": 10,
        }]});
        if !nodes.is_empty() {
            edits["deviceNodes"] = Value::Array(nodes);
        }
        let device = json!({ "name": claim.as_str(), "containerEdits": edits });
        let spec = json!({ "cdiVersion": VERSION, "kind": KIND, "devices": [device] });
        format!("{spec:#}\n")
    }
}

fn stamp_of(path: &Path) -> Option<Stamp> {
    let meta = fs::symlink_metadata(path).ok()?;
    Some((meta.ino(), meta.size(), meta.ctime(), meta.ctime_nsec()))
}

/// A file's text, if it is a plain file of a CDI file's size.
fn read(path: &Path) -> Option<String> {
    let meta = fs::symlink_metadata(path).ok()?;
    let plain = meta.is_file() && meta.len() <= FILE_BYTES_MAX;
    plain.then(|| fs::read_to_string(path).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each way to alter a file is noticed, whether a daemon runs meanwhile or not.
    #[test]
    fn every_alteration_is_mended() {
        let dir = tempfile::tempdir().expect("a directory");
        let cdi = dir.path().join("cdi");
        let files = || CdiFiles::new(cdi.clone(), Path::new("/run/x"), std::iter::empty());
        let (claim, gpus) = (ClaimId::new("one").expect("a claim id"), vec![GpuUuid([1; 16])]);
        let mut running = files();
        running.keep(&claim, &gpus).expect("written");
        let path = cdi.join("gpuslice.io-one.json");
        let text = fs::read_to_string(&path).expect("there");
        let elsewhere = dir.path().join("elsewhere");
        let same_length = text.replace("--claim", "--clAim");
        let written = fs::metadata(&path).and_then(|it| it.modified()).expect("a time");
        let alterations: [(&str, &dyn Fn()); 5] = [
            ("other words of the same length and age", &|| {
                let file = fs::File::options().write(true).open(&path).expect("opened");
                std::os::unix::fs::FileExt::write_all_at(&file, same_length.as_bytes(), 0)
                    .expect("written");
                file.set_modified(written).expect("set");
            }),
            ("a link to the same words", &|| {
                fs::write(&elsewhere, &text).expect("written");
                fs::remove_file(&path).expect("deleted");
                std::os::unix::fs::symlink(&elsewhere, &path).expect("a link");
            }),
            ("an endless file", &|| {
                fs::write(&path, "x".repeat(1 << 20)).expect("written");
            }),
            ("no file", &|| fs::remove_file(&path).expect("deleted")),
            ("no directory", &|| fs::remove_dir_all(&cdi).expect("deleted")),
        ];
        let is_mended = || {
            let plain = fs::symlink_metadata(&path).is_ok_and(|it| it.is_file());
            plain && fs::read_to_string(&path).is_ok_and(|now| now == text)
        };
        for (what, alter) in alterations {
            alter();
            running.look_at = Instant(0);
            running.due(Instant(1));
            assert!(is_mended(), "{what}, while a daemon runs");
            assert_eq!(running.look_at, Instant(1_000_000_001), "the next look, in ns");
            alter();
            running = files();
            running.restore(&[(claim, gpus.clone())]);
            assert!(is_mended(), "{what}, before a daemon starts");
        }
        // What cannot be written is tried again.
        fs::remove_dir_all(&cdi).expect("deleted");
        fs::write(&cdi, "in the way").expect("written");
        for obstacle in [true, false] {
            if !obstacle {
                fs::remove_file(&cdi).expect("deleted");
            }
            running.look_at = Instant(0);
            running.due(Instant(1));
            assert_eq!(is_mended(), !obstacle);
        }
    }

    /// The module nvidia-uvm is often loaded by the first program that uses CUDA.
    #[test]
    fn a_device_node_that_comes_later_is_in_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let gpu = GpuUuid([1; 16]);
        let mut files = CdiFiles::new(dir.path().into(), Path::new("/run/x"), std::iter::empty());
        files.nodes = BTreeMap::from([(gpu, "/dev/null".into())]);
        let claim = ClaimId::new("one").expect("a claim id");
        files.existing = || vec!["/dev/nvidiactl"];
        files.look_at_nodes();
        files.keep(&claim, &[gpu]).expect("written");
        let nodes = || {
            let text = fs::read_to_string(dir.path().join("gpuslice.io-one.json")).expect("there");
            let spec: Value = serde_json::from_str(&text).expect("JSON");
            spec["devices"][0]["containerEdits"]["deviceNodes"].clone()
        };
        let node = |path: &str| json!({ "path": path });
        assert_eq!(nodes(), json!([node("/dev/null"), node("/dev/nvidiactl")]));
        files.existing = || vec!["/dev/nvidiactl", "/dev/nvidia-uvm"];
        files.look_at_nodes();
        let all = ["/dev/null", "/dev/nvidiactl", "/dev/nvidia-uvm"].map(node);
        assert_eq!(nodes(), json!(all));
    }

    #[test]
    fn files_are_written_remade_and_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let cdi = dir.path().join("cdi");
        let files = || CdiFiles::new(cdi.clone(), Path::new("/run/x"), std::iter::empty());
        let claim = |id: &str| ClaimId::new(id).expect("a claim id");
        let (one, two, gpus) = (claim("one"), claim("two"), vec![GpuUuid([1; 16])]);
        let mut first = files();
        first.keep(&one, &gpus).expect("written");
        let path = cdi.join("gpuslice.io-one.json");
        let text = fs::read_to_string(&path).expect("there");
        let spec: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            (&spec["kind"], &spec["devices"][0]["name"]),
            (&json!("gpuslice.io/gpu"), &json!("one"))
        );
        let hook = &spec["devices"][0]["containerEdits"]["hooks"][0];
        let args = ["gpuslice-hook", "--runtime-dir", "/run/x", "--claim", "one", "createRuntime"];
        assert_eq!((&hook["hookName"], &hook["args"]), (&json!("createRuntime"), &json!(args)));

        let second = Instant(2_000_000_000);
        first.due(Instant(1));
        for damage in ["{}", &text] {
            fs::write(&path, damage).expect("altered");
            first.due(second);
            first.look_at = Instant(0);
            assert_eq!(fs::read_to_string(&path).expect("there"), text);
        }
        fs::remove_file(&path).expect("deleted");
        first.due(second);
        assert_eq!(fs::read_to_string(&path).expect("there"), text);

        // Another daemon: of unknown claims no file stays, and files that are not claims' are left alone.
        fs::write(cdi.join("gpuslice.io-own.json"), r#"{"kind":"gpuslice.io/slice"}"#)
            .expect("other");
        fs::write(cdi.join("vendor.json"), "{").expect("another vendor's");
        files().restore(&[(two, gpus)]);
        let mut names: Vec<_> =
            fs::read_dir(&cdi).expect("there").map(|it| it.expect("a file").file_name()).collect();
        names.sort();
        assert_eq!(names, ["gpuslice.io-own.json", "gpuslice.io-two.json", "vendor.json"]);
    }
}
