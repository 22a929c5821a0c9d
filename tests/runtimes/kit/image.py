"""A root filesystem and an image of this machine's own files: no registry, no network."""
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile

from kit import node

# Its name in every engine.
NAME = "localhost/gpuslice-test:1"
# What every root filesystem has in /bin, besides `tenant` and `conformance`.
PROGRAMS = ["sh", "cat", "ls", "true", "sleep", "env", "grep", "umount"]


def fill(root):
    """Makes a root filesystem with a glibc and a few programs."""
    for directory in ["proc", "dev", "sys", "run", "etc", "bin", "tmp", "root", "usr/lib/x86_64-linux-gnu"]:
        (root / directory).mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")
    for name in PROGRAMS:
        add(root, shutil.which(name))
    for name in ["tenant", "conformance"]:
        add(root, node.BUILD / name)
    return root


def add(root, program):
    """Copies a program and the libraries it needs."""
    copy(program, root / "bin" / os.path.basename(program))
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"/\S+", listed):
        copy(library, root / library[1:])


def copy(source, target):
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def archive(path, name, root, command=("/bin/sh",), environment=("PATH=/bin",)):
    """Writes a root filesystem as what `docker save` writes; `ctr`, docker and podman load it."""
    directory = path.parent / (path.name + ".layers")
    directory.mkdir()
    with tarfile.open(directory / "layer.tar", "w") as layer:
        for entry in sorted(os.listdir(root)):
            layer.add(root / entry, entry)
    layer = "sha256:" + hashlib.sha256((directory / "layer.tar").read_bytes()).hexdigest()
    config = {
        "architecture": "amd64", "os": "linux", "created": "2024-01-01T00:00:00Z",
        "config": {"Cmd": list(command), "Env": list(environment)},
        "rootfs": {"type": "layers", "diff_ids": [layer]},
        "history": [{"created": "2024-01-01T00:00:00Z", "created_by": "gpuslice's tests"}],
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "manifest.json").write_text(json.dumps(manifest))
    with tarfile.open(path, "w") as whole:
        for entry in ["config.json", "manifest.json", "layer.tar"]:
            whole.add(directory / entry, entry)
    shutil.rmtree(directory)
    return path
