"""The conformance program: bare, in slices by both injection methods, and against the driver's own limit for a control group
where there is one, must answer alike."""
import pathlib
import re
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from kit import place  # noqa: E402

LIMIT_SECONDS = 280
# A simulated GPU shares its machine with other work.
SIM_LIMIT_SECONDS = 900
# The tests of the simulated GPU ask all cases; here is shown that the stage works.
SIM_PART = "1/20"
# On a card a case starts a context, which takes a good part of a second: so many slices run a part of the cases each, side by side.
PARTS = 12
PART_SECONDS, CASE_SECONDS = 140, 40
# These ask the driver for more managed memory than a card has free, which can hang some cards. In a slice the shim refuses them.
NOT_BARE = ["managed/over_the_device", "managed/refusals_change_nothing", "managed/largest_number"]


def run(here, result):
    program = [here.program("conformance")]
    if here.sim and here.quick:
        program += ["--part", SIM_PART]
    cap = (4 if here.total() > 64 * place.GIB else 1) * place.GIB
    failing = set()
    for method, why in here.injection_methods():
        if why is None:
            failing |= set(in_slices(here, result, method, cap, program))
        else:
            result.value(f"no {method}", why)
    if here.sim or not here.quick:
        judge(result, "bare", program + without(here), lambda line: here.run(line, limit(here)))
    else:
        # What a slice gets wrong may be what this driver does without one, too.
        for name in sorted(failing - set(NOT_BARE)):
            done = here.run(program + ["--only", name, "--each", str(CASE_SECONDS)], CASE_SECONDS + 10)
            result.row("cases that failed in a slice, without one", case=name, says=(verdicts(done.stdout) or {name: done.stderr[-300:]}).get(name))
    run_limited(here, result, "the driver's limit", cap, program)
    run_limited(here, result, "the driver's limit, preload", cap, here.wrap("preload", ["--memory", str(cap)], program))


def limit(here):
    return SIM_LIMIT_SECONDS if here.sim else LIMIT_SECONDS


def without(here):
    return [] if here.sim else [word for name in NOT_BARE for word in ("--without", name)]


def in_slices(here, result, method, cap, program):
    """All cases in slices of one size, and the names of those that failed."""
    slices = lambda line: here.sliced(method, ["--memory", str(cap)], line, limit(here))  # noqa: E731
    if here.sim:
        return judge(result, method, program, slices)
    found, unfinished = {}, []
    with place.Node(here, f"slices_per_gpu = {PARTS}\n") as node:
        parts = [Output(node.start(f"c{at}", ["--memory", str(cap)], program + ["--each", str(CASE_SECONDS), "--part", f"{at}/{PARTS}"], method)) for at in range(1, PARTS + 1)]
        end = time.monotonic() + PART_SECONDS
        for part in parts:
            if not part.ends(end):
                unfinished.append(part.text()[-1500:])
            found.update(verdicts(part.text()))
    tell(result, method, found)
    failing = [name for name, said in found.items() if said.startswith("FAIL")]
    twice = [name for name in failing if slices(program + ["--only", name, "--each", str(CASE_SECONDS)]).returncode != 0]
    result.value(f"failing by themselves, {method}", twice)
    result.check(f"every case passes, {method}", found and not twice and not unfinished, f"{len(found)} run, {len(failing)} failed, {len(twice)} of them twice {unfinished or ''}")
    return twice


class Output:
    """The output of a process, kept in files: a part that is not done in time has said what it had to say."""

    def __init__(self, process):
        self.process, self.lines = process, []
        self.readers = [threading.Thread(target=self._read, args=(pipe,), daemon=True) for pipe in (process.stdout, process.stderr)]
        for reader in self.readers:
            reader.start()

    def _read(self, pipe):
        for line in pipe:
            self.lines.append(line)

    def ends(self, until):
        """Whether it ends by itself before that time; it is ended then."""
        try:
            self.process.wait(max(0.1, until - time.monotonic()))
            return re.search("^TOTAL", self.text(), re.M) is not None
        except subprocess.TimeoutExpired:
            self.process.terminate()
            return False

    def text(self):
        for reader in self.readers:
            reader.join(1)
        return "".join(self.lines)


def run_limited(here, result, name, cap, command):
    """In a process of its own: this one must not hold the driver. What fails there is a fact about the driver, not a promise."""
    done = here.run([sys.executable, __file__, str(cap), str(limit(here))] + command, limit(here))
    if done.returncode == 77:
        result.value(f"no {name}", done.stderr.strip())
    else:
        report(result, name, done)


def judge(result, method, program, start):
    """A case that fails is tried once more by itself: on a busy machine memory of the case before may still be on its way back."""
    done = start(program)
    failing = report(result, method, done)
    if failing is None:
        return []
    twice = [name for name in failing if start(program + ["--only", name]).returncode != 0]
    result.value(f"failing by themselves, {method}", twice)
    result.check(f"every case passes, {method}", not twice and (failing or done.returncode == 0), f"{len(failing)} failed, {len(twice)} of them twice")
    return twice


def verdicts(text):
    """What a run said of each case: name to verdict, with the reason."""
    return {match[2]: match[1] + match[3] for match in re.finditer(r"^(pass|skip|FAIL) ([\w/]+)(.*)$", text, re.M)}


def tell(result, method, found):
    """Shows what was found; the names of cases that failed."""
    of = lambda word: [f"{name} {said[len(word):]}".strip() for name, said in found.items() if said.startswith(word)]  # noqa: E731
    result.row("cases", injection=method, passed=len(of("pass")), failed=len(of("FAIL")), skipped=len(of("skip")))
    result.value(f"failing, {method}", of("FAIL"))
    result.value(f"skipped, {method}", of("skip"))
    return [name for name, said in found.items() if said.startswith("FAIL")]


def report(result, method, done):
    """The names of cases that failed; None if the program came to no end."""
    if not re.search(r"^TOTAL", done.stdout, re.M):
        result.check(f"conformance, {method}", False, (done.stdout + done.stderr)[-1500:])
        return None
    return tell(result, method, verdicts(done.stdout))


def within_the_limit(cap, seconds, command):
    from kit.cgroup_limit import CgroupLimit

    try:
        with CgroupLimit(cap) as limit:
            return subprocess.run(command, preexec_fn=limit.join, timeout=seconds).returncode
    except place.Skip as why:
        print(why, file=sys.stderr)
        return 77


if __name__ == "__main__":
    sys.exit(within_the_limit(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
