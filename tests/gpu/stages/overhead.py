"""What a slice costs a tenant that is alone on its card, call by call, and in two loops of real decoding; bare and sliced interleaved.
Whole workloads that take longer are the stage `workloads`."""
import pathlib
import sys

from kit import place, stats

PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "programs"
# Workloads on PyTorch. Each prints {"work": …, "seconds": …} of its own measured part; all run in one process, which takes seconds to start.
WORKLOADS = [("decode, launches", "decode"), ("decode, graphs", "decode-graphs")]
PROMISED = 0.005
# What a stage may use for the calls of each injection method, and for all of its workloads.
CALLS_SECONDS, WORKLOADS_SECONDS = 45, 160


def run(here, result):
    methods = [method for method, why in here.injection_methods() if why is None]
    for method in methods:
        calls(here, result, method, memory(here))
    workloads(here, result, methods, WORKLOADS, WORKLOADS_SECONDS)


def memory(here):
    return ["--memory", str(here.total() // 2)]


def calls(here, result, method, options):
    def meter(sliced):
        done = here.sliced(method, options, [here.program("meter")]) if sliced else here.run([here.program("meter")])
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-500:])
        return {row["row"]: row["median_ns"] for row in place.lines(done.stdout)}

    bare, ours = stats.abba(1 if here.quick else 4, lambda: meter(False), lambda: meter(True), CALLS_SECONDS)
    for row in bare[0]:
        a, b = [run[row] for run in bare], [run[row] for run in ours]
        _, low, high = stats.ratio(a, b)
        more = stats.median(b) - stats.median(a)
        result.row(f"calls, {method}", call=row, bare_ns=stats.median(a), sliced_ns=stats.median(b), more_ns=more, ratio_low=low, ratio_high=high)


def workloads(here, result, methods, names, seconds):
    """By the last injection method that works, which is the one closer to the driver."""
    if here.sim or not methods:
        return
    if here.run([sys.executable, "-c", "import torch"]).returncode != 0:
        result.value("workloads", "PyTorch is not installed here")
        return
    method, line = methods[-1], [sys.executable, str(PROGRAMS / "torch_work.py")] + [word for _, word in names]

    def once(sliced):
        done = here.sliced(method, memory(here), line) if sliced else here.run(line)
        found = {row["work"]: row for row in place.lines(done.stdout)}
        if done.returncode != 0 or len(found) < len(names):
            raise RuntimeError(done.stderr[-800:])
        return found

    bare, ours = stats.abba(1 if here.quick else 5, lambda: once(False), lambda: once(True), seconds)
    result.value(f"parts of the workloads, {method}", {"bare": bare, "sliced": ours})
    for name, word in names:
        workload(result, method, name, [run[word]["seconds"] for run in bare], [run[word]["seconds"] for run in ours])


def workload(result, method, name, bare, ours):
    ratio, low, high = stats.ratio(bare, ours)
    result.row(f"workloads, {method}", what=name, runs=len(bare), bare_s=stats.median(bare), sliced_s=stats.median(ours), ratio=ratio, low=low, high=high)
    result.promise(f"{name}, {method}: at most {PROMISED:.1%} slower", low <= 1 + PROMISED, f"{ratio - 1:+.2%} ({low - 1:+.2%} to {high - 1:+.2%})")
