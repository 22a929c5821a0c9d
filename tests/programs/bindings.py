"""cuda-bindings on the driver API: memory, streams, events, modules, graphs, pools.

EXPECT_BYTES is the memory the program must be told of and be able to take, no more."""
import os
import struct

from cuda.bindings import driver as cuda

EXPECT = int(os.environ["EXPECT_BYTES"])
MIB = 1 << 20
# Kernels between two events.
TIMED = 5
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 spin_param_0, .param .u64 spin_param_1)
{
    .reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [spin_param_0];
    ld.param.u64 %rd2, [spin_param_1];
    cvta.to.global.u64 %rd3, %rd2;
    mov.u64 %rd4, %globaltimer;
    add.u64 %rd4, %rd4, %rd1;
again:
    mov.u64 %rd5, %globaltimer;
    setp.lt.u64 %p1, %rd5, %rd4;
    @%p1 bra again;
    atom.global.add.u32 %r1, [%rd3], 1;
    ret;
}
\0"""


def ok(answer):
    """The values of an answer that must be success."""
    result, *values = answer
    assert result == cuda.CUresult.CUDA_SUCCESS, result
    return values[0] if len(values) == 1 else values


def take_all(step):
    """Allocates until refused; gives the bytes got and frees them."""
    got = []
    while True:
        result, pointer = cuda.cuMemAlloc(step)
        if result != cuda.CUresult.CUDA_SUCCESS:
            assert result == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY, result
            break
        got.append(pointer)
    for pointer in got:
        ok(cuda.cuMemFree(pointer))
    return len(got) * step


def copies():
    pointer = ok(cuda.cuMemAlloc(4096))
    data, back = bytes(range(256)) * 16, bytearray(4096)
    ok(cuda.cuMemcpyHtoD(pointer, data, 4096))
    ok(cuda.cuMemcpyDtoH(back, pointer, 4096))
    assert back == data
    ok(cuda.cuMemFree(pointer))


def spin(stream, function, counter, nanoseconds):
    arguments = ((nanoseconds, int(counter)), (__import__("ctypes").c_uint64, __import__("ctypes").c_uint64))
    ok(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0))


def timed(stream, function, counter):
    """A kernel of 5 ms between two events takes about 5 ms of GPU time.

    The first event has its time before the kernel is launched. So a measurement also has what delays this process or
    the daemon's first turn, and the shortest is judged from above."""
    measured = []
    for _ in range(TIMED):
        start, end = ok(cuda.cuEventCreate(0)), ok(cuda.cuEventCreate(0))
        ok(cuda.cuEventRecord(start, stream))
        spin(stream, function, counter, 5_000_000)
        ok(cuda.cuEventRecord(end, stream))
        ok(cuda.cuEventSynchronize(end))
        measured.append(ok(cuda.cuEventElapsedTime(start, end)))
    assert 4.9 < min(measured) < 50, measured


def graph(stream, function, counter):
    ok(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    for _ in range(3):
        spin(stream, function, counter, 1000)
    captured = ok(cuda.cuStreamEndCapture(stream))
    instance = ok(cuda.cuGraphInstantiate(captured, 0))
    for _ in range(4):
        ok(cuda.cuGraphLaunch(instance, stream))
    ok(cuda.cuStreamSynchronize(stream))
    ok(cuda.cuGraphExecDestroy(instance))
    ok(cuda.cuGraphDestroy(captured))


def pools(device, stream):
    pool = ok(cuda.cuDeviceGetDefaultMemPool(device))
    pointer = ok(cuda.cuMemAllocAsync(8 * MIB, stream))
    ok(cuda.cuStreamSynchronize(stream))
    used = ok(cuda.cuMemPoolGetAttribute(pool, cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT))
    assert int(used) >= 8 * MIB, used
    ok(cuda.cuMemFreeAsync(pointer, stream))
    ok(cuda.cuStreamSynchronize(stream))
    result, _ = cuda.cuMemAllocAsync(EXPECT + MIB, stream)
    assert result == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY, result


def main():
    ok(cuda.cuInit(0))
    device = ok(cuda.cuDeviceGet(0))
    context = ok(cuda.cuCtxCreate(None, 0, device))
    assert ok(cuda.cuDeviceTotalMem(device)) == EXPECT
    free, total = ok(cuda.cuMemGetInfo())
    assert total == EXPECT and free <= total, (free, total)
    got = take_all(64 * MIB)
    assert EXPECT * 0.8 <= got <= EXPECT, got
    copies()
    stream = ok(cuda.cuStreamCreate(0))
    function = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(PTX)), b"spin"))
    counter = ok(cuda.cuMemAlloc(256))
    ok(cuda.cuMemsetD8(counter, 0, 256))
    timed(stream, function, counter)
    graph(stream, function, counter)
    count = bytearray(4)
    ok(cuda.cuMemcpyDtoH(count, counter, 4))
    assert struct.unpack("<I", count)[0] == TIMED + 4 * 3, count
    pools(device, stream)
    ok(cuda.cuCtxDestroy(context))


main()
print("ok")
