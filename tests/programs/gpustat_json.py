"""gpustat: the JSON it prints shows the cap as the device's memory, in MiB."""
import json
import os
import subprocess
import sys

EXPECT = int(os.environ["EXPECT_BYTES"])
shown = subprocess.run([sys.executable, "-m", "gpustat", "--json"], capture_output=True, text=True)
assert shown.returncode == 0, shown.stderr
assert json.loads(shown.stdout)["gpus"][0]["memory.total"] == EXPECT >> 20, shown.stdout
print("ok")
