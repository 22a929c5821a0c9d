"""What it takes the driver to lock, move out, bring back and unlock another process's GPU state, by the memory it holds.

`checkpoint.py MIB…` starts itself as a process that holds so much and goes on working, and drives it from outside through the
cuCheckpointProcess calls (CUDA 12.8 and newer). Prints a JSON line for each size. Nothing but its own child is touched."""
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from kit.cuda import SIZE, U64, Cuda, CudaError  # noqa: E402


def hold(mib):
    """The child: memory full of a pattern, checked again and again; a line says each time that it is whole. It ends with its parent."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    cuda = Cuda()
    cuda.context()
    address, words = U64(), (mib << 20) // 4
    cuda("cuMemAlloc_v2", ctypes.byref(address), SIZE(mib << 20))
    cuda("cuMemsetD32_v2", address, 0x600D600D, SIZE(words))
    while True:
        last = ctypes.c_uint32()
        cuda("cuMemcpyDtoH_v2", ctypes.byref(last), U64(address.value + 4 * (words - 1)), SIZE(4))
        print("whole" if last.value == 0x600D600D else "broken", flush=True)
        time.sleep(0.01)


def timed(cuda, row, what, name, *arguments):
    start = time.perf_counter()
    cuda(name, *arguments)
    row[what + "_ms"] = 1e3 * (time.perf_counter() - start)


class LockArguments(ctypes.Structure):
    _fields_ = [("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", U64 * 7)]


def drive(mib):
    cuda, row = Cuda(), {"mib": mib}
    child = subprocess.Popen([sys.executable, __file__, "--hold", str(mib)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "whole\n", "the child cannot hold its memory"
        pid = ctypes.c_int(child.pid)
        timed(cuda, row, "lock", "cuCheckpointProcessLock", pid, ctypes.byref(LockArguments(timeout_ms=10000)))
        timed(cuda, row, "checkpoint", "cuCheckpointProcessCheckpoint", pid, None)
        timed(cuda, row, "restore", "cuCheckpointProcessRestore", pid, None)
        timed(cuda, row, "unlock", "cuCheckpointProcessUnlock", pid, None)
        row["after"] = [child.stdout.readline().strip() for _ in range(3)][-1]
    except (CudaError, AttributeError, AssertionError) as why:
        row["refused"] = str(why)
    finally:
        child.kill()
        child.wait()
    print(json.dumps(row), flush=True)


if sys.argv[1:2] == ["--hold"]:
    hold(int(sys.argv[2]))
else:
    os.environ.pop("LD_PRELOAD", None)
    for word in sys.argv[1:]:
        drive(int(word))
