#!/usr/bin/env python3
"""Runs numba-cuda's own tests in slices by both injection methods beside a busy one, on the simulated GPU.

Each test must have the outcome that outcomes.txt has for it. The simulated GPU computes nothing, so many tests of
kernels fail bare; they still compile, load, copy and launch. A slice may change none of the outcomes.

Usage: suites.py DIR PYTHON [--whole | --accept]: the build's directory and the interpreter that has requirements.txt.
Without an option: the driver's tests and those of KERNELS. --whole: all tests, also bare, on a kind and a strict driver.
--accept: all tests bare, to write outcomes.txt anew. Prints a line for each run and `N passed, N failed, N skipped`."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
OUTCOMES = HERE / "outcomes.txt"
WHOLE = ["cudadrv", "cudapy", "doc_examples", "nocuda", "nrt"]
# Of the tests of kernels, those that start processes and threads, share memory or take a family of calls of their own.
KERNELS = [
    "array", "constmem", "cooperative_groups", "cuda_array_interface", "device_array_capture", "exception", "forall",
    "globals", "gufunc_scheduling", "ipc", "multigpu", "multiprocessing", "multithreads", "record_dtype", "reduction",
    "serialize", "stream_api", "sync",
]
KIND, STRICT = "profile=kind", "profile=strict"
GPUS = "devices=2,mem=16GiB"
CAP = "6GiB"
PATIENCE_S = 60
LIMIT_SECONDS, WHOLE_SECONDS = 600, 7200
# Fewer would mean that the suite never had to wait for its turn.
LEAST_TURNS = 50


def terminate(process):
    """Ends a program that this one started, and all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Node:
    """A simulated GPU; with `method`, also a daemon, and a slice that always has work."""

    def __init__(self, build, directory, profile, method):
        self.build, self.directory, self.method = build, pathlib.Path(directory), method
        self.environment = dict(os.environ, GPUSLICE_SIM=f"{GPUS},{profile}", PYTHONDONTWRITEBYTECODE="1")
        self.environment["GPUSLICE_SIM_DEVICE"] = str(self.directory / "device")
        self.started = []

    def start(self, command, **others):
        environment = self.environment | others.pop("environment", {})
        process = subprocess.Popen(
            [str(word) for word in command], env=environment, stdin=subprocess.DEVNULL, start_new_session=True, **others
        )
        self.started.append(process)
        return process

    def in_slice(self, *options):
        words = [self.build / "gpuslice", "run", "--runtime-dir", self.directory / "run", "--gpus", "all"]
        return [*words, "--inject", self.method, *options, "--"]

    def start_neighbour(self, limit):
        """`limit` is the suite's, in seconds."""
        words = ["--runtime-dir", self.directory / "run", "--driver-dir", self.build / "sim", "--ephemeral"]
        (self.directory / "config.toml").write_text("")
        self.start([self.build / "gpusliced", *words, "--config", self.directory / "config.toml"], stderr=self.log())
        eventually("the daemon is ready", lambda: (self.directory / "run").exists() and self.slices() is not None)
        # It ends by itself where this program was killed, which cannot end it then.
        tenant = [self.build / "tenant", "--seconds", limit + 600, "--kernel-us", "2000", "--most-mib", "64"]
        self.start(self.in_slice("--memory", "1GiB", "--name", "neighbour") + tenant, stdout=self.log(), stderr=self.log())
        eventually("the neighbour works", lambda: any(lane["launches"] for lane in self.slices()))

    def log(self):
        return open(self.directory / "log", "ab")

    def slices(self):
        done = subprocess.run(
            [self.build / "gpuslice", "ps", "--json", "--runtime-dir", self.directory / "run"],
            env=self.environment, capture_output=True, text=True,
        )
        return None if done.returncode else json.loads(done.stdout)["slices"]

    def turns(self):
        return sum(lane["turns"] for lane in self.slices() or [])

    def run(self, python, modules, limit):
        """What each test came to, why, and what kept the whole from its end."""
        file = self.directory / "outcomes"
        command = [python, HERE / "suite.py", file, *modules]
        environment = {}
        if self.method:
            command = self.in_slice("--memory", CAP) + command
        else:
            environment["LD_LIBRARY_PATH"] = str(self.build / "sim")
        with self.log() as log:
            process = self.start(command, environment=environment, stdout=log, stderr=log)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(limit)
        wrote = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        ended = {line[1]: line[2:] for line in wrote if line[0] == "end"}
        if wrote and wrote[-1] == ["done"]:
            return ended, None
        how = f"no end after {limit} s" if process.poll() is None else f"status {process.returncode}"
        return ended, f"{how}, after {wrote[-1:]}\n{(self.directory / 'log').read_text(errors='replace')[-3000:]}"

    def close(self):
        for process in reversed(self.started):
            terminate(process)


def eventually(what, happens):
    end = time.monotonic() + PATIENCE_S
    while not happens():
        if time.monotonic() > end:
            raise AssertionError(f"never happened within {PATIENCE_S} s: {what}")
        time.sleep(0.05)


@contextlib.contextmanager
def node(build, profile, method):
    with tempfile.TemporaryDirectory(prefix="gpuslice-suites-", dir="/dev/shm", ignore_cleanup_errors=True) as directory:
        made = Node(build, directory, profile, method)
        try:
            yield made
        finally:
            made.close()


def listed(modules):
    """The outcomes of these modules in outcomes.txt."""
    lines = [line.split(" ", 1) for line in OUTCOMES.read_text().splitlines() if not line.startswith("#")]
    chosen = tuple(module + "." for module in modules)
    return {name: outcome for name, outcome in lines if (name + ".").startswith(chosen)}


def differences(expected, ended):
    for name in sorted(expected.keys() | ended.keys()):
        outcome, why = ended.get(name, ("nothing", ""))
        wanted = expected.get(name, "nothing")
        if outcome != wanted:
            yield f"  {name}: {outcome}, in {OUTCOMES.name} {wanted}\n{why[-1500:]}"


def judge(build, python, modules, profile, method, limit):
    """One run; gives the number of tests, how long they took, and what went wrong."""
    began = time.monotonic()
    with node(build, profile, method) as made:
        before = 0
        if method:
            made.start_neighbour(limit)
            before = made.turns()
        ended, broken = made.run(python, modules, limit)
        wrong = [broken] if broken else []
        if method and made.turns() - before < LEAST_TURNS:
            wrong.append(f"the neighbour had {made.turns() - before} turns, at least {LEAST_TURNS} were to be")
    return len(ended), time.monotonic() - began, wrong + list(differences(listed(modules), ended))


def accept(build, python):
    with node(build, KIND, None) as made:
        ended, broken = made.run(python, WHOLE, WHOLE_SECONDS)
    if broken:
        raise SystemExit(broken)
    head = [line for line in OUTCOMES.read_text().splitlines() if line.startswith("#")]
    lines = [f"{name} {outcome}" for name, (outcome, _) in sorted(ended.items())]
    OUTCOMES.write_text("\n".join(head + lines) + "\n")


def main():
    build, python, options = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3:]
    if options == ["--accept"]:
        return accept(build, python)
    methods = ["preload", "mount"] if os.geteuid() == 0 else ["preload"]
    if options == ["--whole"]:
        modules, limit = WHOLE, WHOLE_SECONDS
        runs = [(profile, method) for profile in (KIND, STRICT) for method in [None, *methods]]
    else:
        modules, limit = ["cudadrv"] + [f"cudapy.test_{name}" for name in KERNELS], LIMIT_SECONDS
        runs = list(zip([KIND, STRICT], methods))
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as two:
        judged = two.map(lambda run: judge(build, python, modules, *run, limit), runs)
        for (profile, method), (count, seconds, wrong) in zip(runs, judged):
            failed += bool(wrong)
            verdict = f"{'FAIL' if wrong else 'ok  '} {method or 'bare':8} {profile}: "
            print(f"{verdict}{count} tests, {len(wrong)} not as listed, {seconds:.0f} s")
            print("".join(f"{each}\n" for each in wrong[:20]), end="", flush=True)
    skipped = 2 - len(methods)
    if skipped:
        print("SKIP suites by mount injection: it needs root")
    print(f"{len(runs) - failed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


sys.exit(main())
