"""Prints as JSON whatever nvidia-ml-py and nvitop answer about the first GPU, while this process holds memory there.

A line for each answer: its name and the answer, or the name of the error. `same_answers.py` compares runs. What no two
processes have alike (pids, handles) is named; what changes with time is there as it is."""
import ctypes
import inspect
import itertools
import json
import os
import re

import pynvml

HELD = 256 << 20
# Calls that change something, wait, or make a handle of another kind. All others are asked.
CHANGES = re.compile("Set(?!Get)|Clear|Reset|Create|Destroy|Regist|Wait|Free|Alloc|Freeze|Modify|Remove|Discover|Validate|"
                     "Init|Shutdown|ReadWrite|ReadPRM|PowerSmoothing|Update|Activate|Force|ExceptionClass|Friendly|ErrorString|"
                     "MetricsGet|SampleGet|GetSamples_v1|^nvml(Unit(?!GetCount)|Vgpu|GpuInstance|ComputeInstance)[A-Z]")
# What the parameters of these names are, other than the device.
VALUES = {
    "pid": [os.getpid()], "index": [0, 1], "type": [0, 1, 2, 3], "id": [0, 1, 2, 3], "fan": [0], "sensor": [0, 1],
    "sensorindex": [0], "threshold": [0, 1, 2, 3, 4, 5], "memoryClockMHz": [0, 1], "errorType": [0, 1], "counterType": [0, 1],
    "locationType": [0, 2], "infoRomObject": [0, 1, 2], "nodeSetSize": [1], "cpuSetSize": [1, 4], "scope": [0, 1],
    "mode": [0, 1, 2], "sampling_type": list(range(7)), "timeStamp": [0], "perfPolicyType": [0, 1], "counter": [0, 1],
    "apiType": [0, 1], "sourceFilter": [0, 1], "level": [0, 10, 20, 30, 40, 50], "link": [0], "capability": [0, 1],
    "fieldIds": [[1, 4, 83, 185, 186]], "p2pIndex": [0, 1, 2, 3, 4], "encoderQueryType": [0, 1], "cpuNumber": [0],
    "profile": [0], "profileId": [0], "gpuInstanceId": [0], "clockType": [0], "pstate": [0],
    # In detail lists of processes alone.
    "version": [pynvml.nvmlProcessDetailList_v1],
}
DEVICE = {"handle", "device", "device1", "device2", "handle1", "handle2"}
# Parameters that have a default of one version, and that tools set to others.
VERSIONS = {"nvmlDeviceGetMemoryInfo": [None, pynvml.nvmlMemory_v2]}
# Structures that the caller brings, by function.
BROUGHT = {
    "nvmlDeviceGetPciInfoExt": (pynvml.nvmlPciInfoExt_v1_t, {"version": pynvml.nvmlPciInfoExt_v1}),
    "nvmlDeviceGetMemoryLimits_v1": (pynvml.c_nvmlGetMemoryLimits_v1_t, {}),
}

# The functions of the library that were asked.
asked = set()
# What names the GPU of a run.
names = {}


def remember(find):
    def found(name):
        asked.add(name)
        return find(name)
    return found


def hold():
    """A context and memory, by the driver's own library."""
    driver, size = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t(HELD)
    context, place = ctypes.c_void_p(), ctypes.c_uint64()
    for result in (driver.cuInit(0), driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
                   driver.cuMemAlloc_v2(ctypes.byref(place), size)):
        assert result == 0, f"the driver answers {result}"


def plain(value):
    """An answer as JSON."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, pynvml.c_nvmlDevice_t):
        return f"GPU {pynvml.nvmlDeviceGetIndex(value)}"
    if isinstance(value, ctypes._SimpleCData):
        return plain(value.value)
    if isinstance(value, ctypes._Pointer):
        return "a pointer"
    if isinstance(value, pynvml.c_nvmlFieldValue_t):
        # Of the union of types, the one that all fields have that are asked.
        fields = {name: plain(getattr(value, name)) for name, *_ in value._fields_ if name != "value"}
        return {**fields, "value": value.value.ullVal if value.nvmlReturn == pynvml.NVML_SUCCESS else None}
    if isinstance(value, (ctypes.Structure, ctypes.Union)):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, pynvml.nvmlFriendlyObject):
        return {name: plain(one) for name, one in vars(value).items()}
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [plain(one) for one in value]
    if isinstance(value, int) and not isinstance(value, bool) and value == os.getpid():
        return "this process"
    if isinstance(value, str) and value in names:
        return names[value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)


def arguments(name, function, device):
    """All lists of arguments of a function; none if what it needs is not in the tables."""
    parameters = list(inspect.signature(function).parameters.values())
    names = [one.name for one in parameters]
    if name in BROUGHT:
        kind, fields = BROUGHT[name]
        brought = kind()
        for field, value in fields.items():
            setattr(brought, field, value)
        return [[device, brought]]
    if name in VERSIONS:
        return [[device, version] for version in VERSIONS[name]]
    needed = [one for one in parameters if one.default is inspect.Parameter.empty]
    of_handle = {
        "uuid": [pynvml.nvmlDeviceGetUUID(device), "GPU-of-nobody"], "serial": [pynvml.nvmlDeviceGetSerial(device)],
        "pciBusId": [pynvml.nvmlDeviceGetPciInfo(device).busId], "memoryClockMHz": [0, 2619, 1593],
    }
    values = {**VALUES, **of_handle, **{one: [device] for one in DEVICE}}
    if any(one not in values for one in names[:len(needed)]):
        return []
    return itertools.product(*(values[one] for one in names[:len(needed)]))


def answer(call, given):
    try:
        result = call(*given)
        # A structure that the caller brought is the answer.
        brought = [one for one in given if isinstance(one, ctypes.Structure)]
        return plain(brought[0] if brought and result is None else result)
    except pynvml.NVMLError as error:
        return f"{type(error).__name__}"
    except Exception as error:  # what a program would see
        return f"{type(error).__name__}: {error}"


def of_nvml(device):
    for name, function in inspect.getmembers(pynvml, inspect.isfunction):
        if not name.startswith("nvml") or CHANGES.search(name):
            continue
        for given in arguments(name, function, device):
            words = ", ".join(str(plain(one)) for one in given if not isinstance(one, (pynvml.c_nvmlDevice_t, ctypes.Structure)))
            yield f"{name}({words})", answer(function, given)


def of_nvitop():
    import nvitop

    assert nvitop.Device.count() == 1, "one GPU is compared"
    device = nvitop.Device(0)
    for name, value in vars(device.as_snapshot()).items():
        yield f"nvitop device {name}", plain(value)
    processes = device.processes()
    yield "nvitop processes", sorted(str(plain(pid)) for pid in processes)
    for process in processes.values():
        of_host = vars(process.as_snapshot())
        for name, value in of_host.items():
            if name == "host":
                for field, one in vars(value).items():
                    yield f"nvitop host {field}", plain(one)
            else:
                yield f"nvitop process {name}", plain(value)


def main():
    pynvml._nvmlGetFunctionPointer = remember(pynvml._nvmlGetFunctionPointer)
    hold()
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    names.update({pynvml.nvmlDeviceGetUUID(device): "its UUID", pynvml.nvmlDeviceGetSerial(device): "its serial number"})
    for name, value in itertools.chain(of_nvml(device), of_nvitop()):
        print(json.dumps([name, value]))
    print(json.dumps(["asked", sorted(asked)]))


main()
