"""containerd's own command line, `ctr run`, with the wrapper in runc's place."""
from kit import containerd, node


class Ctr(node.Case):
    needs = ("containerd", "ctr", "runc")

    def setUp(self):
        super().setUp()
        self.engine = containerd.Containerd(self)

    def run_(self, name, words, *options):
        return containerd.Run(self.engine, name, words, "--runc-binary", self.node.wrapper, *options)

    def test_slice(self):
        """By annotation, and by cGPU's variables."""
        cgpu = ["--env", "ALIYUN_COM_GPU_MEM_CONTAINER=1", "--env", "ALIYUN_COM_GPU_MEM_DEV=4"]
        for ask in [["--annotation", "gpuslice.io/memory=256MiB"], cgpu]:
            container = self.run_("slice", node.TENANT, *ask)
            self.judge_slice(container)
            container.stop()
            self.no_slice_is_left()

    def test_nothing_asked(self):
        self.judge_plain(*self.run_("plain", node.PRINT_MOUNTS).ends())

    def test_refusal(self):
        """The user reads the reason: the wrapper's sentence, and the daemon's."""
        for ask, why in [("8GB", "write 8GiB"), ("2GiB", "no GPU slice: ")]:
            status, printed = self.run_("bad", ["/bin/true"], "--annotation", f"gpuslice.io/memory={ask}").ends()
            self.assertNotEqual(status, 0)
            self.assertIn("gpuslice: ", printed)
            self.assertIn(why, printed)
        self.no_slice_is_left()
