"""The cluster's node: containerd, kubelet, gpusliced on the simulated GPU, the agent, and the extender."""
import json
import os
import pathlib
import signal
import subprocess
import time

from kit import containerd, image, node

from .place import about, others
from .program import Program

KUBELET = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
address: 0.0.0.0
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
makeIPTablesUtilChains: false
maxPods: 250
evictionHard: {{memory.available: 1Mi}}
imageGCHighThresholdPercent: 100
resolvConf: {dir}/resolv.conf
nodeStatusUpdateFrequency: 2s
nodeStatusReportFrequency: 10s
kubeAPIQPS: 200
kubeAPIBurst: 400
eventRecordQPS: 0
registryPullQPS: 0
featureGates: {{KubeletPodResources: true}}
"""
# A network for pods that need none: each has an address and no interface.
CNI = """\
#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"0.3.1","supportedVersions":["0.3.1","0.4.0","1.0.0"]}' ;;
ADD) echo '{"cniVersion":"0.3.1","interfaces":[{"name":"'$CNI_IFNAME'","sandbox":"'$CNI_NETNS'"}],
    "ips":[{"version":"4","interface":0,"address":"10.244.'$(($$ / 250 % 250)).$(($$ % 250 + 1))'/32"}]}' ;;
esac
"""
CNI_LIST = '{"cniVersion":"0.3.1","name":"none","plugins":[{"type":"none"}]}'
CONTAINERD = "/run/containerd/containerd.sock"
# What the documents' pods run.
PYTHON = "#!/bin/sh\nexec /bin/works\n"
# Takes all memory of each GPU that it was given, says how much there was, and stays. The simulated driver shows all
# GPUs of the node, where a real one shows those whose device nodes a container has: so it counts them as the node does.
WORKS = """\
#!/bin/sh
IFS=,
for gpu in $ALIYUN_COM_GPU_MEM_IDX; do
    /bin/tenant --device $gpu --step-mib 64 --seconds 100000 --idle &
done
wait
"""
# Runs a program as a pod's container: with its service account, and without any capability.
AS_POD = 'mount --bind "$1" /run/secrets/kubernetes.io/serviceaccount && shift && exec setpriv ' \
    '--bounding-set=-all --inh-caps=-all --no-new-privs "$@"'


class Worker:
    def __init__(self, binaries, place, control, name, address):
        self.binaries, self.place, self.control = binaries, place, control
        self.name, self.address = name, address
        self.dir = place.root / "worker"
        self.dir.mkdir()
        logs = control.logs
        self.simulated, self.configuration, self.agent_words = "devices=1,mem=15GiB", "unhealthy_s = 6\n", []
        self.containerd = Program("containerd", logs / "containerd", self.containerd_words, self.environment,
                                  lambda: os.path.exists(CONTAINERD))
        self.kubelet = Program("kubelet", logs / "kubelet", self.kubelet_words, self.environment)
        self.daemon = Program("gpusliced", logs / "gpusliced", self.daemon_words, self.environment, self.daemon_ready)
        self.agent = Program("agent", logs / "agent", self.as_pod("agent"), self.pod_environment)
        self.extender = Program("extender", logs / "extender", self.as_pod("extender"), self.pod_environment)
        self.write()

    def write(self):
        for name in ["none", "loopback"]:
            path = self.dir / "cni" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(CNI)
            path.chmod(0o755)
        (self.dir / "cni/10-none.conflist").write_text(CNI_LIST)
        (self.dir / "resolv.conf").write_text("")
        (self.dir / "kubelet.yaml").write_text(KUBELET.format(dir=self.dir))
        text = containerd.configuration(
            "/var/lib/containerd", "/run/containerd", CONTAINERD, self.dir / "cni", cdi="enable_cdi = true")
        runc = '\n    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n      runtime_type = "io.containerd.runc.v2"\n'
        (self.dir / "containerd.toml").write_text(text + runc)

    def environment(self):
        path = f"{self.binaries}:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "HOME": str(self.dir), "GPUSLICE_SIM": self.simulated,
                "GPUSLICE_SIM_DEVICE": "/run/gpuslice-sim"}

    def containerd_words(self):
        return [self.binaries / "containerd", "--config", self.dir / "containerd.toml"]

    def kubelet_words(self):
        return [
            self.binaries / "kubelet", "--container-runtime=remote", f"--container-runtime-endpoint=unix://{CONTAINERD}",
            f"--hostname-override={self.name}", f"--node-ip={self.address}", f"--config={self.dir}/kubelet.yaml",
            f"--kubeconfig={self.control.kubeconfig('kubelet')}", f"--cert-dir={self.dir}/kubelet-certificates", "--v=2",
        ]

    def daemon_words(self):
        return [node.BUILD / "gpusliced", "--driver-dir", node.BUILD / "sim"]

    def daemon_ready(self):
        return "gpusliced ready: " in self.daemon.since(self.daemon_log)

    def as_pod(self, command):
        def words():
            account = pathlib.Path("/run/accounts", command)
            for directory in [account, pathlib.Path("/run/secrets/kubernetes.io/serviceaccount")]:
                directory.mkdir(parents=True, exist_ok=True)
            (account / "ca.crt").write_text(self.control.certificate())
            (account / "token").write_text(self.control.token(command))
            # As the chart's.
            maps = ["--config-maps=gpuslice-system"]
            own = ["--lease", "gpuslice-system/gpuslice-extender", "--config-maps=kube-system", *maps]
            if command == "agent":
                own = ["--node-name", self.name, *maps, *self.agent_words]
            return ["unshare", "--mount", "sh", "-c", AS_POD, "sh", account, node.BUILD / "gpuslice-k8s", command, *own]
        return words

    def pod_environment(self):
        return self.environment() | {"KUBERNETES_SERVICE_HOST": self.address, "KUBERNETES_SERVICE_PORT": "6443"}

    def start_daemon(self):
        pathlib.Path("/etc/gpuslice/gpusliced.toml").write_text(self.configuration)
        self.daemon_log = self.daemon.length()
        self.daemon.start()

    def start(self, node_exists):
        """The agent last: it is a pod, so there are none before there is a node."""
        if not self.containerd.process:
            self.containerd.start()
        self.start_daemon()
        self.kubelet.start()
        node.eventually("the kubelet makes its node", node_exists)
        self.agent.start()

    def all(self):
        """In the order in which they end."""
        return [self.agent, self.extender, self.kubelet, self.daemon, self.containerd]

    def stop(self):
        for program in self.all():
            program.end()

    def lose_power(self):
        """All of the node's processes end at once, and with them what was in memory."""
        servers = {program.process.pid for program in self.control.all() if program.process}
        end = time.monotonic() + node.PATIENCE_S
        while left := list(others(*servers)):
            assert time.monotonic() < end, f"they do not end: {[about(pid) for pid in left]}"
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for program in self.all():
                program.end(signal.SIGKILL)
            time.sleep(0.05)
        self.place.shut_down()
        self.place.boot()

    def import_images(self):
        """The documents' images, and the sandbox's: no registry is asked."""
        root = image.fill(self.dir / "image")
        for name, text in [("python", PYTHON), ("bash", PYTHON), ("works", WORKS)]:
            (root / "bin" / name).write_text(text)
            (root / "bin" / name).chmod(0o755)
        for name, command in [(containerd.IMAGE, ["/bin/works"]), (containerd.PAUSE, ["/bin/sleep", "infinity"])]:
            archive = image.archive(self.dir / "image.tar", name, root, command)
            self.ctr("image", "import", archive)
            archive.unlink()

    def ctr(self, *words):
        command = [self.binaries / "ctr", "--address", CONTAINERD, "--namespace", "k8s.io", *words]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(f"ctr {words}: {done.stderr}")
        return done.stdout

    def gpuslice(self, *words):
        """What the node's administrator sees."""
        command = [node.BUILD / "gpuslice", *words]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(f"gpuslice {words}: {done.stderr}")
        return done.stdout

    def slices(self):
        return json.loads(self.gpuslice("ps", "--json"))["slices"]

    def fail_gpu(self, xid):
        """A program outside of all slices, whose first kernel ends with this error of GPU 0."""
        more = {"LD_LIBRARY_PATH": str(node.BUILD / "sim"), "GPUSLICE_SIM_FAULT": f"xid:{xid}@launch=1"}
        words = [node.BUILD / "tenant", "--seconds", "1", "--most-mib", "64"]
        done = subprocess.run(words, env=self.environment() | more, capture_output=True, text=True)
        assert done.returncode, f"its kernel does not fail: {done.stdout}"
