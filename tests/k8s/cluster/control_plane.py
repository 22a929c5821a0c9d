"""The cluster's servers: etcd, API server, controller manager, scheduler.

Each user has a token and the rights that a real one has: the kubelet those of its node, agent and extender
those of the manifests that users apply."""
import pathlib
import ssl
import subprocess

from .program import Program

# User, groups.
USERS = {
    "admin": ("admin", "system:masters"),
    "controllers": ("controllers", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    "kubelet": ("system:node:{node}", "system:nodes"),
    "agent": ("system:serviceaccount:gpuslice-system:gpuslice-agent", "system:serviceaccounts"),
    "extender": ("system:serviceaccount:gpuslice-system:gpuslice-extender", "system:serviceaccounts"),
}
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: here
contexts: [{{name: here, context: {{cluster: here, user: here}}}}]
clusters: [{{name: here, cluster: {{server: "https://{address}:6443", certificate-authority: "{ca}"}}}}]
users: [{{name: here, user: {{token: "{token}"}}}}]
"""
PROFILES = """\
apiVersion: kubescheduler.config.k8s.io/v1beta1
kind: KubeSchedulerConfiguration
leaderElection: {{leaderElect: false}}
clientConnection: {{kubeconfig: "{kubeconfig}", qps: 200, burst: 400}}
profiles: [{{schedulerName: default-scheduler}}, {{schedulerName: ack-co-scheduler}}]
"""
EXTENDER = """\
extenders:
- urlPrefix: http://127.0.0.1:32766/gpushare-scheduler
  filterVerb: filter
  bindVerb: bind
  nodeCacheCapable: true
  ignorable: false
  managedResources: [{name: aliyun.com/gpu-mem, ignoredByScheduler: false}]
"""


class ControlPlane:
    def __init__(self, binaries, root, node, address):
        self.binaries, self.dir, self.address = binaries, root / "control", address
        self.logs = root / "logs"
        (self.dir / "certificates").mkdir(parents=True)
        self.logs.mkdir(exist_ok=True)
        self.ca = self.dir / "certificates/apiserver.crt"
        self.key = self.dir / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", self.key, "2048"], check=True, capture_output=True)
        lines = [f'token-{name},{user.format(node=node)},{name},"{groups}"' for name, (user, groups) in USERS.items()]
        (self.dir / "tokens").write_text("\n".join(lines) + "\n")
        for name in USERS:
            text = KUBECONFIG.format(address=address, ca=self.ca, token=self.token(name))
            self.kubeconfig(name).write_text(text)
        self.with_extender(False)
        self.etcd = self.program("etcd", self.etcd_words)
        self.apiserver = self.program("kube-apiserver", self.apiserver_words)
        self.controllers = self.program("kube-controller-manager", self.controllers_words)
        self.scheduler = self.program("kube-scheduler", self.scheduler_words)

    def program(self, name, words):
        def command():
            return [self.binaries / name, *words()]
        return Program(name, self.logs / name, command, lambda: {"PATH": "/usr/bin:/bin", "HOME": str(self.dir)})

    def token(self, user):
        return f"token-{user}"

    def kubeconfig(self, user):
        return self.dir / f"{user}.kubeconfig"

    def all(self):
        return [self.etcd, self.apiserver, self.controllers, self.scheduler]

    def with_extender(self, with_it):
        text = PROFILES.format(kubeconfig=self.kubeconfig("scheduler"))
        (self.dir / "scheduler.yaml").write_text(text + (EXTENDER if with_it else ""))

    def etcd_words(self):
        # A test's data need not survive the machine.
        return ["--data-dir", self.dir / "etcd", "--unsafe-no-fsync", "--log-level", "warn"]

    def apiserver_words(self):
        return [
            "--etcd-servers=http://127.0.0.1:2379", "--secure-port=6443", f"--advertise-address={self.address}",
            f"--cert-dir={self.dir}/certificates", f"--token-auth-file={self.dir}/tokens",
            "--authorization-mode=Node,RBAC", "--service-cluster-ip-range=10.96.0.0/24",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--service-account-issuer=https://cluster", f"--service-account-key-file={self.key}",
            f"--service-account-signing-key-file={self.key}", "--api-audiences=cluster",
            "--kubelet-preferred-address-types=InternalIP", "--endpoint-reconciler-type=none",
            "--allow-privileged=true", "--max-requests-inflight=1000", "--v=1",
        ]

    def controllers_words(self):
        return [
            f"--kubeconfig={self.kubeconfig('controllers')}", "--leader-elect=false", "--kube-api-qps=200",
            "--kube-api-burst=400", "--controllers=*,-cronjob,-horizontalpodautoscaling,-csrsigning", "--v=1",
        ]

    def scheduler_words(self):
        return [f"--config={self.dir}/scheduler.yaml", "--v=2"]

    def trust(self):
        """For clients: the server's own certificate, which Python's strict mode finds too simple."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context

    def certificate(self):
        return pathlib.Path(self.ca).read_text()
