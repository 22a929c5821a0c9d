"""Results: JSON for machines as they come in, a table for people at the end of a stage.

A check is right or wrong anywhere; a promise is a figure, which only a real card is held to."""
import json
import os
import platform
import threading
import time


class Result:
    """What one stage found: named values, tables of rows, and checks that hold or do not."""

    def __init__(self, out, stage, place):
        self.path = out / f"{stage}.json"
        self.lock = threading.Lock()  # some cases of a stage run side by side
        self.data = {
            "stage": stage,
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "quick": place.quick,
            "simulated": place.sim,
            "gpu": place.gpu(),
            "host": {"kernel": platform.release(), "cpus": os.cpu_count(), "python": platform.python_version()},
            "values": {},
            "tables": {},
            "checks": [],
        }

    def exists(self):
        try:
            return "seconds" in json.loads(self.path.read_text())
        except (OSError, ValueError):
            return False

    def value(self, name, value):
        with self.lock:
            self.data["values"][name] = value
        short = not isinstance(value, (dict, list)) and len(str(value)) < 120 and "\n" not in str(value).strip()
        print(f"   {name}: {str(value).strip() if short else '(see the file)'}", flush=True)
        self._write()

    def row(self, table, **cells):
        with self.lock:
            self.data["tables"].setdefault(table, []).append(cells)
        self._write()

    def check(self, what, holds, seen):
        """A promise: `what` says it, `seen` is what was found."""
        with self.lock:
            self.data["checks"].append({"what": what, "holds": bool(holds), "seen": seen})
        print(f"   {'ok  ' if holds else 'FAIL'} {what}: {seen}", flush=True)
        self._write()

    def promise(self, what, holds, seen):
        """A figure that a card must keep. A simulated one shares its processors with everything else here: it is only shown."""
        if not self.data["simulated"]:
            self.check(what, holds, seen)
            return
        self.data["shown"] = self.data.get("shown", []) + [{"what": what, "holds": bool(holds), "seen": seen}]
        print(f"   seen {what}: {seen}", flush=True)
        self._write()

    def skipped(self, why):
        self.data["skipped"] = why
        print(f"   SKIP {self.data['stage']}: {why}")

    def failed(self, why):
        self.data["failed"] = why

    def is_failed(self):
        return "failed" in self.data or not all(check["holds"] for check in self.data["checks"])

    def close(self, seconds):
        self.data["seconds"] = round(seconds, 1)
        self._write()
        for name, rows in self.data["tables"].items():
            show(name, rows)

    def _write(self):
        """Beside, then renamed: a run that is cut off leaves a whole file."""
        with self.lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside = self.path.with_suffix(".new")
            beside.write_text(json.dumps(self.data, indent=1) + "\n")
            beside.replace(self.path)


def show(name, rows):
    """Prints rows as a table; a cell that a row has not is empty."""
    heads = list({head: None for row in rows for head in row})
    text = [[cell(row.get(head)) for head in heads] for row in rows]
    widths = [max(len(head), *(len(line[at]) for line in text)) for at, head in enumerate(heads)]
    print(f"   -- {name}")
    for line in [heads] + text:
        print("   " + "  ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip())


def cell(value):
    return f"{value:.2f}" if isinstance(value, float) else "" if value is None else str(value)
