"""Probes of an unmodified driver's controls of channel groups: does each exist, what does it do, what does it cost? Nothing
destructive, no settings.

What a probe finds is a value: a refused control is as good a finding as one that works. The checks are that the probe ended in
time, that the work it stopped resumed, and that every result computed meanwhile is right. `programs/control_probe` has the probes;
the simulated GPU runs them with each way in which its driver can answer a control."""
import concurrent.futures
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from kit import elf, place

PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "programs"
CHECKPOINT = ["cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore", "cuCheckpointProcessUnlock", "cuCheckpointProcessGetState"]
# In this order: probes that may leave the driver in a bad state come last.
PROBES = ["objects", "slices", "weights", "preempts", "gates", "sweep", "sweep-wide", "stops", "second", "teardown"]
# The probes whose results depend on how a simulated driver answers controls; and the status of a stop by each driver.
CONTROLLING = ["slices", "stops", "second", "teardown"]
OTHERWISE = {"denied": "0x1b not permitted", "unsupported": "0x56 not supported", "slow": "ok", "void": "ok"}
# The way in which the daemon stops work.
USED = "channels disabled"
LIMIT_SECONDS = 60
# A simulated GPU shares its machine with other work.
SIM_LIMIT_SECONDS = 300
CHECKPOINT_MIB = [64, 1024, 10240, 61440]
# After so many seconds a stage begins nothing more.
LAST_SECONDS = 220
# Length of the work that is stopped: too long to end by chance while it is watched.
LENGTH_MS = {"card": 5000, "on": 3000, "other": 500}


def run(here, result):
    case, begun = "on" if here.sim else "card", time.monotonic()
    for probe in PROBES:
        report(result, probe, ask(here, probe, case))
    if here.sim:
        controls(here, result)
    interrupted(here, result, case)
    done = here.run([sys.executable, str(PROGRAMS / "memops.py")], LIMIT_SECONDS)
    rows = place.lines(done.stdout)
    for row in rows:
        result.row("pages registered for the GPU", **{key: row.get(key) for key in ("mapping", "wait_queue_us", "wait_whole_us", "open_to_drained_us", "refused")})
    result.check("a stream can wait on a page that another process writes", any("open_to_drained_us" in row for row in rows), done.stderr[-500:] or len(rows))
    checkpoint(here, result, begun)


def line(here, probe, length):
    words = [here.program("control-probe"), probe, "--kernel-ms", str(LENGTH_MS[length])]
    return words + (["--sim"] if here.sim else []) + (["--quick"] if here.quick else [])


def device(here, controls):
    """The environment for another simulated GPU, whose driver answers controls in this way."""
    if controls in ("card", "on"):
        return {}
    return {"GPUSLICE_SIM": f"mem=16GiB,controls={controls}", "GPUSLICE_SIM_DEVICE": f"{here.device_dir()}/{controls}"}


def ask(here, probe, case):
    """(status or None where it did not end in time, seconds, rows, the end of its standard error). Not through pipes: a process that
    the driver keeps alive must not block this one."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        length = case if case in LENGTH_MS else "other"
        start = time.monotonic()
        process = subprocess.Popen(line(here, probe, length), env=here.environment(**device(here, case)), stdout=out, stderr=error)
        try:
            status = ended(process, SIM_LIMIT_SECONDS if here.sim else LIMIT_SECONDS)
        finally:
            process.kill()  # also where the stage is over; without effect on one that has ended
        seconds = time.monotonic() - start
        out.seek(0)
        error.seek(0)
        return status, seconds, place.lines(out.read()), error.read()[-500:]


def ended(process, limit):
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            pass
        return None


def report(result, probe, answer, of=""):
    status, seconds, rows, complaint = answer
    if of:
        result.value(f"rows of {probe}{of}", rows)
    for row in rows if not of else []:
        table, _, file = row.pop("probe").partition(", file ")
        if table != "works":
            result.row(table, **row, **({"file": file} if file else {}))
    result.check(f"{probe}{of}: ended in time, everything goes on, results are right", status == 0, complaint or f"{seconds:.0f} s")


def controls(here, result):
    """Runs each way on a simulated GPU of its own, all at the same time: they mostly sleep."""
    with concurrent.futures.ThreadPoolExecutor(len(OTHERWISE)) as pool:
        asked = {way: pool.submit(lambda way: [(probe, ask(here, probe, way)) for probe in CONTROLLING], way) for way in OTHERWISE}
    rows = result.data["tables"].get("stops", [])
    result.check("a driver that does as it is told says so", statuses(rows) == {"ok"}, len(rows))
    for way, status in OTHERWISE.items():
        answers = asked[way].result()
        said = statuses(row for _, answer in answers for row in answer[2])
        for probe, answer in answers:
            report(result, probe, answer, f", {way}")
        result.check(f"a driver that is {way} says so", said == {status}, sorted(said))


def statuses(rows):
    """What the driver answers to the method that the daemon uses."""
    return {row["stop"] for row in rows if row.get("method") == USED}


def interrupted(here, result, case):
    """SIGINT in the middle of a stop leaves nothing stopped."""
    process = subprocess.Popen(line(here, "stops", case), env=here.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdout.readline()  # the first method is done, the next one has begun
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    status = ended(process, 20)
    process.stdout.close()
    after = ask(here, "begins", case)
    result.check("an interrupted probe ends, and the next process is served", status == 128 + signal.SIGINT and after[0] == 0, f"{status}, {after[0]}")


def checkpoint(here, result, begun):
    """Checkpoints a process from outside, by pid: a pause, and memory moved off the card, without a shim. Too slow for turns; how slow?"""
    exported = elf.dynamic((here.driver / "libcuda.so.1").resolve())[1]
    names = [name for name in CHECKPOINT if name in exported]
    result.value("checkpoint calls", names)
    if here.sim or len(names) < len(CHECKPOINT):
        return
    for mib in CHECKPOINT_MIB[: 2 if here.quick else None]:
        # Memory that leaves the card needs room in host memory.
        if mib << 20 > min(here.total(), place.available()) * 0.8:
            row = {"mib": mib, "refused": "too little memory here or on the card"}
        elif time.monotonic() - begun > LAST_SECONDS:
            row = {"mib": mib, "refused": "no time left in this stage"}
        else:
            row = one_checkpoint(here, mib)
        result.row("checkpoint", **{key: row.get(key) for key in ("mib", "lock_ms", "checkpoint_ms", "restore_ms", "unlock_ms", "after", "refused")})
        result.check(f"{mib} MiB come back whole", row.get("after", "whole") == "whole", row.get("refused", "whole"))


def one_checkpoint(here, mib):
    try:
        done = here.run([sys.executable, str(PROGRAMS / "checkpoint.py"), str(mib)], LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return {"mib": mib, "refused": f"not done after {LIMIT_SECONDS} s"}
    rows = place.lines(done.stdout)
    return rows[-1] if rows else {"mib": mib, "refused": done.stderr[-300:]}
