"""Levers on an unmodified driver, each asked whether it is there and what it costs; nothing destructive, no settings.

Here so far: stream memory operations on shared pages (a gate the GPU watches by itself), the cost of the driver's own
switching between two contexts, and which checkpoint calls there are. The controls of channel groups come with the tier that uses them."""
import pathlib
import subprocess
import sys

from kit import place
from kit.cuda import Cuda

MEMOPS = pathlib.Path(__file__).resolve().parents[1] / "programs" / "memops.py"
CHECKPOINT = ["cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore", "cuCheckpointProcessUnlock", "cuCheckpointProcessGetState"]


def run(here, result):
    if here.sim:
        raise place.Skip("these levers are the real driver's")
    done = here.run([sys.executable, str(MEMOPS)], 60)
    rows = place.lines(done.stdout)
    result.value("stream memory operations", rows or done.stderr[-800:])
    result.check("a stream can wait on a page that another process writes", any("open_to_quiet_us" in row for row in rows), rows)
    checkpoint(here, result)
    switching(here, result, 4 if here.quick else 10)


def checkpoint(here, result):
    """From outside, by pid: a pause, and memory moved out of the card, without any shim. Too slow for turns; how slow?"""
    names = [name for name in CHECKPOINT if Cuda().has(name)]
    result.value("checkpoint calls", names)
    if len(names) < len(CHECKPOINT):
        return
    done = here.run([sys.executable, str(MEMOPS.with_name("checkpoint.py")), "64", "1024"] + ([] if here.quick else ["10240"]), 200)
    for row in place.lines(done.stdout):
        result.row("checkpoint", **{key: row.get(key) for key in ("mib", "lock_ms", "checkpoint_ms", "restore_ms", "unlock_ms", "after", "refused")})
        result.check(f"{row['mib']} MiB come back whole", row.get("after", "whole") == "whole", row.get("refused", "whole"))


def switching(here, result, seconds):
    """Two contexts that are both always busy: how much less both together get done than one alone."""

    def busy(count):
        line = [here.program("tenant"), "--seconds", str(seconds), "--kernel-us", "500", "--step-mib", "512"]
        running = [subprocess.Popen(line, env=here.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for _ in range(count)]
        events = [place.lines(one.communicate(timeout=seconds + 60)[0]) for one in running]
        rates = []
        for all_of_one in events:
            progress = [event for event in all_of_one if event.get("event") == "progress"]
            first, last = progress[len(progress) // 5], progress[-1]
            rates.append((last["busy_ns"] - first["busy_ns"]) / (last["now_ns"] - first["now_ns"]))
        return rates

    alone, two = busy(1), busy(2)
    result.row("native switching", contexts=1, each="/".join(f"{rate:.3f}" for rate in alone), together=sum(alone))
    result.row("native switching", contexts=2, each="/".join(f"{rate:.3f}" for rate in two), together=sum(two))
