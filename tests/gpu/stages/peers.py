"""Other interposers, named on the command line, through the same calls and the same conformance program as ours:
`--peer NAME=/path/lib.so,VARIABLE=VALUE…`. Their libraries are brought by whoever runs this; nothing of them is kept here."""
import re

from kit import place, stats


def run(here, result):
    if not here.peers:
        raise place.Skip("no --peer was named")
    for word in here.peers:
        name, _, rest = word.partition("=")
        library, *settings = rest.split(",")
        environment = dict(setting.split("=", 1) for setting in settings)
        environment["LD_PRELOAD"] = library
        calls(here, result, name, environment)
        done = here.run([here.program("conformance")], 280, **environment)
        match = re.search(r"TOTAL pass=(\d+) fail=(\d+) skip=(\d+)", done.stdout)
        result.row("conformance", peer=name, passed=match and match[1], failed=match and match[2], skipped=match and match[3])


def calls(here, result, name, environment):
    def meter(**more):
        done = here.run([here.program("meter")], 120, **more)
        if done.returncode != 0:
            raise RuntimeError(f"{name}: {done.stderr[-500:]}")
        return {row["row"]: row["median_ns"] for row in place.lines(done.stdout)}

    bare, theirs = stats.abba(1 if here.quick else 4, meter, lambda: meter(**environment))
    for row in bare[0]:
        a, b = [run[row] for run in bare], [run[row] for run in theirs]
        result.row("calls", peer=name, call=row, bare_ns=stats.median(a), with_ns=stats.median(b), more_ns=stats.median(b) - stats.median(a))
