#!/usr/bin/env python3
"""Installs the packages of `make package` for real: an older version, an upgrade, a complete removal.

Usage: tests/packages/run.py BUILD [--quick], as root, where BUILD has the debug programs (`packaging/stage debug`).
The packages are made from `packaging/stage portable`, with --quick from `packaging/stage quick-portable`.

The root it is installed in is this machine's own under an overlay in memory, in a mount namespace of
its own: real dpkg, rpm, libraries and users, and what was written is exactly what lies in the upper
layer. Nothing of it is there afterwards. Without root or overlays it is skipped, and says so.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).resolve()
PACKAGE = [REPOSITORY / "packaging/package", *sys.argv[2:3]]
# Symbol versions of the C library: what is mounted into containers, and what runs on the node.
IMAGES, NODES = (2, 17), (2, 28)
SHIM = ["libgpuslice.so", "libgpuslice_mount.so", "libgpuslice_nvml.so"]
# Of each, stripped; three megabytes more in every container would be an accident.
SHIM_BYTES_MAX = 2 << 20
# Of the hook's program (SPECIFICATION C14).
HOOK_BYTES_MAX = 1 << 20
# Cases that pass in a slice (SPECIFICATION M1), and the one that needs a second GPU.
CONFORMS = "TOTAL pass=439 fail=0 skip=1"
PROGRAMS = ["usr/sbin/gpusliced", "usr/bin/gpuslice", "usr/bin/gpuslice-k8s", "usr/bin/gpuslice-runtime",
            "usr/libexec/gpuslice/gpuslice-hook"]


def output(*words, check=True, **more):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **more)
    if check and done.returncode != 0:
        raise AssertionError(f"{words}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def skip(why):
    print(f"SKIP packages: {why}")
    sys.exit(0)


def main():
    if os.geteuid() != 0:
        skip("only root can install packages")
    if not shutil.which("dpkg"):
        skip("no dpkg here")
    if "PACKAGES_INSIDE" not in os.environ:
        inside = dict(os.environ, PACKAGES_INSIDE="1")
        words = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
        sys.exit(subprocess.run(words, env=inside).returncode)
    build = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="gpuslice-packages-") as work:
        # The upper layer lives in memory and ends with this mount namespace.
        output("mount", "-t", "tmpfs", "tmpfs", work)
        work = pathlib.Path(work)
        try:
            judge(build, work)
        finally:
            output("umount", "--recursive", "--lazy", work, check=False)
    print("packages: ok")


def judge(build, work):
    new, rpm = package()
    tree, old = work / "tree", older(new, work)
    output("dpkg-deb", "-x", new, tree)
    contents(new, tree)
    libraries(tree)
    same_again(new, rpm)
    root = Root(work / "deb")
    debian(root, old, new, build)
    if rpm:
        redhat(Root(work / "rpm"), older_rpm(work), rpm, tree)
    else:
        print("SKIP rpm: no rpmbuild here")
    booted = output(sys.executable, pathlib.Path(__file__).with_name("boot.py"), new)
    print(booted.stdout, end="")


def package():
    """The .deb, and the .rpm if this machine can make one."""
    files = [pathlib.Path(line) for line in output(*PACKAGE).stdout.split()]
    made = {file.suffix: file for file in files}
    return made[".deb"], made.get(".rpm")


def older(package, work):
    """The same under an older number, with a file that is no more and a configuration that was another."""
    tree, old = work / "older", work / "gpuslice_0.0.1-1_amd64.deb"
    output("dpkg-deb", "-R", package, tree)
    control = tree / "DEBIAN/control"
    control.write_text(re.sub("(?m)^Version: .*$", "Version: 0.0.1-1", control.read_text()))
    (tree / "usr/lib/gpuslice/gone").write_text("of the older version")
    config = tree / "etc/gpuslice/gpusliced.toml"
    config.write_text("# of the older version\n")
    output("dpkg-deb", "-Znone", "--root-owner-group", "--build", tree, old)
    shutil.rmtree(tree)
    return old


def older_rpm(work):
    """The .rpm under an older number."""
    place = work / "older-rpm"
    place.mkdir()
    made = [pathlib.Path(line) for line in output(*PACKAGE, "0.0.1").stdout.split()]
    moved = [pathlib.Path(shutil.move(file, place)) for file in made]
    return next(file for file in moved if file.suffix == ".rpm")


def contents(package, tree):
    """Owners, modes and places."""
    listed = output("dpkg-deb", "-c", package).stdout.splitlines()
    for line in listed:
        mode, owner, _, _, _, name = line.split(None, 5)
        assert owner == "root/root", line
        want = {"d": ["drwxr-xr-x"], "l": ["lrwxrwxrwx"]}
        assert mode in want.get(mode[0], ["-rw-r--r--", "-rwxr-xr-x"]), line
        if mode == "-rwxr-xr-x":
            assert re.match(r"\./usr/(s?bin|libexec)/", name), f"executable: {line}"
    there = {str(path.relative_to(tree)) for path in tree.rglob("*") if not path.is_dir()}
    for name in PROGRAMS + ["etc/gpuslice/gpusliced.toml", "usr/lib/sysusers.d/gpuslice.conf",
                            "usr/lib/systemd/system/gpusliced.service",
                            "usr/share/doc/gpuslice/copyright",
                            "usr/share/gpuslice/prometheus/gpuslice.rules.yml",
                            "usr/share/gpuslice/grafana/gpuslice.json",
                            "usr/share/bash-completion/completions/gpuslice",
                            "usr/share/zsh/vendor-completions/_gpuslice",
                            "usr/share/fish/vendor_completions.d/gpuslice.fish",
                            "usr/share/man/man1/gpuslice.1.gz", "usr/share/man/man8/gpusliced.8.gz",
                            "usr/share/man/man5/gpusliced.toml.5.gz",
                            "usr/share/man/man7/gpuslice-metrics.7.gz"]:
        assert name in there, f"{name} is not in the package"
    # Nothing outside the places of packages, and nothing that is enabled by lying somewhere.
    for name in there:
        assert re.match(r"usr/|etc/gpuslice/", name), name
        assert ".wants/" not in name, name
    documents(tree / "usr/share/doc/gpuslice")
    conffiles = output("dpkg-deb", "--info", package, "conffiles").stdout.split()
    assert conffiles == ["/" + name for name in sorted(there) if name.startswith("etc/")]
    ours = str(pathlib.Path.home()).encode()
    for name in there:
        data = (tree / name).read_bytes()
        assert ours + b"/" not in data and str(REPOSITORY).encode() not in data, \
            f"{name} holds a path of the machine it was built on"


def documents(doc):
    """Every file that a packaged document points to is packaged."""
    pages = sorted(doc.rglob("*.md"))
    assert doc / "docs/quickstart.md" in pages, pages
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(doc)} points to {target}"


def libraries(tree):
    """What the loader of an old system would say."""
    for path in (tree / "usr").rglob("*"):
        if path.is_symlink() or not path.is_file() or path.read_bytes()[:4] != b"\x7fELF":
            continue
        symbols = output("objdump", "-T", path, check=False).stdout
        versions = [tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", symbols)]
        most = NODES if path.name in ["gpusliced", "gpuslice", "gpuslice-k8s"] else IMAGES
        assert max(versions, default=(0,)) <= most, f"{path.name} needs glibc {max(versions)}"
        dynamic = output("readelf", "--dynamic", "--wide", path).stdout
        for word in ["TEXTREL", "RPATH", "RUNPATH"]:
            assert word not in dynamic, f"{path.name}: {word}"
        stack = re.search(r"GNU_STACK.*", output("readelf", "-lW", path).stdout)
        assert stack and "RWE" not in stack.group(), f"{path.name}: {stack}"
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
        real = {"/run/gpuslice/driver/libcuda.so.1"} if path.name == SHIM[1] else set()
        libc = {"libc.so.6", "ld-linux-x86-64.so.2", "libpthread.so.0", "libdl.so.2", "libm.so.6", "librt.so.1"}
        if path.name in SHIM:
            libc -= {"libm.so.6", "librt.so.1"}
        assert needed <= libc | real, f"{path.name} needs {needed - libc}"
        if path.name in SHIM:
            exported = output("nm", "--dynamic", "--defined-only", "--format=posix", path).stdout
            names = [line.split()[0] for line in exported.splitlines()]
            kind = "nvml" if path.name == SHIM[2] else "cu"
            assert names and all(name.startswith(kind) for name in names), names[:5]
            # The same exports as in the build's own, whose names the crates' tests compare with the table.
            debug = pathlib.Path(sys.argv[1]).resolve() / path.name
            own = output("nm", "--dynamic", "--defined-only", "--format=posix", debug).stdout
            assert sorted(names) == sorted(line.split()[0] for line in own.splitlines()), path.name
            assert path.stat().st_size <= SHIM_BYTES_MAX, path.stat().st_size
    for name in PROGRAMS[3:]:
        assert not re.search("NEEDED", output("readelf", "-d", tree / name).stdout), f"{name} is not static"
    assert (size := (tree / PROGRAMS[-1]).stat().st_size) <= HOOK_BYTES_MAX, f"the hook has {size} bytes"


def same_again(package, rpm):
    """The same sources give the same bytes."""
    files = [file for file in [package, rpm] if file]
    before = [file.read_bytes() for file in files]
    output(*PACKAGE)
    for file, bytes_before in zip(files, before):
        assert file.read_bytes() == bytes_before, f"{file.name} differs when made again"


class Root:
    """This machine's root under an upper layer of its own."""

    def __init__(self, place):
        self.upper, inner, self.root = place / "upper", place / "work", place / "root"
        for directory in [self.upper, inner, self.root]:
            directory.mkdir(parents=True)
        options = f"lowerdir=/,upperdir={self.upper},workdir={inner}"
        done = output("mount", "-t", "overlay", "overlay", "-o", options, self.root, check=False)
        if done.returncode != 0:
            skip(f"no overlay can be mounted over the root: {done.stderr.strip()}")
        for name in ["proc", "sys", "dev"]:
            output("mount", "--rbind", f"/{name}", self.root / name)
        output("mount", "-t", "tmpfs", "tmpfs", self.root / "run")
        output("mount", "-t", "tmpfs", "tmpfs", self.root / "tmp")

    def __call__(self, *words, **more):
        return output("chroot", self.root, *words, **more)

    def take(self, file):
        """Makes a file of ours readable inside."""
        shutil.copy(file, self.root / "tmp")
        return f"/tmp/{pathlib.Path(file).name}"

    def written(self):
        """All that lies in the upper layer but the package manager's books, logs, and what programs cache."""
        books = r"var/(lib/(dpkg|rpm)|log|cache)/|etc/(passwd|group|g?shadow|subuid|subgid)-?$|etc/\.pwd\.lock$"
        files = (path for path in self.upper.rglob("*") if not path.is_dir() or path.is_symlink())
        names = {str(path.relative_to(self.upper)) for path in files}
        return {name for name in names if not re.match(books, name)}


def debian(root, old, new, build):
    before = root.written()
    assert not before, before
    root("dpkg", "-i", root.take(old))
    assert "0.0.1" in root("dpkg-query", "-W", "gpuslice").stdout
    nothing_enabled(root)
    # What an administrator and a running daemon leave.
    config = root.root / "etc/gpuslice/gpusliced.toml"
    config.write_text(config.read_text() + "\nslices_per_gpu = 4\n")
    record = root.root / "run/gpuslice/c/web/record"
    record.parent.mkdir(parents=True)
    record.write_text("a record")
    # Both changed it: asked, dpkg's own answer is to keep the administrator's.
    root("dpkg", "--force-confdef", "-i", root.take(new))
    assert "slices_per_gpu = 4" in config.read_text() and record.exists()
    assert not (root.root / "usr/lib/gpuslice/gone").exists()
    verified = root("dpkg", "-V", "gpuslice", check=False).stdout.splitlines()
    assert all(" c /etc/gpuslice/" in line for line in verified), verified
    nothing_enabled(root)
    assert "gpuslice-metrics" in root("getent", "passwd", "gpuslice-metrics").stdout
    shutil.rmtree(record.parents[2])
    works(root, build)

    # An engine that would call what is gone keeps the package where it is.
    hooks = root.root / "etc/containers/oci/hooks.d"
    made = [path for path in [hooks, *hooks.parents] if not path.exists()]
    hooks.mkdir(parents=True, exist_ok=True)
    (hooks / "zz-gpuslice.json").write_text('{"path": "/usr/libexec/gpuslice/gpuslice-hook"}')
    kept = root("dpkg", "--remove", "gpuslice", check=False)
    assert kept.returncode != 0 and "gpuslice setup" in kept.stderr, kept
    assert (root.root / PROGRAMS[0]).exists()
    (hooks / "zz-gpuslice.json").unlink()
    for path in made:
        path.rmdir()

    record.parent.mkdir(parents=True)
    record.write_text("a record")
    root("dpkg", "--remove", "gpuslice")
    left = root.written()
    # With what the package would have had there, as dpkg leaves it.
    config = "etc/gpuslice/gpusliced.toml"
    assert left == {config, f"{config}.dpkg-dist"} and record.exists(), left
    root("dpkg", "--purge", "gpuslice")
    assert not root.written(), root.written()
    assert not (root.root / "etc/gpuslice").exists() and not (root.root / "run/gpuslice").exists()
    assert root("getent", "passwd", "gpuslice-metrics", check=False).returncode != 0
    print("packages: the .deb comes, is upgraded and goes")


def nothing_enabled(root):
    links = [name for name in root.written() if ".wants/" in name or "/rc" in name]
    assert not links, links
    assert not (root.root / "run/gpuslice/admin.sock").exists()


def works(root, build):
    """The programs as installed, and the libraries for old systems in their daily work."""
    for program in PROGRAMS[:3]:
        assert re.search(r"\d+\.\d+\.\d+", root(f"/{program}", "--version").stdout)
    nowhere = root("gpuslice", "run", "--memory", "1GiB", "--", "true", check=False)
    if not any(os.path.exists(node) for node in ["/dev/nvidiactl", "/dev/dxg"]):
        assert nowhere.returncode == 1 and "--sim" in nowhere.stderr, nowhere
    # A device of its own: another build's may lie where root's usually is.
    with tempfile.TemporaryDirectory(prefix="gpuslice-sim-", dir="/dev/shm") as device:
        environment = {"PATH": os.environ["PATH"], "GPUSLICE_SIM_DEVICE": f"{device}/device"}
        words = ["gpuslice", "doctor", "--driver-dir", "/usr/lib/gpuslice/sim"]
        doctor = root(*words, env=environment, check=False)
    said = doctor.stdout
    assert doctor.returncode == 0, said
    assert "hook and shim are installed" in said and re.search("missing +daemon", said), said
    assert root("gpusliced", "--check", "/etc/gpuslice/gpusliced.toml").stdout == "ok\n"
    conformance = root.take(build / "conformance")
    for method in ["preload", "mount"]:
        words = ["gpuslice", "run", "--sim", "--memory", "1GiB", "--inject", method, "--", conformance]
        environment = {"PATH": os.environ["PATH"], "GPUSLICE_SIM": "mem=16GiB"}
        done = root(*words, env=environment, stdin=subprocess.DEVNULL, check=False)
        others = [line for line in done.stdout.splitlines() if not line.startswith("pass ")]
        assert done.returncode == 0 and others[-1:] == [CONFORMS], "\n".join(others) + done.stderr
        print(f"packages: installed, through {method}: {CONFORMS}")


def redhat(root, old, new, tree):
    root("rpm", "--initdb")
    # Debian's rpm wants to be told that it is meant.
    root("rpm", "--install", "--nodeps", "--force-debian", root.take(old))
    assert root("rpm", "--query", "gpuslice").stdout.startswith("gpuslice-0.0.1-")
    there = {str(path.relative_to(tree)) for path in tree.rglob("*") if not path.is_dir()}
    listed = set(root("rpm", "--query", "--list", "gpuslice").stdout.split())
    assert {f"/{name}" for name in there} <= listed, {f"/{name}" for name in there} - listed
    assert not root("rpm", "--verify", "--nodeps", "gpuslice").stdout
    nothing_enabled(root)
    # What an administrator changed and a running daemon wrote stays.
    config = root.root / "etc/gpuslice/gpusliced.toml"
    config.write_text(config.read_text() + "\nslices_per_gpu = 4\n")
    record = root.root / "run/gpuslice/c/web/record"
    record.parent.mkdir(parents=True)
    record.write_text("a record")
    root("rpm", "--upgrade", "--nodeps", "--force-debian", root.take(new))
    assert not root("rpm", "--query", "gpuslice").stdout.startswith("gpuslice-0.0.1-")
    assert "slices_per_gpu = 4" in config.read_text() and record.exists()
    nothing_enabled(root)
    assert root("gpuslice", "--version").stdout
    root("rpm", "--erase", "--force-debian", "gpuslice")
    assert record.exists()
    left = {name for name in root.written() if not name.startswith("root/")}
    assert left == {"etc/gpuslice/gpusliced.toml.rpmsave"}, left
    print("packages: the .rpm comes, is upgraded and goes")


if __name__ == "__main__":
    main()
