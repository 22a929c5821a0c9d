"""What one context, and 64 MiB of each kind of memory, cost: by cuMemGetInfo, by NVML for this process, by NVML for
the card. Prints a JSON line each. Where the columns differ, a program that reads only one of them is wrong."""
import ctypes
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from kit.cuda import SIZE, U64, Cuda, CudaError, Nvml  # noqa: E402

SIZE_BYTES = 64 << 20
cuda, nvml = Cuda(), Nvml()


def look():
    free, _ = cuda.free_total()
    return free, nvml.process_used() or 0, nvml.device_used()


def show(what, before, after):
    (free0, process0, device0), (free1, process1, device1) = before, after
    print(json.dumps({"what": what, "cuda": free0 - free1, "process": process1 - process0, "device": device1 - device0}), flush=True)


def measure(what, take):
    """Takes memory with `take`, shows what changed, gives it back with what that answered."""
    before = look()
    try:
        back = take()
    except (CudaError, AttributeError) as why:
        print(json.dumps({"what": what, "refused": str(why)}), flush=True)
        return
    show(what, before, look())
    back()
    cuda("cuCtxSynchronize")
    show(what + ", given back", before, look())


def alloc():
    address = U64()
    cuda("cuMemAlloc_v2", ctypes.byref(address), SIZE(SIZE_BYTES))
    return lambda: cuda("cuMemFree_v2", address)


def pitch():
    address, pitch = U64(), SIZE()
    cuda("cuMemAllocPitch_v2", ctypes.byref(address), ctypes.byref(pitch), SIZE(4000), SIZE(SIZE_BYTES // 4096), 4)
    return lambda: cuda("cuMemFree_v2", address)


def small():
    found = [U64() for _ in range(1000)]
    for address in found:
        cuda("cuMemAlloc_v2", ctypes.byref(address), SIZE(512))
    return lambda: [cuda("cuMemFree_v2", address) for address in found]


def managed():
    address = U64()
    cuda("cuMemAllocManaged", ctypes.byref(address), SIZE(SIZE_BYTES), 1)
    cuda("cuMemsetD8_v2", address, 0, SIZE(SIZE_BYTES))  # now it is on the card
    return lambda: cuda("cuMemFree_v2", address)


def ordered():
    address = U64()
    cuda("cuMemAllocAsync", ctypes.byref(address), SIZE(SIZE_BYTES), None)
    cuda("cuCtxSynchronize")
    return lambda: cuda("cuMemFreeAsync", address, None)


def pinned():
    address = ctypes.c_void_p()
    cuda("cuMemHostAlloc", ctypes.byref(address), SIZE(SIZE_BYTES), 0)
    return lambda: cuda("cuMemFreeHost", address)


EMPTY = b".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nothing()\n{\n    ret;\n}\n\0"


def module():
    made = ctypes.c_void_p()
    cuda("cuModuleLoadData", ctypes.byref(made), EMPTY)
    return lambda: cuda("cuModuleUnload", made)


class Properties(ctypes.Structure):
    """CUmemAllocationProp: pinned memory of device 0."""

    _fields_ = [("kind", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int), ("id", ctypes.c_int), ("metadata", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


def physical():
    handle, wanted = U64(), Properties(kind=1, place=1)
    cuda("cuMemCreate", ctypes.byref(handle), SIZE(SIZE_BYTES), ctypes.byref(wanted), U64(0))
    return lambda: cuda("cuMemRelease", handle)


def limit(which, value):
    def take():
        before = SIZE()
        cuda("cuCtxGetLimit", ctypes.byref(before), which)
        cuda("cuCtxSetLimit", which, SIZE(value))
        return lambda: cuda("cuCtxSetLimit", which, before)

    return take


def context():
    made = cuda.context()
    return lambda: cuda("cuCtxDestroy_v2", made)


def primary():
    made = ctypes.c_void_p()
    cuda("cuDevicePrimaryCtxRetain", ctypes.byref(made), 0)
    return lambda: cuda("cuDevicePrimaryCtxRelease_v2", 0)


def context_with(flags):
    def take():
        made = ctypes.c_void_p()
        cuda("cuCtxCreate_v2", ctypes.byref(made), flags, 0)
        return lambda: cuda("cuCtxDestroy_v2", made)

    return take


def traced(name):
    """Only this allocation, between two system calls that nothing else makes: marks for a tracer."""
    cuda.context()
    os.getppid()
    {"alloc": alloc, "managed": managed, "pinned": pinned}[name]()
    os.getppid()
    sys.exit(0)


if sys.argv[1:2] == ["--only"]:
    traced(sys.argv[2])
before = nvml.device_used()
cuda.context()
free, total = cuda.free_total()
print(json.dumps({"what": "first context", "process": nvml.process_used(), "device": nvml.device_used() - before, "free": free, "total": total}))
for name, take in [
    ("second context", context), ("primary context", primary), ("context that maps host memory and blocks", context_with(0xC)),
    ("cuMemAlloc", alloc), ("1000 x cuMemAlloc of 512 B", small), ("cuMemAllocPitch", pitch),
    ("cuMemAllocManaged, touched", managed), ("cuMemAllocAsync", ordered), ("cuMemHostAlloc", pinned), ("cuMemCreate", physical),
    ("a small module", module),
    ("malloc heap limit 64 MiB", limit(2, SIZE_BYTES)), ("printf FIFO 64 MiB", limit(1, SIZE_BYTES)),
]:
    measure(name, take)
