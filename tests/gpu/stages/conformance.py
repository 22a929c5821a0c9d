"""The conformance program: bare, and in slices through both doors, must answer alike."""
import re

from kit import place


def run(here, result):
    program = here.program("conformance")
    limit = 280
    totals = {}
    for door in ["bare"] + [door for door, why in here.doors() if why is None]:
        if door == "bare":
            done = here.run([program], limit)
        else:
            done = here.sliced(door, ["--memory", "8GiB" if here.total() > 32 * place.GIB else "1GiB"], [program], limit)
        match = re.search(r"TOTAL pass=(\d+) fail=(\d+) skip=(\d+)", done.stdout)
        if not match:
            result.check(f"conformance, {door}", False, (done.stdout + done.stderr)[-1500:])
            continue
        totals[door] = [int(number) for number in match.groups()]
        failing = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
        result.row("cases", door=door, passed=totals[door][0], failed=totals[door][1], skipped=totals[door][2])
        result.value(f"failing, {door}", failing)
        result.value(f"skipped, {door}", [line for line in done.stdout.splitlines() if line.lower().startswith("skip")])
        result.check(f"no case fails, {door}", totals[door][1] == 0 and done.returncode == 0, match.group(0))
