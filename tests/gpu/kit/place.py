"""The place where the suite runs: its driver, its programs, and how a command runs in a slice."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

GIB = 1 << 30
# Directories of drivers; the first with libcuda.so.1 is used, unless GPUSLICE_DRIVER_DIR names one.
DRIVER_DIRS = [
    "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib",
]
METHODS = ["preload", "mount"]


class Missing(Exception):
    """Something the suite needs is not there."""


class Skip(Exception):
    """The reason why a stage cannot run on this machine."""


class Place:
    def __init__(self, options):
        self.bundle, self.sim, self.quick, self.peers = options.bundle.resolve(), options.sim, options.quick, options.peer
        for name in ["gpuslice", "gpusliced", "libgpuslice.so", "libgpuslice_mount.so", "tenant", "meter", "pulse", "control-probe"]:
            if not (self.bundle / name).exists():
                raise Missing(f"no {name} in {self.bundle}; make it with tests/gpu/bundle and carry it here")
        self.driver = self.bundle / "sim" if self.sim else real_driver()
        self._device = tempfile.TemporaryDirectory(prefix="gpuslice-gpu-", dir="/dev/shm") if self.sim else None
        self._gpu = None
        self._rounds = None
        self._started = []
        self._logs, self._nodes = options.out / "logs", 0

    def environment(self, **more):
        """A program's own environment, with the driver found as the system finds it."""
        environment = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "CUDA_VISIBLE_DEVICES")}
        path = environment.get("LD_LIBRARY_PATH", "")
        environment["LD_LIBRARY_PATH"] = f"{self.driver}:{path}" if path else str(self.driver)
        if self.sim:
            environment["GPUSLICE_SIM_DEVICE"] = self._device.name + "/device"
            environment.setdefault("GPUSLICE_SIM", "mem=16GiB,limits=misc")
        environment.update(more)
        return environment

    def device_dir(self):
        """The directory of this run's simulated GPUs."""
        return self._device.name

    def keep_log(self, file):
        """Keeps what a daemon has said beside the results: what a figure is made of."""
        self._logs.mkdir(parents=True, exist_ok=True)
        self._nodes += 1
        shutil.copy(file, self._logs / f"{time.strftime('%H%M%S')}-{os.getpid()}-{self._nodes}.log")

    def gpu(self):
        """The facts of the card for every result: name, driver, memory. Queried once."""
        if self._gpu is None:
            self._gpu = {"simulated": True} if self.sim else nvidia_smi()
        return self._gpu

    def total(self):
        """Memory of the card, bytes."""
        return 16 * GIB if self.sim else self.gpu().get("memory_mib", 0) << 20

    def rounds(self):
        """Rounds of the counting kernel per microsecond, measured once on an idle card. All tenants use the same figure, so that an
        error in it favours none of them. On a simulated GPU any number will do."""
        if self._rounds is None:
            found = [] if self.sim else lines(self.run([self.program("control-probe"), "objects"], 60).stdout)
            measured = [row["rounds_per_us"] for row in found if "rounds_per_us" in row]
            if not measured and not self.sim:
                raise Missing("the card's speed could not be measured: control-probe objects says why")
            self._rounds = measured[0] if measured else 1.0
        return self._rounds

    def tenant(self, kernel_us, seconds):
        """The command line of a tenant that is always busy with kernels of that length and leaves memory to others. The kernels count
        work, not time: a clock runs on while a kernel is off the card, so an interrupted tenant would seem to have had more."""
        batch = max(1, min(16, 20000 // kernel_us))
        line = [self.program("tenant"), "--seconds", str(seconds), "--kernel-us", str(kernel_us), "--step-mib", "64", "--most-mib", "256"]
        return line + ["--rounds-per-us", str(self.rounds()), "--batch", str(batch)]

    def start(self, command, **environment):
        """Starts a command outside any slice; the caller reads its output and writes its input."""
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, env=self.environment(**environment), **streams)
        self._started.append(process)
        return process

    def end_all(self):
        """Nothing that a stage started outlives it."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._started.clear()

    def program(self, name):
        return str(self.bundle / name)

    def run(self, command, timeout=300, first=None, **environment):
        """Runs a command outside any slice and returns the finished process. `first` runs in the child before exec."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = self.environment(**environment)
        with subprocess.Popen(command, env=environment, preexec_fn=first, start_new_session=True, **streams) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                # What it has started goes with it: a daemon that is left would have the next stage's card.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def wrap(self, method, options, command, runtime_dir=None):
        """The command line that runs `command` in a slice."""
        line = [self.program("gpuslice"), "run", "--quiet", "--inject", method]
        line += ["--runtime-dir", str(runtime_dir)] if runtime_dir else ["--driver-dir", str(self.driver)]
        return line + options + ["--"] + command

    def sliced(self, method, options, command, timeout=300, **environment):
        """Runs a command in a slice of its own."""
        return self.run(self.wrap(method, options, command), timeout, **environment)

    def injection_methods(self):
        """The injection methods that work here, each tried once: (method, reason if it fails)."""
        for method in METHODS:
            done = self.sliced(method, ["--memory", "1GiB"], ["true"], timeout=60)
            yield method, None if done.returncode == 0 else done.stderr.strip()[-300:]


class Node:
    """A daemon of our own for slices that are to share the GPU."""

    def __init__(self, place, config=""):
        self.place = place
        self.home = tempfile.TemporaryDirectory(prefix="gpuslice-gpu-")
        self.dir = pathlib.Path(self.home.name) / "run"
        self.config = pathlib.Path(self.home.name) / "config.toml"
        self.config.write_text(config)

    def __enter__(self):
        command = [self.place.program("gpusliced"), "--runtime-dir", str(self.dir), "--driver-dir", str(self.place.driver), "--config", str(self.config), "--ephemeral", "--verbose"]
        self.log = open(pathlib.Path(self.home.name) / "log", "w+")
        self.daemon = subprocess.Popen(command, env=self.place.environment(), stdout=self.log, stderr=self.log)
        for _ in range(1200):  # a minute
            if (self.dir / "admin.sock").exists():
                return self
            if self.daemon.poll() is not None:
                break
            time.sleep(0.05)
        self.log.seek(0)
        raise Missing(f"gpusliced did not start: {self.log.read()[-500:]}")

    def start(self, name, options, command, method="preload", **environment):
        """Starts a command in a slice of this node; the caller reads its output as JSON lines."""
        return self.place.start(self.place.wrap(method, ["--name", name] + options, command, self.dir), **environment)

    def ps(self):
        line = [self.place.program("gpuslice"), "ps", "--json", "--runtime-dir", str(self.dir)]
        return json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)

    def __exit__(self, *_):
        self.daemon.send_signal(signal.SIGTERM)
        try:
            self.daemon.wait(20)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.daemon.wait()
        self.log.close()
        self.place.keep_log(self.log.name)
        self.home.cleanup()


def lines(text):
    """The JSON objects among a program's lines."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            found.append(json.loads(line))
    return found


def available():
    """Memory of this machine that is free, bytes."""
    words = pathlib.Path("/proc/meminfo").read_text().split()
    return int(words[words.index("MemAvailable:") + 1]) << 10


def real_driver():
    named = os.environ.get("GPUSLICE_DRIVER_DIR")
    for directory in [named] if named else DRIVER_DIRS:
        if (pathlib.Path(directory) / "libcuda.so.1").exists():
            return pathlib.Path(directory)
    raise Missing("no libcuda.so.1 in the usual places; name its directory in GPUSLICE_DRIVER_DIR, or run with --sim")


def nvidia_smi():
    query = "name,driver_version,memory.total,pci.bus_id,mig.mode.current,compute_mode,persistence_mode"
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=60)
    except OSError as why:
        raise Missing(f"nvidia-smi: {why}") from why
    if done.returncode != 0:
        raise Missing(f"nvidia-smi: {done.stderr.strip() or done.stdout.strip()}")
    words = [word.strip() for word in done.stdout.splitlines()[0].split(",")]
    facts = dict(zip(["name", "driver", "memory_mib", "bus", "mig", "compute_mode", "persistence"], words))
    facts["memory_mib"] = int(facts["memory_mib"])
    return facts
