"""containerd as a kubelet uses it: pods, and a handler for sliced ones as a RuntimeClass names it."""
from kit import containerd, cri, node

ASK = {"gpuslice.io/memory": "256MiB"}


class Cri(node.Case):
    needs = ("containerd", "ctr", "runc")

    def setUp(self):
        super().setUp()
        self.engine = containerd.Containerd(self, ["k8s.io"])
        self.client = cri.Client(self, self.engine.socket)

    def pod(self, name, handler="", annotations=None):
        return cri.Pod(self, self.client, name, handler, annotations)

    def test_slice(self):
        """A pod's annotations are its container's; the sandbox has them too and is left alone."""
        for handler in ["gpuslice", "gpuslice-base"]:
            pod = self.pod(handler, handler, ASK)
            sandbox = self.engine.bundle_of(pod.id, "k8s.io")
            self.assertEqual(sandbox["annotations"]["gpuslice.io/memory"], "256MiB")
            if handler == "gpuslice":
                self.assertNotIn("hooks", sandbox)
            self.assertEqual(self.node.slices(), [])
            container = pod.run(containerd.IMAGE, "web", node.TENANT)
            self.judge_slice(container)
            container.stop()
            self.no_slice_is_left()
            pod.remove()

    def test_containers_of_a_pod(self):
        """Each asks for itself: by its annotations, by its variables, or not at all."""
        pod = self.pod("mixed", "gpuslice")
        one = pod.run(containerd.IMAGE, "one", node.TENANT, ASK)
        variables = {"ALIYUN_COM_GPU_MEM_CONTAINER": "1", "ALIYUN_COM_GPU_MEM_DEV": "4"}
        two = pod.run(containerd.IMAGE, "two", node.TENANT, variables=variables)
        for container in [one, two]:
            self.assertEqual(container.event("memory")["total"], node.CAP)
        ids = {row["container"] for row in self.node.slices()}
        self.assertEqual(ids, {one.id, two.id})
        self.judge_plain(*pod.run(containerd.IMAGE, "plain", node.PRINT_MOUNTS).ends())
        one.stop()
        node.eventually("the other's slice alone is left", lambda: {row["container"] for row in self.node.slices()} == {two.id})
        two.stop()
        self.no_slice_is_left()

    def test_other_handlers_are_untouched(self):
        """Without the handler a wish is not looked at."""
        self.judge_plain(*self.pod("other", "", ASK).run(containerd.IMAGE, "web", node.PRINT_MOUNTS).ends())
        self.assertEqual(self.node.slices(), [])

    def test_refusal(self):
        """What a kubelet shows in the pod's events says why."""
        for memory, why in [("8GB", "write 8GiB"), ("2GiB", "no GPU slice: ")]:
            pod = self.pod(f"bad-{memory.lower()}", "gpuslice")
            with self.assertRaises(cri.Refused) as refused:
                pod.run(containerd.IMAGE, "web", ["/bin/true"], {"gpuslice.io/memory": memory})
            self.assertIn("gpuslice: ", str(refused.exception))
            self.assertIn(why, str(refused.exception))
            pod.remove()
        self.no_slice_is_left()
