"""gpushare's scheduler extender behind the real scheduler."""
import json
import urllib.request

from kit import node

from cluster import case


class Extender(case.Case):
    simulated = "devices=4,mem=15GiB"
    extender = True

    def inspect(self):
        with urllib.request.urlopen("http://127.0.0.1:32766/gpushare-scheduler/inspect") as answer:
            return json.load(answer)["nodes"]

    def test_the_best_fit_is_chosen_and_kept(self):
        for name, memory in [("nine", 9), ("ten", 10), ("five", 5), ("six", 6)]:
            self.create(case.pod(name, case.container(memory=memory)))
            self.running(name)
            self.assertEqual(self.seen(name), [memory * case.GIB])
        gpu = {name: int(self.annotations(name)["ALIYUN_COM_GPU_MEM_IDX"]) for name in ["nine", "ten", "five", "six"]}
        self.assertEqual((gpu["five"], gpu["six"]), (gpu["ten"], gpu["nine"]))
        for name, index in gpu.items():
            self.assertEqual(self.gpu_of(name), index)
            node.eventually("confirmed", lambda: self.annotations(name)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true")
        used = sorted(device["usedGPU"] for device in self.inspect()[0]["devs"])
        self.assertEqual(used, [0, 0, 15, 15])

    def test_what_fits_on_no_gpu_waits(self):
        """Where the plugin alone would have to refuse the pod for ever."""
        for at in range(4):
            self.create(case.pod(f"part-{at}", case.container(memory=9, command=case.WAITS)))
            self.running(f"part-{at}")
        self.create(case.pod("big", case.container(memory=8)))
        node.eventually("the scheduler says why", lambda: any(
            "insufficient GPU memory" in event for event in self.events("big")))
        self.api.delete(f"{case.PODS}/part-2")
        self.running("big")
        self.assertEqual(self.seen("big"), [8 * case.GIB])

    def test_50_parallel_pods_of_one_size(self):
        """Each is on the GPU that its annotation names, with its own cap."""
        names = [f"pod-{at:02}" for at in range(50)]
        self.create(*[case.pod(name, case.container(memory=1)) for name in names])
        for name in names:
            self.running(name)
        for name in names:
            self.assertEqual(self.seen(name), [case.GIB])
            self.assertEqual(self.gpu_of(name), int(self.annotations(name)["ALIYUN_COM_GPU_MEM_IDX"]), name)
        used = [device["usedGPU"] for device in self.inspect()[0]["devs"]]
        self.assertEqual((sum(used), max(used)), (50, 15))
        rows = self.worker.slices()
        self.assertEqual((len(rows), {row["memory_cap"] for row in rows}), (50, {case.GIB}))

    def test_two_gpus_of_one_pod(self):
        self.create(case.pod("pair", case.container(memory=8), count=2))
        self.running("pair")
        self.assertEqual(self.seen("pair", gpus=2), [4 * case.GIB] * 2)
