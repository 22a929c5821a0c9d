"""The driver's own limit per control group: there before a container's first program, whatever that does.

What runs in the container goes around the shim altogether: it takes the real driver from its private
path, with the preload list taken away. Only the driver can refuse it then."""
import pathlib
import subprocess
import sys

from kit import bundle, containerd, cri, limits, node

ASK = {"gpuslice.io/memory": "256MiB"}
AROUND = "umount /etc/ld.so.preload && LD_LIBRARY_PATH=/run/gpuslice/driver exec " + " ".join(node.TENANT)
AROUND = ["/bin/sh", "-c", AROUND]
MAY_UNMOUNT = "CAP_SYS_ADMIN"
UNIFIED = [pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/sys/fs/cgroup/unified")]


class CgroupLimits(node.Case):
    simulated = "devices=1,mem=1GiB,limits=dmem"
    configuration = 'cgroup_limits = "require"\n'
    needs = ("runc",)

    def setUp(self):
        self.hierarchy = next((top for top in UNIFIED if (top / "cgroup.procs").exists()), None)
        if self.hierarchy is None:
            self.skipTest("needs a cgroup v2 hierarchy")
        super().setUp()

    def limits(self, group):
        """Error, soft and hard limit. Another process asks, as libraries of drivers stay in theirs."""
        words = [sys.executable, limits.__file__, str(node.BUILD / "sim/libnvidia-ml.so.1"), str(group)]
        said = subprocess.run(words, env=self.node.environment, capture_output=True, text=True, check=True)
        return [int(word) for word in said.stdout.split()]

    def judge_limit(self, container, group):
        """`container` runs `AROUND`, in this control group below the hierarchy's top."""
        memory = container.event("memory")
        self.assertEqual((memory["total"], memory["refusal"]), (node.CAP, 2))
        self.assertLessEqual(memory["got"], node.CAP)
        self.assertEqual([row["memory_enforcement"] for row in self.node.slices()], ["driver"])
        leaf = self.hierarchy / group
        self.assertEqual(self.limits(leaf), [0, 0, node.CAP])
        self.assertNotEqual(self.limits(leaf.parent)[0], 0, "a limit above the leaf")
        container.stop()
        self.no_slice_is_left()
        self.assertNotEqual(self.limits(leaf)[0], 0, "a limit is left")
        self.assertNotEqual(self.limits(leaf.parent)[0], 0, "a limit is left above")


class UnderRunc(CgroupLimits):
    def test_cgroup_limit(self):
        def edit(config):
            sets = ["bounding", "effective", "permitted"]
            config["process"]["capabilities"] = {kind: [MAY_UNMOUNT] for kind in sets}
        container = bundle.Bundle(self, self.node.wrapper, "limited", AROUND, ASK, edit=edit)
        self.judge_limit(container.start(), container.id)


class UnderCtr(CgroupLimits):
    needs = ("containerd", "ctr", "runc")

    def test_cgroup_limit(self):
        engine = containerd.Containerd(self)
        ask = ["--annotation", "gpuslice.io/memory=256MiB", "--cap-add", MAY_UNMOUNT]
        container = containerd.Run(engine, "limited", AROUND, "--runc-binary", self.node.wrapper, *ask)
        self.judge_limit(container, f"default/{container.id}")


class UnderCri(CgroupLimits):
    needs = ("containerd", "ctr", "runc")

    def test_cgroup_limit(self):
        engine = containerd.Containerd(self, ["k8s.io"])
        pod = cri.Pod(self, cri.Client(self, engine.socket), "limited", "gpuslice", ASK)
        container = pod.run(containerd.IMAGE, "web", AROUND, capabilities=["SYS_ADMIN"])
        self.judge_limit(container, f"{pod.group[1:]}/{container.id}")
