"""Bundles, and runc and crun without an engine above them."""
import json
import os
import pathlib
import shutil
import subprocess

from kit import image, node


def alone(crun):
    """How to call crun: it refuses a machine with both cgroup hierarchies unless it sees only one."""
    if crun and pathlib.Path("/sys/fs/cgroup/unified").is_dir():
        return ["unshare", "-m", "sh", "-c", 'umount /sys/fs/cgroup/unified && exec "$@"', "sh"]
    return []


def hooks(run):
    """Our hook as `packaging/hooks/oci-config.json` has them, for this daemon."""
    path = str(node.BUILD / "libexec/gpuslice-hook")
    args = ["gpuslice-hook", "--runtime-dir", str(run), "createRuntime"]
    return {"createRuntime": [{"path": path, "args": args, "env": []}]}


class Bundle(node.Output):
    """A container of a runtime, which may be a wrapper of crun; `edit` changes its configuration before
    it is written."""

    def __init__(self, case, runtime, name, words, annotations=None, variables=(), edit=lambda config: None,
                 crun=False):
        self.case, self.id = case, f"{name}-{os.getpid()}"
        self.runtime, self.crun = runtime, crun or runtime == "crun"
        self.dir = case.node.root / "bundle" / name
        image.fill(self.dir / "rootfs")
        self.config = self.configuration(words, annotations or {}, ["PATH=/bin", *variables])
        edit(self.config)
        (self.dir / "config.json").write_text(json.dumps(self.config))
        self.process = None
        super().__init__(self.dir / "output", lambda: self.process.poll())
        case.ids = [*case.ids, self.id]
        case.addCleanup(self.stop)

    def add(self, *programs):
        for program in programs:
            image.add(self.dir / "rootfs", shutil.which(program))

    def configuration(self, words, annotations, variables):
        kinds = ["pid", "mount", "ipc", "uts", "network"]
        return {
            "ociVersion": "1.0.2",
            "root": {"path": "rootfs"},
            "process": {"cwd": "/", "args": words, "env": variables, "user": {"uid": 0, "gid": 0}},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            ],
            "annotations": annotations,
            "linux": {"namespaces": [{"type": kind} for kind in kinds], "cgroupsPath": "/" + self.id},
        }

    def command(self, *words):
        return [*alone(self.crun), self.runtime, "--root", str(self.dir / "state"), *words]

    def start(self):
        with open(self.path, "wb") as output:
            self.process = subprocess.Popen(
                self.command("run", "--bundle", str(self.dir), self.id), env=self.case.node.environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        return self

    def ends(self):
        """Runs it to its end: exit status and what was printed."""
        self.start()
        return self.process.wait(node.PATIENCE_S), self.text()

    def stop(self):
        words = self.command("delete", "--force", self.id)
        subprocess.run(words, env=self.case.node.environment, capture_output=True)
        if self.process:
            self.process.wait(node.PATIENCE_S)
