"""A tenant that is killed in the middle of a kernel: how long its neighbour stands still, and that the next
tenant can have its memory."""
import os
import pathlib
import signal
import time

from kit import place, stats
from kit.watched import Watched

# Kernel lengths of the victim, µs. Nothing but the driver can end the last one early.
VICTIMS_US = [50, 20_000, 5_000_000]
NEIGHBOUR_US = 200
# The longest time without progress of the neighbour's: the driver's teardown of the killed one.
PROMISED_GAP_S = 1.0
PREEMPTION = 'preemption = "probe"\n'


def run(here, result):
    for config in ("", PREEMPTION):
        for kernel_us in victims(here):
            case(here, result, kernel_us, config)


def victims(here):
    if not here.sim:
        return VICTIMS_US
    return VICTIMS_US[1:2] if here.quick else VICTIMS_US[:2]


def case(here, result, kernel_us, config):
    seconds = 20
    with place.Node(here, config) as node:
        neighbour = Watched(node.start("neighbour", ["--memory", "1GiB"], here.tenant(NEIGHBOUR_US, seconds + 60)))
        neighbour.wait_for_work()
        victim = Watched(node.start("victim", ["--memory", str(here.total() // 2)], here.tenant(kernel_us, seconds + 60)))
        victim.wait_for_work()
        time.sleep(2)
        killed = time.monotonic_ns()
        kill(victim.process)
        time.sleep(3)
        # What the victim had is promised to the next one, which allocates a part of it at once.
        next_one = Watched(node.start("next", ["--memory", str(here.total() // 2)], here.tenant(NEIGHBOUR_US, 5)))
        next_one.wait_for_work()
        neighbour.end()
        next_one.end()
    before = gaps(neighbour.progress, killed - 2 * 10**9, killed)
    after = gaps(neighbour.progress, killed, killed + 3 * 10**9)
    name = f"kernels of {kernel_us} µs{', preemption' if config else ''}"
    result.row(
        "neighbour of a killed tenant", victim=name, longest_before_ms=max(before, default=None), longest_after_ms=max(after, default=None),
        median_before_ms=stats.median(before) if before else None, median_after_ms=stats.median(after) if after else None,
    )
    result.check(f"{name}: the neighbour works on", len(after) > 10, f"{len(after)} steps in 3 s, the longest gap {max(after, default=0):.1f} ms")
    result.promise(f"{name}: at most {PROMISED_GAP_S:.0f} s without the GPU", max(after, default=1e9) <= 1e3 * PROMISED_GAP_S, f"{max(after, default=0):.1f} ms")


def kill(process):
    """Kills the tenant itself, the child of `gpuslice run`, which ends with it."""
    (tenant,) = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(tenant), signal.SIGKILL)
    process.wait(20)


def gaps(progress, begin, end):
    """Times between two reports of progress that touch that time, ms."""
    moments = [at for at, _ in progress]
    return [(b - a) / 1e6 for a, b in zip(moments, moments[1:]) if b > begin and a < end]
