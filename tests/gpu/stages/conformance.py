"""The conformance program: bare, in slices by both injection methods, and against the driver's own limit for a control group
where there is one, must answer alike."""
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from kit import place  # noqa: E402

LIMIT_SECONDS = 280


def run(here, result):
    program = [here.program("conformance")]
    cap = (8 if here.total() > 32 * place.GIB else 1) * place.GIB
    judge(result, "bare", lambda words: here.run(program + words, LIMIT_SECONDS))
    for method, why in here.injection_methods():
        if why is None:
            judge(result, method, lambda words: here.sliced(method, ["--memory", str(cap)], program + words, LIMIT_SECONDS))
        else:
            result.value(f"no {method}", why)
    run_limited(here, result, "the driver's limit", cap, program)
    run_limited(here, result, "the driver's limit, preload", cap, here.wrap("preload", ["--memory", str(cap)], program))


def run_limited(here, result, name, cap, command):
    """In a process of its own: this one must not hold the driver. What fails there is a fact about the driver, not a promise."""
    done = here.run([sys.executable, __file__, str(cap)] + command, LIMIT_SECONDS)
    if done.returncode == 77:
        result.value(f"no {name}", done.stderr.strip())
    else:
        report(result, name, done)


def judge(result, method, start):
    """A case that fails is tried once more by itself: on a busy machine memory of the case before may still be on its way back."""
    done = start([])
    failing = report(result, method, done)
    if failing is None:
        return
    twice = [line for line in failing if start(["--only", line.split()[1].rstrip(":")]).returncode != 0]
    result.value(f"failing by themselves, {method}", twice)
    result.check(f"every case passes, {method}", not twice and (failing or done.returncode == 0), f"{len(failing)} failed, {len(twice)} of them twice")


def report(result, method, done):
    """The lines of cases that failed; None if the program came to no end."""
    match = re.search(r"TOTAL pass=(\d+) fail=(\d+) skip=(\d+)", done.stdout)
    if not match:
        result.check(f"conformance, {method}", False, (done.stdout + done.stderr)[-1500:])
        return None
    passed, failed, skipped = (int(number) for number in match.groups())
    result.row("cases", injection=method, passed=passed, failed=failed, skipped=skipped)
    failing = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    result.value(f"failing, {method}", failing)
    result.value(f"skipped, {method}", [line for line in done.stdout.splitlines() if line.lower().startswith("skip")])
    return failing


def within_the_limit(cap, command):
    from kit.cgroup_limit import CgroupLimit

    try:
        with CgroupLimit(cap) as limit:
            return subprocess.run(command, preexec_fn=limit.join, timeout=LIMIT_SECONDS).returncode
    except place.Skip as why:
        print(why, file=sys.stderr)
        return 77


if __name__ == "__main__":
    sys.exit(within_the_limit(int(sys.argv[1]), sys.argv[2:]))
