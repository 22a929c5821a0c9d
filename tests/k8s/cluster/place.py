"""The machine that the cluster's node believes to be: its own files, address, and boots.

The process is in its own namespaces of mounts and network (`tests/k8s/run`). So the node has the paths that a real one
has, /run/gpuslice and /var/lib/kubelet, and the machine around it sees none of them."""
import os
import pathlib
import subprocess
import uuid

# What kubelet sets in the kernel, which would be the whole machine's.
SYSCTLS = {
    "vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}
# Directories of the node that outlive a reboot.
KEPT = ["/var/lib/kubelet", "/var/lib/gpuslice", "/var/lib/containerd", "/var/log", "/etc/gpuslice", "/etc/cdi"]


def run(*words):
    subprocess.run([str(word) for word in words], check=True)


class Place:
    """`root` holds everything that is on a disk."""

    def __init__(self, root, address):
        self.root = root
        for top in ["/etc", "/var/lib"]:
            upper, work = root / "upper" / top[1:], root / "work" / top[1:]
            upper.mkdir(parents=True)
            work.mkdir(parents=True)
            run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={top},upperdir={upper},workdir={work}", top)
        for path in KEPT:
            source = root / "disk" / path[1:].replace("/", "-")
            source.mkdir(parents=True)
            os.makedirs(path, exist_ok=True)
            run("mount", "--bind", source, path)
        for name, value in SYSCTLS.items():
            self.mask(f"/proc/sys/{name}", value)
        run("ip", "link", "set", "lo", "up")
        # An address that is no loopback one, as a kubelet demands.
        run("ip", "address", "add", f"{address}/32", "dev", "lo")
        self.boot()

    def mask(self, path, value):
        file = self.root / "masks" / path[1:].replace("/", "-")
        file.parent.mkdir(exist_ok=True)
        file.write_text(value + "\n")
        if os.path.exists(path):
            run("mount", "--bind", file, path)

    def boot(self):
        """A new /run, and another id of the boot."""
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
        self.mask("/proc/sys/kernel/random/boot_id", str(uuid.uuid4()))

    def shut_down(self):
        """Takes away what was mounted at or below /run since the boot; containers have ended before."""
        points = [line.split(" ")[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
        kept = str(self.root / "disk")
        ours = [point for point in points if point.startswith("/run") or point.startswith("/var/lib/kubelet/pods")]
        assert not any(point.startswith(kept) for point in ours)
        for point in sorted(ours, key=len, reverse=True):
            subprocess.run(["umount", "--lazy", point], check=False)
        run("umount", "/proc/sys/kernel/random/boot_id")


def others(*kept):
    """All living processes of the namespace but these, the first one, and this one."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid not in (1, os.getpid(), *kept) and not about(pid).endswith((" Z", " gone")):
            yield pid


def about(pid):
    """A process in words, the last of which is its state."""
    entry = pathlib.Path("/proc", str(pid))
    try:
        state = entry.joinpath("stat").read_text().rsplit(")", 1)[1].split()[0]
        return f"{pid} {entry.joinpath('cmdline').read_text()!r} {state}"
    except OSError:
        return f"{pid} gone"
