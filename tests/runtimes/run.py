#!/usr/bin/env python3
"""Starts sliced containers with the real programs people start containers with.

Usage: run.py DIR [FILTER…]: the directory that `packaging/stage` filled, and parts of case names
(`runc`, `cri.Refusal`). Each file of `cases/` is one way in. A case that cannot run here is skipped with
its reason; the last line counts them. Exit status 1 if one failed."""
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

from kit import node, report  # noqa: E402


def main():
    node.BUILD = pathlib.Path(sys.argv[1]).resolve()
    # What a terminal's LD_LIBRARY_PATH or a user's configuration says is not these tests' matter.
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "DOCKER_HOST", "CONTAINERD_ADDRESS"):
        os.environ.pop(name, None)
    return report.judge(HERE / "cases", sys.argv[2:])


sys.exit(main())
