"""A model server's decoding: `torch_serve.py REQUESTS SECONDS`. A transformer with a cache of keys and values makes one token for each of so
many requests in a step, launch by launch, and waits for it, as serving engines do. It prints {"event": "ready"}, begins at a line on its
input, and then prints what it made: {"requests": …, "tokens": …, "seconds": …, "step_p50_ms": …}."""
import json
import sys
import time

import torch

LAYERS, WIDTH, HEADS, CONTEXT = 24, 2048, 16, 1024
torch.manual_seed(1)
torch.backends.mha.set_fastpath_enabled(False)


class Layer(torch.nn.Module):
    def __init__(self, requests):
        super().__init__()
        self.norm, self.after = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.keys = torch.randn(requests, HEADS, CONTEXT, WIDTH // HEADS)
        self.values = torch.randn(requests, HEADS, CONTEXT, WIDTH // HEADS)

    def to_gpu(self):
        self.keys, self.values = self.keys.cuda().half(), self.values.cuda().half()
        return self.cuda().half()

    def forward(self, x, at):
        q, k, v = self.qkv(self.norm(x)).view(x.shape[0], 1, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        self.keys[:, :, at : at + 1], self.values[:, :, at : at + 1] = k, v
        seen = torch.nn.functional.scaled_dot_product_attention(q, self.keys, self.values)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.down(torch.nn.functional.gelu(self.up(self.after(x))))


@torch.no_grad()
def main(requests, seconds):
    layers = [Layer(requests).to_gpu() for _ in range(LAYERS)]
    token = torch.randn(requests, 1, WIDTH, device="cuda", dtype=torch.half)

    def step(at):
        x = token
        for layer in layers:
            x = layer(x, at % CONTEXT)
        x.float().norm().item()  # the token goes to the client

    for at in range(20):
        step(at)
    print(json.dumps({"event": "ready"}), flush=True)
    sys.stdin.readline()
    start, steps = time.monotonic(), []
    while time.monotonic() - start < seconds:
        begun = time.monotonic()
        step(len(steps))
        steps.append(time.monotonic() - begun)
    took, ordered = time.monotonic() - start, sorted(steps)
    at = lambda part: 1e3 * ordered[int(part * (len(ordered) - 1))]  # noqa: E731
    print(json.dumps({"requests": requests, "tokens": requests * len(steps), "seconds": took, "step_p50_ms": at(0.5), "step_p99_ms": at(0.99)}), flush=True)


main(int(sys.argv[1]), float(sys.argv[2]))
