"""The driver of dynamic resource allocation before a real API server: slices, claims, watches that end, conflicts."""
import json
import pathlib
import threading
import time

from kit import node

from cluster import case, dra
from cluster.cluster import ADDRESS
from cluster.proxy import PORT, Proxy

SLICES = f"{dra.GROUP}/resourceslices"
SLICE = f"{SLICES}/{case.NAME}-gpu.gpuslice.io"
CLAIMS = f"{dra.GROUP}/namespaces/default/resourceclaims"


class Driver(case.Case):
    simulated = "devices=2,mem=15GiB"
    agent = ("--mode", "dra", "--api", f"http://127.0.0.1:{PORT}")
    gate = True

    def setUp(self):
        self.proxy = Proxy(ADDRESS, case.CLUSTER.control)
        self.addCleanup(self.proxy.close)
        for definition in dra.definitions(self.gate):
            case.CLUSTER.api.create(dra.DEFINITIONS, definition)
            self.addCleanup(self.undefine, definition["metadata"]["name"])
        for path in [SLICES, CLAIMS]:
            node.eventually(f"{path} is served", lambda: case.CLUSTER.api.find(path))
        super().setUp()
        self.addCleanup(case.CLUSTER.configure)
        self.agent_log = self.worker.agent.length()

    def undefine(self, name):
        case.CLUSTER.api.delete(f"{dra.DEFINITIONS}/{name}")
        node.eventually(f"{name} is gone", lambda: not case.CLUSTER.api.find(f"{dra.DEFINITIONS}/{name}"))

    def devices(self):
        found = self.api.find(SLICE)
        return found and [device["name"] for device in found["spec"]["devices"]]

    def published(self, *names):
        node.eventually(f"the slice has {names}", lambda: self.devices() == list(names))

    def eventually_slice(self, what, happens):
        return node.eventually(what, lambda: (found := self.api.find(SLICE)) and happens(found))

    def claim(self, name, *results):
        self.api.create(CLAIMS, dra.claim(name, case.NAME, *results))
        self.addCleanup(self.api.delete, f"{CLAIMS}/{name}")
        return self.api.get(f"{CLAIMS}/{name}")


class GateOn(Driver):
    def setUp(self):
        super().setUp()
        self.published("gpu-0", "gpu-1")
        self.kubelet = dra.Kubelet()
        self.addCleanup(self.kubelet.close)

    def test_the_slice_says_what_the_node_has(self):
        found = self.api.get(SLICE)
        self.assertEqual(found["metadata"]["ownerReferences"][0]["name"], case.NAME)
        device = found["spec"]["devices"][0]
        self.assertTrue(device["allowMultipleAllocations"])
        self.assertEqual(device["capacity"]["memory"]["value"], "15Gi")
        self.assertEqual(device["capacity"]["cores"]["value"], "100")
        self.assertTrue(device["attributes"]["uuid"]["string"].startswith("GPU-"))

    def test_a_slice_that_is_deleted_or_changed_is_published_again(self):
        """A kubelet that starts deletes it."""
        for _ in range(3):
            before = self.api.get(SLICE)["metadata"]["uid"]
            self.api.delete(SLICE)
            self.eventually_slice("it is made again", lambda found: found["metadata"]["uid"] != before)
        self.api.merge(SLICE, {"spec": {"devices": []}})
        self.published("gpu-0", "gpu-1")

    def test_an_error_taints_the_device_and_its_recovery_does_not(self):
        began = time.monotonic()
        self.worker.fail_gpu(79)

        def taints(found):
            return {it["name"]: it.get("taints", []) for it in found["spec"]["devices"]}
        tainted = self.eventually_slice("it is tainted", lambda found: taints(found)["gpu-0"] and taints(found))
        print(f"     Xid to taint {time.monotonic() - began:.2f} s, with the failing program", flush=True)
        self.assertEqual(tainted["gpu-0"][0] | {"timeAdded": None},
                         {"key": "gpuslice.io/unhealthy", "value": "xid-79", "effect": "NoExecute", "timeAdded": None})
        self.assertEqual(tainted["gpu-1"], [])
        self.eventually_slice("it is clean", lambda found: not taints(found)["gpu-0"])

    def test_claims_are_prepared_and_released(self):
        """Both may be repeated; the ledger and the CDI directory have what the scheduler wrote."""
        one = self.claim("one", ("gpu-1", "4Gi", "30"))
        device, error = self.kubelet.prepare(one)
        self.assertEqual((device, error), (f"gpuslice.io/gpu={one['metadata']['uid']}-r0", ""))
        self.assertEqual(self.kubelet.prepare(one), (device, ""))
        self.published("gpu-1", "gpu-0")
        row = self.worker.slices()[0]
        self.assertEqual((row["memory_cap"], row["share"]), (4 * case.GIB, 30))
        name = device.removeprefix("gpuslice.io/gpu=")
        files = [json.loads(path.read_text()) for path in pathlib.Path("/var/run/cdi").glob("*.json")]
        self.assertIn(name, [one["name"] for file in files for one in file["devices"]])
        other = one | {"metadata": one["metadata"] | {"uid": "00000000-0000-0000-0000-000000000000"}}
        self.assertIn("another uid", self.kubelet.prepare(other)[1])
        for _ in range(2):
            self.assertEqual(self.kubelet.unprepare(one), "")
        self.published("gpu-0", "gpu-1")
        self.no_claim_is_left()
        two = self.claim("two", ("gpu-0", "2Gi", "10"), ("gpu-1", "2Gi", "10"))
        device, error = self.kubelet.prepare(two)
        self.assertEqual(error, "")
        rows = self.worker.slices()
        self.assertEqual(sorted(row["memory_cap"] for row in rows), [2 * case.GIB] * 2)
        self.assertEqual(self.kubelet.unprepare(two), "")

    def test_a_watch_that_ends_goes_on(self):
        """Also where the server refuses the next ones for a while, and the slice is changed meanwhile."""
        self.proxy.end_watches()
        self.api.delete(SLICE)
        self.published("gpu-0", "gpu-1")
        self.proxy.refuse = lambda method, path: 503 if "watch=1" in path else None
        self.proxy.end_watches()
        node.eventually("it tries", lambda: any("watch=1" in path for _, path in self.proxy.seen[-2:]))
        self.api.merge(SLICE, {"spec": {"devices": []}})
        self.proxy.refuse = lambda method, path: None
        self.published("gpu-0", "gpu-1")

    def test_a_watch_from_a_forgotten_version(self):
        """The server was restarted since, and knows nothing older: 410 for each watch from there. After the first, the
        slice is changed; only a list tells it."""
        forgotten = self.api.get(SLICE)["metadata"]["resourceVersion"]
        self.api.merge(SLICE, {"spec": {"devices": []}})
        self.published("gpu-0", "gpu-1")
        dra.compact(int(self.api.get(SLICE)["metadata"]["resourceVersion"]))
        control = self.cluster.control
        control.apiserver.end()
        control.apiserver.start()
        node.eventually("the server is back", lambda: self.api.find(SLICE))
        self.proxy.version = forgotten
        self.proxy.end_watches()
        node.eventually("the server refuses a watch", lambda: 410 in self.proxy.refused)
        self.api.merge(SLICE, {"spec": {"devices": []}})
        self.published("gpu-0", "gpu-1")
        self.proxy.version = None

    def test_conflicts_end_in_what_the_node_has(self):
        """Another writer changes the slice all the time, and then stops."""
        stop = threading.Event()

        def write():
            while not stop.is_set():
                try:
                    self.api.merge(SLICE, {"spec": {"devices": []}})
                except OSError:
                    return
        writer = threading.Thread(target=write)
        writer.start()
        time.sleep(5)
        stop.set()
        writer.join()
        self.published("gpu-0", "gpu-1")
        writes = [seen for seen in self.proxy.seen if seen[0] in ("PUT", "POST")]
        self.assertLess(len(writes), 100, "each write has a pause")

    def test_a_server_that_is_away_for_a_while(self):
        control = self.cluster.control
        control.apiserver.end()
        time.sleep(3)
        control.apiserver.start()
        self.api.delete(SLICE)
        self.published("gpu-0", "gpu-1")
        self.assertEqual(self.kubelet.prepare(one := self.claim("late", ("gpu-0", "1Gi", "0")))[1], "")
        self.assertEqual(self.kubelet.unprepare(one), "")


class GateOff(Driver):
    gate = False

    def test_nothing_stays_published(self):
        node.eventually("it is said", lambda: "DRAConsumableCapacity" in self.worker.agent.text())
        node.eventually("nothing is left", lambda: not self.api.get(SLICES)["items"])
        made = [path for method, path in self.proxy.seen if method == "POST"]
        self.assertEqual(len(made), 1, "tried once, and then no more for a minute")
