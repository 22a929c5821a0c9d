"""nvitop -1: the screen it prints once shows the cap as the device's memory."""
import os
import re
import subprocess
import sys

EXPECT = int(os.environ["EXPECT_BYTES"])
shown = subprocess.run([sys.executable, "-m", "nvitop", "-1"], capture_output=True, text=True)
assert shown.returncode == 0, shown.stderr
names = [f"{EXPECT >> 20}MiB", f"{EXPECT / 2**30:.2f}GiB", f"{EXPECT >> 30}GiB"]
assert any(re.search(r"/\s*" + re.escape(name), shown.stdout) for name in names), shown.stdout
print("ok")
