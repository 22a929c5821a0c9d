"""Facts of this machine and its driver: names, symbols, the cost of memory and where it shows."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from kit import elf, place

ROOT = pathlib.Path(__file__).resolve().parents[3]
FAMILIES = ROOT / "tests" / "gpu" / "programs" / "families.py"
COSTS = ROOT / "tests" / "gpu" / "programs" / "costs.py"
ANSWERS = ROOT / "tests" / "gpu" / "programs" / "answers.py"


def run(here, result):
    for name in ["/proc/driver/nvidia/version", "/proc/driver/nvidia/params", "/sys/kernel/security/lockdown", "/proc/cgroups", "/proc/self/cgroup"]:
        result.value(name, read(name))
    system(result)
    libraries(here, result)
    memory(here, result)
    costs(here, result)
    for row in place.lines(here.run([sys.executable, str(ANSWERS)], timeout=60).stdout):
        result.row("answers", **row)
    calls_into_the_kernel(here, result)
    for method, why in here.injection_methods():
        result.value(f"injection {method}", why or "works")
    doctor = here.run([here.program("gpuslice"), "doctor", "--json", "--driver-dir", str(here.driver)], timeout=120)
    result.value("doctor", doctor.stdout or doctor.stderr)
    if not here.sim:
        result.value("nvidia-smi -q", subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, timeout=120).stdout)


def system(result):
    """What stands between a program and the card: which kernel module, whose kernel."""
    version = read("/proc/driver/nvidia/version")
    result.value("kernel module", "open" if "Open Kernel" in version else "NVIDIA's closed one" if "NVRM" in version else "none")
    # gVisor answers like Linux, but its own log names it.
    log = subprocess.run(["dmesg"], capture_output=True, text=True).stdout if shutil.which("dmesg") else ""
    virtual = "gVisor" if "gVisor" in log or "gVisor" in read("/proc/version") else "a virtual machine" if " hypervisor " in read("/proc/cpuinfo") else "none seen"
    result.value("sandbox or hypervisor", virtual)


def calls_into_the_kernel(here, result):
    """Which ioctls one allocation of each kind is: what a guard in the kernel could see of it."""
    if not shutil.which("strace"):
        result.value("ioctls", "no strace here")
        return
    for kind in ["alloc", "managed", "pinned"]:
        with tempfile.NamedTemporaryFile("r") as log:
            line = ["strace", "-f", "-e", "trace=ioctl,getppid", "-o", log.name, sys.executable, str(FAMILIES), "--only", kind]
            done = here.run(line, timeout=100)
            found = between(log.read()) if done.returncode == 0 else done.stderr[-500:]
        result.value(f"ioctls of {kind}", found)


def between(trace):
    """The ioctl requests between two calls of getppid, which the program makes around what is asked."""
    parts = re.split(r"getppid\(\)", trace)
    return re.findall(r"ioctl\(\d+, ([^,)]+)", parts[1]) if len(parts) > 2 else "not traced"


def read(name):
    try:
        return pathlib.Path(name).read_text()[:20000]
    except OSError as why:
        return f"({why.strerror})"


def libraries(here, result):
    """Exported names against our table; a name that we hook and the driver has not, or the other way round, is news."""
    for library, folder, start in [("libcuda.so.1", "driver", "cu"), ("libnvidia-ml.so.1", "nvml", "nvml")]:
        path = here.driver / library
        soname, names = elf.dynamic(path.resolve())
        names = {name for name in names if re.match(start + "[A-Z]", name)}
        rows = set()
        for file in (ROOT / "src" / "nvabi" / folder).glob("*.rs"):
            rows.update(re.findall(r"\]\s+(" + start + r"[A-Z]\w+)\(", file.read_text()))
        result.value(f"{library} file", path.resolve().name)
        result.check(f"{library} calls itself what programs ask for", soname == library, soname)
        result.value(f"{library} exports", len(names))
        result.value(f"{library} names not in our table", sorted(names - rows))
        result.value(f"{library} rows it lacks", sorted(rows - names))


def memory(here, result):
    # The contexts of a simulated GPU are as small as the tests like them; here they are a card's.
    contexts = {"GPUSLICE_SIM": "mem=16GiB,context=524MiB", "GPUSLICE_SIM_DEVICE": here.device_dir() + "/facts"} if here.sim else {}
    done = here.run([sys.executable, str(FAMILIES)], timeout=200, **contexts)
    if done.returncode != 0:
        result.value("families", done.stderr[-2000:])
    found = place.lines(done.stdout)
    for row in found:
        mib = {key: row[key] / (1 << 20) for key in ("cuda", "process", "device") if row.get(key) is not None}
        result.row("memory, MiB", what=row["what"], cuda=mib.get("cuda"), process=mib.get("process"), device=mib.get("device"), refused=row.get("refused"))
    result.check("a context and ten kinds of memory were measured", len(found) >= 15, f"{len(found)} rows")
    result.value("families raw", json.dumps(found))


def costs(here, result):
    done = here.run([sys.executable, str(COSTS)] + here.tenant(500, 20), timeout=60)
    found = place.lines(done.stdout)
    for row in found:
        result.row("costs", **row)
    result.check("calls and copies were measured", done.returncode == 0 and len(found) >= 10, done.stderr[-500:] or f"{len(found)} rows")
