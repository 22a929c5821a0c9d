"""Real containers over the real driver: runc with our hook, three tenants at 1:2:4, judged by `gpuslice demo`."""
import json
import os
import shutil

from kit import place


def run(here, result):
    runtimes = [name for name in ("runc", "crun") if (here.bundle / name).exists() or shutil.which(name)]
    if os.geteuid() != 0:
        raise place.Skip("containers need root")
    if not runtimes:
        raise place.Skip("no runc or crun in the bundle or on this machine")
    # The tests of the simulated GPU have this demo with each.
    for runtime in runtimes[:1] if here.sim and here.quick else runtimes:
        path = f"{here.bundle}:{os.environ.get('PATH', '')}"
        line = [here.program("gpuslice"), "demo", "--json", "--runtime", runtime, "--driver-dir", str(here.driver)]
        done = here.run(line, 200, PATH=path)
        try:
            verdict = json.loads(done.stdout)
        except ValueError:
            result.check(f"demo with {runtime}", False, (done.stdout + done.stderr)[-1500:])
            continue
        result.value(f"demo with {runtime}", verdict)
        # Its shares are figures; that it came to a verdict and the caps held is not.
        met = [0 < tenant["denied"] and 0 < tenant["memory_peak"] <= tenant["memory_cap"] for tenant in verdict["tenants"]]
        result.check(f"demo with {runtime}: containers ran and met their caps", len(met) >= 2 and all(met), met)
        result.promise(f"demo with {runtime} passes", done.returncode == 0 and verdict.get("verdict") == "pass", verdict.get("verdict"))
