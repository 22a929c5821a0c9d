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

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "runtimes")]
sys.dont_write_bytecode = True

from kit import node, report  # noqa: E402

from cluster import case  # noqa: E402
from cluster.cluster import Cluster  # noqa: E402


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
        case.CLUSTER = cluster
        return report.judge(HERE / "cases", words)


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
