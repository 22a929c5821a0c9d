"""vLLM: puts a server to sleep when the node wants memory back, and wakes it when the memory is there again.

Runs beside the server in the same container. The server needs `--enable-sleep-mode`, and VLLM_SERVER_DEV_MODE=1 in its
environment, which offers /sleep and /wake_up (https://docs.vllm.ai/en/latest/features/sleep_mode/). At level 1 the
weights move to the host's memory and the KV cache is dropped; requests wait or fail until it is awake. Dev mode offers
more than that, so only the container itself should reach the port.

    python give_back_vllm.py http://localhost:8000
"""

import sys
import threading
import urllib.request

import memory_watch

SERVER = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"
# What the server had on each GPU when it was put to sleep.
asleep = {}


def post(words):
    urllib.request.urlopen(urllib.request.Request(f"{SERVER}/{words}", method="POST"), timeout=120).close()


def changed(gpus):
    try:
        give_back_or_take(gpus)
    except OSError as error:
        print(f"{SERVER} did not answer, which is tried again at the next change: {error}", file=sys.stderr)


def give_back_or_take(gpus):
    wanted = any(gpu["wanted"] > 0 for gpu in gpus.values())
    if wanted and not asleep:
        had = {name: gpu["used"] for name, gpu in gpus.items()}
        post("sleep?level=1")
        asleep.update(had)
    elif not wanted and asleep and all(gpu["used"] + gpu["free"] >= asleep[name] for name, gpu in gpus.items()):
        post("wake_up")
        asleep.clear()


memory_watch.watch(changed)
threading.Event().wait()
