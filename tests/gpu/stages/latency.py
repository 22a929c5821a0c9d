"""A service with a latency to keep, beside training that takes all it can get: alone, under the driver's own time
slicing, in slices with priority, and in slices whose late work may be stopped on the card. What is left for the training, and how
soon the card is the service's: a request of one short kernel is answered as much later than alone as the training took to be
off the card."""
from kit import place
from kit.watched import Alone, Watched

LONG_US = 5_000_000
# The two services: one request, and the lengths of the training's kernels beside it, µs. Only the hardware can interrupt the
# last one.
SERVICES = [
    ("20 kernels of 50 µs, 100 a second", ["--kernel-us", "50", "--kernels", "20", "--rate", "100"], [50, 1000, 20000]),
    ("1 kernel of 20 µs, 100 a second", ["--kernel-us", "20", "--kernels", "1", "--rate", "100"], [50, 20000, LONG_US]),
]
PREEMPTION = 'preemption = "probe"\n'
PROMISED_P99 = {"": 0.07, PREEMPTION: 0.03}
PROMISED_PREEMPTION_US = 150
PROMISED_STOP_US = 600
PROMISED_KEPT = 0.95


def run(here, result):
    seconds = 3 if here.quick else 10
    busy_alone = Alone(here, 1 if here.quick else 3)
    for name, request, kernels in SERVICES:
        command = [here.program("pulse")] + request + ["--seconds", str(seconds), "--rounds-per-us", str(here.rounds())]
        alone = answer(here.run(command, seconds + 60))
        service = Service(result, name, command, seconds, alone, busy_alone)
        service.report("alone", "", None, alone)
        for kernel in kernels if not here.quick else [50, LONG_US] if kernels[-1] == LONG_US else [50]:
            native(here, service, kernel)
            for config in ("", PREEMPTION):
                sliced(here, service, kernel, config)


class Service:
    """One of the services: how it is asked, and what it answered alone."""

    def __init__(self, result, name, command, seconds, alone, busy_alone):
        self.result, self.name, self.command, self.seconds, self.alone = result, name, command, seconds, alone
        self.busy_alone = busy_alone

    def report(self, case, level, training, found):
        alone = self.alone
        self.result.row(
            f"requests of {self.name}", case=case, enforced=level, requests=found["requests"], p50_us=found["p50_us"], p99_us=found["p99_us"],
            max_us=found["max_us"], p99_to_alone=found["p99_us"] / alone["p99_us"], p99_more_us=found["p99_us"] - alone["p99_us"], training=training,
        )


def native(here, service, kernel):
    busy = Watched(here.start(here.tenant(kernel, service.seconds + 60)))
    busy.wait_for_work()
    found = answer(here.run(service.command, service.seconds + 120))
    busy.end()
    service.report(f"native, beside kernels of {kernel} µs", "", busy.kept(), found)


def sliced(here, service, kernel, config):
    with place.Node(here, config) as node:
        busy = Watched(node.start("training", ["--memory", "1GiB", "--priority", "best-effort"], here.tenant(kernel, service.seconds + 60)))
        busy.wait_for_work()
        asked = node.start("service", ["--memory", "1GiB", "--priority", "high"], service.command)
        out, error = asked.communicate(timeout=service.seconds + 120)
        if asked.returncode != 0:
            raise RuntimeError(error[-500:])
        levels = {row["name"]: row.get("time_enforcement", "") for row in node.ps().get("slices", [])}
        busy.end()
        numbers, training = place.lines(out)[-1], busy.kept()
    with_preemption = ", preemption" if config == PREEMPTION else ""
    service.report(f"sliced{with_preemption}, beside kernels of {kernel} µs", levels.get("training", ""), training, numbers)
    judge(service, kernel, config, with_preemption, numbers, training)


def judge(service, kernel, config, with_preemption, numbers, training):
    result, alone = service.result, service.alone
    more_us = numbers["p99_us"] - alone["p99_us"]
    if service.name.startswith("20"):
        more = numbers["p99_us"] / alone["p99_us"] - 1
        # Without preemption no kernel can be interrupted: the promise is for short ones.
        if kernel <= 50 or config == PREEMPTION:
            promised = PROMISED_P99[config]
            result.promise(f"p99 beside kernels of {kernel} µs{with_preemption}: at most {promised:.0%} more than alone", more <= promised, f"{more:+.1%}")
        if kernel <= 50 and training is not None:
            left = service.busy_alone(kernel) * (1 - 100 * 20 * 50e-6 / service.busy_alone(50))
            result.promise(f"training keeps {PROMISED_KEPT:.0%} of what is left{with_preemption}", training >= PROMISED_KEPT * left, f"{training / left:.1%}")
    elif kernel <= 50:
        result.promise(f"off the card within {PROMISED_PREEMPTION_US} µs, p99{with_preemption}", more_us <= PROMISED_PREEMPTION_US, f"{more_us:.0f} µs later than alone")
    elif config == PREEMPTION:
        result.promise(f"off the card beside kernels of {kernel} µs within {PROMISED_STOP_US} µs, p99{with_preemption}", more_us <= PROMISED_STOP_US, f"{more_us:.0f} µs later than alone")


def answer(done):
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-500:])
    return place.lines(done.stdout)[-1]
