"""numba-cuda: import, device, arrays, copies and a launch of a kernel it compiled itself.

The simulated GPU does not compute numba's kernels, so their result is not looked at there."""
import os

import numpy
from numba import cuda

EXPECT = int(os.environ["EXPECT_BYTES"])


@cuda.jit
def add_one(values):
    at = cuda.grid(1)
    if at < values.size:
        values[at] += 1


def main():
    context = cuda.current_context()
    memory = context.get_memory_info()
    assert memory.total == EXPECT, memory
    host = numpy.arange(4096, dtype=numpy.float32)
    device = cuda.to_device(host)
    assert (device.copy_to_host() == host).all()
    add_one[16, 256](device)
    cuda.synchronize()
    assert device.copy_to_host().shape == host.shape
    try:
        cuda.device_array(EXPECT + (1 << 20), dtype=numpy.uint8)
    except Exception as error:
        assert "OUT_OF_MEMORY" in str(error), error
    else:
        raise AssertionError("more than the cap was allocated")


main()
print("ok")
