"""The driver API and NVML from Python, as far as the stages need them: ctypes, nothing to install."""
import ctypes
import ctypes.util
import os

U64 = ctypes.c_uint64
SIZE = ctypes.c_size_t


class CudaError(Exception):
    pass


class Cuda:
    """`libcuda.so.1` as the loader finds it; a call that fails raises with its name and code."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)

    def has(self, name):
        return hasattr(self.library, name)

    def __call__(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise CudaError(f"{name} answered {code}")

    def context(self, device=0):
        context = ctypes.c_void_p()
        self("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        return context

    def free_total(self):
        free, total = SIZE(), SIZE()
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value


class NvmlProcess(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("instance", ctypes.c_uint), ("compute", ctypes.c_uint)]


class NvmlMemory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    def __init__(self, index=0):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self._("nvmlInit_v2")
        self.device = ctypes.c_void_p()
        self._("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(self.device))

    def _(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise CudaError(f"{name} answered {code}")

    def has(self, name):
        return hasattr(self.library, name)

    def device_used(self):
        memory = NvmlMemory()
        self._("nvmlDeviceGetMemoryInfo", self.device, ctypes.byref(memory))
        return memory.used

    def process_used(self, pid=None):
        """Memory NVML shows for a process (this one), bytes; None if it shows no such process or no figure."""
        room = ctypes.c_uint(128)
        rows = (NvmlProcess * 128)()
        self._("nvmlDeviceGetComputeRunningProcesses_v3", self.device, ctypes.byref(room), rows)
        for row in rows[: room.value]:
            if row.pid == (pid or os.getpid()):
                return None if row.used == 2**64 - 1 else row.used
        return None
