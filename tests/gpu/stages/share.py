"""Whether GPU time goes where the weights say: by the tenants' own counts of work done, and by our ledger; without
preemption and with it."""
import time

from kit import place
from kit.watched import Alone, Points, Watched

# Weights of tenants that are always busy, and the kernel length of each, µs.
CASES = [
    ("1:1", [1, 1], [200, 200]),
    ("1:3", [1, 3], [200, 200]),
    ("1:2:4", [1, 2, 4], [200, 200, 200]),
    ("1:1, 20 µs beside 5 ms", [1, 1], [20, 5000]),
    ("1:2:4:8", [1, 2, 4, 8], [100, 200, 400, 50]),
    ("1:1, 200 µs beside 100 ms", [1, 1], [200, 100_000]),
]
# The same for tenants that wait for each kernel before they launch the next, as a decode loop does: they have nothing queued
# when their turn comes. Due to each is its part of what all together got.
WAITING = [("1:1", [1, 1], [200, 200]), ("1:3", [1, 3], [1000, 1000]), ("1:1, 200 µs beside 5 ms", [1, 1], [200, 5000])]
# Of these, the ones in which a turn can run over: there it matters whether late work is stopped.
WITH_PREEMPTION = ["1:3", "1:1, 20 µs beside 5 ms", "1:1, 200 µs beside 100 ms"]
# Policies of a GPU of 4 slots: options of each tenant, and the part of the whole GPU that is due to it. Where the parts do not
# add up to 1, the policy leaves the rest unused.
POLICIES = [
    ("fair", [["--weight", "1"]] * 2, [0.25, 0.25]),
    ("preemptive", [["--weight", "3"], ["--weight", "1"]], [0.5, 0.5]),
    ("weighted", [["--weight", "3"], ["--weight", "1"]], [0.75, 0.25]),
    ("fixed", [["--share", "30"], ["--share", "50"]], [0.3, 0.5]),
    ("soft", [["--weight", "3"], ["--weight", "1"]], [0.75, 0.25]),
]
PROMISED_SECOND = 0.01
PROMISED_TEN = 0.002
PROMISED_WAITING = 0.05
PREEMPTION = 'preemption = "probe"\n'


def run(here, result):
    seconds = 4 if here.quick else 13
    alone = Alone(here, 1 if here.quick else 3)
    for name, weights, kernels in CASES[: 2 if here.quick else None]:
        due = [weight / sum(weights) for weight in weights]
        options = [["--weight", str(weight)] for weight in weights]
        for config in ["", PREEMPTION] if name in WITH_PREEMPTION else [""]:
            case(here, result, name, options, kernels, due, seconds, config)
    for name, weights, kernels in WAITING:
        due = [weight / sum(weights) for weight in weights]
        waiting(here, result, name, [["--weight", str(weight)] for weight in weights], kernels, due, seconds)
    for policy, options, due in POLICIES[3:4] if here.quick else POLICIES:
        kernels = [200] * len(due)
        case(here, result, policy, options, kernels, of_alone(due, kernels, alone), 4 if here.quick else 8, f'policy = "{policy}"\n')
    native(here, result, seconds)


def of_alone(due, kernels, alone):
    """Where the policy leaves a part of the card unused, a tenant is due a part of what its kernels keep of a card alone."""
    whole = abs(sum(due) - 1) < 1e-9
    return due if whole else [share * alone(kernel) for share, kernel in zip(due, kernels)]


def case(here, result, name, options, kernels, due, seconds, config):
    with place.Node(here, "slices_per_gpu = 4\n" + config) as node:
        tenants = []
        for at, (wish, kernel) in enumerate(zip(options, kernels)):
            tenants.append(Watched(node.start(f"t{at}", ["--memory", "1GiB"] + wish, here.tenant(kernel, seconds))))
        ledgers, level = ledger(node, len(tenants), seconds - 0.5)
        for one in tenants:
            one.wait(seconds + 60)
    found = shares(tenants, due)
    counted = part(ledgers, found["start"], min(found["end"], ledgers[0].progress[-1][0]), due) if all(one.progress for one in ledgers) else []
    with_preemption = name + (", preemption" if config == PREEMPTION else "")
    result.row("shares", case=with_preemption, enforced=level, due=show(due), got=show(found["whole"]), ledger=show(counted), worst_second=found["second"], worst_ten=found["ten"])
    result.promise(f"{with_preemption}: within {PROMISED_SECOND:.0%} of the device in every second", found["second"] <= PROMISED_SECOND, f"{found['second']:.2%}")
    if found["ten"] is not None:
        result.promise(f"{with_preemption}: within {PROMISED_TEN:.1%} over 10 s", found["ten"] <= PROMISED_TEN, f"{found['ten']:.2%}")


def waiting(here, result, name, options, kernels, due, seconds):
    with place.Node(here, "slices_per_gpu = 4\n") as node:
        tenants = []
        for at, (wish, kernel) in enumerate(zip(options, kernels)):
            tenants.append(Watched(node.start(f"t{at}", ["--memory", "1GiB"] + wish, here.tenant(kernel, seconds) + ["--pause-us", "0"])))
        for one in tenants:
            one.wait(seconds + 60)
    found = shares(tenants, due)
    start, end = found["start"], found["end"]
    busy = sum(one.busy(end) - one.busy(start) for one in tenants) / (end - start)
    worst = max(abs(got / share - 1) for got, share in zip(found["whole"], due))
    result.row("shares of tenants that wait", case=name, due=show(due), got=show(found["whole"]), busy=busy, worst_of_due=worst, worst_second=found["second"])
    result.promise(f"{name}, waiting for each kernel: within {PROMISED_WAITING:.0%} of what is due", worst <= PROMISED_WAITING, f"{worst:.1%}")


def ledger(node, count, seconds):
    """The ledger's figures of each container over time, and how turns are enforced at the end."""
    ledgers, level, end = [Points() for _ in range(count)], set(), time.monotonic() + seconds
    while time.monotonic() < end:
        rows = sorted(node.ps().get("slices", []), key=lambda row: row["name"])
        now = time.monotonic_ns()
        if len(rows) == count:
            for one, row in zip(ledgers, rows):
                one.progress.append((now, row.get("gpu_ns", 0)))
            level = {row.get("time_enforcement", "") for row in rows}
        time.sleep(0.25)
    return ledgers, "/".join(sorted(level))


def native(here, result, seconds):
    """The same two tenants without us: what the driver's own time slicing makes of unequal ones."""
    due = [0.5, 0.5]
    tenants = [Watched(here.start(here.tenant(kernel, seconds))) for kernel in (20, 5000)]
    for one in tenants:
        one.wait(seconds + 60)
    found = shares(tenants, due)
    result.row("shares", case="native, 20 µs beside 5 ms", enforced="", due=show(due), got=show(found["whole"]), ledger="", worst_second=found["second"], worst_ten=found["ten"])


def show(shares):
    return "/".join(f"{100 * share:.1f}" for share in shares)


def part(all_of, start, end, due):
    """The part of each. Where all is due to someone, time that was lost in hand-overs is left out of the account."""
    had = [one.busy(end) - one.busy(start) for one in all_of]
    of = sum(had) if abs(sum(due) - 1) < 1e-9 else end - start
    return [one / of for one in had] if of else []


def shares(tenants, due):
    """The worst deviation of anybody from its due part of the device in any second and in any ten (None if it was shorter), and
    everybody's part of the whole, while all were busy."""
    start = max(one.progress[0][0] for one in tenants) + 1_500_000_000
    end = min(one.progress[-1][0] for one in tenants) - 500_000_000

    def worst(window):
        deviations, at = [], start
        while at + window <= end:
            got = part(tenants, at, at + window, due)
            deviations += [abs(mine - share) for mine, share in zip(got, due)]
            at += window // 2
        return max(deviations, default=None)

    return {"start": start, "end": end, "second": worst(1_000_000_000) or 0.0, "ten": worst(10_000_000_000), "whole": part(tenants, start, end, due)}
