"""containerd's CRI after `gpuslice setup containerd`: the handler that a RuntimeClass names."""
from kit import containerd, cri, node, readme

ASK = {"gpuslice.io/memory": "1/4"}


class Handler(node.Case):
    needs = ("containerd", "ctr", "runc")

    def test_setup_run_undo(self):
        place = self.node.root / "containerd"
        base = containerd.configuration(place / "root", place / "state", place / "c.sock", place / "cni")
        engine = containerd.Containerd(self, ["k8s.io"], base)
        client = cri.Client(self, engine.socket)
        with self.assertRaises(cri.Refused):
            cri.Pod(self, client, "early", "gpuslice", ASK)
        file = engine.dir / "config.toml"
        for words in readme.commands("containerd"):
            if words == ["gpuslice", "setup", "containerd"]:
                self.node.gpuslice(*words[1:], "--config", file)
            else:
                self.assertEqual(words, ["systemctl", "restart", "containerd"])
                engine.restart()
        pod = cri.Pod(self, client, "sliced", "gpuslice", ASK)
        self.judge_slice(pod.run(containerd.IMAGE, "web", node.TENANT))
        pod.remove()
        self.no_slice_is_left()
        self.node.gpuslice("setup", "containerd", "--config", file, "--undo")
        self.assertEqual(file.read_text(), base)
