"""What a case derives from: pods, what they see, and the proof that nothing of them stays."""
import json
import unittest

from kit import containerd, node

from .api import Refused
from .cluster import CORES, COUNT, MEMORY, NAME, NODE

GIB = 1 << 30
IMAGE = containerd.IMAGE
PODS = "/api/v1/namespaces/default/pods"
# The cluster of this run; `run.py` sets it.
CLUSTER = None
# A container that does nothing and ends when it is told.
WAITS = ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"]


def container(name="main", memory=0, cores=0, command=(), variables=None, image=IMAGE):
    limits = {key: str(value) for key, value in [(MEMORY, memory), (CORES, cores)] if value}
    found = {"name": name, "image": image, "resources": {"limits": limits}}
    if command:
        found["command"] = list(command)
    if variables:
        found["env"] = [{"name": key, "value": value} for key, value in variables.items()]
    return found


def pod(name, *containers, init=(), count=None, annotations=None, restart="Always"):
    labels = {"app": name} | ({COUNT: str(count)} if count else {})
    spec = {"containers": list(containers), "restartPolicy": restart, "terminationGracePeriodSeconds": 0}
    if init:
        spec["initContainers"] = list(init)
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {"name": name, "labels": labels, "annotations": annotations or {}}}


class Case(unittest.TestCase):
    """A test in the cluster; the node's GPUs and settings are the class's."""

    simulated = "devices=1,mem=15GiB"
    configuration = "unhealthy_s = 6\n"
    agent = ()
    extender = False

    def setUp(self):
        self.cluster = CLUSTER
        self.api, self.worker = CLUSTER.api, CLUSTER.worker
        CLUSTER.configure(self.simulated, self.configuration, self.agent)
        if self.extender != (self.worker.extender.process is not None):
            CLUSTER.scheduler(self.extender)
        self.addCleanup(self.nothing_is_left)

    def nothing_is_left(self):
        """No pod, no slice and no claim outlives its test."""
        for kind in ["/apis/batch/v1/namespaces/default/jobs", "/apis/apps/v1/namespaces/default/deployments"]:
            for one in self.api.get(kind)["items"]:
                self.api.delete(f"{kind}/{one['metadata']['name']}")
        for one in self.pods():
            self.api.delete(f"{PODS}/{one['metadata']['name']}", 1)
        node.eventually("no pod is left", lambda: not self.pods())
        self.no_claim_is_left()

    def no_claim_is_left(self):
        node.eventually(f"no slice is left: {self.worker.slices()}", lambda: not self.worker.slices())

    def pods(self, **labels):
        selector = ",".join(f"{key}%3D{value}" for key, value in labels.items())
        return self.api.get(f"{PODS}?labelSelector={selector}")["items"]

    def create(self, *pods):
        for one in pods:
            self.api.create(PODS, one)

    def pod(self, name):
        return self.api.get(f"{PODS}/{name}")

    def annotations(self, name):
        return self.pod(name)["metadata"].get("annotations", {})

    def running(self, name):
        """The pod, when all of its containers run."""
        def runs():
            found = self.pod(name)
            if found["status"].get("reason") or found["status"].get("phase") == "Failed":
                raise AssertionError(f"{name} failed: {found['status']}")
            states = found["status"].get("containerStatuses", [])
            return len(states) == len(found["spec"]["containers"]) and all("running" in it["state"] for it in states) \
                and found
        try:
            return node.eventually(f"{name} runs", runs)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.events(name)}; {self.worker.agent.text()[-1500:]}") from None

    def running_of(self, app):
        """The one pod that a controller made for a document's workload."""
        made = node.eventually(f"{app} has a pod", lambda: self.pods(app=app))
        return self.running(made[0]["metadata"]["name"])

    def failed(self, name):
        """The status of a pod that the node refuses."""
        return node.eventually(f"{name} fails", lambda: self.failure(name))

    def failure(self, name):
        status = self.pod(name)["status"]
        return status if status.get("phase") == "Failed" else None

    def events(self, name):
        found = self.api.get(f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{name}")["items"]
        return [f"{one['reason']}: {one['message']}" for one in found]

    def log(self, name, of="main"):
        try:
            return self.api.get(f"{PODS}/{name}/log?container={of}")
        except Refused as refused:
            return str(refused)

    def seen(self, name, of="main", gpus=1):
        """Bytes of memory that the container saw on each of its GPUs, and it got no more of any."""
        def told():
            lines = [line for line in self.log(name, of).splitlines() if line.startswith('{"event":"memory"')]
            return len(lines) == gpus and [json.loads(line) for line in lines]
        try:
            events = node.eventually(f"{name} says what it sees", told)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.log(name, of)!r}") from None
        for event in events:
            self.assertEqual(event["refusal"], 2, "CUDA_ERROR_OUT_OF_MEMORY")
            self.assertLessEqual(event["got"], event["total"])
            self.assertGreater(event["got"], event["total"] * 3 // 4)
        return [event["total"] for event in events]

    def slice_of(self, name, of="main"):
        """The daemon's row for a container."""
        rows = [row for row in self.worker.slices() if (row["pod"] or {}).get("name") == name]
        return next(row for row in rows if row["pod"]["container"] == of)

    def gpu_of(self, name, of="main"):
        """The index of the container's GPU, as the daemon has it."""
        listing = json.loads(self.worker.gpuslice("ps", "--json"))
        index = {gpu["uuid"]: gpu["index"] for gpu in listing["gpus"]}
        return index[self.slice_of(name, of)["gpu"]]

    def allocatable(self, resource=MEMORY):
        return int(self.api.get(NODE)["status"]["allocatable"].get(resource, -1))


__all__ = ["node", "Case", "GIB", "IMAGE", "NAME", "NODE", "PODS", "WAITS", "container", "pod"]
