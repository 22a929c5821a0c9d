"""Whether GPU time goes where the weights say: by the tenants' own counts of finished kernels, and by our ledger."""
import subprocess
import threading
import time

from kit import place

# Weights of tenants that are always busy, and the kernel length of each, µs.
CASES = [
    ("1:1", [1, 1], [200, 200]),
    ("1:3", [1, 3], [200, 200]),
    ("1:2:4", [1, 2, 4], [200, 200, 200]),
    ("1:1, 20 µs beside 5 ms", [1, 1], [20, 5000]),
    ("1:2:4:8", [1, 2, 4, 8], [100, 200, 400, 50]),
]
# Policies of a GPU of 4 slots: options of each tenant, and the part of the whole GPU that is due to it. Where the parts do not
# add up to 1, the rest is nobody's: the policy says so.
POLICIES = [
    ("fair", [["--weight", "1"]] * 2, [0.25, 0.25]),
    ("preemptive", [["--weight", "3"], ["--weight", "1"]], [0.5, 0.5]),
    ("weighted", [["--weight", "3"], ["--weight", "1"]], [0.75, 0.25]),
    ("fixed", [["--share", "30"], ["--share", "50"]], [0.3, 0.5]),
    ("soft", [["--weight", "3"], ["--weight", "1"]], [0.75, 0.25]),
]
PROMISED_SECOND = 0.01


def run(here, result):
    seconds = 4 if here.quick else 14
    for name, weights, kernels in CASES[: 2 if here.quick else None]:
        due = [weight / sum(weights) for weight in weights]
        case(here, result, name, [["--weight", str(weight)] for weight in weights], kernels, due, seconds)
    for policy, options, due in POLICIES:
        case(here, result, policy, options, [200] * len(due), due, seconds, policy)
    native(here, result, seconds)


def case(here, result, name, options, kernels, due, seconds, policy=None):
    with place.Node(here, "slots = 4\n" + (f'policy = "{policy}"\n' if policy else "")) as node:
        tenants = []
        for at, (wish, kernel) in enumerate(zip(options, kernels)):
            tenants.append(Watched(node.start(f"t{at}", ["--memory", "1GiB"] + wish, tenant(here, kernel, seconds)), kernel))
        time.sleep(seconds - 1)
        ledger = [row.get("gpu_ns", 0) for row in sorted(node.ps().get("slices", []), key=lambda row: row["name"])]
        for one in tenants:
            one.wait(seconds + 60)
    worst, whole = shares(tenants, due)
    counted = sum(ledger) and [sum(due) * part / sum(ledger) for part in ledger]
    result.row("shares", case=name, due=show(due), got=show(whole), ledger=show(counted or []), worst_second=worst)
    result.promise(f"{name}: within {PROMISED_SECOND:.0%} of the device in every second", worst <= PROMISED_SECOND, f"{worst:.2%}")


def native(here, result, seconds):
    """The same two tenants without us: what the driver's own time slicing makes of unequal ones."""
    kernels = [20, 5000]
    tenants = []
    for kernel in kernels:

        tenants.append(Watched(subprocess.Popen(tenant(here, kernel, seconds), env=here.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), kernel))
    for one in tenants:
        one.wait(seconds + 60)
    worst, whole = shares(tenants, [0.5, 0.5])
    result.row("shares", case="native, 20 µs beside 5 ms", due=show([0.5, 0.5]), got=show(whole), ledger="", worst_second=worst)

def tenant(here, kernel, seconds):
    return [here.program("tenant"), "--seconds", str(seconds), "--kernel-us", str(kernel), "--step-mib", "512"]


def show(shares):
    return "/".join(f"{100 * share:.1f}" for share in shares)

class Watched:
    """A tenant whose progress is read while it runs: (time, busy time) in ns."""

    def __init__(self, process, kernel):
        self.process, self.kernel, self.progress = process, kernel, []
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        for line in self.process.stdout:
            for event in place.lines(line):
                if event.get("event") == "progress":
                    self.progress.append((event["now_ns"], event["busy_ns"]))

    def wait(self, limit):
        self.process.wait(limit)
        self.thread.join(5)
        if self.process.returncode != 0:
            raise RuntimeError(f"a tenant ended with {self.process.returncode}: {self.process.stderr.read()[-500:]}")

    def busy(self, at):
        """Busy time up to `at`, interpolated, ns."""
        before = max((point for point in self.progress if point[0] <= at), default=self.progress[0])
        after = min((point for point in self.progress if point[0] > at), default=self.progress[-1])
        if after[0] == before[0]:
            return before[1]
        return before[1] + (after[1] - before[1]) * (at - before[0]) / (after[0] - before[0])

def shares(tenants, due):
    """The worst deviation of anybody from its due part of the device in any second, and everybody's part of the whole, while all
    were busy. Where everything is due to somebody, time that nobody got (hand-overs) is left out of the account."""
    all_due = abs(sum(due) - 1) < 1e-9
    start = max(one.progress[0][0] for one in tenants) + 1_500_000_000
    end = min(one.progress[-1][0] for one in tenants) - 500_000_000
    worst, second = 0.0, 1_000_000_000
    at = start
    while at + second <= end:
        got = [one.busy(at + second) - one.busy(at) for one in tenants]
        of = sum(got) if all_due else second
        worst = max([worst] + [abs(part / of - share) for part, share in zip(got, due)])
        at += second // 2
    whole = [one.busy(end) - one.busy(start) for one in tenants]
    return worst, [part / (sum(whole) if all_due else end - start) for part in whole]
