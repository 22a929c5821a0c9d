"""Other interposers, named on the command line, beside ours and none, in the same run: the same calls interleaved, the same two busy
tenants, the same conformance program. `--peer NAME=/path/lib.so,VARIABLE=VALUE…`: the user of the suite supplies their libraries;
nothing of them is kept here."""
import re

from kit import place, stats
from kit.watched import Watched
from stages import overhead, share

CONFORMANCE_SECONDS = 120


def run(here, result):
    if not here.peers:
        raise place.Skip("no --peer was named")
    methods = [method for method, why in here.injection_methods() if why is None]
    for word in here.peers:
        name, _, rest = word.partition("=")
        library, *settings = rest.split(",")
        environment = dict(setting.split("=", 1) for setting in settings)
        environment["LD_PRELOAD"] = library
        calls(here, result, methods, name, environment)
        two(here, result, name, environment)
        conformance(here, result, name, environment)


def calls(here, result, methods, name, environment):
    program = [here.program("meter")]

    def meter(done):
        if done.returncode != 0:
            raise RuntimeError(f"{name}: {done.stderr[-500:]}")
        return {row["row"]: row["median_ns"] for row in place.lines(done.stdout)}

    ways = {"bare": lambda: meter(here.run(program, 120)), name: lambda: meter(here.run(program, 120, **environment))}
    for method in methods:
        ways[f"gpuslice, {method}"] = lambda method=method: meter(here.sliced(method, overhead.memory(here), program, 120))
    found = {way: [] for way in ways}
    for turn in range(2 if here.quick else 6):
        # There and back again, so that a drift of the machine meets all alike.
        for way in list(ways) if turn % 2 == 0 else reversed(list(ways)):
            found[way].append(ways[way]())
    for call in found["bare"][0]:
        bare = stats.median([run[call] for run in found["bare"]])
        for way in list(ways)[1:]:
            theirs = stats.median([run[call] for run in found[way]])
            result.row("calls", peer=name, call=call, way=way, bare_ns=bare, with_ns=theirs, more_ns=theirs - bare)


def two(here, result, name, environment):
    """Two tenants that are always busy, one with short kernels and one with long ones, as this interposer divides the card between them."""
    seconds, due = 4 if here.quick else 13, [0.5, 0.5]
    tenants = [Watched(here.start(here.tenant(kernel, seconds), **environment)) for kernel in (20, 5000)]
    try:
        for one in tenants:
            one.wait(seconds + 60)
    except RuntimeError as why:
        result.row("shares", peer=name, due=share.show(due), got=str(why)[:80], worst_second=None, worst_ten=None)
        return
    found = share.shares(tenants, due)
    result.row("shares", peer=name, due=share.show(due), got=share.show(found["whole"]), worst_second=found["second"], worst_ten=found["ten"])


def conformance(here, result, name, environment):
    done = here.run([here.program("conformance")], CONFORMANCE_SECONDS, **environment)
    match = re.search(r"TOTAL pass=(\d+) fail=(\d+) skip=(\d+)", done.stdout)
    result.row("conformance", peer=name, passed=match and int(match[1]), failed=match and int(match[2]), skipped=match and int(match[3]))
