"""podman on a machine of one's own: storage, state and configuration apart from the real one's."""
import shutil

from kit import image, machine, node

STORAGE = """\
[storage]
driver = "overlay"
runroot = "{dir}/run"
graphroot = "{dir}/storage"
"""
# podman's own limits are more than the root of some test machines may set.
CONTAINERS = """\
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "{runtime}"
tmp_dir = "{dir}/tmp"
[containers]
netns = "none"
cgroupns = "host"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
"""


class Podman:
    def __init__(self, case, runtime="runc"):
        self.case, self.dir = case, case.node.root / "podman"
        self.dir.mkdir()
        if not any("libpod_parent" in group for group in node.groups()):
            for group in ["libpod_parent", "libpod_parent/conmon"]:
                case.addCleanup(node.remove_groups, group)
        self.machine = machine.Machine(case, crun=runtime == "crun")
        self.machine.write("containers/storage.conf", STORAGE.format(dir=self.dir))
        self.machine.write("containers/containers.conf", CONTAINERS.format(dir=self.dir, runtime=runtime))
        self.machine.write("containers/policy.json", '{"default": [{"type": "insecureAcceptAnything"}]}')
        # podman gives its runtime an environment of its own.
        case.node.set_runtime(runtime)
        self.machine.write("gpuslice/runtime.json", (case.node.root / "runtime.json").read_text())
        case.addCleanup(self.close)
        archive = image.archive(self.dir / "image.tar", image.NAME, image.fill(case.node.root / "image"))
        self.podman("load", "--input", archive)
        archive.unlink()

    def podman(self, *words, check=True):
        return self.machine.run("podman", *words, check=check)

    def run(self, words, *options):
        """`podman run` to its end: exit status and what was printed."""
        done = self.podman("run", "--rm", *options, image.NAME, *words, check=False)
        return done.returncode, done.stdout + done.stderr

    def start(self, words, *options):
        return Container(self, words, options)

    def close(self):
        self.podman("rm", "--all", "--force", "--time=0", check=False)
        for point in ["storage/overlay", "run", "storage"]:
            self.machine.run("umount", "--lazy", f"{self.dir}/{point}", check=False)
        # What podman left to clean up after a container may be about to end.
        node.eventually("podman's files can be removed", lambda: shutil.rmtree(self.dir, True) or not self.dir.exists())


class Container(node.Output):
    """A container in the background."""

    def __init__(self, engine, words, options):
        self.engine = engine
        self.id = engine.podman("run", "--detach", *options, image.NAME, *words).stdout.strip()
        engine.case.ids = [*engine.case.ids, self.id]
        super().__init__("/nonexistent", self.is_over)

    def text(self):
        done = self.engine.podman("logs", self.id, check=False)
        return done.stdout + done.stderr

    def is_over(self):
        shown = self.engine.podman("inspect", "--format={{.State.Running}}", self.id, check=False).stdout
        return None if shown.strip() == "true" else "over"

    def stop(self):
        self.engine.podman("rm", "--force", "--time=0", self.id, check=False)
