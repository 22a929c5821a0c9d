"""Figures of SPECIFICATION.md, on a quiet machine: `PROFILE=release tests/k8s/run figures`. Only on request."""
import datetime
import os
import pathlib
import re
import statistics
import time

import grpc
from kit import cri, node

from cluster import case, dra
from cluster.cluster import CORES, MEMORY
from cluster.constant import DIRECTORY, Plugin

from . import resource_claims

PODS = 100


def percentiles(name, values):
    """Of microseconds."""
    values = sorted(values)
    at = [values[min(len(values) - 1, len(values) * part // 100)] / 1000 for part in (50, 99, 100)]
    print(f"     {name}, {len(values)} calls: p50 {at[0]:.2f} ms, p99 {at[1]:.2f} ms, most {at[2]:.2f} ms")


def times(log, *names):
    """The numbers of each of these names in a log."""
    log = re.sub(r"\x1b\[[0-9;]*m", "", log)
    return [[int(us) for us in re.findall(rf"\b{name}=(\d+)", log)] for name in names]


def synced_file_us():
    """What the disk takes for a file as the daemon keeps of each claim."""
    path, began = pathlib.Path("/var/lib/gpuslice/measured"), time.monotonic()
    with open(path, "wb") as file:
        file.write(bytes(600))
        file.flush()
        os.fsync(file.fileno())
    path.rename(path.with_suffix(".kept"))
    directory = os.open(path.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    return (time.monotonic() - began) * 1e6


class Figures(case.Case):
    simulated = "devices=8,mem=15GiB"
    on_request = True

    def storm(self, name):
        """Creates pods at once; seconds until all run, and the pods."""
        names = [f"{name}-{at:03}" for at in range(PODS)]
        words = ["/bin/sleep", "100000"]
        began, before = time.monotonic(), self.processor_seconds()
        self.create(*[case.pod(one, case.container(memory=1, cores=5, command=words)) for one in names])

        def all_run():
            phases = [pod["status"].get("phase") for pod in self.pods()]
            assert "Failed" not in phases, [pod["status"] for pod in self.pods()]
            return phases.count("Running") == PODS
        end = time.monotonic() + 600
        while not all_run():
            assert time.monotonic() < end, "they do not start"
            time.sleep(0.2)
        took, after = time.monotonic() - began, self.processor_seconds()
        used = {program: round(after[program] - before[program], 2) for program in after}
        print(f"     {name}: {took:.2f} s, of processors {used}")
        return took

    def processor_seconds(self):
        """Of each program, and of all processes of the machine."""
        programs = [*self.cluster.control.all(), *self.worker.all()]
        seconds = {it.name: it.cpu_seconds() for it in programs if it.process}
        with open("/proc/stat") as stat:
            user, nice, system, _, _, irq, softirq = map(int, stat.readline().split()[1:8])
        return seconds | {"machine": (user + nice + system + irq + softirq) / 100}

    def empty(self):
        for one in self.pods():
            self.api.delete(f"{case.PODS}/{one['metadata']['name']}")
        end = time.monotonic() + 300
        while self.pods() or self.worker.agent.process and self.worker.slices():
            assert time.monotonic() < end, "they do not end"
            time.sleep(0.2)
        time.sleep(5)

    def test_storm(self):
        """Rounds of both plugins in turn; the middle ones are compared."""
        ours, constant, took, listing = [], [], [], []
        for number in range(int(os.environ.get("ROUNDS", "3"))):
            length = self.worker.agent.length()
            ours.append(self.storm(f"ours-{number}"))
            found = times(self.worker.agent.since(length), "us", "listing_us")
            took, listing = took + found[0], listing + found[1]
            self.empty()
            self.worker.agent.end()
            plugins = [Plugin(MEMORY, 120), Plugin(CORES, 800)]
            node.eventually("it offers", lambda: (self.allocatable(), self.allocatable(CORES)) == (120, 800))
            constant.append(self.storm(f"constant-{number}"))
            self.empty()
            for plugin in plugins:
                plugin.close()
            self.worker.agent.start()
            self.cluster.wait_ready()
        ratio = statistics.median(ours) / statistics.median(constant)
        print(f"     {PODS} pods: ours {ours}, constant {constant} s: ratio {ratio:.3f}")
        self.allocations(took, listing, "in the storm")

    def allocations(self, took, listing, where):
        percentiles(f"Allocate {where}", took)
        percentiles(f"Allocate {where} beyond List", [a - b for a, b in zip(took, listing)])

    def test_allocate_beside_many_pods(self):
        """One pod after the other, beside those that run. Of the two calls of a pod one waits for the disk."""
        self.storm("present")
        length, synced = self.worker.agent.length(), []
        for number in range(PODS):
            name = f"late-{number:03}"
            words = ["/bin/sleep", "100000"]
            self.create(case.pod(name, case.container(memory=1, cores=5, command=words)))
            synced.append(synced_file_us())
            self.running(name)
            self.api.delete(f"{case.PODS}/{name}")
            node.eventually(f"{name} is gone", lambda: not self.api.find(f"{case.PODS}/{name}"))
        took, listing = times(self.worker.agent.since(length), "us", "listing_us")
        self.assertEqual(len(took), 2 * PODS)
        self.allocations(took, listing, f"beside {PODS} pods")
        percentiles("A file made and synced on the same disk, meanwhile", synced)
        self.empty()

    def test_registration_after_kubelets_restart(self):
        socket, found = pathlib.Path(DIRECTORY, "kubelet.sock"), []
        for _ in range(10):
            # A new socket may have the number of the old one.
            before, length = socket.stat().st_ctime_ns, self.worker.agent.length()
            self.worker.kubelet.restart()
            node.eventually("a new socket", lambda: socket.exists() and socket.stat().st_ctime_ns != before)
            made = socket.stat().st_ctime

            def times():
                log = re.sub(r"\x1b\[[0-9;]*m", "", self.worker.agent.since(length))
                lines = re.findall(r"^(\S+Z) +INFO.*registered", log, re.M)
                return len(lines) == 2 and lines
            last = node.eventually("both registered", times)[-1]
            found.append(datetime.datetime.fromisoformat(last).timestamp() - made)
            self.cluster.wait_ready()
        print(f"     registered after kubelet.sock: {sorted(round(it, 2) for it in found)} s")
        self.assertLess(max(found), 2.0)

    def test_xid_to_unhealthy(self):
        """From the start of the program that fails to the plugin's list."""
        name = next(pathlib.Path(DIRECTORY).glob("*gpu-mem*.sock"))
        found = []
        for _ in range(5):
            with grpc.insecure_channel(f"unix://{name}") as channel:
                lists = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch", cri.encode, lambda data: data)
                # An agent that has just been started may not listen yet.
                lists = lists({}, wait_for_ready=True, timeout=60)
                self.assertNotIn(b"Unhealthy", next(lists))
                began = time.monotonic()
                self.worker.fail_gpu(79)
                failed = time.monotonic()
                self.assertIn(b"Unhealthy", next(lists))
                found.append((time.monotonic() - failed, time.monotonic() - began))
                self.assertNotIn(b"Unhealthy", next(lists))
        print("     Xid to Unhealthy:", ", ".join(f"{a:.2f} s ({b:.2f} with the program's start)" for a, b in found))
        self.assertLess(max(a for a, _ in found), 1.0)

    def test_agent_that_idles(self):
        self.storm("present")
        agent = self.worker.agent
        time.sleep(20)
        cpu, began = agent.cpu_seconds(), time.monotonic()
        time.sleep(60)
        part = (agent.cpu_seconds() - cpu) / (time.monotonic() - began) * 100
        size = (node.BUILD / "gpuslice-k8s").stat().st_size / 1e6
        print(f"     agent with {PODS} pods: {part:.2f} % of a core, {agent.rss_kib() / 1024:.1f} MiB resident, "
              f"{agent.status('VmHWM:') / 1024:.1f} MiB at most; program {size:.1f} MB")
        self.empty()


class ClaimFigures(resource_claims.Driver):
    simulated = "devices=8,mem=15GiB"
    on_request = True

    def test_prepare_beside_many_claims(self):
        """The first hundred stay; of the others each is released before the next."""
        kubelet = dra.Kubelet()
        self.addCleanup(kubelet.close)
        claims = [self.claim(f"claim-{at:03}", (f"gpu-{at % 8}", "1Gi", "5")) for at in range(PODS + 200)]
        for one in claims[:PODS]:
            self.assertEqual(kubelet.prepare(one)[1], "")
        length = self.worker.agent.length()
        for one in claims[PODS:]:
            self.assertEqual(kubelet.prepare(one)[1], "")
            self.assertEqual(kubelet.unprepare(one), "")
        took, get = times(self.worker.agent.since(length), "us", "get_us")
        self.assertEqual(len(took), 200)
        percentiles(f"Prepare beside {PODS} claims", took)
        percentiles(f"Prepare beside {PODS} claims beyond GET", [a - b for a, b in zip(took, get)])
        for one in claims[:PODS]:
            self.assertEqual(kubelet.unprepare(one), "")
