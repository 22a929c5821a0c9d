#!/usr/bin/env python3
"""Starts a cluster and judges it. Usage: run.py DIR BIN [--shell | FILTER…], as the first process of namespaces of
its own (`tests/k8s/run`): the directory that `packaging/stage` filled, and Kubernetes' programs.

Each file of `cases/` is one subject. All of them use one cluster, which is as good as new between two tests. The last
line counts; exit status 1 if one failed."""
import os
import pathlib
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "runtimes")]
sys.dont_write_bytecode = True

from kit import node  # noqa: E402

from cluster import case  # noqa: E402
from cluster.cluster import Cluster  # noqa: E402


class Lines(unittest.TextTestResult):
    """One line a test, with its seconds."""

    def startTest(self, test):
        unittest.TestResult.startTest(self, test)
        self.began = time.monotonic()

    def line(self, word, test, why=""):
        name, took = test.id().removeprefix("cases."), time.monotonic() - self.began
        print(f"{word:4} {name} ({took:.0f} s){': ' + why if why else ''}", flush=True)

    def addSuccess(self, test):
        unittest.TestResult.addSuccess(self, test)
        self.line("ok", test)

    def addSkip(self, test, why):
        unittest.TestResult.addSkip(self, test, why)
        self.line("SKIP", test, why)

    def addError(self, test, error):
        unittest.TestResult.addError(self, test, error)
        self.line("FAIL", test, self.errors[-1][1])

    def addFailure(self, test, error):
        unittest.TestResult.addFailure(self, test, error)
        self.line("FAIL", test, self.failures[-1][1])


def chosen(suite, words):
    """Tests whose names have one of the words; without words all but those that run on request."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from chosen(test, words)
        elif any(word in test.id() for word in words) if words else not getattr(test, "on_request", False):
            yield test


def judge(cluster, words):
    case.CLUSTER = cluster
    found = unittest.defaultTestLoader.discover(str(HERE / "cases"), "*.py", str(HERE))
    result = Lines(unittest.runner._WritelnDecorator(sys.stderr), False, 0)
    unittest.TestSuite(chosen(found, words)).run(result)
    failed, skipped = len(result.errors) + len(result.failures), len(result.skipped)
    print(f"{result.testsRun - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not result.testsRun else 0


def main():
    node.BUILD, binaries = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    # Fifty pods start one after the other.
    node.PATIENCE_S, words = int(os.environ.get("PATIENCE_S", "240")), sys.argv[3:]
    with Cluster(binaries, binaries.parent / "log/cluster") as cluster:
        started = time.monotonic()
        cluster.start()
        print(f"the cluster runs after {time.monotonic() - started:.0f} s", flush=True)
        if words == ["--shell"]:
            return subprocess.run([os.environ.get("SHELL", "sh")], env=cluster.environment).returncode
        return judge(cluster, words)


def first():
    """The namespace's first process: orphans become its children, and it waits for them."""
    child = os.fork()
    if child == 0:
        # Not `sys.exit`: the namespace ends with its first process, whatever this one's threads do.
        sys.exit(main())
    while True:
        pid, status = os.wait()
        if pid == child:
            sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    first()
