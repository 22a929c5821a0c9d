//! `gpuslice setup` on files of a directory of its own: what is shown, what is written, what is
//! undone. `tests/runtimes` has the engines read them.

use crate::harness::{is_root, skip, target_dir};
use nix::unistd::Uid;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A machine's `/etc`.
struct Etc(TempDir);

const DAEMON: &str = "{\n  \"log-driver\": \"journald\"\n}\n";
const CONTAINERD: &str = "version = 2\n# ours\n[plugins.\"io.containerd.grpc.v1.cri\"]\n\
                          sandbox_image = \"pause\"\n";

/// Engine, where its configuration is, the files that are written, what makes it count.
const ENGINES: &[(&str, &str, &[&str], &str)] = &[
    ("docker", "docker/daemon.json", &["docker/daemon.json"], "systemctl reload docker"),
    ("docker", "new/daemon.json", &["new/daemon.json"], "systemctl reload docker"),
    (
        "containerd",
        "containerd/config.toml",
        &["containerd/config.toml"],
        "systemctl restart containerd",
    ),
    ("containerd", "new/config.toml", &["new/config.toml"], "systemctl restart containerd"),
    (
        "podman",
        "containers",
        &["hooks.d/zz-gpuslice.json", "containers/containers.conf.d/99-gpuslice.conf"],
        "next podman run",
    ),
    ("crio", "crio", &["crio/crio.conf.d/99-gpuslice.toml"], "systemctl restart crio"),
    ("nvidia", "nvidia/config.toml", &["nvidia/config.toml"], "next container"),
];

impl Etc {
    /// `None`, said and counted, where not everything is built.
    fn new(test: &str) -> Option<Etc> {
        if !target_dir().join("libexec/gpuslice-runtime").exists() {
            skip(test, "gpuslice-runtime is not staged; run packaging/stage debug");
            return None;
        }
        let dir = tempfile::Builder::new().prefix("gpuslice-it-").tempdir();
        Some(Etc(dir.expect("a directory")))
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().canonicalize().expect("there").join(path)
    }

    fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(&path, text).expect("written");
        path
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// All files, and what is in them; directories have nothing.
    fn all(&self) -> Vec<(PathBuf, String)> {
        let (mut all, mut dirs) = (Vec::new(), vec![self.at("")]);
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).expect("a directory") {
                let path = entry.expect("an entry").path();
                match path.is_dir() {
                    true => {
                        all.push((path.clone(), String::new()));
                        dirs.push(path);
                    }
                    false => all.push((path.clone(), fs::read_to_string(path).expect("text"))),
                }
            }
        }
        all.sort();
        all
    }

    fn command(&self, engine: &str, config: &str, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
        command.args(["setup", engine, "--config"]).arg(self.at(config));
        command.arg("--nvidia-config").arg(self.at("nvidia/config.toml"));
        command.args(more);
        command
    }

    fn run(&self, engine: &str, config: &str, more: &[&str]) -> Output {
        let mut command = self.command(engine, config, more);
        command.output().expect("gpuslice starts")
    }

    fn says(&self, engine: &str, config: &str, more: &[&str]) -> String {
        let output = self.run(engine, config, more);
        assert!(output.status.success(), "{engine} {more:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn refusal(&self, engine: &str, config: &str, more: &[&str]) -> String {
        let output = self.run(engine, config, more);
        assert_eq!(output.status.code(), Some(1), "{engine} {more:?}: {output:?}");
        String::from_utf8(output.stderr).expect("text")
    }
}

/// Every engine: shown, done, nothing more to do, undone to the byte, nothing more to undo.
#[test]
fn there_and_back() {
    let Some(etc) = Etc::new("there_and_back") else {
        return;
    };
    etc.write("docker/daemon.json", DAEMON);
    etc.write("containerd/config.toml", CONTAINERD);
    let hooks_dir = etc.at("hooks.d");
    let conf = format!("[engine]\nhooks_dir = [\"/x\", {hooks_dir:?}]\n");
    etc.write("containers/containers.conf", &conf);
    etc.write("crio/crio.conf.d/10-crun.conf", "[crio.runtime]\ndefault_runtime = \"crun\"\n");
    etc.write("nvidia/config.toml", "[nvidia-container-runtime]\nruntimes = [\"runc\"]\n");
    for &(engine, config, files, then) in ENGINES {
        let before = etc.all();
        let shown = etc.says(engine, config, &["--dry-run"]);
        assert!(shown.contains("nothing was changed"), "{shown}");
        assert_eq!(etc.all(), before, "{engine}: a dry run writes nothing");
        let said = etc.says(engine, config, &[]);
        let diff = shown.rsplit_once(&format!("{engine}: ")).expect("a last line").0;
        assert!(said.starts_with(diff) && said.contains(then), "{said}");
        for file in files {
            let path = etc.at(file);
            assert!(diff.contains(&format!("+++ {}", path.display())), "{diff}");
            assert!(etc.read(file).contains("gpuslice"));
        }
        let after = etc.all();
        assert!(etc.says(engine, config, &[]).contains("nothing to do"));
        assert_eq!(etc.all(), after);
        etc.says(engine, config, &["--undo", "--dry-run"]);
        assert_eq!(etc.all(), after, "{engine}: a dry run writes nothing");
        etc.says(engine, config, &["--undo"]);
        assert_eq!(etc.all(), before, "{engine}: as it was, to the byte");
        assert!(etc.says(engine, config, &["--undo"]).contains("nothing to do"));
    }
}

#[test]
fn what_somebody_else_changed_since_stays() {
    let Some(etc) = Etc::new("what_somebody_else_changed_since_stays") else {
        return;
    };
    let config = "docker/daemon.json";
    let path = etc.write(config, DAEMON);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
    etc.says("docker", config, &["--default"]);
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    let backup = etc.at("docker/daemon.json.before-gpuslice");
    assert_eq!((mode(&path), mode(&backup)), (0o600, 0o600));
    assert_eq!(fs::read_to_string(&backup).expect("a copy"), DAEMON);
    let since = etc.read(config).replace("journald", "local");
    fs::write(&path, since).expect("written");
    let said = etc.says("docker", config, &["--undo"]);
    assert!(said.contains("only gpuslice's part") && said.contains(".before-gpuslice"), "{said}");
    assert_eq!(etc.read(config), DAEMON.replace("journald", "local"));
    // The next time the copy is of this file, not of the first.
    etc.says("docker", config, &[]);
    assert!(fs::read_to_string(&backup).expect("a copy").contains("local"));
}

#[test]
fn a_bad_file_is_refused_with_its_place_and_nothing_changes() {
    let Some(etc) = Etc::new("a_bad_file") else {
        return;
    };
    etc.write("json/twice", "{\n \"a\": 1,\n \"a\": 2\n}");
    etc.write("json/comment", "{\n // mine\n}");
    etc.write("json/list", "{\"runtimes\": [1]}");
    etc.write("toml/syntax", "version = 2\n[plugins\n");
    etc.write("toml/one", "[plugins.cri]\n");
    etc.write("toml/shape", "version = 2\nplugins = []\n");
    etc.write("toml/import", "version = 2\nimports = [\"syntax\"]\n");
    // The bad one is not the one that is named.
    let nvidias = "{\"runtimes\": {\"nvidia\": {\"path\": \"/usr/bin/nvidia-container-runtime\"}}}";
    etc.write("json/chain", nvidias);
    etc.write("nvidia/config.toml", "[nvidia-container-runtime\n");
    etc.write("containers/containers.conf", "[engine\n");
    for (engine, config, why) in [
        ("docker", "json/twice", "\"a\" is given twice at line 3"),
        ("docker", "json/comment", "line 2 column 2: there are no comments"),
        ("docker", "json/list", "line 1 column 13"),
        ("docker", "json", "not a regular file"),
        ("docker", "json/twice/below", "Not a directory"),
        ("containerd", "toml/syntax", "line 2"),
        ("containerd", "toml/one", "containerd config migrate"),
        ("containerd", "toml/shape", "line 2, column 11"),
        ("containerd", "toml/import", "toml/syntax: "),
        ("nvidia", "toml/syntax", "line 2"),
        ("docker", "json/chain", "nvidia/config.toml: "),
        ("podman", "containers", "containers/containers.conf: "),
    ] {
        let before = etc.all();
        for more in [&[][..], &["--dry-run"], &["--undo"]] {
            let said = etc.refusal(engine, config, more);
            assert!(said.contains(why), "{engine} {config}: {said}");
        }
        assert_eq!(etc.all(), before);
    }
    symlink("nowhere", etc.at("dangling")).expect("a link");
    assert!(etc.refusal("docker", "dangling", &[]).contains("leads nowhere"));
    assert!(etc.refusal("podman", "x", &["--default"]).contains("no use for --default"));
}

/// Below containerd 2.1 the drop-in of NVIDIA's toolkit hides the CRI plugin's table of the main file; and
/// where its runtime is there, ours is called by it, and that is written first.
#[test]
fn the_import_that_counts_and_nvidias_chain() {
    let Some(etc) = Etc::new("the_import_that_counts") else {
        return;
    };
    let main = format!("imports = [\"conf.d/*.toml\"]\n{CONTAINERD}");
    etc.write("containerd/config.toml", &main);
    let runtimes = "plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes";
    etc.write(
        "containerd/conf.d/99-nvidia.toml",
        &format!(
            "version = 2\n[{runtimes}.nvidia]\nruntime_type = \"io.containerd.runc.v2\"\n\
             [{runtimes}.nvidia.options]\nBinaryName = \"/usr/bin/nvidia-container-runtime\"\n"
        ),
    );
    etc.write("nvidia/config.toml", "[nvidia-container-runtime]\nruntimes = [\"runc\"]\n");
    let before = etc.all();
    // The second file cannot be kept: the first one, to which it refers, is written by then.
    let in_the_way = etc.at("containerd/conf.d/99-nvidia.toml.before-gpuslice");
    fs::create_dir(&in_the_way).expect("ours");
    let said = etc.refusal("containerd", "containerd/config.toml", &[]);
    assert!(
        said.contains("nvidia/config.toml; undo it with gpuslice setup nvidia --undo"),
        "{said}"
    );
    fs::remove_dir(in_the_way).expect("ours");
    etc.says("nvidia", "nvidia/config.toml", &["--undo"]);
    assert_eq!(etc.all(), before, "that one alone was written");
    let said = etc.says("containerd", "containerd/config.toml", &[]);
    assert!(said.contains("hides that of files read before it"), "{said}");
    let (chain, handler) = (said.find("+++ "), said.rfind("+++ "));
    let named = |at: Option<usize>, name: &str| {
        said[at.expect("a diff")..].lines().next().is_some_and(|line| line.ends_with(name))
    };
    assert!(named(chain, "nvidia/config.toml") && named(handler, "99-nvidia.toml"), "{said}");
    assert_eq!(etc.read("containerd/config.toml"), main);
    let drop_in = etc.read("containerd/conf.d/99-nvidia.toml");
    assert_eq!(drop_in.matches("/usr/bin/nvidia-container-runtime").count(), 2, "{drop_in}");
    let list = etc.read("nvidia/config.toml");
    assert!(list.contains("/gpuslice-runtime\", \"runc\"]"), "{list}");
    // Others may go through NVIDIA's list: it has an undoing of its own.
    etc.says("containerd", "containerd/config.toml", &["--undo"]);
    assert_eq!(etc.read("nvidia/config.toml"), list);
    etc.says("nvidia", "nvidia/config.toml", &["--undo"]);
    assert_eq!(etc.all(), before);
}

/// A drop-in that came after us has a copy of ours, and the main file has ours still.
#[test]
fn what_was_put_in_two_places_is_taken_out_of_both() {
    let Some(etc) = Etc::new("what_was_put_in_two_places") else {
        return;
    };
    let main = format!("imports = [\"conf.d/*.toml\"]\n{CONTAINERD}");
    etc.write("config.toml", &main);
    etc.says("containerd", "config.toml", &[]);
    etc.write("conf.d/50-other.toml", CONTAINERD);
    etc.says("containerd", "config.toml", &[]);
    for file in ["config.toml", "conf.d/50-other.toml"] {
        assert!(etc.read(file).contains("runtimes.gpuslice]"), "{file}");
    }
    etc.says("containerd", "config.toml", &["--undo"]);
    assert_eq!(
        (etc.read("config.toml"), etc.read("conf.d/50-other.toml")),
        (main, CONTAINERD.to_owned())
    );
    assert_eq!(etc.all().len(), 3, "these files and a directory: no copy is left");
}

#[test]
fn who_may_not_write_is_told_so() {
    if !is_root() {
        skip("who_may_not_write_is_told_so", "needs root to become nobody");
        return;
    }
    let Some(etc) = Etc::new("who_may_not_write_is_told_so") else {
        return;
    };
    etc.write("daemon.json", DAEMON);
    fs::set_permissions(etc.at(""), fs::Permissions::from_mode(0o755)).expect("ours");
    let nobody = Uid::from_raw(65534).as_raw();
    let mut command = etc.command("docker", "daemon.json", &[]);
    let output = command.uid(nobody).gid(nobody).output().expect("gpuslice starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("which usually needs root"), "{output:?}");
    assert_eq!(etc.read("daemon.json"), DAEMON);
    assert_eq!(etc.all().len(), 1, "nothing was left");
}

/// An engine that is not installed: what is shown says that it has no effect.
#[test]
fn an_engine_that_is_absent_is_told() {
    let Some(_etc) = Etc::new("an_engine_that_is_absent_is_told") else { return };
    for (engine, program) in
        [("crio", "crio"), ("nvidia", "nvidia-container-runtime"), ("podman", "podman")]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuslice"));
        command.args(["setup", engine, "--dry-run"]).env("PATH", "/nonexistent");
        let output = command.output().expect("it starts");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let told = format!("there is no {program} in PATH: the files have no effect without it");
        assert!(output.status.success() && said.contains(&told), "{engine}: {said}");
    }
}
