#!/usr/bin/env python3
"""Whatever nvidia-ml-py and nvitop answer is in a slice what it is bare on a device of the slice's size.

Usage: same_answers.py DIR PYTHON: as run.py. `answers.py` prints the answers: bare on a device of 1 GiB, and by both
injection methods in a slice of 1 GiB of a device of 16 GiB, beside another slice that holds memory. `differences.txt`
lists the answers that may differ, each with its reason. Each query function that the simulated NVML implements (its
rows in `src/nvabi/nvml`) must have been asked, but for those of `NOT_ASKED`. Prints one line for each way and
`N passed, N failed, N skipped`."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TABLE = HERE.parent.parent / "src/nvabi/nvml"
ROW = re.compile(r"\[(?:pass|hook), sim, \d+\] (nvml\w+)\(")
DIFFERENCES = [line.split(" ; ") for line in (HERE / "differences.txt").read_text().splitlines()
               if line and not line.startswith("#")]
LIMIT_SECONDS = 180
# As many fields as SPECIFICATION W5 promises, at least.
FIELDS = 596
# The neighbour's cap, and what it holds: not what any figure of the compared slice is.
NEIGHBOUR = ("5GiB", str(3 << 30))
# Implemented functions that are not asked, and why.
NOT_ASKED = {
    r"nvmlInit(_v2|WithFlags)?|nvmlShutdown|nvmlErrorString|nvmlEvent\w+|nvmlDeviceRegisterEvents": "no query",
    r"nvmlDeviceSetMemoryLimits_v1": "no query",
    r"nvmlDeviceGet(Compute|Graphics|MPSCompute)RunningProcesses": "nvidia-ml-py calls a newer form: _v3",
    r"nvmlDeviceGet(Count|HandleByIndex|HandleByPciBusId|Attributes|PciInfo|PciInfo_v2)": "the same: _v2, _v3",
}


def flat(name, value):
    """An answer's fields, each with the name of its place."""
    if isinstance(value, dict) or isinstance(value, list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        if isinstance(value, list):
            yield f"{name} length", len(value)
        for key, one in pairs:
            yield from flat(f"{name} {key}", one)
    else:
        yield name, value


def environment(device, memory):
    return dict(os.environ, GPUSLICE_SIM_DEVICE=device, GPUSLICE_SIM=f"mem={memory}")


def in_slice(build, memory, method, command):
    return [str(build / "gpuslice"), "run", "--quiet", "--memory", memory, "--inject", method, "--driver-dir", str(build / "sim"),
            "--", *command]


def neighbour(build, settings):
    """Another slice of the device, which holds memory until its input ends."""
    hold = ("import ctypes, sys; d = ctypes.CDLL('libcuda.so.1'); a = ctypes.c_uint64(); d.cuInit(0); "
            "d.cuCtxCreate_v2(ctypes.byref(a), 0, 0); "
            "print(d.cuMemAlloc_v2(ctypes.byref(a), ctypes.c_size_t(int(sys.argv[1]))), flush=True); sys.stdin.read()")
    command = in_slice(build, NEIGHBOUR[0], "preload", [sys.executable, "-c", hold, NEIGHBOUR[1]])
    child = subprocess.Popen(command, env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "0\n", "the neighbour has its memory"
    return child


def answers(build, python, method):
    """All fields of all answers, and the functions that were asked."""
    program = [python, str(HERE / "answers.py")]
    with tempfile.TemporaryDirectory(prefix="gpuslice-sim-", dir="/dev/shm") as directory:
        settings = environment(directory + "/device", "16GiB" if method else "1GiB")
        beside = neighbour(build, settings) if method else None
        if method:
            program = in_slice(build, "1GiB", method, program)
        else:
            settings["LD_LIBRARY_PATH"] = str(build / "sim")
        try:
            done = subprocess.run(program, env=settings, capture_output=True, text=True, timeout=LIMIT_SECONDS)
        finally:
            if beside:
                beside.stdin.close()
                beside.wait()
    assert done.returncode == 0, f"{method or 'bare'}: status {done.returncode}\n{done.stdout[-500:]}{done.stderr[-3000:]}"
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert lines[-1][0] == "asked", "it came to its end"
    return dict(field for name, value in lines[:-1] for field in flat(name, value)), set(lines[-1][1])


def row_of(name):
    """The row of the table that lets this answer differ."""
    return next((row for row in DIFFERENCES if re.fullmatch(row[1], name)), None)


def wrong_in(bare, sliced):
    """What differs and may not, and rows of the table that nothing needs."""
    differ = [name for name in sorted(bare.keys() | sliced.keys()) if bare.get(name) != sliced.get(name)]
    for name in differ:
        if row_of(name) is None:
            yield f"{name}: bare {bare.get(name)!r}, in a slice {sliced.get(name)!r}"
    used = [row_of(name) for name in differ]
    for row in DIFFERENCES:
        if row[0] == "slice" and row not in used:
            yield f"differences.txt: nothing differs as in {row[1]!r}"
        if not any(re.fullmatch(row[1], name) for name in bare):
            yield f"differences.txt: there is no answer {row[1]!r}"


def not_asked(asked):
    """Functions that the simulated NVML implements, and that nothing has asked."""
    rows = {name for file in TABLE.glob("*.rs") for name in ROW.findall(file.read_text())}
    assert len(rows) > 100, "the rows are read"
    return sorted(name for name in rows - asked if not any(re.fullmatch(one, name) for one in NOT_ASKED))


def main():
    build, python = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    bare, asked = answers(build, python, None)
    counts = {"passed": 0, "failed": 0, "skipped": 0}

    def judge(what, wrong):
        print(f"{'FAIL' if wrong else 'ok  '} {what}")
        for one in wrong:
            print(f"     {one}")
        counts["failed" if wrong else "passed"] += 1

    judge("asked", [f"{name} is implemented and not asked" for name in not_asked(asked)])
    judge("fields", [f"{len(bare)} of {FIELDS}"] if len(bare) < FIELDS else [])
    for method in ("preload", "mount"):
        if method == "mount" and os.geteuid() != 0:
            print("SKIP mount injection: it needs root")
            counts["skipped"] += 1
            continue
        sliced, _ = answers(build, python, method)
        judge(f"{method}: {len(bare)} fields", list(wrong_in(bare, sliced)))
    print(", ".join(f"{number} {what}" for what, number in counts.items()))
    return 1 if counts["failed"] else 0


sys.exit(main())
