"""Workloads on PyTorch, timed by themselves: `torch_work.py WORK…`, of train | decode | decode-graphs | allocations. It prepares them,
prints {"event": "ready"}, and runs a part of the one that each line of its input names: {"work": …, "seconds": …}. Whoever asks two of these
processes by turns compares parts of the same second."""
import json
import sys
import time

import torch

torch.manual_seed(1)
LAYERS, WIDTH, HEADS = 8, 1024, 16
# The layers as they are written, launch by launch, captured or not.
torch.backends.mha.set_fastpath_enabled(False)


def model():
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, dropout=0.0)
    return torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).cuda().half()


def train():
    net = model().float()
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-4)
    batch = torch.randn(8, 256, WIDTH, device="cuda")

    def step():
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = net(batch).square().mean()
        loss.backward()
        optimiser.step()

    return step, 10


def decode():
    """One token after another, batch 1: hundreds of short launches a step, the case where launches cost most."""
    net = model().eval()
    token = torch.randn(1, 1, WIDTH, device="cuda", dtype=torch.half)

    @torch.no_grad()
    def step():
        net(token)

    return step, 80


def decode_graphs():
    step, count = decode()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay, 6 * count


def allocations():
    """The driver's own allocator, because the cache in front of it is emptied each time."""

    def step():
        held = [torch.empty(megabytes << 20, dtype=torch.uint8, device="cuda") for megabytes in (1, 2, 24, 64, 3, 300)]
        del held
        torch.cuda.empty_cache()

    return step, 200


WORK = {"train": train, "decode": decode, "decode-graphs": decode_graphs, "allocations": allocations}


def part(step, count):
    step()  # another work may have emptied the caches
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


prepared = {name: WORK[name]() for name in sys.argv[1:]}
for step, count in prepared.values():
    part(step, max(3, count // 4))
print(json.dumps({"event": "ready"}), flush=True)
for line in sys.stdin:
    print(json.dumps({"work": line.strip(), "seconds": part(*prepared[line.strip()])}), flush=True)
