"""A service with a latency to keep, beside training that takes all it can get: alone, under the driver's own time
slicing, and in slices with priority. What is left for the training, and how soon the card is the service's: a request of
one short kernel is answered as much later than alone as the training took to be off the card."""
import subprocess

from kit import place

# Of the training's kernels, µs. Nobody but the hardware can interrupt the last one.
KERNELS_US = [50, 1000, 20000, 5_000_000]
# The two services: what one request is.
SERVICES = {
    "20 kernels of 50 µs, 100 a second": ["--kernel-us", "50", "--kernels", "20", "--rate", "100"],
    "1 kernel of 20 µs, 20 a second": ["--kernel-us", "20", "--kernels", "1", "--rate", "20"],
}
PROMISED_P99 = 0.07
PROMISED_PREEMPTION_US = 150
PROMISED_KEPT = 0.95


def run(here, result):
    seconds = 3 if here.quick else 20
    for service, request in SERVICES.items():
        command = [here.program("pulse")] + request + ["--seconds", str(seconds)]
        alone = answer(here.run(command, seconds + 60))
        report(result, service, "alone", None, alone, alone)
        for kernel in KERNELS_US[: 1 if here.quick else None]:
            busy = [here.program("tenant"), "--seconds", str(seconds + 4), "--kernel-us", str(kernel), "--step-mib", "512"]
            native(here, result, service, command, busy, kernel, alone, seconds)
            sliced(here, result, service, command, busy, kernel, alone, seconds)


def native(here, result, service, command, busy, kernel, alone, seconds):
    beside = subprocess.Popen(busy, env=here.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found = answer(here.run(command, seconds + 60))
    report(result, service, f"native, beside kernels of {kernel} µs", kept(beside, seconds), found, alone)


def sliced(here, result, service, command, busy, kernel, alone, seconds):
    with place.Node(here) as node:
        beside = node.start("training", ["--memory", "1GiB", "--priority", "best-effort"], busy)
        found = node.start("service", ["--memory", "1GiB", "--priority", "high"], command)
        out, error = found.communicate(timeout=seconds + 60)
        if found.returncode != 0:
            raise RuntimeError(error[-500:])
        numbers = place.lines(out)[-1]
        training = kept(beside, seconds)
        report(result, service, f"sliced, beside kernels of {kernel} µs", training, numbers, alone)
    if kernel > 50:
        return
    if service.startswith("20"):
        more = numbers["p99_us"] / alone["p99_us"] - 1
        result.promise(f"p99 beside kernels of {kernel} µs: at most {PROMISED_P99:.0%} more than alone", more <= PROMISED_P99, f"{more:+.1%}")
        left = 1 - 100 * 20 * 50e-6
        result.promise(f"training keeps {PROMISED_KEPT:.0%} of what is left", training >= PROMISED_KEPT * left, f"{training / left:.1%}")
    else:
        more = numbers["p99_us"] - alone["p99_us"]
        result.promise(f"off the card within {PROMISED_PREEMPTION_US} µs, p99", more <= PROMISED_PREEMPTION_US, f"{more:.0f} µs later than alone")


def answer(done):
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-500:])
    return place.lines(done.stdout)[-1]


def kept(process, seconds):
    """The share of time the training kept, while the service ran; None if it finished too few kernels to tell."""
    out, _ = process.communicate(timeout=seconds + 60)
    progress = [event for event in place.lines(out) if event.get("event") == "progress"]
    first, last = progress[len(progress) // 5], progress[-len(progress) // 5]
    passed = last["now_ns"] - first["now_ns"]
    return (last["busy_ns"] - first["busy_ns"]) / passed if passed > 0 else None


def report(result, service, case, training, found, alone):
    result.row(
        f"requests of {service}", case=case, p50_us=found["p50_us"], p99_us=found["p99_us"], max_us=found["max_us"],
        p99_to_alone=found["p99_us"] / alone["p99_us"], p99_more_us=found["p99_us"] - alone["p99_us"], training=training,
    )
