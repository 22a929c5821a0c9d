"""What asking costs and how old the answers are: NVML's calls, when it shows memory that was taken and a card that is busy, and how
fast memory is copied. Prints a JSON line each.

`costs.py COMMAND…`: the command is a process that keeps the card busy and writes a line when it is at work; it is ended here."""
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from kit.cuda import SIZE, U64, Cuda, CudaError, Nvml  # noqa: E402

MIB = 1 << 20
COPIED = 64 * MIB
LOOKS = 200


def say(what, value, unit):
    print(json.dumps({"what": what, "value": value, "unit": unit}), flush=True)


def middle(values):
    return sorted(values)[len(values) // 2]


def timed(call):
    start = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - start)


def until(holds, seconds=5):
    """Milliseconds until it holds; None if it does not within that time."""
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        if holds():
            return 1e3 * (time.perf_counter() - start)
        time.sleep(0.0005)
    return None


class Rates(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


def busy(nvml):
    rates = Rates()
    nvml._("nvmlDeviceGetUtilizationRates", nvml.device, ctypes.byref(rates))
    return rates.gpu


def asking(nvml):
    for what, call in [("memory of the card", nvml.device_used), ("processes of the card", nvml.process_used), ("utilisation", lambda: busy(nvml))]:
        say(f"NVML, {what}", middle([timed(call) for _ in range(LOOKS)]), "us")


def memory_shows(cuda, nvml):
    """The delay of NVML: an outdated figure must not override the ledger."""
    taken, given = [], []
    for _ in range(5):
        address, before = U64(), nvml.device_used()
        cuda("cuMemAlloc_v2", ctypes.byref(address), SIZE(COPIED))
        taken.append(until(lambda: nvml.device_used() >= before + COPIED // 2))
        cuda("cuMemFree_v2", address)
        given.append(until(lambda: nvml.device_used() < before + COPIED // 2))
    for what, delays in [("memory that was taken shows", taken), ("memory that was given back shows", given)]:
        say(f"NVML, {what}", None if None in delays else middle(delays), "ms")


def work_shows(nvml, command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        process.stdout.readline()
        say("NVML, a card that is busy shows", until(lambda: busy(nvml) > 0), "ms")
        time.sleep(1)
    finally:
        process.kill()
        process.wait()
    say("NVML, a card that is idle again shows", until(lambda: busy(nvml) == 0), "ms")


def copies(cuda):
    host, here, there = ctypes.c_void_p(), U64(), U64()
    cuda("cuMemHostAlloc", ctypes.byref(host), SIZE(COPIED), 0)
    for address in (here, there):
        cuda("cuMemAlloc_v2", ctypes.byref(address), SIZE(COPIED))

    def inside():
        cuda("cuMemcpyDtoD_v2", there, here, SIZE(COPIED))
        cuda("cuCtxSynchronize")

    for what, call in [
        ("to the card", lambda: cuda("cuMemcpyHtoD_v2", here, host, SIZE(COPIED))),
        ("from the card", lambda: cuda("cuMemcpyDtoH_v2", host, here, SIZE(COPIED))),
        ("within the card", inside),
    ]:
        call()
        say(f"copies {what}", COPIED / 1e3 / min(timed(call) for _ in range(8)), "GB/s")


def main():
    cuda, nvml = Cuda(), Nvml()
    cuda.context()
    parts = [lambda: asking(nvml), lambda: memory_shows(cuda, nvml), lambda: copies(cuda), lambda: work_shows(nvml, sys.argv[1:])]
    for part in parts:
        try:
            part()
        except (CudaError, AttributeError) as why:
            print(json.dumps({"what": "refused", "value": None, "unit": str(why)}), flush=True)


os.environ.pop("LD_PRELOAD", None)
main()
