"""nvidia-ml-py: both memory queries and the process list show the slice."""
import os

import pynvml

EXPECT = int(os.environ["EXPECT_BYTES"])
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
first = pynvml.nvmlDeviceGetMemoryInfo(device)
second = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
assert first.total == EXPECT and second.total == EXPECT, (first.total, second.total)
for memory in (first, second):
    assert memory.used <= memory.total and memory.free <= memory.total, memory
assert isinstance(pynvml.nvmlDeviceGetComputeRunningProcesses(device), list)
assert pynvml.nvmlDeviceGetUUID(device).startswith("GPU-")
pynvml.nvmlShutdown()
print("ok")
