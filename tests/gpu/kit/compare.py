"""Compares two sets of results of this suite: one of a real card and one of the simulated GPU. Where they differ, the simulation is
wrong, or the card is unlike the one it was modelled on.

`FIGURES` is the one list of the properties that the simulation claims. Each figure names where it is found in the results and where it
is set, so that a difference points to the place to change. The processor time of calls and the copy rates of host memory are shown
without judgement."""
import json
import pathlib
from typing import NamedTuple

CONFIG = "sim/device/config.rs"
SWITCHED = {"method": "group off the run list, preempted"}


class Figure(NamedTuple):
    """A figure that both sets have: its stage, table, row and column, the file and word that set it, and whether it is judged."""

    name: str
    stage: str
    table: str
    row: dict
    column: str
    unit: str
    file: str
    word: str
    judged: bool = True


def memory(what, file, word, judged=True):
    """Three figures: the memory it took by cuMemGetInfo, by NVML for the process and by NVML for the card."""
    for column in ("cuda", "process", "device"):
        yield Figure(f"{what}, {column}", "facts", "memory, MiB", {"what": what}, column, "MiB", file, word, judged)


def cost(what, unit, file, word, judged=True):
    return Figure(what, "facts", "costs", {"what": what}, "value", unit, file, word, judged)


FIGURES = [
    *memory("first context", CONFIG, '"first"'),
    *memory("second context", CONFIG, '"context"'),
    *memory("primary context", CONFIG, '"context"'),
    *memory("context that maps host memory and blocks", CONFIG, '"context"'),
    *memory("a small module", CONFIG, '"module"'),
    *memory("cuMemAlloc", "sim/device/limits.rs", "PAGE_BYTES"),
    *memory("1000 x cuMemAlloc of 512 B", "sim/cuda/memory/device.rs", "SMALL_MOST"),
    *memory("cuMemAllocPitch", "sim/cuda/memory/device.rs", "PITCH"),
    # On a card managed memory takes as much again, which stays, and raised limits take nothing at the call: known, not simulated.
    *memory("cuMemAllocManaged, touched", "sim/device/machine/memory.rs", "mem_alloc_managed", False),
    *memory("cuMemAllocAsync", "sim/cuda/exec/pool/mod.rs", "PIECE"),
    *memory("cuMemHostAlloc", "sim/cuda/memory/host.rs", "cuMemHostAlloc"),
    *memory("cuMemCreate", "sim/device/limits.rs", "PAGE_BYTES"),
    *memory("malloc heap limit 64 MiB", "sim/cuda/context/limits.rs", "LIMITS", False),
    *memory("printf FIFO 64 MiB", "sim/cuda/context/limits.rs", "LIMITS", False),
    Figure("time slice that a process begins with", "probes", "slices", {"set_us": "as it was"}, "got_us", "µs", CONFIG, '"slice"'),
    Figure("two processes at that slice, of one alone", "probes", "sweep", {"slice_us": 0}, "together", "", CONFIG, '"switch"'),
    Figure("a change from one process to another", "probes", "sweep", {"slice_us": 500}, "lost_a_switch_us", "µs", CONFIG, '"switch"'),
    Figure("the same with all of the GPU to put away", "probes", "sweep wide", {"slice_us": 500}, "lost_a_switch_us", "µs", CONFIG, '"switch"'),
    Figure("the first of two with slices 1:3", "probes", "weights", {"slices": "1:3"}, "got", "", "sim/device/time.rs", "fn slice"),
    Figure("the first of two with slices 1:9", "probes", "weights", {"slices": "1:9"}, "got", "", "sim/device/time.rs", "fn slice"),
    Figure("what taking a group off is answered", "probes", "stops", SWITCHED, "stop", "", CONFIG, '"controls"'),
    Figure("what stopping channels is answered", "probes", "stops", {"method": "channels disabled"}, "stop", "", CONFIG, '"controls"'),
    Figure("whether a group off the run list stays stopped", "probes", "stops", SWITCHED, "stayed_stopped", "", "sim/device/machine/kernel.rs", "command::SCHEDULE"),
    Figure("whether stopped channels stay stopped", "probes", "stops", {"method": "channels disabled"}, "stayed_stopped", "", CONFIG, '"controls"'),
    Figure("whether channels with scheduling disabled stay stopped", "probes", "stops", {"method": "channels disabled, scheduling only"}, "stayed_stopped", "", "sim/device/machine/kernel.rs", "DISABLE_CHANNELS"),
    Figure("from stopping channels to the last progress", "probes", "stops", {"method": "channels disabled"}, "stopped_us", "µs", "sim/device/machine/kernel.rs", "STOP_NS", False),
    Figure("preempting work", "probes", "preempts", {"what": "busy"}, "p50_us", "µs", "sim/device/machine/kernel.rs", "SLOW_NS", False),
    Figure("others beside a closed gate, of alone", "probes", "gates", {"right": True}, "others_beside_a_closed_gate", "", "sim/cuda/exec/task.rs", "Body::Wait"),
    Figure("from opening a gate to work", "probes", "gates", {"closed": ...}, "open_to_moves_p50_us", "µs", "sim/cuda/exec/stream/run.rs", "POLL", False),
    Figure("a read-only page as a gate", "probes", "pages registered for the GPU", {"mapping": "read-only"}, "refused", "", "sim/cuda/memory/host.rs", "READ_ONLY"),
    cost("NVML, memory of the card", "us", "sim/nvml", "", False),
    cost("NVML, processes of the card", "us", "sim/nvml", "", False),
    cost("NVML, utilisation", "us", "sim/nvml", "", False),
    cost("NVML, memory that was taken shows", "ms", "sim/device/machine/observe.rs", "fn processes"),
    cost("NVML, memory that was given back shows", "ms", "sim/device/machine/observe.rs", "fn processes"),
    # NVML averages over a window: these two depend on where in it the work begins and ends.
    cost("NVML, a card that is busy shows", "ms", "sim/device/limits.rs", "BUCKET_NS", False),
    cost("NVML, a card that is idle again shows", "ms", "sim/device/limits.rs", "BUCKET_NS", False),
    cost("copies to the card", "GB/s", "sim/cuda/exec/cost.rs", "BUS_BYTES_PER_US", False),
    cost("copies from the card", "GB/s", "sim/cuda/exec/cost.rs", "BUS_BYTES_PER_US", False),
    cost("copies within the card", "GB/s", "sim/cuda/exec/cost.rs", "DEVICE_BYTES_PER_US", False),
]

# Two values differ if they are apart by more than this factor and by more than this much: a page of 2 MiB, or the
# noise of a machine that is never quite idle.
FACTOR = 1.25
SLACK = {"MiB": 2.0, "µs": 20.0, "us": 20.0, "ms": 50.0, "GB/s": 5.0, "": 0.05}


def load(directory):
    """The stages of a set of results, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(pathlib.Path(directory).glob("*.json"))}


def recorded(root):
    """Directories of results of real cards below `root`, oldest first."""
    return sorted(path for path in pathlib.Path(root).glob("*") if (path / "facts.json").exists())


def rows(results, stage, table):
    return results.get(stage, {}).get("tables", {}).get(table, [])


def read(results, figure):
    """(whether the results have the figure, its value). `...` in a figure's row matches any value but None."""
    for row in rows(results, figure.stage, figure.table):
        fits = all(row.get(key) is not None if wanted is ... else row.get(key) == wanted for key, wanted in figure.row.items())
        if fits and (figure.column in row or figure.column == "refused"):
            return True, row.get(figure.column)
    return False, None


def differs(real, simulated, unit):
    if not (is_number(real) and is_number(simulated)):
        return real != simulated
    low, high = sorted((abs(real), abs(simulated)))
    return high - low > SLACK[unit] and high > FACTOR * low


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def compared(real, simulated):
    """(figure, the card's value, the simulated value, whether they differ) for each figure in both sets."""
    for figure in FIGURES:
        (asked, theirs), (answered, ours) = read(real, figure), read(simulated, figure)
        if asked and answered:
            yield figure, theirs, ours, figure.judged and differs(theirs, ours, figure.unit)


def sentence(figure, theirs, ours):
    return f"{figure.name}: {show(theirs, figure.unit)} on the card, {show(ours, figure.unit)} simulated ({place(figure)})"


def place(figure):
    return f"{figure.file}: {figure.word}" if figure.word else figure.file


def show(value, unit):
    if value is None:
        return "nothing told"
    return f"{value:.2f} {unit}".rstrip() if is_number(value) else str(value)


def differences(real, simulated):
    """Sentences, one for each difference."""
    return [sentence(*row[:3]) for row in compared(real, simulated) if row[3]]


def unasked(results):
    """Names of the figures that are in no result."""
    return [figure.name for figure in FIGURES if not read(results, figure)[0]]


def shown(real, simulated):
    """Sentences on figures that are not judged: the cost of calls, on any processor."""
    for figure, theirs, ours, _ in compared(real, simulated):
        if not figure.judged:
            yield sentence(figure, theirs, ours)
    for table in real.get("overhead", {}).get("tables", {}):
        ours = {row.get("call"): row for row in rows(simulated, "overhead", table)}
        for row in rows(real, "overhead", table):
            if row.get("call") in ours:
                yield f"{row['call']} ({table}): {row['bare_ns']:.0f} ns there, {ours[row['call']]['bare_ns']:.0f} ns here"
