"""A node of one's own: directories, a simulated GPU, gpusliced, and the proof that nothing stays.

`Case` is what a case derives from: it makes the node, and after each test looks for what was left behind:
slices, mounts, processes, control groups."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import unittest

# The directory that `packaging/stage` filled; run.py sets it.
BUILD = pathlib.Path()
# Nothing that a test waits for takes this long on a machine that is not broken.
PATIENCE_S = 60
MIB = 1 << 20
CAP = 256 * MIB
# A nice value with ten times the weight of 0, as the packaged unit gives the daemon: on a busy machine a hook would
# wait for its answer for too long, and no engine here starts a container again.
DAEMON_NICE = -10


def eventually(what, happens):
    """Waits until `happens` gives something true, and gives that."""
    end = time.monotonic() + PATIENCE_S
    while not (found := happens()):
        if time.monotonic() > end:
            raise AssertionError(f"never happened: {what}")
        time.sleep(0.02)
    return found


def need(*programs):
    """Skips the case where it cannot run."""
    if os.geteuid() != 0:
        raise unittest.SkipTest("containers need root")
    for program in programs:
        if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
            raise unittest.SkipTest(f"{program} is not installed")


class Node:
    """gpusliced on the simulated GPU, in a directory of its own."""

    def __init__(self, simulated="devices=1,mem=1GiB", configuration=""):
        # Containers are named after it, and a name may not end in what `mkdtemp` may end in.
        # In memory, as a driver's state and /run are: a store into a mapped page of a file waits for the disk.
        self.root = pathlib.Path("/dev/shm", f"gpuslice-node-{os.urandom(4).hex()}")
        self.root.mkdir()
        self.root.chmod(0o711)  # a container's user passes through
        self.run = self.root / "run"
        self.environment = dict(os.environ)
        self.environment["PATH"] += ":/usr/sbin:/sbin"
        self.environment["GPUSLICE_SIM"] = simulated
        self.environment["GPUSLICE_SIM_DEVICE"] = str(self.root / "device")
        (self.root / "gpusliced.toml").write_text(configuration)
        self.wrapper = str(BUILD / "libexec/gpuslice-runtime")
        self.environment["GPUSLICE_RUNTIME_CONFIG"] = str(self.root / "runtime.json")
        self.set_runtime()
        self.daemon = None
        self.start_daemon()

    def set_runtime(self, *runtimes, **others):
        """Writes what `gpuslice-runtime` is to do; engines started by this node find it."""
        settings = {"runtime-dir": str(self.run)} | ({"runtimes": runtimes} if runtimes else {}) | others
        (self.root / "runtime.json").write_text(json.dumps(settings))

    def start_daemon(self):
        words = [BUILD / "gpusliced", "--runtime-dir", self.run, "--driver-dir", BUILD / "sim"]
        words += ["--config", self.root / "gpusliced.toml"]
        log = open(self.root / "gpusliced.log", "ab")
        before = log.tell()
        self.daemon = subprocess.Popen(
            words, env=self.environment, stdin=subprocess.DEVNULL, stderr=log,
            preexec_fn=lambda: os.setpriority(os.PRIO_PROCESS, 0, DAEMON_NICE))
        log.close()
        eventually("gpusliced is ready", lambda: self.alive() and "gpusliced ready: " in self.log()[before:])

    def restart_daemon(self):
        """Kills it, as a crash does, and starts another."""
        self.daemon.kill()
        self.daemon.wait(PATIENCE_S)
        self.start_daemon()

    def alive(self):
        if self.daemon.poll() is not None:
            raise AssertionError(f"gpusliced ended: {self.log()}")
        return True

    def log(self):
        return (self.root / "gpusliced.log").read_text()

    def gpuslice(self, *words):
        """What the CLI prints; it asks this node's daemon."""
        command = [BUILD / "gpuslice", *words, "--runtime-dir", self.run]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(f"gpuslice {words}: {done.stderr}")
        return done.stdout

    def slices(self):
        return self.listing()["slices"]

    def listing(self):
        """All that `ps` knows."""
        return json.loads(self.gpuslice("ps", "--json"))

    def close(self):
        if self.daemon.poll() is None:
            self.daemon.send_signal(signal.SIGTERM)
            self.daemon.wait(PATIENCE_S)
        shutil.rmtree(self.root)


class Case(unittest.TestCase):
    """A test with a node. `needs` are the programs without which it is skipped."""

    needs = ()
    simulated = "devices=1,mem=1GiB"
    configuration = ""

    def setUp(self):
        need(*self.needs)
        before = (mounts(), groups())
        self.node = Node(self.simulated, self.configuration)
        # Last in, first out: engines that a test adds end before their node does.
        self.addCleanup(self.nothing_is_left, *before)
        self.addCleanup(self.node.close)

    def nothing_is_left(self, mounts_before, groups_before):
        name = self.node.root.name
        eventually("no process is left", lambda: not processes(name))
        eventually("no mount is left", lambda: not any(name in m for m in mounts() - mounts_before))
        eventually("no control group is left", lambda: not any(map(self.of_ours, groups() - groups_before)))

    # Ids of the containers of this test, by which their control groups are known.
    ids = ()

    def of_ours(self, group):
        return any(word in group for word in [self.node.root.name, *self.ids])

    def no_slice_is_left(self):
        eventually("no slice is left", lambda: not self.node.slices())

    def judge_slice(self, container, name=None, cap=CAP):
        """`container` runs `tenant`: what it saw and got is its cap, and `ps` names it."""
        memory = container.event("memory")
        self.assertEqual(memory["total"], cap)
        self.assertEqual(memory["refusal"], 2, "CUDA_ERROR_OUT_OF_MEMORY")
        self.assertLessEqual(memory["got"], cap)
        self.assertGreater(memory["got"], cap // 2)
        rows = self.node.slices()
        self.assertEqual([row["container"] for row in rows], [container.id])
        self.assertEqual(rows[0]["memory_cap"], cap)
        self.assertIn(name or container.id[:12], self.node.gpuslice("ps"))


    def judge_plain(self, status, printed):
        """One that asked for nothing ran `PRINT_MOUNTS`: nothing of ours is in it."""
        self.assertEqual(status, 0, printed)
        self.assertNotIn("gpuslice.so", printed)


# What a container that asks for nothing runs.
PRINT_MOUNTS = ["/bin/cat", "/proc/self/mountinfo"]
# What a container runs to be judged: takes all it gets, and stays until it is ended.
TENANT = ["/bin/tenant", "--step-mib", "32", "--seconds", "600", "--idle"]


class Output:
    """What a container has printed, from a file that it or its runtime writes to.

    Whoever derives from it has `id`, the container's as its runtime knows it."""

    def __init__(self, path, ended=lambda: None):
        self.path, self.ended = pathlib.Path(path), ended

    def text(self):
        return self.path.read_text(errors="replace") if self.path.exists() else ""

    def event(self, name):
        """The first line of JSON of this kind."""
        return eventually(f"event {name} in {self.text()!r}", lambda: self.find(name))

    def find(self, name):
        for line in self.text().splitlines():
            at = line.find('{"event"')
            if at >= 0 and line.endswith("}"):
                event = json.loads(line[at:])
                if event["event"] == name:
                    return event
        if self.ended() is not None:
            raise AssertionError(f"the container ended without {name}: {self.text()}")
        return None


def mounts():
    return set(pathlib.Path("/proc/self/mountinfo").read_text().splitlines())


def mounted_below(directory):
    """What is mounted in a directory, the innermost first."""
    points = [line.split(" ")[4] for line in mounts()]
    return sorted((point for point in points if point.startswith(f"{directory}/")), reverse=True)


def unmount_below(directory):
    for point in mounted_below(directory):
        subprocess.run(["umount", "-l", point], check=False)


def nothing_mounted_below(directory):
    """An engine that has ended has unmounted all in its directory; what it has not is taken away for what runs next."""
    try:
        eventually(f"nothing is mounted in {directory}", lambda: not mounted_below(directory))
    finally:
        unmount_below(directory)


def groups():
    """All control groups there are."""
    top = "/sys/fs/cgroup"
    return {directory for directory, _, _ in os.walk(top)}


def remove_groups(name):
    """An engine's own control groups, in which its containers' are: while one of these is left, there is no end."""
    def removed(group):
        try:
            os.rmdir(group)
        except FileNotFoundError:
            pass
        except OSError:
            return False
        return True
    for group in [group for group in groups() if group.endswith(f"/{name}")]:
        eventually(f"no control group is left in {group}", lambda: removed(group))


def end_with(case, *paths):
    """What an engine makes outside the test's own directory goes with the test, unless it was there before."""
    def remove(path):
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
    for path in map(pathlib.Path, paths):
        if not path.exists():
            case.addCleanup(remove, path)


def processes(word):
    """Processes with this word on their command line."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes()
        except OSError:
            continue
        if word.encode() in line and int(entry.parent.name) != os.getpid():
            found.append(line)
    return found
