"""Restarts: of the kubelet, the agent, the daemon, and of the whole node. Pods keep what they have."""
import re
import signal

from kit import node

from cluster import case
from cluster.cluster import CORES, MEMORY

REGISTERED = re.compile("registered.*aliyun.com/gpu-(?:mem|core.percentage)")
# The kubelet logs this as it takes the list of a plugin's devices.
PUSHED = re.compile(r"State pushed for device plugin (\S+)")


class Restarts(case.Case):
    simulated = "devices=2,mem=15GiB"

    def setUp(self):
        super().setUp()
        self.create(case.pod("first", case.container(memory=4, cores=30)))
        self.running("first")
        self.assertEqual(self.seen("first"), [4 * case.GIB])
        self.before = self.claims()

    def claims(self):
        return {row["container"]: (row["memory_cap"], row["share"], row["gpu"]) for row in self.worker.slices()}

    def works(self, name, started=None):
        """The first pod has what it had; another one gets its own."""
        self.assertEqual(self.claims(), self.before)
        if started is not None:
            self.assertEqual(self.started("first"), started, "it was not touched")
        self.create(case.pod(name, case.container(memory=2, cores=10)))
        self.running(name)
        self.assertEqual(self.seen(name), [2 * case.GIB])
        self.assertEqual(len(self.claims()), 2)

    def started(self, name):
        return self.running(name)["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]

    def logs(self):
        """How long the agent's log and the kubelet's are."""
        return self.worker.agent.length(), self.worker.kubelet.length()

    def registered(self, logs):
        """Both plugins have registered since, and the kubelet has their devices. It calls a plugin after its
        registration, and until then refuses pods, whatever the node's status says."""
        agent_log, kubelet_log = logs

        def both():
            return len(REGISTERED.findall(self.worker.agent.since(agent_log))) >= 2
        node.eventually("both plugins have registered", both)

        def has_both():
            return {MEMORY, CORES} <= set(PUSHED.findall(self.worker.kubelet.since(kubelet_log)))
        node.eventually("the kubelet has the devices of both", has_both)

    def test_kubelet(self):
        started, logs = self.started("first"), self.logs()
        self.worker.kubelet.restart()
        self.registered(logs)
        self.cluster.wait_ready()
        self.works("second", started)

    def test_agent_that_is_killed(self):
        started, logs = self.started("first"), self.logs()
        self.worker.agent.restart(signal.SIGKILL)
        self.registered(logs)
        self.cluster.wait_ready()
        self.works("second", started)

    def test_daemon_that_is_killed(self):
        started = self.started("first")
        self.worker.daemon.end(signal.SIGKILL)
        self.worker.start_daemon()
        self.cluster.wait_ready()
        self.works("second", started)

    def test_containerd(self):
        started = self.started("first")
        self.worker.containerd.restart()
        self.cluster.wait_ready()
        self.works("second", started)

    def test_agent_that_is_away_while_a_pod_comes(self):
        """The kubelet keeps the amounts for a while, so it may refuse the pod; after the agent's return pods run."""
        self.worker.agent.end()
        self.create(case.pod("early", case.container(memory=2)))
        node.eventually("it is refused or waits", lambda: self.failure("early") or self.events("early"))
        logs = self.logs()
        self.worker.agent.start()
        # The amounts are the old ones meanwhile, and say nothing.
        self.registered(logs)
        self.cluster.wait_ready()
        self.api.delete(f"{case.PODS}/early")
        node.eventually("nothing of it is left", lambda: self.claims() == self.before)
        self.works("second")

    def test_reboot(self):
        """The claim outlives the boot, and the container starts anew in it."""
        started, logs = self.started("first"), self.logs()
        self.cluster.reboot()
        self.registered(logs)
        self.cluster.wait_ready()

        def anew():
            return self.started("first") != started and "first"
        node.eventually("the pod runs again", anew)
        self.assertEqual(self.seen("first"), [4 * case.GIB])
        self.works("second")
