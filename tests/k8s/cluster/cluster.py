"""A cluster of one node: `start`, `stop`, `reboot`, and the words of its users."""
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile

from kit import node

from .api import Api
from .control_plane import ControlPlane
from .place import Place
from .worker import Worker

# The node of the documents.
NAME, ADDRESS = "cn-zhangjiakou.192.168.66.139", "192.168.66.139"
MANIFESTS = pathlib.Path(__file__).resolve().parent.parent / "manifests"
NODE = f"/api/v1/nodes/{NAME}"
MEMORY, CORES, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-count"


def rights():
    """Accounts and roles of the plain manifests, as users apply them."""
    text = (MANIFESTS.parents[2] / "packaging/kubernetes/manifests.yaml").read_text()
    kinds = re.compile(r"^kind: (ServiceAccount|(Cluster)?Role(Binding)?)$", re.M)
    return [part for part in re.split(r"^---\n", text, flags=re.M) if kinds.search(part)]


class Cluster:
    """Its programs' logs are copied to `logs` at its end."""

    def __init__(self, binaries, logs):
        self.logs = logs
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="gpuslice-k8s-"))
        self.root.chmod(0o711)
        self.groups = node.groups()
        self.place = Place(self.root, ADDRESS)
        self.control = ControlPlane(binaries, self.root, NAME, ADDRESS)
        self.api = Api(ADDRESS, self.control)
        self.worker = Worker(binaries, self.place, self.control, NAME, ADDRESS)
        self.environment = dict(os.environ)
        self.environment |= {"KUBECONFIG": str(self.control.kubeconfig("admin")), "HOME": str(self.root)}
        # kubectl finds its plugins in the PATH.
        plugins = self.root / "plugins"
        plugins.mkdir()
        for name in ["kubectl-inspect-cgpu", "kubectl-inspect-gpushare"]:
            (plugins / name).symlink_to(node.BUILD / "gpuslice-k8s")
        self.environment["PATH"] = f"{plugins}:{binaries}:{node.BUILD}:{self.environment['PATH']}"
        self.control.etcd.ready = lambda: socket.socket().connect_ex(("127.0.0.1", 2379)) == 0
        self.control.apiserver.ready = self.api.ready

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.logs, ignore_errors=True)
        shutil.copytree(self.control.logs, self.logs)
        self.stop()
        # What is mounted is this namespace's, and ends with it.
        os.chdir("/")
        node.unmount_below(self.root)
        # Of the kubelet's containers; other tests may run on the machine.
        ours = [group for group in node.groups() - self.groups if "/k8s.io" in group]
        for group in sorted(ours, key=len, reverse=True):
            try:
                os.rmdir(group)
            except OSError:
                pass
        shutil.rmtree(self.root, ignore_errors=True)

    def start(self):
        for program in self.control.all():
            program.start()
        node.eventually("there are namespaces", lambda: self.api.find("/api/v1/namespaces/default"))
        if not self.api.find("/api/v1/namespaces/gpuslice-system"):
            self.kubectl("create", "namespace", "gpuslice-system")
        self.apply("---\n".join(rights()) + "---\n" + (MANIFESTS / "rbac.yaml").read_text())
        self.worker.containerd.start()
        self.worker.import_images()
        self.worker.start(lambda: self.api.find(NODE))
        self.wait_ready()

    def stop(self):
        self.worker.lose_power()
        for program in reversed(self.control.all()):
            program.end()

    def reboot(self):
        """The node's power fails, and it boots; the servers are on another machine."""
        self.worker.lose_power()
        self.worker.start(lambda: self.api.find(NODE))

    def configure(self, simulated="devices=1,mem=15GiB", configuration="unhealthy_s = 6\n", agent=()):
        """Other GPUs and other settings for a node without pods; nothing happens if it has them."""
        worker, wanted = self.worker, (simulated, configuration, list(agent))
        if wanted == (worker.simulated, worker.configuration, worker.agent_words):
            return
        worker.agent.end()
        worker.daemon.end()
        shutil.rmtree("/run/gpuslice-sim", ignore_errors=True)
        shutil.rmtree("/run/gpuslice", ignore_errors=True)
        worker.simulated, worker.configuration, worker.agent_words = wanted
        worker.start_daemon()
        worker.agent.start()
        # By dynamic resource allocation the node's status says nothing.
        if "dra" not in worker.agent_words:
            self.wait_ready()

    def scheduler(self, extender):
        """The scheduler with or without gpushare's extender."""
        self.control.with_extender(extender)
        self.worker.extender.end()
        if extender:
            self.worker.extender.start()
        self.control.scheduler.restart()

    def wait_ready(self, memory=None):
        """The node takes pods, and offers the GPUs that it has."""
        count, size = [part.split("=")[1] for part in self.worker.simulated.split(",")[:2]]
        wanted = memory if memory is not None else int(count) * int(size.removesuffix("GiB"))

        def ready():
            found = self.api.find(NODE) or {"status": {}}
            conditions = {it["type"]: it["status"] for it in found["status"].get("conditions", [])}
            offers = found["status"].get("allocatable", {})
            told = (offers.get(MEMORY), offers.get(COUNT))
            return conditions.get("Ready") == "True" and told == (str(wanted), count) and found
        return node.eventually(f"the node is ready and offers {wanted}", ready)

    def kubectl(self, *words, given=None, check=True):
        """What kubectl prints; its error where it fails and `check` is off."""
        done = subprocess.run(["kubectl", *map(str, words)], input=given, env=self.environment, capture_output=True,
                              text=True)
        if check and done.returncode:
            raise AssertionError(f"kubectl {words}: {done.stdout}{done.stderr}")
        return done.stdout if done.returncode == 0 else done.stderr

    def apply(self, text):
        return self.kubectl("apply", "--filename=-", given=text)
