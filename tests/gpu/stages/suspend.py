"""Suspension by the driver's checkpoints: `gpuslice suspend` and `resume` of containers of several sizes, idle and busy, and memory
that is lent to a borrower and claimed back, which `gpuslice demo --memory-limit` judges."""
import contextlib
import json
import pathlib
import subprocess
import sys
import time

from kit import place, watched
from kit.watched import Watched

KIT = pathlib.Path(__file__).resolve().parents[1]
HOLDER = KIT / "programs" / "holder.py"
SIZES_MIB = [1 << 10, 10 << 10, 60 << 10]
SIM_SIZES_MIB = [256, 1 << 10]
# Kernel lengths of a busy container, µs: suspension waits for the kernel in flight.
BUSY_US = [50, 1_000_000]
CONTEXT_MIB = 1 << 10
# A tenant reports its progress at least so often while its calls return.
REPORT_NS = 200 * 10**6
ANSWER_SECONDS = 100


def run(here, result):
    sizes = SIM_SIZES_MIB if here.sim else [mib for mib in SIZES_MIB if (mib + CONTEXT_MIB) << 20 < min(here.total(), place.available()) * 0.8]
    with place.Node(here) as node:
        for mib in sizes[: 2 if here.quick and not here.sim else None]:
            holds(here, result, node, mib)
        for kernel_us in BUSY_US:
            busy(here, result, node, kernel_us)
    if not (here.sim and here.quick):  # the tests of the simulated GPU have this demo
        lent(here, result)


def holds(here, result, node, mib):
    """Memory that is full goes to the host, others may have its room, and it comes back as it was."""
    name = f"holds-{mib}"
    process = node.start(name, ["--memory", f"{mib + CONTEXT_MIB}MiB"], [sys.executable, str(HOLDER), str(mib)])
    looks = Looks(process)
    before = used(here)
    gone = ordered(here, node, "suspend", name)
    meanwhile = used(here)
    back = ordered(here, node, "resume", name)
    after = looks.first_after(back["end_ns"]) if back["rc"] == 0 else {"whole": None, "now_ns": back["end_ns"]}
    left = (before - meanwhile) >> 20
    result.row(
        "suspended and resumed", mib=mib, suspend_s=gone["s"], resume_s=back["s"], left_the_gpu_mib=left,
        first_call_ms=(after["now_ns"] - back["end_ns"]) / 1e6, whole=after["whole"], refused=gone["said"] or back["said"],
    )
    result.check(f"{mib} MiB leave the GPU", gone["rc"] == 0 and left >= mib, gone["said"] or f"{left} MiB")
    result.check(f"{mib} MiB come back whole", back["rc"] == 0 and after["whole"] is True, back["said"] or after["whole"])
    watched.end(process)


def busy(here, result, node, kernel_us):
    """A container whose queue is full is suspended in the middle, and works on afterwards."""
    name = f"busy-{kernel_us}"
    tenant = Watched(node.start(name, ["--memory", "2GiB"], here.tenant(kernel_us, 120)))
    tenant.wait_for_work()
    time.sleep(1)
    gone = ordered(here, node, "suspend", name)
    time.sleep(1)
    back = ordered(here, node, "resume", name)
    end = time.monotonic() + 20
    while not worked_after(tenant, back["end_ns"]) and time.monotonic() < end:
        time.sleep(0.05)
    on = worked_after(tenant, back["end_ns"])
    stood = not [at for at, _ in tenant.progress if gone["end_ns"] + REPORT_NS < at < back["begin_ns"]]
    result.row("suspended at work", kernel_us=kernel_us, suspend_s=gone["s"], resume_s=back["s"], works_on=on, refused=gone["said"] or back["said"])
    result.check(f"kernels of {kernel_us} µs: suspended, resumed, and at work again", gone["rc"] == back["rc"] == 0 and on and stood, gone["said"] or back["said"] or f"works on: {on}, stood still: {stood}")
    tenant.end()


def worked_after(tenant, moment_ns):
    return any(at > moment_ns for at, _ in tenant.progress)


def lent(here, result):
    """A borrower above its cap, and the owner of the memory that comes back."""
    command = [here.program("gpuslice"), "demo", "--memory-limit", "--policy", "soft", "--json", "--runtime", "none", "--driver-dir", str(here.driver)]
    done = here.run(command, 200)
    with contextlib.suppress(ValueError):
        found = json.loads(done.stdout)
        result.value("lent and claimed back", found)
        result.check("lent memory is claimed back", found["verdict"] == "pass", found["faults"])
        return
    result.check("lent memory is claimed back", False, (done.stdout + done.stderr)[-800:])


def ordered(here, node, word, name):
    """`gpuslice suspend` or `resume`: how long it took, and what it said if it was refused. Times are CLOCK_MONOTONIC."""
    begin = time.monotonic_ns()
    line = [here.program("gpuslice"), word, name, "--runtime-dir", str(node.dir)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=ANSWER_SECONDS)
        code, said = done.returncode, done.stderr.strip()[-400:] if done.returncode else ""
    except subprocess.TimeoutExpired:
        code, said = None, f"no answer after {ANSWER_SECONDS} s"
    end = time.monotonic_ns()
    return {"rc": code, "said": said, "s": (end - begin) / 1e9, "begin_ns": begin, "end_ns": end}


def used(here):
    """Memory of the GPU that is in use by NVML, bytes."""
    return int(here.run([sys.executable, "-c", "from kit.cuda import Nvml; print(Nvml().device_used())"], 60, PYTHONPATH=str(KIT)).stdout)


class Looks:
    """A holder's lines, read while it runs."""

    def __init__(self, process):
        self.process = process
        first = place.lines(process.stdout.readline())
        if not first:
            raise RuntimeError(f"a holder did not begin: {process.stderr.read()[-500:]}")

    def first_after(self, moment_ns):
        """Its first look that began after the one before that moment ended: what it printed earlier is passed over."""
        for line in self.process.stdout:
            for look in place.lines(line):
                if look["now_ns"] > moment_ns:
                    return look
        raise RuntimeError(f"a holder ended: {self.process.stderr.read()[-500:]}")


