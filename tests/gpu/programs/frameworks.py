"""One framework doing one thing: `frameworks.py NAME`. Prints {"digest": …, …}: the digest of its results, which must not
change in a slice, and what memory it was told of. Seeds are fixed and only deterministic operations used."""
import hashlib
import json
import os
import sys


def digest(*arrays):
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(array.tobytes())
    return whole.hexdigest()


def torch_train(compiled=False):
    import torch

    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True)
    net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
    run = torch.compile(net) if compiled else net
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
    batch = torch.randn(64, 512, device="cuda")
    for _ in range(20):
        optimiser.zero_grad()
        run(batch).square().mean().backward()
        optimiser.step()
    free, total = torch.cuda.mem_get_info()
    return dict(digest=digest(*[p.detach().cpu().numpy() for p in net.parameters()]), total=total, free=free)


def torch_compile():
    return torch_train(compiled=True)


def torch_graph():
    import torch

    torch.manual_seed(7)
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            a @ b
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = (a @ b).relu() @ b
    for _ in range(100):
        graph.replay()
    torch.cuda.synchronize()
    return dict(digest=digest(c.cpu().numpy()), total=torch.cuda.mem_get_info()[1])


def torch_streams():
    import torch

    torch.manual_seed(7)
    parts = [torch.randn(1024, 1024, device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in parts]
    for stream, at in zip(streams, range(len(parts))):
        with torch.cuda.stream(stream):
            parts[at] = parts[at] @ parts[at]
    torch.cuda.synchronize()
    return dict(digest=digest(*[part.cpu().numpy() for part in parts]), total=torch.cuda.mem_get_info()[1])


def torch_fill():
    """Allocates until it is refused: how much could be had, and that the refusal is the framework's own error."""
    import torch

    held, step = [], 256 << 20
    total = torch.cuda.mem_get_info()[1]
    try:
        while len(held) * step < 2 * total:
            held.append(torch.empty(step, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        return dict(digest="", got=len(held) * step, total=total, refused=True)
    return dict(digest="", got=len(held) * step, total=total, refused=False)


def cupy_work():
    import cupy

    numbers = cupy.random.RandomState(7).standard_normal((1024, 1024))
    free, total = cupy.cuda.runtime.memGetInfo()
    return dict(digest=digest((numbers @ numbers).get(), cupy.sort(numbers.ravel()).get()), total=total, free=free)


def jax_work():
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # Chosen by timing, a product would not have the same bits twice.
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")
    import jax
    import numpy

    key = jax.random.PRNGKey(7)
    work = jax.jit(lambda x: jax.numpy.tanh(x @ x.T).sum(axis=0))
    return dict(digest=digest(numpy.asarray(work(jax.random.normal(key, (1024, 1024))))), total=None)


def triton_work():
    global tl  # where older versions look for what a kernel names
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = at < n
        tl.store(out + at, tl.load(x + at, mask) + tl.load(y + at, mask), mask)

    torch.manual_seed(7)
    x, y = torch.randn(1 << 20, device="cuda"), torch.randn(1 << 20, device="cuda")
    out = torch.empty_like(x)
    add[((1 << 20) // 1024,)](x, y, out, 1 << 20, BLOCK=1024)
    return dict(digest=digest(out.cpu().numpy()), total=torch.cuda.mem_get_info()[1])


def numba_work():
    import numpy

    if not hasattr(numpy, "row_stack"):  # numba asks for a name that newer releases of NumPy dropped
        numpy.row_stack = numpy.vstack
    from numba import cuda

    @cuda.jit
    def double(values):
        at = cuda.grid(1)
        if at < values.size:
            values[at] *= 2

    values = cuda.to_device(numpy.arange(1 << 20, dtype=numpy.float32))
    double[(1 << 20) // 256, 256](values)
    return dict(digest=digest(values.copy_to_host()), total=cuda.current_context().get_memory_info().total)


WORK = {name: work for name, work in globals().items() if name.split("_")[0] in ("torch", "cupy", "jax", "triton", "numba") and callable(work)}

if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print(" ".join(WORK))
    else:
        print(json.dumps(WORK[sys.argv[1]]()))
