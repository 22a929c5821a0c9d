"""What a container may have of each GPU's memory, and a thread that is told when it changes.

The node rewrites the file in place, so inotify tells of each change without polling.
"""

import ctypes
import os
import threading

IN_MODIFY = 0x2


def path():
    """The memory file: in a container, or of a program that `gpuslice run` started."""
    socket = os.environ.get("GPUSLICE_SOCKET", "/run/gpuslice/tenant.sock")
    return os.path.join(os.path.dirname(socket), "memory")


def read():
    """By GPU: bytes of `cap`, `limit`, `used`, `free` (can be had now) and `wanted` (should be given back)."""
    with open(path()) as lines:
        rows = [line.split() for line in lines]
    return {gpu: {key: int(value) for key, value in (word.split("=") for word in words)} for gpu, *words in rows}


def watch(changed):
    """Calls `changed` with what `read` returns, now and after each change, in a thread that ends with the program."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_CLOEXEC)
    if descriptor < 0 or libc.inotify_add_watch(descriptor, path().encode(), IN_MODIFY) < 0:
        raise OSError(ctypes.get_errno(), "the memory file cannot be watched", path())

    def loop():
        while True:
            changed(read())
            os.read(descriptor, 4096)

    threading.Thread(target=loop, name="gpuslice-memory", daemon=True).start()
