"""Asks NVML for a control group's memory limits, in a process of its own: a driver's library stays where it is.

Usage: limits.py LIBNVIDIA-ML CGROUP"""
import ctypes
import sys


class Limits(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t."""

    _fields_ = [("group", ctypes.c_char_p)] + [(name, ctypes.c_uint64) for name in ["soft", "hard", "used"]]


def ask_driver(library, group):
    """Prints what NVML says of GPU 0 and a control group: an error's number, soft and hard limit."""
    nvml, device = ctypes.CDLL(library), ctypes.c_void_p()
    limits = Limits(group.encode())
    assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    error = nvml.nvmlDeviceGetMemoryLimits_v1(device, ctypes.byref(limits))
    print(error, limits.soft, limits.hard)


if __name__ == "__main__":
    ask_driver(*sys.argv[1:])
