#!/usr/bin/env python3
"""Runs every program of this directory bare and in slices by both injection methods, on the simulated GPU.

Usage: run.py DIR PYTHON: the build's directory and the interpreter that has requirements.txt.
A bare program must see the whole device, one in a slice its cap. Prints one line a run and
`N passed, N failed, N skipped`."""
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
PROGRAMS = ["bindings.py", "numba_jit.py", "nvml.py", "gpustat_json.py", "nvitop_once.py"]
GIB = 1 << 30
DEVICE, CAP = 16 * GIB, GIB
LIMIT_SECONDS = 180


def injection_methods():
    """The ways to run: name, options of `gpuslice run`, what the program must see."""
    yield "bare", None, DEVICE
    yield "preload", ["--inject", "preload"], CAP
    if os.geteuid() == 0:
        yield "mount", ["--inject", "mount"], CAP
    else:
        print("SKIP mount injection: it needs root")


def run(build, python, program, options, expect, device):
    """One run; gives what went wrong, or None."""
    environment = dict(os.environ, EXPECT_BYTES=str(expect), GPUSLICE_SIM_DEVICE=device)
    environment["GPUSLICE_SIM"] = f"mem={DEVICE // GIB}GiB"
    command = [python, str(HERE / program)]
    if options is None:
        environment["LD_LIBRARY_PATH"] = str(build / "sim")
    else:
        slice_ = [str(build / "gpuslice"), "run", "--memory", str(CAP), "--driver-dir", str(build / "sim")]
        command = slice_ + options + ["--"] + command
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no end after {LIMIT_SECONDS} s"
    if done.returncode == 0 and done.stdout.strip().endswith("ok"):
        return None
    return f"status {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-3000:]}"


def main():
    build, python = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    passed = failed = skipped = 0
    for method, options, expect in injection_methods():
        for program in PROGRAMS:
            with tempfile.TemporaryDirectory(prefix="gpuslice-sim-", dir="/dev/shm") as directory:
                wrong = run(build, python, program, options, expect, directory + "/device")
            print(f"{'FAIL' if wrong else 'ok  '} {method:8} {program}{': ' + wrong if wrong else ''}")
            failed += bool(wrong)
            passed += not wrong
    if os.geteuid() != 0:
        skipped = len(PROGRAMS)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


sys.exit(main())
