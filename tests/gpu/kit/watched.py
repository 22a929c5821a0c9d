"""Tenants whose progress is read while they run."""
import subprocess
import threading
import time

from kit import place


def end(process):
    """Ends a process, by force if it does not obey."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Points:
    """The GPU time of a tenant or container at several moments: (time, busy time) in ns."""

    def __init__(self):
        self.progress = []

    def busy(self, at):
        """Busy time up to `at`, interpolated, ns."""
        before = max((point for point in self.progress if point[0] <= at), default=self.progress[0])
        after = min((point for point in self.progress if point[0] > at), default=self.progress[-1])
        if after[0] == before[0]:
            return before[1]
        return before[1] + (after[1] - before[1]) * (at - before[0]) / (after[0] - before[0])


class Watched(Points):
    """A tenant whose progress is read while it runs."""

    def __init__(self, process):
        super().__init__()
        self.process, self.begun = process, threading.Event()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        for line in self.process.stdout:
            for event in place.lines(line):
                if event.get("event") == "progress":
                    self.progress.append((event["now_ns"], event["busy_ns"]))
                self.begun.set()
        self.begun.set()

    def wait_for_work(self):
        """Returns when it is about to launch."""
        if not self.begun.wait(60) or self.process.poll() is not None:
            raise RuntimeError(f"a tenant did not begin: {self.process.stderr.read()[-500:]}")

    def end(self):
        """Ends it where it is."""
        end(self.process)
        self.thread.join(20)

    def begin_and_end(self, seconds):
        """Lets it work for so long, ends it, and returns the part of the card that it had."""
        self.wait_for_work()
        time.sleep(seconds)
        self.end()
        return self.kept()

    def kept(self):
        """The part of the card that it had, of its time; None if it finished too little to tell."""
        if len(self.progress) < 10:
            return None
        first, last = self.progress[len(self.progress) // 5], self.progress[-1]
        return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else None

    def wait(self, limit):
        self.process.wait(limit)
        self.thread.join(5)
        if self.process.returncode != 0:
            raise RuntimeError(f"a tenant ended with {self.process.returncode}: {self.process.stderr.read()[-500:]}")
        if not self.progress:
            raise RuntimeError("a tenant came to no end of a kernel")


class Alone:
    """What a tenant's kernels of each length keep of a card that they have for themselves, measured once each: between two short
    kernels a card does nothing for some microseconds. What is due to a tenant is a part of this."""

    def __init__(self, here, seconds):
        self.here, self.seconds, self.known = here, seconds, {}

    def __call__(self, kernel_us):
        if kernel_us not in self.known:
            kept = Watched(self.here.start(self.here.tenant(kernel_us, self.seconds + 10))).begin_and_end(self.seconds)
            self.known[kernel_us] = kept or 1.0
        return self.known[kernel_us]
