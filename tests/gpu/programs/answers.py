"""Answers of a driver that its documentation leaves open, and on which the shim's accounting depends. Prints a JSON line each:
{"what": …, "value": …}. It runs without a slice."""
import ctypes
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from kit.cuda import SIZE, U64, Cuda, CudaError, Nvml  # noqa: E402

MIB = 1 << 20
STACK_SIZE = 0  # CU_LIMIT_STACK_SIZE
CALLS = 10000


def say(what, value):
    print(json.dumps({"what": what, "value": value}), flush=True)


def primary(cuda):
    context = ctypes.c_void_p()
    cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    cuda("cuCtxSetCurrent", context)


def reset_and_stream_ordered(cuda):
    """Whether memory of cuMemAllocAsync outlives the reset of the primary context."""
    primary(cuda)
    address = U64()
    before = cuda.free_total()[0]
    cuda("cuMemAllocAsync", ctypes.byref(address), SIZE(512 * MIB), None)
    cuda("cuCtxSynchronize")
    held = before - cuda.free_total()[0]
    cuda("cuDevicePrimaryCtxReset_v2", 0)
    primary(cuda)
    say("stream-ordered memory of 512 MiB that a reset of the primary context leaves, MiB", (before - cuda.free_total()[0]) / MIB)
    say("stream-ordered memory of 512 MiB before that, MiB", held / MIB)


def names(cuda):
    """Which function a name has by the version that is asked for: the offset tells them apart."""
    for name, version in [("cuGraphInstantiate", 11040), ("cuGraphInstantiate", 12000), ("cuGraphInstantiateWithFlags", 12000), ("cuCtxCreate", 12000), ("cuCtxCreate", 13000)]:
        found = ctypes.c_void_p()
        code = cuda.library.cuGetProcAddress(name.encode(), ctypes.byref(found), version, U64(0))
        own = [symbol for symbol in (name, name + "_v2", name + "_v3", name + "_v4", name + "WithFlags", name + "WithParams") if address(cuda, symbol) == found.value and found.value]
        say(f"cuGetProcAddress {name} {version}", own or f"code {code}, {'another' if found.value else 'none'}")


def address(cuda, symbol):
    try:
        return ctypes.cast(getattr(cuda.library, symbol), ctypes.c_void_p).value
    except AttributeError:
        return None


def stream_context_cost(cuda):
    stream, context = ctypes.c_void_p(), ctypes.c_void_p()
    cuda("cuStreamCreate", ctypes.byref(stream), 1)
    function, pointer = cuda.library.cuStreamGetCtx, ctypes.byref(context)
    empty = cuda.library.cuDriverGetVersion
    number = ctypes.byref(ctypes.c_int())
    times = []
    for call in (lambda: empty(number), lambda: function(stream, pointer)):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append(1e9 * (time.perf_counter() - start) / CALLS)
    say("cuStreamGetCtx beyond cuDriverGetVersion, ns", times[1] - times[0])


def stack(cuda):
    """What a larger stack takes, and whether a smaller one gives it back."""
    before = cuda.free_total()[0]
    for bytes_ in (4096, 16384, 1024):
        cuda("cuCtxSetLimit", STACK_SIZE, SIZE(bytes_))
        cuda("cuCtxSynchronize")
        say(f"CU_LIMIT_STACK_SIZE of {bytes_}: taken since the first, MiB", (before - cuda.free_total()[0]) / MIB)


def nvml_of_this(cuda):
    say("NVML of this process, MiB", (Nvml().process_used() or 0) / MIB)


def main():
    cuda = Cuda()
    primary(cuda)
    for ask in (names, stream_context_cost, nvml_of_this, reset_and_stream_ordered, stack):
        try:
            ask(cuda)
        except CudaError as why:
            say(ask.__name__, f"refused: {why}")


main()
