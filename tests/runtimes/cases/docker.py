"""dockerd, after `gpuslice setup docker`: by `--runtime`, and with gpuslice as everybody's runtime."""
import json
import re

from cases import cgroup_limits
from kit import docker, node, nvidia, readme

# cGPU's words for a quarter of the GPU; `docker run --annotation` is newer than Debian's dockerd.
ASK = ["--env=ALIYUN_COM_GPU_MEM_CONTAINER=1", "--env=ALIYUN_COM_GPU_MEM_DEV=4"]
RUNTIME = "--runtime=gpuslice"


class Docker(node.Case):
    needs = ("dockerd", "docker", "containerd", "runc")

    def setUp(self):
        super().setUp()
        self.engine = docker.Docker(self)

    def setup(self, *words):
        said = self.node.gpuslice("setup", "docker", "--config", self.engine.file, *words)
        self.engine.reload()
        return said

    def judge(self, *options):
        container = self.engine.start_container(node.TENANT, *options)
        self.judge_slice(container)
        container.stop()
        self.no_slice_is_left()

    def test_setup_run_undo(self):
        before = self.engine.file.read_bytes()
        status, printed = self.engine.run(["/bin/true"], RUNTIME)
        self.assertNotEqual(status, 0, "there is no such runtime yet")
        self.as_readme_says()
        self.nothing_asked(RUNTIME)
        self.refusals(RUNTIME)
        self.setup("--default")
        self.assertEqual(self.engine.docker("info", "--format={{.DefaultRuntime}}").stdout.strip(), "gpuslice")
        self.judge(*ASK)
        self.nothing_asked()
        self.node.gpuslice("setup", "docker", "--config", self.engine.file, "--undo")
        self.assertEqual(self.engine.file.read_bytes(), before)
        self.engine.restart()
        self.assertNotEqual(self.engine.run(["/bin/true"], RUNTIME)[0], 0)
        self.assertEqual(self.engine.run(["/bin/true"])[0], 0)

    def as_readme_says(self):
        for words in readme.commands("Docker"):
            if words == ["gpuslice", "setup", "docker"]:
                self.node.gpuslice(*words[1:], "--config", self.engine.file)
            elif words == ["systemctl", "reload", "docker"]:
                self.engine.reload()
            else:
                self.assertEqual((words[:2], words[-2:]), (["docker", "run"], ["IMAGE", "COMMAND"]))
                self.judge(*words[2:-2])

    def nothing_asked(self, *options):
        self.judge_plain(*self.engine.run(node.PRINT_MOUNTS, *options))

    def refusals(self, *options):
        """Who typed it reads why."""
        cases = [
            (["--env=ALIYUN_COM_GPU_MEM_CONTAINER=8", "--env=ALIYUN_COM_GPU_MEM_DEV=4"], "more than the GPU has"),
            (["--env=ALIYUN_COM_GPU_MEM_CONTAINER=1"], "ALIYUN_COM_GPU_MEM_DEV"),
        ]
        for ask, why in cases:
            status, printed = self.engine.run(["/bin/true"], *options, *ask)
            self.assertNotEqual(status, 0)
            self.assertIn("gpuslice: ", printed)
            self.assertIn(why, printed)
        self.no_slice_is_left()


class UnderDocker(cgroup_limits.CgroupLimits):
    """What stands around the container's process when it goes around the shim."""

    needs = Docker.needs

    def test_cgroup_limit(self):
        engine = docker.Docker(self)
        self.node.gpuslice("setup", "docker", "--config", engine.file)
        engine.reload()
        may = ["--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"]
        container = engine.start_container(cgroup_limits.AROUND, RUNTIME, *may, *ASK)
        self.judge_limit(container, f"{engine.group}/{container.id}")


class BesideNvidia(node.Case):
    """Where NVIDIA's runtime is one of dockerd's, `gpuslice setup docker` has it call ours."""

    needs = (*Docker.needs, "nsenter")

    def test_chain(self):
        engine = docker.Docker(self)
        place, chain = self.node.root / "nvidia", self.node.root / "nvidia.toml"
        chain.write_text('[nvidia-container-runtime]\nruntimes = ["runc", "crun"] # of the toolkit\n')
        own = json.loads(engine.file.read_text())
        own["runtimes"] = {"nvidia": {"path": str(place / "nvidia-container-runtime")}}
        engine.file.write_text(json.dumps(own))
        self.node.gpuslice("setup", "docker", "--config", engine.file, "--nvidia-config", chain)
        engine.reload()
        runtimes = json.loads(re.search(r"^runtimes = (\[.*\]) # of the toolkit$", chain.read_text(), re.M)[1])
        self.assertEqual(runtimes[1:], ["runc", "crun"])
        nvidia.install(place, node.BUILD, "legacy", runtimes)
        for mode in ["legacy", "jit-cdi"]:
            settings = json.loads((place / "settings.json").read_text())
            (place / "settings.json").write_text(json.dumps(settings | {"mode": mode}))
            for runtime in [RUNTIME, "--runtime=nvidia"]:
                container = engine.start_container(node.TENANT, runtime, "--env=NVIDIA_VISIBLE_DEVICES=all", *ASK)
                self.judge_slice(container)
                hooks = engine.bundle_of(container)["hooks"]
                self.assertEqual("createContainer" in hooks, mode == "jit-cdi", "NVIDIA's was called")
                container.stop()
                self.no_slice_is_left()
