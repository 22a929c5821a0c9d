"""A dockerd of one's own, below a containerd of one's own: directories, sockets and configuration apart from
the machine's."""
import json
import shutil
import signal
import subprocess

from kit import containerd, image, node


class Docker:
    """Runs until the test ends. Its `daemon.json` is what `gpuslice setup docker` works on."""

    def __init__(self, case):
        self.case, self.dir = case, case.node.root / "docker"
        self.dir.mkdir()
        node.end_with(case, "/etc/docker/key.json", "/etc/docker", "/run/docker")
        # The containers' cgroups are then in a group of their own, which is removed with it.
        self.group = f"docker-{case.node.root.name}"
        case.ids = [*case.ids, self.group]
        self.below = containerd.Containerd(case, namespaces=())
        self.file = self.dir / "daemon.json"
        self.file.write_text(json.dumps(self.configuration(), indent=4) + "\n")
        case.addCleanup(self.close)
        self.process = None
        self.start()
        root = case.node.root / "image"
        archive = image.archive(self.dir / "image.tar", image.NAME, root)
        self.docker("load", "--input", archive)
        archive.unlink()

    def configuration(self):
        return {
            "data-root": f"{self.dir}/data",
            "exec-root": f"{self.dir}/exec",
            "pidfile": f"{self.dir}/pid",
            "hosts": [f"unix://{self.dir}/docker.sock"],
            "containerd": str(self.below.socket),
            "bridge": "none",
            "iptables": False,
            "ip6tables": False,
            "storage-driver": "overlay2",
            "cgroup-parent": f"/{self.group}",
        }

    def start(self):
        with open(self.dir / "log", "ab") as log:
            self.process = subprocess.Popen(
                ["dockerd", "--config-file", self.file], env=self.case.node.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        node.eventually("dockerd answers", self.answers)

    def answers(self):
        if self.process.poll() is not None:
            raise AssertionError(f"dockerd ended: {self.log()}")
        return self.docker("version", check=False).returncode == 0

    def log(self):
        return (self.dir / "log").read_text(errors="replace")

    def reload(self):
        """What `systemctl reload docker` does."""
        told = self.log().count("Reloaded configuration")
        self.process.send_signal(signal.SIGHUP)
        node.eventually("the configuration is read", lambda: self.log().count("Reloaded configuration") > told)

    def restart(self):
        """What `systemctl restart docker` does."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(node.PATIENCE_S)
        self.start()

    def docker(self, *words, check=True):
        command = ["docker", "--host", f"unix://{self.dir}/docker.sock", *words]
        environment = self.case.node.environment | {"DOCKER_CONFIG": str(self.dir / "client")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if check and done.returncode:
            raise AssertionError(f"docker {words}: {done.stderr}\n{self.log()[-4000:]}")
        return done

    def run(self, words, *options):
        """`docker run` to its end: exit status and what was printed."""
        done = self.docker("run", "--rm", "--network=none", *options, image.NAME, *words, check=False)
        return done.returncode, done.stdout + done.stderr

    def start_container(self, words, *options):
        return Container(self, words, options)

    def bundle_of(self, container):
        """The configuration of a running container, as its runtime left it."""
        return self.below.bundle_of(container.id, "moby")

    def close(self):
        if self.process.poll() is None:
            for container in self.docker("ps", "--all", "--quiet", check=False).stdout.split():
                self.docker("rm", "--force", container, check=False)
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(node.PATIENCE_S)
        node.nothing_mounted_below(self.dir)
        node.remove_groups(self.group)
        shutil.rmtree(self.dir)


class Container(node.Output):
    """A container in the background."""

    def __init__(self, engine, words, options):
        self.engine = engine
        command = ["run", "--detach", "--network=none", *options, image.NAME, *words]
        self.id = engine.docker(*command).stdout.strip()
        super().__init__("/nonexistent", self.is_over)

    def text(self):
        done = self.engine.docker("logs", self.id, check=False)
        return done.stdout + done.stderr

    def is_over(self):
        shown = self.engine.docker("inspect", "--format", "{{.State.Running}}", self.id, check=False).stdout
        return None if shown.strip() == "true" else "over"

    def stop(self):
        self.engine.docker("rm", "--force", self.id, check=False)
