#!/usr/bin/env python3
"""Whether every bench of `make bench` works: each runs briefly, on a debug build. What it measures then means nothing.

Usage: tests/bench/works.py. A bench works if it ends in time, prints JSON lines alone to its standard output, and has
samples for every row. A target that is missed is no failure here. Exit status 1 where one does not work.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# Of `time`, by words of their names, measurements that start each kind of program that it has and take seconds.
BENCHES = [["run"], ["nvml"], ["init"], ["hook"], ["node"], ["metrics"], ["time", "--quick", "suspend"],
           ["time", "--quick", "idle holder"], ["time", "--quick", "share-limit alone"]]
# Building the programs is the longest part, seconds.
PATIENCE = 300


def rows(figures):
    """Each row of what a bench has printed, as one of its JSON lines has it."""
    return [row for row in figures.get("rows", []) if isinstance(row, dict)]


def fault(words):
    """Why a bench does not work, or None; and why it was skipped, or None."""
    environment = dict(os.environ, PROFILE="debug", BENCH_ROUNDS="3")
    try:
        done = subprocess.run([HERE / words[0], *words[1:]], env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return f"no end after {PATIENCE} s", None
    said = done.stderr.strip()[-2000:]
    try:
        figures = [json.loads(line) for line in done.stdout.splitlines()]
    except ValueError as error:
        return f"{error}: {done.stdout[-500:]!r}", None
    if not figures or done.returncode not in (0, 1):
        return f"status {done.returncode}, {len(figures)} lines of figures: {said}", None
    if any(row.get("samples") == 0 for each in figures for row in rows(each)):
        return f"a row without samples: {said}", None
    return None, next((each["why"] for each in figures if each.get("verdict") == "skipped"), None)


def main():
    made = re.search(r"for bench in ([a-z ]+);", (HERE.parents[1] / "Makefile").read_text()).group(1).split()
    assert {words[0] for words in BENCHES} == set(made), f"make bench has {made}"
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for words in BENCHES:
        start = time.monotonic()
        wrong, skipped = fault(words)
        name, took = " ".join(words), f"({time.monotonic() - start:.0f} s)"
        kind = "failed" if wrong else "skipped" if skipped else "passed"
        counts[kind] += 1
        print({"failed": f"FAIL {name} {took}: {wrong}", "skipped": f"SKIP {name}: {skipped}",
               "passed": f"ok   {name} {took}"}[kind], flush=True)
    print(", ".join(f"{number} {kind}" for kind, number in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
