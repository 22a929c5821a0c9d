"""The driver's own memory limit for a control group (drivers from r615 on), set and taken away by hand: what the program
inside meets then is the driver's work alone.

Sources: nvml.h 13.5, and NVIDIA's guide on memory partitioning (a limit belongs on the leaf; soft 0 and hard NONE clear it)."""
import ctypes
import os
import pathlib

from kit import place
from kit.cuda import CudaError, Nvml

MOUNTS = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
NONE = 2**64 - 1


class Limits(ctypes.Structure):
    """nvmlSetMemoryLimits_v1_t: the group's directory, its guarantee and its limit, bytes."""

    _fields_ = [("group", ctypes.c_char_p), ("soft", ctypes.c_ulonglong), ("hard", ctypes.c_ulonglong)]


class CgroupLimit:
    """A control group with a limit, for as long as the `with` lasts; `Skip` where there cannot be one."""

    def __init__(self, limit):
        self.limit = limit
        mounts = [mount for mount in MOUNTS if os.path.exists(f"{mount}/cgroup.procs")]
        if not mounts:
            raise place.Skip("no unified control groups here")
        self.dir = pathlib.Path(mounts[0]) / f"gpuslice-suite-{os.getpid()}"
        self.nvml = Nvml()
        if not self.nvml.has("nvmlDeviceSetMemoryLimits_v1"):
            raise place.Skip("the driver has no limits per control group (it is older than r615)")

    def set(self, soft, hard):
        limits = Limits(str(self.dir).encode(), soft, hard)
        self.nvml._("nvmlDeviceSetMemoryLimits_v1", self.nvml.device, ctypes.byref(limits))

    def __enter__(self):
        try:
            self.dir.mkdir()
        except OSError as why:
            raise place.Skip(f"no control group can be made: {why}") from why
        try:
            self.set(0, self.limit)
        except CudaError as why:
            self.dir.rmdir()
            raise place.Skip(f"the driver sets no limit here: {why}") from why
        return self

    def join(self):
        """For the child, before it becomes the program."""
        (self.dir / "cgroup.procs").write_text("0")

    def __exit__(self, *_):
        self.set(0, NONE)  # before the group goes: what is left of a guarantee would stay with those above
        self.dir.rmdir()
