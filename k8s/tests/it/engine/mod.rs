//! A real containerd, from 1.7 on, with directories, socket and configuration of its own.

pub mod cri;
mod image;

use crate::kubelet::Container;
use crate::programs::Process;
use cri::{ContainerConfig, PodConfig, PodMetadata, Runtime, Variable};
use image::printed;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The configuration of every containerd in tests.
const TEMPLATE: &str = include_str!("../../../../tests/runtimes/kit/containerd.toml");
/// Its one runtime here.
const RUNC: &str = "
    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]
      runtime_type = \"io.containerd.runc.v2\"
";

/// Whether this is root: only root starts containers.
fn is_root() -> bool {
    nix::unistd::Uid::effective().is_root()
}

/// The directory of the programs; what is missing otherwise.
fn programs(build: &Path) -> Result<PathBuf, String> {
    if !is_root() {
        return Err("containers need root".to_owned());
    }
    let unpacked = build.parent().map(|target| target.join("containerd/usr/bin"));
    if let Some(dir) = unpacked.filter(|dir| dir.join("containerd").exists()) {
        return Ok(dir);
    }
    let output = Command::new("containerd").arg("--version").output();
    let said = output.map(|it| String::from_utf8_lossy(&it.stdout).into_owned());
    let said = said.unwrap_or_else(|_| "none".to_owned());
    let version = said.split_whitespace().find_map(|word| {
        let mut parts = word.trim_start_matches('v').split('.').map(str::parse::<u32>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    });
    match version {
        Some(version) if version >= (1, 7) => Ok(PathBuf::from("/usr/bin")),
        _ => Err(format!(
            "no containerd from 1.7 on; packaging/containerd gets one (here: {})",
            said.trim()
        )),
    }
}

/// A containerd, ended when dropped.
pub struct Containerd {
    dir: PathBuf,
    bin: PathBuf,
    process: Option<Process>,
    pub runtime: Runtime,
}

/// A pod's sandbox.
pub struct Sandbox {
    pub id: String,
    config: PodConfig,
}

impl Containerd {
    /// Starts one in `dir`; devices are described in `cdi`. The error says why none can be had.
    pub async fn start(build: &Path, dir: &Path, cdi: &Path, on: bool) -> Result<Self, String> {
        let bin = programs(build)?;
        fs::create_dir(dir).expect("a directory");
        fs::write(dir.join("config.toml"), configuration(dir, cdi, on)).expect("written");
        let mut command = Command::new(bin.join("containerd"));
        command.arg("--config").arg(dir.join("config.toml")).stdin(Stdio::null());
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}:/usr/sbin:/sbin", bin.display()));
        command.stderr(fs::File::create(dir.join("log")).expect("a log"));
        let process = Process(command.spawn().expect("containerd starts"));
        let socket = dir.join("c.sock");
        let mut engine = None;
        for _ in 0..3000 {
            match gpuslice_k8s::grpc::connect(&socket).await {
                Ok(channel) => {
                    let (dir, process) = (dir.to_owned(), Some(process));
                    engine = Some(Containerd { dir, bin, process, runtime: Runtime(channel) });
                    break;
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        let engine = engine.expect("containerd listens within 30 s");
        let archive = image::archive(dir, &build.join("tenant"));
        printed(&mut engine.command(&["image", "import", archive.to_str().expect("plain")]));
        Ok(engine)
    }

    /// The file of its configuration.
    pub fn configuration(&self) -> PathBuf {
        self.dir.join("config.toml")
    }

    /// The directory of its programs.
    pub fn programs(&self) -> &Path {
        &self.bin
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.bin.join("ctr"));
        command.arg("--address").arg(self.dir.join("c.sock")).args(["--namespace", "k8s.io"]);
        command.args(words);
        command
    }

    /// Starts the sandbox of a pod.
    pub async fn pod(&self, pod: &Value) -> Sandbox {
        let text = |name: &str| pod["metadata"][name].as_str().expect("text").to_owned();
        let metadata =
            PodMetadata { name: text("name"), uid: text("uid"), namespace: text("namespace") };
        let logs = self.dir.join(format!("{}.logs", text("name")));
        fs::create_dir(&logs).expect("a directory");
        let config = PodConfig::new(metadata, logs.display().to_string(), self.group());
        let id = self.runtime.run_pod(&config).await.expect("a sandbox");
        Sandbox { id, config }
    }

    /// The control group of its pods.
    fn group(&self) -> String {
        let name = self.dir.parent().and_then(Path::file_name).expect("a name");
        format!("/{}", name.to_string_lossy())
    }

    /// Starts a container with what the kubelet's plugins gave it, over what the pod itself sets.
    pub async fn run(
        &self,
        pod: &Sandbox,
        given: &Container,
        variables: &[(&str, &str)],
        command: &[&str],
    ) -> Result<String, tonic::Status> {
        let mut config = ContainerConfig::new(&given.name, image::NAME, command);
        // As a kubelet does: the plugins' variables first, then the pod's own.
        let given_first = given.envs.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let all = given_first.chain(variables.iter().copied());
        config.envs = all
            .map(|(key, value)| Variable { key: key.to_owned(), value: value.to_owned() })
            .collect();
        config.annotations = given.annotations.clone();
        let named = |name: &String| cri::Named { name: name.clone() };
        config.cdi_devices = given.cdi_devices.iter().map(named).collect();
        self.runtime.run(&pod.id, &pod.config, config).await
    }

    /// What a container of a pod has printed.
    pub fn output(&self, pod: &Sandbox, container: &str) -> String {
        let path = Path::new(&pod.config.log_directory).join(format!("{container}.log"));
        fs::read_to_string(path).unwrap_or_default()
    }

    /// Ends the pods, and then itself.
    pub async fn end(mut self, pods: Vec<Sandbox>) {
        for pod in pods {
            self.runtime.remove_pod(&pod.id).await.expect("removed");
        }
        self.stop();
    }

    fn stop(&mut self) {
        if let Some(process) = &mut self.process {
            let pid = nix::unistd::Pid::from_raw(process.0.id().cast_signed());
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            let _ = process.0.wait();
        }
        self.process = None;
        let group = self.group();
        for top in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            let _ = fs::remove_dir(top.path().join(&group[1..]));
        }
        let _ = fs::remove_dir(format!("/sys/fs/cgroup{group}"));
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if self.process.is_some() {
            let tasks = self.command(&["tasks", "ls", "-q"]).output();
            let tasks = tasks.map(|it| String::from_utf8_lossy(&it.stdout).into_owned());
            for id in tasks.unwrap_or_default().split_whitespace() {
                let _ = self.command(&["tasks", "delete", "--force", id]).output();
            }
            self.stop();
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let prefix = format!("{}/", self.dir.display());
        let mut points: Vec<&str> = mounts.lines().filter_map(|it| it.split(' ').nth(4)).collect();
        points.retain(|point| point.starts_with(&prefix));
        for point in points.iter().rev() {
            let _ = nix::mount::umount2(*point, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

/// Its configuration, with CDI devices on or off.
fn configuration(dir: &Path, cdi: &Path, on: bool) -> String {
    let dir = dir.display();
    let words = [
        ("{root}", format!("{dir}/root")),
        ("{state}", format!("{dir}/state")),
        ("{socket}", format!("{dir}/c.sock")),
        ("{cni}", format!("{dir}/cni")),
        ("{pause}", image::NAME.to_owned()),
        ("{cdi}", format!("enable_cdi = {on}\ncdi_spec_dirs = [\"{}\"]", cdi.display())),
    ];
    let fill = |text: String, word: &(&str, String)| text.replace(word.0, &word.1);
    words.iter().fold(TEMPLATE.to_owned(), fill) + RUNC
}
