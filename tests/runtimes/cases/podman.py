"""podman, after `gpuslice setup podman`: by its hooks, by `--runtime`, and by devices of CDI."""
import json
import pathlib

from cases import cgroup_limits
from kit import node, podman, readme

ASK = ["--annotation=gpuslice.io/memory=256MiB", "--annotation=gpuslice.io/name=web"]


class Podman(node.Case):
    needs = ("podman", "conmon", "runc")
    runtime = "runc"
    # crun has no words of a hook's in its own.
    tells = True

    def setUp(self):
        super().setUp()
        self.engine = podman.Podman(self, self.runtime)

    def judge(self, *options, name="web"):
        container = self.engine.start(node.TENANT, *options)
        self.judge_slice(container, name=name)
        container.stop()
        self.no_slice_is_left()

    def nothing_asked(self, *options):
        self.judge_plain(*self.engine.run(node.PRINT_MOUNTS, *options))

    def refusal(self, why, *options):
        """Who typed it reads why."""
        status, printed = self.engine.run(["/bin/true"], *options)
        self.assertNotEqual(status, 0)
        if self.tells:
            self.assertIn("gpuslice: ", printed)
            self.assertIn(why, printed)
        self.no_slice_is_left()

    def test_setup_run_undo(self):
        before = self.engine.machine.files()
        self.assertFalse(self.doctor()["ok"])
        self.engine.machine.gpuslice("setup", "podman")
        self.assertTrue(self.doctor()["ok"])
        for way in [[], ["--runtime=gpuslice"]]:
            self.judge(*way, *ASK)
            self.nothing_asked(*way)
            self.refusal("write 8GiB", *way, "--annotation=gpuslice.io/memory=8GB")
            self.refusal("no GPU slice: ", *way, "--annotation=gpuslice.io/memory=2GiB")
        self.engine.machine.gpuslice("setup", "podman", "--undo")
        self.assertEqual(self.engine.machine.files(), before)
        self.assertEqual(self.engine.run(["/bin/true"], *ASK)[0], 0)
        self.assertNotEqual(self.engine.run(["/bin/true"], "--runtime=gpuslice")[0], 0)

    def doctor(self):
        words = ["doctor", "--json", "--driver-dir", str(node.BUILD / "sim")]
        checks = json.loads(self.engine.machine.gpuslice(*words))["checks"]
        return next(check for check in checks if check["name"] == "podman")

    def test_readme(self):
        for words in readme.commands("Podman"):
            if words[0] == "gpuslice":
                self.engine.machine.gpuslice(*words[1:])
            else:
                self.assertEqual((words[:2], words[-2:]), (["podman", "run"], ["IMAGE", "COMMAND"]))
                self.judge(*words[2:-2], name=None)

    def test_devices(self):
        """CDI alone; and beside the hook of every container, which sees nothing asked for."""
        usual = "--device=gpuslice.io/slice=1of4"
        self.assertNotEqual(self.engine.run(["/bin/true"], usual)[0], 0, "there is no such device yet")
        own = ["--slice", "1of4:memory=1/4", "--slice", "big:memory=2GiB", "--slice", "web:memory=256MiB,name=web"]
        self.engine.machine.gpuslice("cdi", "generate", "--output", "/etc/cdi/gpuslice.json", *own)
        for _ in range(2):
            self.judge(usual, name=None)
            self.judge("--device=gpuslice.io/slice=web")
            self.refusal("no GPU slice: ", "--device=gpuslice.io/slice=big")
            self.refusal("also requests a slice itself", usual, *ASK)
            self.engine.machine.gpuslice("setup", "podman")


class UnderPodman(cgroup_limits.CgroupLimits):
    """What stands around the container's process when it goes around the shim."""

    needs = Podman.needs

    def test_cgroup_limit(self):
        engine = podman.Podman(self)
        engine.machine.gpuslice("setup", "podman")
        may = ["--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"]
        container = engine.start(cgroup_limits.AROUND, *may, *ASK)
        pid = engine.podman("inspect", "--format={{.State.Pid}}", container.id).stdout.strip()
        groups = pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        self.judge_limit(container, next(line for line in groups if line.startswith("0::"))[4:])


class PodmanOfCrun(Podman):
    needs = ("podman", "conmon", "crun")
    runtime = "crun"
    tells = False
