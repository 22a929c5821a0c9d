"""A program that runs until it is told to end, with a log."""
import signal
import subprocess
import time

from kit import node


class Program:
    """`words` are a function, since they may differ at each start; so may `environment`."""

    def __init__(self, name, log, words, environment, ready=lambda: True):
        self.name, self.log, self.words, self.environment, self.ready = name, log, words, environment, ready
        self.process = None

    def start(self, wait=True):
        with open(self.log, "ab") as log:
            words = [str(word) for word in self.words()]
            self.process = subprocess.Popen(
                words, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self):
        node.eventually(f"{self.name} is ready: {self.text()[-2000:]}", lambda: self.alive() and self.ready())

    def alive(self):
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self.process.returncode}: {self.text()[-4000:]}")
        return True

    def text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def length(self):
        """How long the log is, to look only at what comes after."""
        return self.log.stat().st_size if self.log.exists() else 0

    def since(self, length):
        with open(self.log, "rb") as log:
            log.seek(length)
            return log.read().decode(errors="replace")

    def end(self, how=signal.SIGTERM):
        """Ends it, whether it runs or not."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(node.PATIENCE_S)
        self.process = None

    def restart(self, how=signal.SIGTERM, pause_s=0.0):
        self.end(how)
        time.sleep(pause_s)
        self.start()

    def rss_kib(self):
        return self.status("VmRSS:")

    def status(self, name):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(name))

    def cpu_seconds(self):
        """User and system time."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / 100
