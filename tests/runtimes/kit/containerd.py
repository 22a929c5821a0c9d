"""A containerd of one's own: directories, socket and configuration apart from the machine's."""
import json
import pathlib
import shutil
import signal
import subprocess

from kit import bundle, image, node

IMAGE, PAUSE = image.NAME, "localhost/gpuslice-pause:1"

TEMPLATE = pathlib.Path(__file__).with_suffix(".toml")
HANDLER = """\
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
      runtime_type = "io.containerd.runc.v2"
      pod_annotations = ["gpuslice.io/*"]
      container_annotations = ["gpuslice.io/*"]
      {more}
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
        SystemdCgroup = false
        {options}
"""


def configuration(root, state, socket, cni, cdi=""):
    """A configuration without runtimes; `cdi` is a line about CDI devices."""
    text = TEMPLATE.read_text()
    for name, value in dict(root=root, state=state, socket=socket, cni=cni, cdi=cdi, pause=PAUSE).items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


class Containerd:
    """Runs until the test ends. It has the image of `kit/image.py` in each of `namespaces`."""

    def __init__(self, case, namespaces=("default",), configuration=None):
        self.case, self.dir = case, case.node.root / "containerd"
        self.dir.mkdir()
        self.socket = self.dir / "c.sock"
        self.made = [path for path in elsewhere(namespaces) if not path.exists()]
        if configuration is None:
            configuration = self.with_handlers()
        (self.dir / "config.toml").write_text(configuration)
        case.addCleanup(self.close)
        self.start()
        self.import_images(namespaces)

    def start(self):
        with open(self.dir / "log", "ab") as log:
            self.process = subprocess.Popen(
                ["containerd", "--config", self.dir / "config.toml"], env=self.case.node.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        node.eventually("containerd answers", self.answers)

    def restart(self):
        """What `systemctl restart containerd` does."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(node.PATIENCE_S)
        self.start()

    def with_handlers(self):
        """Handlers `runc`, `gpuslice` (the wrapper) and `gpuslice-base` (hooks in a base specification)."""
        base = json.loads(subprocess.run(["ctr", "oci", "spec"], capture_output=True, check=True).stdout)
        base["hooks"] = bundle.hooks(self.case.node.run)
        (self.dir / "base.json").write_text(json.dumps(base))
        wrapper = f'BinaryName = "{self.case.node.wrapper}"'
        handlers = [("runc", "", ""), ("gpuslice", "", wrapper)]
        handlers.append(("gpuslice-base", f'base_runtime_spec = "{self.dir}/base.json"', ""))
        text = configuration(self.dir / "root", self.dir / "state", self.socket, self.dir / "cni")
        for name, more, options in handlers:
            text += HANDLER.format(name=name, more=more, options=options)
        return text

    def answers(self):
        if self.process.poll() is not None:
            raise AssertionError(f"containerd ended: {self.log()}")
        return self.ctr("version", check=False).returncode == 0

    def log(self):
        return (self.dir / "log").read_text(errors="replace")

    def import_images(self, namespaces):
        root = image.fill(self.case.node.root / "image")
        for name, command in [(IMAGE, ["/bin/sh"]), (PAUSE, ["/bin/sleep", "infinity"])]:
            archive = image.archive(self.dir / "image.tar", name, root, command)
            for namespace in namespaces:
                self.ctr("image", "import", str(archive), namespace=namespace)
            archive.unlink()

    def ctr(self, *words, namespace="default", check=True):
        command = ["ctr", "--address", self.socket, "--namespace", namespace, *words]
        done = subprocess.run(command, env=self.case.node.environment, capture_output=True, text=True)
        if check and done.returncode:
            raise AssertionError(f"ctr {words}: {done.stderr}\n{self.log()[-4000:]}")
        return done

    def bundle_of(self, container, namespace):
        """The configuration of a running container, as its runtime got it."""
        directory = self.dir / "state/io.containerd.runtime.v2.task" / namespace / container
        return json.loads((directory / "config.json").read_text())

    def close(self):
        for namespace in self.ctr("namespaces", "ls", "-q", check=False).stdout.split():
            for task in self.ctr("tasks", "ls", "-q", namespace=namespace, check=False).stdout.split():
                self.ctr("tasks", "delete", "--force", task, namespace=namespace, check=False)
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(node.PATIENCE_S)
        node.nothing_mounted_below(self.dir)
        shutil.rmtree(self.dir)
        for path in self.made:
            if path.is_dir() and not any(entry.is_dir() for entry in path.iterdir()):
                path.rmdir()


def elsewhere(namespaces):
    """Directories that containerd makes in places of its own choice and leaves there, innermost first."""
    run, groups = pathlib.Path("/run/containerd"), pathlib.Path("/sys/fs/cgroup")
    for namespace in namespaces:
        yield from [run / "runc" / namespace, groups / namespace]
        yield from [top / namespace for top in groups.iterdir() if top.is_dir()]
    yield from [run / "runc", run / "s", run / "fifo", run]


class Run(node.Output):
    """A container of `ctr run`."""

    def __init__(self, engine, name, words, *options):
        self.engine, self.id = engine, f"{name}-{engine.case.node.root.name}"
        command = ["ctr", "--address", engine.socket, "run", "--rm", *options, IMAGE, self.id, *words]
        path = engine.case.node.root / f"{name}.output"
        with open(path, "wb") as output:
            self.process = subprocess.Popen(
                command, env=engine.case.node.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        super().__init__(path, self.process.poll)
        engine.case.addCleanup(self.stop)

    def ends(self):
        return self.process.wait(node.PATIENCE_S), self.text()

    def stop(self):
        if self.process.poll() is None:
            self.engine.ctr("tasks", "kill", "--signal", "SIGKILL", self.id, check=False)
            self.process.wait(node.PATIENCE_S)
