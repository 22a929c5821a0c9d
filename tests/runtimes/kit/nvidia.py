#!/usr/bin/env python3
"""A stand-in for NVIDIA's container toolkit: puts the simulated driver into containers in the toolkit's manner.

What its programs do to a container, as public source shows it; nothing here is theirs. `install` makes
three programs of this file:

* `nvidia-container-runtime`: changes `config.json` on `create`, then becomes the first of its `runtimes`.
  legacy: adds a prestart hook without an environment. cdi (and jit-cdi): removes prestart hooks that are
  called as NVIDIA's, adds the driver's versioned files as mounts, and createContainer hooks.
* `nvidia-container-runtime-hook` (legacy): enters the container's mounts and binds the files there,
  `libcuda.so` and a loader cache beside them.
* `nvidia-cdi-hook` (cdi): makes the links and the loader cache, *after* createRuntime hooks such as ours."""
import json
import os
import pathlib
import shutil
import subprocess
import sys

VERSION = "580.105.08"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
STEMS = ["libcuda.so", "libnvidia-ml.so"]
OWN_HOOKS = ["nvidia-container-runtime-hook", "nvidia-container-toolkit"]


def install(directory, build, mode, runtimes):
    """Makes the programs in `directory`, with a driver of this build; gives the runtime's path."""
    (directory / "driver").mkdir(parents=True)
    for stem, real in zip(STEMS, ["libgpuslice_sim_cuda.so", "libgpuslice_sim_nvml.so"]):
        shutil.copy(build / real, directory / f"driver/{stem}.{VERSION}")
    settings = {"mode": mode, "runtimes": runtimes, "dir": str(directory)}
    (directory / "settings.json").write_text(json.dumps(settings))
    for name in ["nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-cdi-hook"]:
        program = directory / name
        words = f"{sys.executable} {pathlib.Path(__file__).resolve()} {directory}/settings.json {name}"
        program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        program.chmod(0o755)
    return str(directory / "nvidia-container-runtime")


def files(settings):
    """The driver's files on the host and where containers have them."""
    for path in sorted(pathlib.Path(settings["dir"], "driver").iterdir()):
        yield path, f"{LIBRARIES}/{path.name}"


def runtime(settings, words):
    if "create" in words or "run" in words:
        bundle = pathlib.Path(words[words.index("--bundle") + 1] if "--bundle" in words else ".")
        path = bundle / "config.json"
        config = json.loads(path.read_text())
        if any(entry.startswith("NVIDIA_VISIBLE_DEVICES=") for entry in config["process"]["env"]):
            {"legacy": legacy, "cdi": cdi, "jit-cdi": cdi}[settings["mode"]](settings, config)
            path.write_text(json.dumps(config))
    for name in settings["runtimes"]:
        if found := shutil.which(name):
            os.execv(found, [found, *words])
    sys.exit("no runtime")


def legacy(settings, config):
    path = f"{settings['dir']}/{OWN_HOOKS[0]}"
    config.setdefault("hooks", {}).setdefault("prestart", []).append({"path": path, "args": [OWN_HOOKS[0], "prestart"]})


def cdi(settings, config):
    hooks = config.setdefault("hooks", {})
    kept = [hook for hook in hooks.get("prestart", []) if os.path.basename(hook["path"]) not in OWN_HOOKS]
    hooks["prestart"] = kept
    for source, target in files(settings):
        options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
        mount = {"destination": f"/{target}", "source": str(source), "type": "bind", "options": options}
        config["mounts"].append(mount)
    for word in ["create-symlinks", "enable-cuda-compat", "update-ldcache"]:
        hook = {"path": f"{settings['dir']}/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", word]}
        hooks.setdefault("createContainer", []).append(hook | {"env": ["NVIDIA_CTK_DEBUG=false"]})


def root_of(state):
    config = json.loads(pathlib.Path(state["bundle"], "config.json").read_text())
    return pathlib.Path(state["bundle"], config["root"]["path"])


def link(root, name, to):
    path = root / LIBRARIES / name
    if not os.path.lexists(path):
        path.symlink_to(to)


def prestart(settings):
    """Binds the files, called again within the container's mounts."""
    state = json.load(sys.stdin)
    root = root_of(state)
    for _, target in files(settings):
        (root / target).touch()
    binds = [word for source, target in files(settings) for word in [source, root / target]]
    script = 'while [ $# -gt 1 ]; do mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" || exit 1; shift 2; done'
    subprocess.run(["nsenter", "-t", str(state["pid"]), "-m", "sh", "-c", script, "sh", *binds], check=True)
    link(root, "libcuda.so", "libcuda.so.1")
    cache = ["nsenter", "-t", str(state["pid"]), "-m", "/sbin/ldconfig", "-r", root]
    subprocess.run(cache, check=True, stderr=subprocess.DEVNULL)


def cdi_hook(word):
    root = root_of(json.load(sys.stdin))
    if word == "create-symlinks":
        link(root, "libcuda.so", "libcuda.so.1")
        link(root, "libcuda.so.1", f"libcuda.so.{VERSION}")
    elif word == "enable-cuda-compat" and list((root / "usr/local/cuda/compat").glob("libcuda.so.*")):
        (root / "etc/ld.so.conf").write_text("/usr/local/cuda/compat\n" + (root / "etc/ld.so.conf").read_text())
    elif word == "update-ldcache":
        subprocess.run(["/sbin/ldconfig", "-r", root], check=True, stderr=subprocess.DEVNULL)


def main():
    settings = json.loads(pathlib.Path(sys.argv[1]).read_text())
    name, words = sys.argv[2], sys.argv[3:]
    if name == "nvidia-container-runtime":
        runtime(settings, words)
    elif name == "nvidia-container-runtime-hook":
        prestart(settings)
    else:
        cdi_hook(words[0])


if __name__ == "__main__":
    main()
