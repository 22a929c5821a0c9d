"""A process that holds GPU memory full of a pattern: `holder.py MIB`. It prints a JSON line when all of it is written, and then, again
and again, whether every part is as it was: {"event": "look", "whole": …, "now_ns": …}. It ends on SIGTERM, or when its input is closed."""
import ctypes
import json
import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from kit.cuda import SIZE, U64, Cuda  # noqa: E402

# Each part has its own word, so that two which changed places are seen.
PART_MIB = 16
WORDS = (PART_MIB << 20) // 4


def say(**line):
    print(json.dumps(line | {"now_ns": time.monotonic_ns()}), flush=True)


def main(mib):
    cuda = Cuda()
    cuda.context()
    parts = []
    for at in range(max(1, mib // PART_MIB)):
        address = U64()
        cuda("cuMemAlloc_v2", ctypes.byref(address), SIZE(PART_MIB << 20))
        cuda("cuMemsetD32_v2", address, ctypes.c_uint(0x600D0000 + at), SIZE(WORDS))
        parts.append(address.value)
    cuda("cuCtxSynchronize")
    say(event="holds", mib=len(parts) * PART_MIB)
    closed = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
    while not closed.is_set():
        say(event="look", whole=is_whole(cuda, parts))
        time.sleep(0.01)


def is_whole(cuda, parts):
    """The first and the last word of each part, read by copies."""
    word = ctypes.c_uint32()
    for at, address in enumerate(parts):
        for offset in (0, 4 * (WORDS - 1)):
            cuda("cuMemcpyDtoH_v2", ctypes.byref(word), U64(address + offset), SIZE(4))
            if word.value != 0x600D0000 + at:
                return False
    return True


main(int(sys.argv[1]))
