"""In the chain of NVIDIA's container runtime, which puts a driver into the container in three manners.

The injection method is not left to chance: the preload list is taken away in the
container before the program starts, so that only the shim over the driver's files is left."""
import shutil

from kit import bundle, node, nvidia

ASK = {"gpuslice.io/memory": "256MiB"}
REPLACED = "umount /etc/ld.so.preload && exec " + " ".join(node.TENANT)
CAPABILITIES = ["CAP_SYS_ADMIN"]


class Chain(node.Case):
    needs = ("runc", "nsenter")
    mode = "legacy"

    def chain(self, name, script, annotations, variables=()):
        place = self.node.root / "bin"
        place.mkdir(exist_ok=True)
        shutil.copy(self.node.wrapper, place)
        self.node.environment["PATH"] = f"{place}:{self.node.environment['PATH']}"
        self.node.set_runtime(hook=str(node.BUILD / "libexec/gpuslice-hook"))
        runtimes = ["gpuslice-runtime", "runc"]
        runtime = nvidia.install(self.node.root / name, node.BUILD, self.mode, runtimes)
        variables = ["NVIDIA_VISIBLE_DEVICES=all", *variables]
        sets = ["bounding", "effective", "inheritable", "permitted"]

        def edit(config):
            config["process"]["capabilities"] = {kind: CAPABILITIES for kind in sets}
        words = ["/bin/sh", "-c", script]
        container = bundle.Bundle(self, runtime, name, words, annotations, variables, edit)
        container.add("readlink", "cmp")
        root = container.dir / "rootfs"
        (root / "etc/ld.so.conf").write_text("/lib/x86_64-linux-gnu\n/usr/lib/x86_64-linux-gnu\n")
        for library in ["mount", "nvml"]:
            shutil.copy(node.BUILD / f"libgpuslice_{library}.so", root / "tmp")
        return container

    def ends_well(self, container):
        status, printed = container.ends()
        self.assertEqual(status, 0, printed)
        return printed

    def test_the_bare_container_has_the_driver(self):
        """Without a wish: the driver as NVIDIA's tools put it there, and nothing of ours."""
        look = "readlink /usr/lib/x86_64-linux-gnu/libcuda.so.1; ! cmp -s /usr/lib/x86_64-linux-gnu/libcuda.so.1 /tmp/libgpuslice_mount.so"
        printed = self.ends_well(self.chain("bare", f"{look}; cat /proc/self/mountinfo", {}))
        self.assertTrue(printed.startswith(f"libcuda.so.{nvidia.VERSION}\n"), printed)
        self.assertNotIn("/run/gpuslice", printed)

    def test_the_versioned_files_are_covered(self):
        places = " ".join(f"/{nvidia.LIBRARIES}/libcuda.so{suffix}" for suffix in ["", ".1", f".{nvidia.VERSION}"])
        look = f"for file in {places}; do cmp $file /tmp/libgpuslice_mount.so || exit 1; done; "
        look += f"cmp /{nvidia.LIBRARIES}/libnvidia-ml.so.1 /tmp/libgpuslice_nvml.so && "
        look += f"cmp /{nvidia.LIBRARIES}/libnvidia-ml.so.{nvidia.VERSION} /tmp/libgpuslice_nvml.so && "
        printed = self.ends_well(self.chain("covered", look + "cat /proc/self/mountinfo", ASK))
        for stem in nvidia.STEMS:
            self.assertIn(f" /{nvidia.LIBRARIES}/{stem}.{nvidia.VERSION} ro,nosuid,nodev", printed)
            self.assertIn(f" /run/gpuslice/driver/{stem}.1 ro,", printed)

    def test_slice(self):
        container = self.chain("replaced", REPLACED, ASK).start()
        self.judge_slice(container)
        container.stop()
        self.no_slice_is_left()

    def test_compat_directories(self):
        """An image's own, newer driver, where `LD_LIBRARY_PATH` or the loader's list leads to it."""
        for name, variables in [("listed", []), ("path", ["LD_LIBRARY_PATH=/usr/local/cuda/compat"])]:
            container = self.chain(name, REPLACED, ASK, variables)
            compat = container.dir / "rootfs/usr/local/cuda-13.0/compat"
            compat.mkdir(parents=True)
            (compat.parent.parent / "cuda").symlink_to("cuda-13.0")
            shutil.copy(node.BUILD / "libgpuslice_sim_cuda.so", compat / "libcuda.so.999.1")
            (compat / "libcuda.so.1").symlink_to("libcuda.so.999.1")
            self.judge_slice(container.start())
            container.stop()
            self.no_slice_is_left()


class ChainCdi(Chain):
    """The modes cdi and jit-cdi, the second of which `auto` means today: they find their edits in
    different places and make the same ones."""

    mode = "cdi"
