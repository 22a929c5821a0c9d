#!/usr/bin/env python3
"""Runs unittest modules of numba-cuda. Writes a line of JSON to FILE as each test starts and ends.

Usage: suite.py FILE MODULE...: modules below numba.cuda.tests, or packages of them. See suites.py.

Each module runs in a process of its own: as nothing is computed, a test finds what an earlier one left in the memory, and
may pass for that."""
import importlib.util
import json
import os
import pkgutil
import sys
import traceback
import unittest

TESTS = "numba.cuda.tests."


class Outcomes(unittest.TestResult):
    def __init__(self, lines):
        super().__init__()
        self.lines = lines
        self.outcome = self.why = ""

    def write(self, *words):
        print(json.dumps(words), file=self.lines, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.outcome, self.why = "pass", ""
        self.write("start", test.id().removeprefix(TESTS))

    def stopTest(self, test):
        super().stopTest(test)
        self.write("end", test.id().removeprefix(TESTS), self.outcome, self.why)

    def set(self, outcome, error):
        self.outcome, self.why = outcome, "".join(traceback.format_exception(*error))

    # An error is an outcome like others, and no reason to stop. pytest's own way to skip is an exception.
    def addError(self, test, error):
        self.set("skip" if error[0].__name__ == "Skipped" else "error", error)

    def addFailure(self, test, error):
        self.set("fail", error)

    def addSubTest(self, test, subtest, error):
        if error:
            self.set("fail", error)

    def addSkip(self, test, reason):
        self.outcome = "skip"

    def addExpectedFailure(self, test, error):
        self.outcome = "xfail"

    def addUnexpectedSuccess(self, test):
        self.outcome = "xpass"


def modules(name):
    """The test modules of a package in the order of their names, or the one module; CUDA is not initialised."""
    places = importlib.util.find_spec(TESTS + name).submodule_search_locations
    if not places:
        return [name]
    return sorted(f"{name}.{each.name}" for each in pkgutil.iter_modules(places) if each.name.startswith("test_"))


def run(name, lines):
    import pytest

    outcomes = Outcomes(lines)
    try:
        suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(TESTS + name))
    except (Exception, pytest.skip.Exception) as error:
        outcomes.write("end", name, "no module", repr(error))
    else:
        suite.run(outcomes)


def main(file, names):
    from numba.cuda.testing import CUDATestCase

    CUDATestCase._dump_failed_filechecks = False  # what numba-cuda's configuration of pytest sets
    with open(file, "a", encoding="utf-8") as lines:
        for name in [module for each in names for module in modules(each)]:
            child = os.fork()
            if child == 0:
                run(name, lines)
                sys.exit()
            if status := os.waitpid(child, 0)[1]:
                sys.exit(f"{name} ended with {status:#x}")
        print(json.dumps(["done"]), file=lines)


# Tests start processes that import this file.
if __name__ == "__main__":
    # `gpuslice run` sets it, to all of the GPUs here; a test that sets it itself would be skipped.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    main(sys.argv[1], sys.argv[2:])
