"""Frameworks in slices: they see the cap, are held to it, and compute bit for bit what they compute without us."""
import concurrent.futures
import importlib.util
import pathlib
import shutil
import sys

from kit import place

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "programs" / "frameworks.py"
CAP = 8 * place.GIB
# Name, and settings of PyTorch's allocator, which only PyTorch has.
CASES = [("cupy_work", ""), ("jax_work", ""), ("triton_work", ""), ("numba_work", "")]


def run(here, result):
    if here.sim:
        raise place.Skip("the simulated driver serves driver-API programs only")
    methods = [method for method, why in here.injection_methods() if why is None]
    viewers(here, result, methods)
    together(lambda one: case(here, result, methods, *one), CASES)


def together(do, cases):
    """These are about results, not time: some run side by side. The first error is raised after all have ended."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(do, case) for case in cases]:
            done.result()


def case(here, result, methods, name, allocator):
    """One framework's work without a slice and in slices; where it does not work without one, that is a finding, not a failure."""
    framework = name.split("_")[0]
    if importlib.util.find_spec(framework) is None:
        result.row("frameworks", what=name, allocator=allocator, injection="", same="not installed", told_gib=None)
        return
    bare = once(here, None, name, allocator)
    if "digest" not in bare:
        result.row("frameworks", what=name, allocator=allocator, injection="", same="fails without a slice", told_gib=None)
        result.value(f"{name} {allocator} without a slice", bare.get("error"))
        return
    for method in methods:
        ours = once(here, method, name, allocator)
        same = ours.get("digest") == bare["digest"]
        told = ours.get("total")
        result.row("frameworks", what=name, allocator=allocator, injection=method, same=same, told_gib=told and told / place.GIB)
        result.check(f"{name} {allocator}, {method}: same result, told the cap", same and told in (None, CAP), ours.get("error") or f"told {told}")


def viewers(here, result, methods):
    """What people look at a card with must show the slice."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    look = [sys.executable, "-c", "import nvitop; print(nvitop.Device(0).memory_total() >> 20)"]
    for what, line in [("nvidia-smi", query), ("nvitop", look)]:
        if not (shutil.which(what) if line is query else importlib.util.find_spec(what)):
            result.row("viewers", what=what, injection="", shows_mib=None)
            continue
        for method in methods:
            done = here.sliced(method, ["--memory", str(CAP)], line, 60)
            shows = done.stdout.strip()
            result.row("viewers", what=what, injection=method, shows_mib=shows)
            result.check(f"{what} shows the slice, {method}", shows == str(CAP >> 20), shows or done.stderr[-300:])


def once(here, method, name, allocator):
    line = [sys.executable, str(PROGRAM), name]
    # Deterministic matrix products need the first; the allocator's settings have two names, by PyTorch's version.
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if allocator:
        environment.update(PYTORCH_CUDA_ALLOC_CONF=allocator, PYTORCH_ALLOC_CONF=allocator)
    if method is None:
        done = here.run(line, 200, **environment)
    else:
        done = here.sliced(method, ["--memory", str(CAP)], line, 200, **environment)
    found = place.lines(done.stdout)
    return found[-1] if done.returncode == 0 and found else {"error": (done.stderr or done.stdout)[-1200:]}
