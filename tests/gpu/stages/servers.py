"""Two model servers on one card, each with 2 and with 8 requests at a time: tokens a second of each as a part of what it has on a card of
its own, without gpuslice (the driver's time slicing) and in two slices of equal weight."""
import importlib.util
import pathlib
import sys

from kit import place

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "programs" / "torch_serve.py"
REQUESTS = [2, 8]


def run(here, result):
    if here.sim:
        raise place.Skip("the simulated driver serves driver-API programs only")
    if importlib.util.find_spec("torch") is None:
        raise place.Skip("PyTorch is not installed here")
    seconds = 4 if here.quick else 10
    for requests in REQUESTS:
        line = [sys.executable, str(PROGRAM), str(requests), str(seconds)]
        alone = served([here.start(line)], seconds)[0]
        result.row("servers", requests=requests, case="alone", tokens_s=speed(alone), of_alone=1.0, p50_ms=alone["step_p50_ms"], p99_ms=alone["step_p99_ms"])
        told(result, requests, "two, native", alone, served([here.start(line), here.start(line)], seconds))
        with place.Node(here) as node:
            memory = ["--memory", str(here.total() // 3)]
            one = told(result, requests, "one in a slice", alone, served([node.start("alone", memory, line)], seconds))
            two = told(result, requests, "two in slices", alone, served([node.start(name, memory, line) for name in ("a", "b")], seconds))
        result.promise(f"{requests} requests: a server alone in its slice has 99 % of its speed", one[0] >= 0.99, f"{one[0]:.1%}")
        result.promise(f"{requests} requests: two servers have 49 % each", min(two) >= 0.49, " and ".join(f"{part:.1%}" for part in two))


def served(processes, seconds):
    """What each of them reports; they begin together, when all are ready."""
    for process in processes:
        if not process.stdout.readline():
            raise RuntimeError(process.stderr.read()[-800:])
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    found = []
    for process in processes:
        out, error = process.communicate(timeout=seconds + 60)
        if process.returncode != 0:
            raise RuntimeError(error[-800:])
        found.append(place.lines(out)[-1])
    return found


def told(result, requests, case, alone, found):
    """A row for each; their parts of the speed alone."""
    parts = [speed(one) / speed(alone) for one in found]
    for one, part in zip(found, parts):
        result.row("servers", requests=requests, case=case, tokens_s=speed(one), of_alone=part, p50_ms=one["step_p50_ms"], p99_ms=one["step_p99_ms"])
    return parts


def speed(one):
    return one["tokens"] / one["seconds"]
