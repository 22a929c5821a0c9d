#!/usr/bin/env python3
"""Starts sliced containers with the real programs people start containers with.

Usage: run.py DIR [FILTER…]: the directory that `packaging/stage` filled, and parts of case names
(`runc`, `cri.Refusal`). Each file of `cases/` is one way in. A case that cannot run here is skipped with
its reason; the last line counts them. Exit status 1 if one failed."""
import os
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

from kit import node  # noqa: E402


class Lines(unittest.TextTestResult):
    """One line a case, as the house's other runners print them."""

    def startTest(self, test):
        unittest.TestResult.startTest(self, test)

    def line(self, word, test, why=""):
        name = test.id().removeprefix("cases.")
        print(f"{word:4} {name}{': ' + why if why else ''}", flush=True)

    def addSuccess(self, test):
        unittest.TestResult.addSuccess(self, test)
        self.line("ok", test)

    def addSkip(self, test, why):
        unittest.TestResult.addSkip(self, test, why)
        self.line("SKIP", test, why)

    def addError(self, test, error):
        unittest.TestResult.addError(self, test, error)
        self.line("FAIL", test)

    addFailure = addError

    def addSubTest(self, test, part, error):
        if error:
            self.addError(part, error)


def chosen(suite, words):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from chosen(test, words)
        elif not words or any(word in test.id() for word in words):
            yield test


def main():
    node.BUILD = pathlib.Path(sys.argv[1]).resolve()
    # What a terminal's LD_LIBRARY_PATH or a user's configuration says is not these tests' matter.
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "DOCKER_HOST", "CONTAINERD_ADDRESS"):
        os.environ.pop(name, None)
    found = unittest.defaultTestLoader.discover(str(HERE / "cases"), "*.py", str(HERE))
    suite = unittest.TestSuite(chosen(found, sys.argv[2:]))
    result = Lines(unittest.runner._WritelnDecorator(sys.stderr), False, 0)
    suite.run(result)
    for test, trace in result.errors + result.failures:
        print(f"== {test}\n{trace}", file=sys.stderr)
    failed, skipped = len(result.errors) + len(result.failures), len(result.skipped)
    print(f"{result.testsRun - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not result.testsRun else 0


sys.exit(main())
