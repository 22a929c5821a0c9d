"""Stream memory operations: what a gate that the GPU itself watches would cost, and whether it can be used. Prints JSON lines."""
import ctypes
import json
import mmap
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from kit.cuda import SIZE, U64, Cuda, CudaError  # noqa: E402

cuda = Cuda()
cuda.context()
stream = ctypes.c_void_p()
cuda("cuStreamCreate", ctypes.byref(stream), 1)


def shared_page(prot):
    """A page of a memfd, registered for the GPU: (its mapping, the address the GPU uses)."""
    fd = os.memfd_create("gate")
    os.ftruncate(fd, 4096)
    page = mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(None, SIZE(4096), prot, mmap.MAP_SHARED, fd, ctypes.c_long(0))
    flags = 2 | (8 if prot == mmap.PROT_READ else 0)  # DEVICEMAP, READ_ONLY
    cuda("cuMemHostRegister_v2", ctypes.c_void_p(address), SIZE(4096), flags)
    seen = U64()
    cuda("cuMemHostGetDevicePointer_v2", ctypes.byref(seen), ctypes.c_void_p(address), 0)
    return page, seen


def per_call(call, count=1000):
    cuda("cuStreamSynchronize", stream)
    start = time.perf_counter()
    for _ in range(count):
        call()
    queued = time.perf_counter() - start
    cuda("cuStreamSynchronize", stream)
    return 1e6 * queued / count, 1e6 * (time.perf_counter() - start) / count


def main():
    for name, prot in [("read-write", mmap.PROT_READ | mmap.PROT_WRITE), ("read-only", mmap.PROT_READ)]:
        try:
            page, seen = shared_page(prot)
        except CudaError as why:
            print(json.dumps({"mapping": name, "refused": str(why)}))
            continue
        page[0:4] = (1).to_bytes(4, "little")
        queue, whole = per_call(lambda: cuda("cuStreamWaitValue32_v2", stream, seen, 1, 0))
        row = {"mapping": name, "wait_queue_us": queue, "wait_whole_us": whole}
        page[0:4] = (0).to_bytes(4, "little")
        delays = []
        for turn in range(1, 51):
            cuda("cuStreamWaitValue32_v2", stream, seen, turn, 1)  # equal
            time.sleep(0.002)
            start = time.perf_counter()
            page[0:4] = turn.to_bytes(4, "little")
            cuda("cuStreamSynchronize", stream)
            delays.append(1e6 * (time.perf_counter() - start))
        row["open_to_drained_us"] = sorted(delays)[len(delays) // 2]
        print(json.dumps(row))


main()
