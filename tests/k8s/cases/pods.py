"""Which container gets what: both resources, several containers, init containers, refusals."""
from cluster import case


class Pods(case.Case):
    simulated = "devices=4,mem=15GiB"

    def test_two_containers_and_an_init_container(self):
        """Each has its own cap; the init container has its successor's claim."""
        init = case.container("prepare", 2, 10, ["/bin/tenant", "--step-mib", "64", "--seconds", "0"])
        one = case.container("one", 3, 20)
        two = case.container("two", 5, 40)
        self.create(case.pod("trio", one, two, init=[init]))
        self.running("trio")
        self.assertEqual(self.seen("trio", "prepare"), [3 * case.GIB])
        self.assertEqual(self.seen("trio", "one"), [3 * case.GIB])
        self.assertEqual(self.seen("trio", "two"), [5 * case.GIB])
        rows = {of: self.slice_of("trio", of) for of in ["one", "two"]}
        self.assertEqual({of: row["share"] for of, row in rows.items()}, {"one": 20, "two": 40})
        self.assertEqual(len(self.worker.slices()), 2)

    def test_what_a_container_sets_itself_changes_no_cap(self):
        lies = {"ALIYUN_COM_GPU_MEM_CONTAINER": "15", "ALIYUN_COM_GPU_MEM_POD": "15", "ALIYUN_COM_GPU_MEM_IDX": "0",
                "NVIDIA_VISIBLE_DEVICES": "all", "CGPU_DISABLE": "true"}
        self.create(case.pod("liar", case.container(memory=2, variables=lies)))
        self.running("liar")
        self.assertEqual(self.seen("liar"), [2 * case.GIB])

    def test_a_container_that_ends_starts_again_in_its_claim(self):
        # Each start lasts for several of the kubelet's looks, one a second, so the pod's status shows it running.
        self.create(case.pod("again", case.container(memory=2, command=[
            "/bin/tenant", "--step-mib", "64", "--seconds", "5", "--idle"])))

        def restarted():
            states = self.pod("again")["status"].get("containerStatuses", [])
            return states and states[0]["restartCount"] > 0 and "running" in states[0]["state"]
        case.node.eventually("it has started again", restarted)
        self.assertEqual(self.seen("again"), [2 * case.GIB])
        self.assertEqual(len(self.worker.slices()), 1)

    def test_fragments_are_refused_with_a_sentence(self):
        """The node has 24 GiB left and no GPU has more than 6: the scheduler cannot know."""
        for at in range(4):
            self.create(case.pod(f"part-{at}", case.container(memory=9, command=case.WAITS)))
            self.running(f"part-{at}")
        self.create(case.pod("big", case.container(memory=8, command=case.WAITS)))
        status = self.failed("big")
        self.assertEqual(status["reason"], "UnexpectedAdmissionError")
        self.assertIn("no GPU of this node has that much room", status["message"])
        self.assertIn("GPU 0 has 6 and 100 percent free", status["message"])

    def test_compute_without_memory_is_refused(self):
        self.create(case.pod("bare", case.container(cores=30, command=case.WAITS)))
        self.assertIn("add a limit for aliyun.com/gpu-mem", self.failed("bare")["message"])

    def test_annotations_choose_the_gpu(self):
        """gpushare's own words, as a scheduler writes them, are obeyed and confirmed."""
        chosen = {"ALIYUN_COM_GPU_MEM_IDX": "2", "ALIYUN_COM_GPU_MEM_POD": "4", "ALIYUN_COM_GPU_MEM_DEV": "15",
                  "ALIYUN_COM_GPU_MEM_ASSIGNED": "false", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000"}
        self.create(case.pod("chosen", case.container(memory=4), annotations=chosen))
        self.running("chosen")
        self.assertEqual(self.seen("chosen"), [4 * case.GIB])
        case.node.eventually("it is confirmed", lambda: self.annotations("chosen")["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true")
        self.assertIn("ALIYUN_COM_GPU_MEM_IDX=2", self.variables("chosen"))
        self.assertEqual(self.gpu_of("chosen"), 2)
        wrong = chosen | {"ALIYUN_COM_GPU_MEM_IDX": "99"}
        self.create(case.pod("wrong", case.container(memory=4), annotations=wrong))
        self.assertIn("GPU 99", self.failed("wrong")["message"])

    def variables(self, name):
        return self.cluster.kubectl("exec", name, "--", "/bin/env").splitlines()
