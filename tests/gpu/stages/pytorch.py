"""PyTorch in slices, with each of its allocators: what it computes, what it is told, and where it is stopped."""
import importlib.util

from kit import place
from stages import frameworks

CASES = [
    ("torch_train", ""), ("torch_train", "expandable_segments:True"), ("torch_train", "backend:cudaMallocAsync"), ("torch_graph", ""),
    ("torch_graph", "expandable_segments:True"), ("torch_streams", ""), ("torch_compile", ""),
]
FILLS = ["", "expandable_segments:True", "backend:cudaMallocAsync"]


def run(here, result):
    if here.sim:
        raise place.Skip("the simulated driver serves driver-API programs only")
    if importlib.util.find_spec("torch") is None:
        raise place.Skip("PyTorch is not installed here")
    methods = [method for method, why in here.injection_methods() if why is None]
    # Each start takes seconds: both methods once, then the one closer to the driver.
    cases = [(methods if at == 0 else methods[-1:], name, allocator) for at, (name, allocator) in enumerate(CASES)]
    frameworks.together(lambda case: frameworks.case(here, result, *case), cases)
    fills = [(method, allocator) for at, allocator in enumerate(FILLS) for method in (methods if at == 0 else methods[-1:])]
    frameworks.together(lambda one: fill(here, result, *one), fills)


def fill(here, result, method, allocator):
    ours, cap = frameworks.once(here, method, "torch_fill", allocator), frameworks.CAP
    got = ours.get("got", 0)
    holds = ours.get("refused") is True and cap * 0.75 < got <= cap
    result.check(f"filling the slice {allocator}, {method}: stopped below the cap", holds, ours.get("error") or f"{got / place.GIB:.2f} GiB of {cap / place.GIB:.0f}")
