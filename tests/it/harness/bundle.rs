//! OCI bundles with a root filesystem of a few programs of this machine, and runtimes to run them.

use super::{PATIENCE, copy_program, is_root, skip, target_dir};
use gpuslice_host::cgroup;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Programs every root filesystem has in `/bin`.
const PROGRAMS: [&str; 5] = ["cat", "ls", "true", "sleep", "sh"];

/// Starts of a container whose hook is late.
pub const STARTS_MAX: usize = 3;

/// A change of a configuration.
type Edit = Box<dyn Fn(&mut Value)>;

/// What a runtime's process does before it becomes the runtime.
type Surroundings = Arc<dyn Fn() -> std::io::Result<()> + Send + Sync>;

/// A container to be.
pub struct Bundle {
    dir: PathBuf,
    id: String,
    cgroup: String,
    runtime: &'static str,
    arguments: Vec<String>,
    annotations: BTreeMap<String, String>,
    environment: Vec<String>,
    hook_arguments: Vec<String>,
    edits: Vec<Edit>,
    surroundings: Option<Surroundings>,
}

/// A static hook of this build, or `None` (said and counted) where containers cannot be tested.
pub fn hook(test: &str, runtime: &str) -> Option<PathBuf> {
    if !is_root() {
        skip(test, "containers need root");
        return None;
    }
    if Command::new(runtime).arg("--version").output().is_err() {
        skip(test, &format!("{runtime} is not installed"));
        return None;
    }
    let hook = target_dir().join("libexec/gpuslice-hook");
    if !hook.exists() {
        skip(test, "gpuslice-hook is not staged; run packaging/stage debug");
        return None;
    }
    Some(hook)
}

impl Bundle {
    /// A container that would run `arguments`, with hooks that ask the daemon of `runtime_dir`.
    pub fn new(root: &Path, id: &str, runtime: &'static str, runtime_dir: &Path) -> Bundle {
        let dir = root.join("bundle").join(id);
        for sub in ["proc", "dev", "run", "etc", "bin", "tmp"] {
            fs::create_dir_all(dir.join("rootfs").join(sub)).expect("a root filesystem");
        }
        // Containers of tests that run at the same time may have the same id.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let bundle = Bundle {
            dir,
            id: id.to_owned(),
            cgroup: format!("/gpuslice-it-{}-c{number}", std::process::id()),
            runtime,
            arguments: vec!["/bin/true".into()],
            annotations: BTreeMap::new(),
            environment: vec!["PATH=/bin".into()],
            hook_arguments: vec!["--runtime-dir".into(), runtime_dir.display().to_string()],
            edits: Vec::new(),
            surroundings: None,
        };
        for (dir, files) in common() {
            let to = bundle.rootfs().join(dir);
            fs::create_dir_all(&to).expect("a directory");
            let copied = Command::new("cp").args(["-L", "--"]).args(files).arg(&to).output();
            let copied = copied.expect("cp starts");
            assert!(copied.status.success(), "{files:?} to {}: {copied:?}", to.display());
        }
        bundle
    }

    /// Copies a program and the libraries it needs.
    pub fn add_program(&self, program: &Path, to: &str) {
        let copy = |from: &Path, to: &Path| {
            fs::create_dir_all(to.parent().expect("a directory")).expect("a directory");
            copy_program(from, to);
        };
        copy(program, &self.rootfs().join(to));
        for library in libraries(program) {
            let to = self.rootfs().join(library.strip_prefix("/").expect("a whole path"));
            if !to.exists() {
                copy(&library, &to);
            }
        }
    }

    /// Its control group, as /proc names it.
    pub fn cgroup(&self) -> &str {
        &self.cgroup
    }

    pub fn rootfs(&self) -> PathBuf {
        self.dir.join("rootfs")
    }

    pub fn command(mut self, arguments: &[&str]) -> Bundle {
        self.arguments = arguments.iter().map(|&word| word.to_owned()).collect();
        self
    }

    pub fn annotation(mut self, key: &str, value: &str) -> Bundle {
        self.annotations.insert(key.into(), value.into());
        self
    }

    pub fn variable(mut self, entry: &str) -> Bundle {
        self.environment.push(entry.into());
        self
    }

    pub fn hook_argument(mut self, word: &str) -> Bundle {
        self.hook_arguments.push(word.into());
        self
    }

    /// Changes the configuration before it is written.
    pub fn edit(mut self, edit: impl Fn(&mut Value) + 'static) -> Bundle {
        self.edits.push(Box::new(edit));
        self
    }

    /// Adds a mount.
    pub fn mount(self, destination: &str, kind: &str, source: &Path, options: &[&str]) -> Bundle {
        let mount = json!({ "destination": destination, "type": kind, "source": source, "options": options });
        self.edit(move |config| {
            config["mounts"].as_array_mut().expect("a list").push(mount.clone())
        })
    }

    /// Does something in the runtime's process before it becomes the runtime.
    pub fn surroundings(
        mut self,
        prepare: impl Fn() -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Bundle {
        self.surroundings = Some(Arc::new(prepare));
        self
    }

    fn config(&self, hook: &Path) -> Value {
        let at = |stage: &str| {
            let mut words = vec!["gpuslice-hook".to_owned()];
            words.extend(self.hook_arguments.iter().cloned());
            words.push(stage.to_owned());
            json!([{ "path": hook, "args": words, "env": [], "timeout": 10 }])
        };
        let namespaces =
            ["pid", "mount", "ipc", "uts", "network"].map(|kind| json!({ "type": kind }));
        let mut config = json!({
            "ociVersion": "1.0.2",
            "root": { "path": "rootfs", "readonly": false },
            "process": {
                "terminal": false, "cwd": "/", "args": self.arguments, "env": self.environment,
                "user": { "uid": 0, "gid": 0 }, "noNewPrivileges": true,
            },
            "mounts": [
                { "destination": "/proc", "type": "proc", "source": "proc" },
                { "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                  "options": ["nosuid", "mode=755", "size=65536k"] },
            ],
            "annotations": self.annotations,
            "hooks": { "createRuntime": at("createRuntime"), "poststop": at("poststop") },
            "linux": { "namespaces": namespaces, "cgroupsPath": self.cgroup },
        });
        self.edits.iter().for_each(|edit| edit(&mut config));
        config
    }

    fn runtime(&self) -> Command {
        let mut command = Command::new(self.runtime);
        command.arg("--root").arg(self.dir.join("state"));
        if let Some(prepare) = self.surroundings.clone() {
            // SAFETY: it makes system calls on what was prepared before.
            unsafe { command.pre_exec(move || prepare()) };
        }
        if self.runtime == "crun" && cgroup::is_hybrid() {
            // SAFETY: the closure only makes system calls on constants.
            unsafe { command.pre_exec(cgroup::hide_unified) };
        }
        command
    }

    /// Starts the container.
    pub fn start(self, hook: &Path) -> Running {
        Running::start(Rc::new(self), hook)
    }

    /// Starts the container and waits until it runs; again if its hook was late, see [`Bundle::run`].
    pub fn started(self, hook: &Path) -> Running {
        let bundle = Rc::new(self);
        for _ in 0..STARTS_MAX {
            let given_up = bundle.given_up();
            let mut running = Running::start(bundle.clone(), hook);
            running.settle();
            if !running.has_ended() {
                return running;
            }
            let output = running.end();
            assert!(bundle.was_late(&output, given_up), "the container does not run: {output:?}");
        }
        panic!("the hook is late each time")
    }

    /// Runs the container to its end. If its hook had no answer in time, as happens on a busy machine, the container is
    /// deleted and started again, a few times at most.
    pub fn run(self, hook: &Path) -> Output {
        let bundle = Rc::new(self);
        let mut starts = 0;
        loop {
            starts += 1;
            let given_up = bundle.given_up();
            let output = Running::start(bundle.clone(), hook).end();
            if starts == STARTS_MAX || !bundle.was_late(&output, given_up) {
                return output;
            }
        }
    }

    /// Whether the hook of a failed start was late; the daemon tells where the runtime does not.
    fn was_late(&self, output: &Output, given_up: usize) -> bool {
        let late = !output.status.success() && (is_late(output) || self.given_up() > given_up);
        if late {
            note_late(&self.id);
        }
        late
    }

    /// How often the daemon has removed the slice of this container because its hook had given up.
    fn given_up(&self) -> usize {
        let root = self.dir.ancestors().nth(2).expect("bundle/ID of a directory");
        let log = fs::read_to_string(root.join("log")).unwrap_or_default();
        let own = |line: &&str| line.contains(&self.id) && line.contains("the slice is removed");
        log.lines().filter(own).count()
    }
}

/// Whether a hook or its runtime says that there was no answer in time, or that the hook's alarm has ended it.
pub fn is_late(output: &Output) -> bool {
    let said = String::from_utf8_lossy(&output.stderr);
    let is_ended = output.status.signal() == Some(libc::SIGALRM);
    is_ended || said.contains("no answer in time") || said.contains("signal: alarm clock")
}

/// Prints that a hook was late, which the test harness would keep to itself.
pub fn note_late(container: &str) {
    let line = format!("LATE the hook of {container}: no answer in time; it may be called again\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The libraries that a program needs.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = Command::new("ldd").arg(program).output().expect("ldd").stdout;
    let listed = String::from_utf8_lossy(&listed).into_owned();
    let paths = listed.split_whitespace().filter(|word| word.starts_with('/'));
    paths.map(PathBuf::from).collect()
}

/// What every root filesystem has, by directories in it: programs with their libraries. It is looked for once.
fn common() -> &'static BTreeMap<PathBuf, BTreeSet<PathBuf>> {
    static COMMON: OnceLock<BTreeMap<PathBuf, BTreeSet<PathBuf>>> = OnceLock::new();
    COMMON.get_or_init(|| {
        let programs = PROGRAMS.map(find);
        // Of every distribution's C library, though programs of today need only libc.so.6 of it; the shim of
        // packages, which is made for old ones too, needs these.
        let parts = ["libpthread.so.0", "libdl.so.2"]
            .map(|name| Path::new("/lib/x86_64-linux-gnu").join(name));
        let parts: Vec<PathBuf> = parts.into_iter().filter(|path| path.exists()).collect();
        let needed: Vec<PathBuf> = programs
            .iter()
            .chain(&parts)
            .flat_map(|path| libraries(path))
            .chain(parts.clone())
            .collect();
        let mut all = BTreeMap::from([(PathBuf::from("bin"), BTreeSet::from(programs))]);
        for library in needed {
            let dir = library.parent().expect("a directory");
            let dir = dir.strip_prefix("/").expect("a whole path").to_owned();
            all.entry(dir).or_default().insert(library);
        }
        all
    })
}

fn find(program: &str) -> PathBuf {
    let places = ["/bin", "/usr/bin"].map(|dir| Path::new(dir).join(program));
    places.into_iter().find(|path| path.exists()).expect("a common program")
}

/// A started container; deleted when dropped.
pub struct Running {
    bundle: Rc<Bundle>,
    child: Option<Child>,
}

impl Running {
    fn start(bundle: Rc<Bundle>, hook: &Path) -> Running {
        let config = serde_json::to_vec(&bundle.config(hook)).expect("JSON");
        fs::write(bundle.dir.join("config.json"), config).expect("config.json");
        let mut command = bundle.runtime();
        command.arg("run").arg("--bundle").arg(&bundle.dir).arg(&bundle.id);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("the runtime starts");
        Running { bundle, child: Some(child) }
    }

    /// The runtime's process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a child").id()
    }

    /// Runs a command in it as `exec` does: with the container's environment and nothing inherited.
    pub fn exec(&mut self, command: &[&str]) -> Output {
        let start = Instant::now();
        while !self.runs() {
            let child = self.child.as_mut().expect("a child");
            if child.try_wait().expect("wait").is_some() || start.elapsed() > PATIENCE {
                let ended = self.child.take().expect("a child").wait_with_output();
                panic!("the container does not run: {ended:?}");
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let mut exec = self.bundle.runtime();
        exec.args(["exec", &self.bundle.id]).args(command);
        exec.output().expect("the runtime starts")
    }

    /// Whether its runtime has ended: the start failed, or the container is over.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Whether the container runs, as its runtime says.
    pub fn runs(&self) -> bool {
        let mut state = self.bundle.runtime();
        let state = state.args(["state", &self.bundle.id]).output();
        let said = state.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&said).contains("running")
    }

    /// Waits for its end.
    pub fn end(mut self) -> Output {
        let mut child = self.child.take().expect("a child");
        let start = Instant::now();
        while child.try_wait().expect("wait").is_none() {
            if start.elapsed() > PATIENCE {
                let _ = child.kill();
                panic!("the container does not end");
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        child.wait_with_output().expect("output")
    }

    /// Waits for the end of the start: what is deleted half made leaves its cgroups behind.
    fn settle(&mut self) {
        let start = Instant::now();
        while start.elapsed() < PATIENCE / 4 {
            if self.runs() || self.has_ended() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.settle();
        let delete = self.bundle.runtime().args(["delete", "--force", &self.bundle.id]).output();
        if let Err(error) = delete {
            eprintln!("deleting {}: {error}", self.bundle.id);
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a failed start told the person.
pub fn complaint(output: &Output) -> String {
    assert!(!output.status.success() && output.stdout.is_empty(), "the container ran: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a container that ran printed.
pub fn printed(output: &Output) -> String {
    assert!(output.status.success(), "the container failed: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
