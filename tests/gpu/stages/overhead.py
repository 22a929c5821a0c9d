"""What a slice costs a tenant that is alone on its card, call by call, and in two loops of real decoding; bare and sliced interleaved.
Whole workloads that take longer are the stage `workloads`."""
import json
import pathlib
import sys
import time

from kit import place, stats

PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "programs"
# Workloads on PyTorch; all run in one process, which takes seconds to start.
WORKLOADS = [("decode, launches", "decode"), ("decode, graphs", "decode-graphs")]
PROMISED = 0.005
# What a stage may use for the calls of each injection method, and for all of its workloads.
CALLS_SECONDS, WORKLOADS_SECONDS = 45, 120
PAIRS = 3


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
    """By the last injection method that works, which is the one closer to the driver. A process in a slice and one without are asked by
    turns for parts of a fifth of a second, so that what the machine does meanwhile meets both alike; several such pairs of processes, since
    each has its own layout of memory."""
    if here.sim or not methods:
        return
    if here.run([sys.executable, "-c", "import torch"]).returncode != 0:
        result.value("workloads", "PyTorch is not installed here")
        return
    method, line = methods[-1], [sys.executable, str(PROGRAMS / "torch_work.py")] + [word for _, word in names]
    pairs, parts = 1 if here.quick else PAIRS, {word: [] for _, word in names}
    for _ in range(pairs):
        both = [here.start(line), here.start(here.wrap(method, memory(here), line))]
        for process in both:
            if not process.stdout.readline():
                raise RuntimeError(process.stderr.read()[-800:])
        rounds(both, parts, time.monotonic() + seconds / pairs)
        for process in both:
            process.communicate(timeout=60)
    for name, word in names:
        workload(result, method, name, parts[word])


def rounds(both, parts, end):
    """Asks for parts A B B A of each work until it is that time: [[bare, bare], [sliced, sliced]] in seconds, a round each."""
    while time.monotonic() < end:
        for word, found in parts.items():
            asked = [(which, ask(both[which], word)) for which in (0, 1, 1, 0)]
            found.append([[seconds for which, seconds in asked if which == side] for side in (0, 1)])


def ask(process, word):
    process.stdin.write(word + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(process.stderr.read()[-800:])
    return json.loads(line)["seconds"]


def workload(result, method, name, found):
    """The median over all rounds of what the slice's parts took, as a part of what those without it took in the same round."""
    result.value(f"rounds of {name}, {method}", found)
    ratio, low, high = stats.paired([sum(ours) / sum(bare) for bare, ours in found])
    bare, ours = (stats.median([seconds for one in found for seconds in one[side]]) for side in (0, 1))
    result.row(f"workloads, {method}", what=name, rounds=len(found), bare_s=bare, sliced_s=ours, ratio=ratio, low=low, high=high)
    result.promise(f"{name}, {method}: at most {PROMISED:.1%} slower", low <= 1 + PROMISED, f"{ratio - 1:+.2%} ({low - 1:+.2%} to {high - 1:+.2%})")
