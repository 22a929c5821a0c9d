"""What public documents show works word for word; only the image is another, since no registry is there."""
import re

from cluster import case
from cluster.cluster import MANIFESTS

EMPTY = """\
NAME                           IPADDRESS       GPU0(Allocated/Total)  GPU Memory(GiB)
cn-zhangjiakou.192.168.66.139  192.168.66.139  0/15                   0/15
---------------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
0/15 (0%)  
"""
USED = EMPTY.replace("0/15 ", "3/15 ").replace("0/15\n", "3/15\n").replace("(0%)", "(20%)")


def document(name):
    return re.sub(r"image: .*", f"image: {case.IMAGE}", (MANIFESTS / f"{name}.yaml").read_text())


class Documents(case.Case):
    def inspect(self, plugin="cgpu"):
        return self.cluster.kubectl("inspect", plugin)

    def test_job_of_3_gib_and_its_tables(self):
        for plugin in ["cgpu", "gpushare"]:
            self.assertEqual(self.inspect(plugin), EMPTY)
        self.cluster.apply(document("gpu-share-sample"))
        pod = self.running_of("gpu-share-sample")
        name = pod["metadata"]["name"]
        self.assertEqual(self.seen(name, "gpu-share-sample"), [3 * case.GIB])
        for plugin in ["cgpu", "gpushare"]:
            self.assertEqual(self.inspect(plugin), USED)
        details = self.cluster.kubectl("inspect", "cgpu", "-d")
        self.assertRegex(details, rf"{name} +default +3 *\n")
        row = self.slice_of(name, "gpu-share-sample")
        self.assertEqual((row["memory_cap"], row["share"]), (3 * case.GIB, None))
        self.api.delete("/apis/batch/v1/namespaces/default/jobs/gpu-share-sample")
        self.nothing_is_left()
        self.assertEqual(self.inspect(), EMPTY)

    def test_pod_of_5_gib(self):
        """Its own variable asks for all GPUs, and changes nothing."""
        self.cluster.apply(document("gpushare-test-pod"))
        self.running("gpushare-test-pod")
        self.assertEqual(self.seen("gpushare-test-pod", "gpushare-test-pod"), [5 * case.GIB])


class TwoGpus(case.Case):
    simulated = "devices=2,mem=15GiB"

    def test_job_on_two_gpus(self):
        self.cluster.apply(document("tensorflow-mnist-multigpu"))
        name = self.running_of("tensorflow-mnist-multigpu")["metadata"]["name"]
        self.assertEqual(self.seen(name, "tensorflow-mnist-multigpu", gpus=2), [4 * case.GIB] * 2)
        self.assertIn("4/15                   4/15                   8/30", self.cluster.kubectl("inspect", "cgpu"))

    def test_job_with_a_share_of_compute(self):
        self.cluster.apply(document("cuda-sample"))
        name = self.running_of("cuda-sample")["metadata"]["name"]
        self.assertEqual(self.seen(name, "cuda-sample"), [2 * case.GIB])
        row = self.slice_of(name, "cuda-sample")
        self.assertEqual((row["memory_cap"], row["share"]), (2 * case.GIB, 30))
