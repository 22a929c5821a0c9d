"""A GPU whose driver reports an error takes no new pods, and does so again when it has recovered."""
import time

from kit import node

from cluster import case


class Health(case.Case):
    simulated = "devices=2,mem=15GiB"
    # Before the GPU recovers, the node's status must follow, schedulers be told, and a pod be given the other GPU.
    configuration = "unhealthy_s = 20\n"

    def test_unhealthy_and_back(self):
        self.create(case.pod("stays", case.container(memory=4)))
        self.running("stays")
        self.assertEqual(self.seen("stays"), [4 * case.GIB])
        self.worker.fail_gpu(79)
        began = time.monotonic()
        node.eventually("half of the node is left", lambda: self.allocatable() == 15)
        print(f"     allocatable follows after {time.monotonic() - began:.1f} s", flush=True)
        map_path = f"/api/v1/namespaces/gpuslice-system/configmaps/unhealthy-gpu-{case.NAME}"
        told = node.eventually("schedulers are told", lambda: self.api.find(map_path))
        self.assertEqual(told["data"]["gpus"], "0")
        self.assertEqual(self.pod("stays")["status"]["phase"], "Running")
        self.create(case.pod("elsewhere", case.container(memory=2)))
        self.running("elsewhere")
        self.assertEqual(self.gpu_of("elsewhere"), 1)
        node.eventually("all of the node is back", lambda: self.allocatable() == 30)
        node.eventually("schedulers are told", lambda: self.api.find(map_path)["data"]["gpus"] == "")
        self.create(case.pod("back", case.container(memory=11)))
        self.running("back")
