"""A service with a latency to keep, beside training that takes all it can get: alone, under the driver's own time
slicing, and in slices with priority. Also what is left for the training."""
import subprocess

from kit import place

KERNELS_US = [50, 1000, 20000]
PROMISED_P99 = 0.07


def run(here, result):
    seconds = 5 if here.quick else 20
    service = [here.program("pulse"), "--kernel-us", "50", "--kernels", "20", "--rate", "100", "--seconds", str(seconds)]
    alone = answer(here.run(service, seconds + 60))
    report(result, "alone", None, alone, alone)
    for kernel in KERNELS_US[: 1 if here.quick else None]:
        busy = [here.program("tenant"), "--seconds", str(seconds + 4), "--kernel-us", str(kernel), "--step-mib", "512"]
        native(here, result, service, busy, kernel, alone, seconds)
        sliced(here, result, service, busy, kernel, alone, seconds)


def native(here, result, service, busy, kernel, alone, seconds):
    beside = subprocess.Popen(busy, env=here.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found = answer(here.run(service, seconds + 60))
    report(result, f"native, beside kernels of {kernel} µs", kept(beside, seconds), found, alone)


def sliced(here, result, service, busy, kernel, alone, seconds):
    with place.Node(here) as node:
        beside = node.start("training", ["--memory", "1GiB"], busy)
        found = node.start("service", ["--memory", "1GiB", "--priority", "high"], service)
        out, error = found.communicate(timeout=seconds + 60)
        if found.returncode != 0:
            raise RuntimeError(error[-500:])
        numbers = place.lines(out)[-1]
        report(result, f"sliced, beside kernels of {kernel} µs", kept(beside, seconds), numbers, alone)
    more = numbers["p99_us"] / alone["p99_us"] - 1
    if kernel <= 50:
        result.promise(f"p99 beside kernels of {kernel} µs: at most {PROMISED_P99:.0%} more than alone", more <= PROMISED_P99, f"{more:+.1%}")


def answer(done):
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-500:])
    return place.lines(done.stdout)[-1]


def kept(process, seconds):
    """The share of time the training kept, while the service ran."""
    out, _ = process.communicate(timeout=seconds + 60)
    progress = [event for event in place.lines(out) if event.get("event") == "progress"]
    first, last = progress[len(progress) // 5], progress[-len(progress) // 5]
    return (last["busy_ns"] - first["busy_ns"]) / (last["now_ns"] - first["now_ns"])


def report(result, case, training, found, alone):
    result.row(
        "latency of 20 kernels of 50 µs, 100 requests a second", case=case, p50_us=found["p50_us"], p99_us=found["p99_us"],
        max_us=found["max_us"], p99_to_alone=found["p99_us"] / alone["p99_us"], training=training,
    )
