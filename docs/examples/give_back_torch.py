"""PyTorch: frees cached memory when the node wants it back.

`import give_back_torch` once, before or after the first tensor. PyTorch keeps freed memory in its cache; tensors that
the program still has stay. So a program whose tensors alone are above its cap can still be suspended.
"""

import gc

import memory_watch
import torch


def changed(gpus):
    if any(gpu["wanted"] > 0 for gpu in gpus.values()):
        gc.collect()  # tensors in reference cycles
        torch.cuda.empty_cache()


memory_watch.watch(changed)
