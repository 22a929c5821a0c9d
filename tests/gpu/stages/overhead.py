"""What a slice costs a tenant that is alone on its card, by calls and by whole workloads; bare and sliced interleaved."""
import pathlib
import sys

from kit import place, stats

PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "programs"
# Workloads: name, program and arguments. Each prints {"seconds": …} of its own measured part.
WORKLOADS = [
    ("training step", ["torch_work.py", "train"]),
    ("decode, launches", ["torch_work.py", "decode"]),
    ("decode, graphs", ["torch_work.py", "decode-graphs"]),
    ("allocation storm", ["torch_work.py", "allocations"]),
]
PROMISED = 0.005


def run(here, result):
    doors = [door for door, why in here.doors() if why is None]
    memory = ["--memory", str(here.total() // 2)]
    for door in doors:
        calls(here, result, door, memory)
    if not here.sim and here.run([sys.executable, "-c", "import torch"]).returncode == 0:
        for door in doors[-1:]:
            for name, command in WORKLOADS:
                workload(here, result, door, memory, name, command)


def calls(here, result, door, memory):
    def meter(sliced):
        done = here.sliced(door, memory, [here.program("meter")]) if sliced else here.run([here.program("meter")])
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-500:])
        return {row["row"]: row["median_ns"] for row in place.lines(done.stdout)}

    bare, ours = stats.abba(1 if here.quick else 4, lambda: meter(False), lambda: meter(True))
    for row in bare[0]:
        a, b = [run[row] for run in bare], [run[row] for run in ours]
        _, low, high = stats.ratio(a, b)
        more = stats.median(b) - stats.median(a)
        result.row(f"calls, {door}", call=row, bare_ns=stats.median(a), sliced_ns=stats.median(b), more_ns=more, ratio_low=low, ratio_high=high)


def workload(here, result, door, memory, name, command):
    line = [sys.executable, str(PROGRAMS / command[0])] + command[1:]

    def once(sliced):
        done = here.sliced(door, memory, line) if sliced else here.run(line)
        found = place.lines(done.stdout)
        if done.returncode != 0 or not found:
            raise RuntimeError(done.stderr[-800:])
        return found[-1]["seconds"]

    bare, ours = stats.abba(1 if here.quick else 3, lambda: once(False), lambda: once(True))
    ratio, low, high = stats.ratio(bare, ours)
    result.row(f"workloads, {door}", what=name, bare_s=stats.median(bare), sliced_s=stats.median(ours), ratio=ratio, low=low, high=high)
    result.promise(f"{name}, {door}: at most {PROMISED:.1%} slower", low <= 1 + PROMISED, f"{ratio - 1:+.2%} ({low - 1:+.2%} to {high - 1:+.2%})")
