"""Restarts: of the kubelet, the agent, the daemon, and of the whole node. Pods keep what they have."""
import re
import signal

from kit import node

from cluster import case

REGISTERED = re.compile("registered.*aliyun.com/gpu-(?:mem|core.percentage)")


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

    def registered(self, agent_log):
        def both():
            return len(REGISTERED.findall(self.worker.agent.since(agent_log))) >= 2
        node.eventually("both plugins have registered", both)

    def test_kubelet(self):
        started, length = self.started("first"), self.worker.agent.length()
        self.worker.kubelet.restart()
        self.registered(length)
        self.cluster.wait_ready()
        self.works("second", started)

    def test_agent_that_is_killed(self):
        started, length = self.started("first"), self.worker.agent.length()
        self.worker.agent.restart(signal.SIGKILL)
        self.registered(length)
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
        length = self.worker.agent.length()
        self.worker.agent.start()
        # The amounts are the old ones meanwhile, and say nothing.
        self.registered(length)
        self.cluster.wait_ready()
        self.api.delete(f"{case.PODS}/early")
        node.eventually("nothing of it is left", lambda: self.claims() == self.before)
        self.works("second")

    def test_reboot(self):
        """The claim outlives the boot, and the container starts anew in it."""
        started = self.started("first")
        self.cluster.reboot()
        self.cluster.wait_ready()

        def anew():
            return self.started("first") != started and "first"
        node.eventually("the pod runs again", anew)
        self.assertEqual(self.seen("first"), [4 * case.GIB])
        self.works("second")
