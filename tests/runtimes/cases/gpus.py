"""Containers with several GPUs: slices of each, and whole ones beside a slice."""
import json

from kit import bundle, node

GIB = 1 << 30
EACH = "for gpu in 0 1 2; do /bin/tenant --device $gpu --step-mib 32 --no-launch || echo gpu $gpu: none; done; exec sleep 600"
CGPU = ["ALIYUN_COM_GPU_MEM_CONTAINER=1", "ALIYUN_COM_GPU_MEM_DEV=4"]


class Several(node.Case):
    needs = ("runc",)
    simulated = "devices=3,mem=1GiB"
    configuration = 'policy = "fair"\nenvironment_gpus_max = 2\n'

    def run_(self, name, annotations, variables=()):
        """Starts a container that fills each GPU: what each said it has, and gave no more than, or `None`."""
        words = ["/bin/sh", "-c", EACH]
        container = bundle.Bundle(self, self.node.wrapper, name, words, annotations, variables).start()

        def all_tried():
            lines = [line for line in container.text().splitlines()
                     if '"memory"' in line and line.endswith("}") or ": none" in line]
            return lines if len(lines) == 3 else container.ended() is not None and self.fail(container.text())
        lines = node.eventually("all GPUs are tried", all_tried)
        found = [None if ": none" in line else json.loads(line[line.find("{"):]) for line in lines]
        for memory in filter(None, found):
            self.assertEqual(memory["refusal"], 2, "CUDA_ERROR_OUT_OF_MEMORY")
            self.assertLessEqual(memory["got"], memory["total"])
        return container, [memory and memory["total"] for memory in found]

    def test_slices_of_several(self):
        """The same cap on each GPU that is named; the others are out of reach."""
        ids = [gpu["uuid"] for gpu in self.node.listing()["gpus"]]
        named = ["NVIDIA_VISIBLE_DEVICES=" + ",".join(ids[:2])]
        for name, ask, variables in [
            ("annotated", {"gpuslice.io/memory": "256MiB", "gpuslice.io/gpus": "0,1"}, []),
            ("cgpu", {}, [*CGPU, *named]),
        ]:
            container, totals = self.run_(name, ask, variables)
            self.assertEqual(totals, [node.CAP, node.CAP, None])
            self.assertEqual(len(self.node.slices()), 2)
            container.stop()
            self.no_slice_is_left()

    def test_whole_beside_a_slice(self):
        """GPU 2 sliced, 0 and 1 whole: untouched, all of their time under any policy, and nobody else's, also
        after a restart of the daemon."""
        ours = {"gpuslice.io/memory": "256MiB", "gpuslice.io/gpus": "2", "gpuslice.io/whole-gpus": "0,1"}
        container, totals = self.run_("annotated", ours)
        self.assertEqual(totals, [GIB, GIB, node.CAP])
        rows = sorted((row["memory_cap"], row["time_cap_ppm"]) for row in self.node.slices())
        self.assertEqual([cap for cap, _ in rows], [node.CAP, GIB, GIB])
        self.assertEqual([time == 1_000_000 for _, time in rows], [False, True, True], rows)
        self.node.restart_daemon()
        bad = {"gpuslice.io/memory": "1MiB", "gpuslice.io/gpus": "0"}
        other = bundle.Bundle(self, self.node.wrapper, "other", ["/bin/true"], bad)
        status, said = other.ends()
        self.assertEqual(status, 1)
        self.assertIn("GPU 0 is another container's as a whole", said)
        container.stop()
        self.no_slice_is_left()

    def test_no_image_takes_gpus(self):
        """An image's variables ask for as many GPUs as the node lets them, and never for whole ones."""
        for name, variables, why in [
            ("three", ["NVIDIA_VISIBLE_DEVICES=0,1,2"], "environment_gpus_max"),
            ("whole", ["ALIYUN_COM_GPU_VISIBLE_DEVICES=2", "NVIDIA_VISIBLE_DEVICES=0,1,2"], "gpuslice.io/whole-gpus"),
        ]:
            taker = bundle.Bundle(self, self.node.wrapper, name, ["/bin/true"], {}, [*CGPU, *variables])
            status, said = taker.ends()
            self.assertEqual(status, 1)
            self.assertIn(why, said)
        self.no_slice_is_left()
