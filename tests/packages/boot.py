#!/usr/bin/env python3
"""The units under a real systemd: socket activation, their sandbox, health, and a restart.

Usage: tests/packages/boot.py PACKAGE.deb, as root.

systemd boots as process 1 of namespaces of its own, in this machine's root under an overlay in memory, with
the package installed and nothing else to start than the script below. It needs no virtual machine and takes
some seconds. Where that cannot be done it is skipped, and says so.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# What process 1 starts: its answers are lines `name=value`.
SCRIPT = r"""
say() { echo "$1=$2" >>/result/answers; }
say booted yes
say enabled "$(systemctl is-enabled gpusliced.service gpusliced.socket gpuslice-metrics.service | sort -u | tr '\n' ' ')"
gpuslice ps >/dev/null 2>&1 && say before up || say before down

# Without a driver it does not start, and says why.
systemctl start gpusliced.service
until systemctl is-failed --quiet gpusliced.service; do sleep 0.1; done
say driverless "$(systemctl show -p ExecMainStatus --value gpusliced.service) $(systemctl show -p StatusText --value gpusliced.service)"
# Those that ask are told, however many, and the socket stays.
for _ in $(seq 30); do timeout 10 gpuslice ps >/dev/null 2>>/result/refused; done
say refused "$(grep -c 'no NVIDIA driver is loaded' /result/refused) $(systemctl is-active gpusliced.socket)"
# The daemon gives the last answer before it ends, and only its end makes the unit failed.
until systemctl is-failed --quiet gpusliced.service; do sleep 0.1; done
systemctl reset-failed
echo 'driver_dir = "/usr/lib/gpuslice/sim"' >>/etc/gpuslice/gpusliced.toml

# The first connection starts the daemon.
say waiting "$(systemctl is-active gpusliced.service)"
gpuslice ps >/result/ps && say asked "$(systemctl is-active gpusliced.service)"
say status "$(systemctl show -p StatusText --value gpusliced.service)"
say seccomp "$(sed -n 's/^Seccomp:\t//p' /proc/"$(systemctl show -p MainPID --value gpusliced.service)"/status)"

# A slice goes on over a restart, and over the end of a daemon whose loop hangs.
gpuslice run --memory 64MiB --name held -- sleep 600 2>/result/run & held=$!
until gpuslice ps | grep -q held; do sleep 0.1; done
systemctl restart gpusliced.service
gpuslice ps | grep -q held && say restarted kept
first=$(systemctl show -p MainPID --value gpusliced.service)
kill -STOP "$first"
until [ "$(systemctl show -p NRestarts --value gpusliced.service)" -ge 1 ]; do sleep 0.1; done
gpuslice ps | grep -q held && say hung kept
# A second end soon after is followed by a pause.
kill -KILL "$(systemctl show -p MainPID --value gpusliced.service)"
until systemctl status gpusliced.service | grep -q 'sleep 20'; do sleep 0.1; done
say paused yes
until [ "$(systemctl show -p NRestarts --value gpusliced.service)" -ge 2 ]; do sleep 0.1; done
gpuslice ps | grep -q held && say again kept
kill "$held"; wait "$held"

# Metrics, by a user without other permissions.
systemctl start gpuslice-metrics.service
pid=$(systemctl show -p MainPID --value gpuslice-metrics.service)
say user "$(stat -c %U "/proc/$pid")"
say metrics "$(python3 -c 'import urllib.request as r; print(r.urlopen("http://127.0.0.1:9877/metrics").read().decode())' |
    grep '^gpuslice_up ')"
setpriv --reuid gpuslice-metrics --regid gpuslice-metrics --clear-groups gpuslice ps >/dev/null 2>&1 &&
    say admin allowed || say admin refused

# A stop leaves records, and no listener.
systemctl stop gpusliced.service gpusliced.socket gpusliced-observe.socket gpuslice-metrics.service
say left "$(ls /run/gpuslice | tr '\n' ' ')"
journalctl --no-pager -o cat >/result/journal
say done yes
"""

SERVICE = """[Unit]
DefaultDependencies=no
Wants=systemd-journald.socket
After=systemd-journald.socket
[Service]
Type=oneshot
ExecStart=/bin/sh /result/script
ExecStopPost=/bin/systemctl exit --force --force
TimeoutStartSec=400
"""

WANT = {
    "booted": "yes", "enabled": "disabled ", "before": "down", "waiting": "inactive", "asked": "active",
    "driverless": "69 no NVIDIA driver is loaded: .*", "refused": "30 active", "status": r"1 simulated GPU, 0 slices", "seccomp": "2", "restarted": "kept", "hung": "kept",
    "paused": "yes", "again": "kept", "user": "gpuslice-metrics", "metrics": r"gpuslice_up 1", "admin": "refused", "left": r"boot c ended gpus lock ",
    "done": "yes",
}
DEVICES = ["null", "zero", "full", "random", "urandom", "tty"]


def run(*words, check=True):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if check and done.returncode != 0:
        raise AssertionError(f"{words}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def skip(why):
    print(f"SKIP boot: {why}")
    sys.exit(0)


def main():
    package = pathlib.Path(sys.argv[1]).resolve()
    if "BOOT_RESULT" in os.environ:
        return boot(package, pathlib.Path(os.environ["BOOT_RESULT"]))
    if not os.path.exists("/lib/systemd/systemd"):
        skip("no systemd here")
    mounts = [pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/sys/fs/cgroup/unified")]
    mount = [path for path in mounts if (path / "cgroup.procs").exists()]
    if not mount:
        skip("no unified hierarchy of control groups is mounted")
    with tempfile.TemporaryDirectory(prefix="gpuslice-boot-") as result:
        result = pathlib.Path(result)
        (result / "script").write_text(SCRIPT)
        group = mount[0] / f"gpuslice-boot-{os.getpid()}"
        group.mkdir()
        try:
            judge(package, result, group)
        finally:
            tidy(group)


def judge(package, result, group):
    """Boots in a group and namespaces of its own, and looks at the answers."""
    def enter():
        (group / "cgroup.procs").write_text(str(os.getpid()))
    words = ["timeout", "--kill-after=5", "600", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--cgroup",
             "--uts", "--ipc", "--net", "--propagation", "private", sys.executable, __file__, package]
    environment = dict(os.environ, BOOT_RESULT=str(result))
    with open(result / "said", "w") as said:
        subprocess.run(list(map(str, words)), env=environment, preexec_fn=enter, stdout=said, stderr=said,
                       stdin=subprocess.DEVNULL)
    answers = result / "answers"
    said = (result / "said").read_text()[-3000:]
    if not answers.exists():
        skip(f"systemd does not boot here: {said}")
    lines = [line.split("=", 1) for line in answers.read_text().splitlines()]
    found = {line[0]: line[1] for line in lines if len(line) == 2}
    journal = result / "journal"
    journal = journal.read_text()[-3000:] if journal.exists() else ""
    for name, value in WANT.items():
        assert re.fullmatch(value, found.get(name, "")), f"{name}: {found.get(name)!r}\n{found}\n{journal}\n{said}"
    print("packages: under systemd the units start, are shut in, watched and restarted")


def tidy(group):
    """Ends what is left, and removes the groups that systemd made."""
    kill = group / "cgroup.kill"
    if kill.exists():
        kill.write_text("1")
    for _ in range(100):
        for path, _, _ in os.walk(group, topdown=False):
            try:
                os.rmdir(path)
            except OSError:
                pass
        if not group.exists():
            return
        run("sleep", "0.1")
    raise AssertionError(f"{group} is still in use")


def boot(package, result):
    """Process 1 until it becomes systemd."""
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/mnt")
    # The package and the answers stay within reach.
    root, upper, work = (pathlib.Path("/mnt") / name for name in ["root", "upper", "work"])
    for path in [root, upper, work]:
        path.mkdir()
    run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", root)
    (root / "result").mkdir()
    run("mount", "--bind", result, root / "result")
    for kind, where in [("proc", "proc"), ("sysfs", "sys"), ("cgroup2", "sys/fs/cgroup"), ("tmpfs", "run"),
                        ("tmpfs", "tmp")]:
        run("mount", "-t", kind, kind, root / where)
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", root / "dev")
    for name in DEVICES:
        (root / "dev" / name).touch()
        run("mount", "--bind", f"/dev/{name}", root / "dev" / name)
    for name in ["shm", "pts", "mqueue", "hugepages"]:
        (root / "dev" / name).mkdir()
    run("mount", "-t", "devpts", "-o", "newinstance,ptmxmode=666", "devpts", root / "dev/pts")
    (root / "dev/ptmx").symlink_to("pts/ptmx")
    (root / "dev/fd").symlink_to("/proc/self/fd")
    (root / "dev/console").touch()
    shutil.copy(package, root / "tmp/gpuslice.deb")
    run("chroot", root, "dpkg", "-i", "/tmp/gpuslice.deb")
    units = root / "etc/systemd/system"
    (units / "judged.service").write_text(SERVICE)
    (units / "judged.target").write_text("[Unit]\nDefaultDependencies=no\nWants=judged.service\n")
    # A hang is to be seen within the test's time. The pause after a second end is to be seen on a slow machine, too.
    dropin = units / "gpusliced.service.d"
    dropin.mkdir()
    stop = re.search(r"^ExecStopPost=.*\n", (root / "lib/systemd/system/gpusliced.service").read_text(), re.M)[0]
    assert "sleep 2;" in stop and '"-10 seconds"' in stop, stop
    stop = stop.replace("sleep 2;", "sleep 20;").replace('"-10 seconds"', '"-600 seconds"')
    (dropin / "soon.conf").write_text(f"[Service]\nWatchdogSec=5\nExecStopPost=\n{stop}")
    os.chdir(root)
    old = root / "mnt/old"
    old.mkdir()
    run("pivot_root", ".", "mnt/old")
    os.chdir("/")
    run("umount", "--lazy", "/mnt/old")
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    words = ["/lib/systemd/systemd", "--system", "--unit=judged.target", "--log-target=journal"]
    os.execve(words[0], words, {"container": "other", "PATH": path})


if __name__ == "__main__":
    main()
