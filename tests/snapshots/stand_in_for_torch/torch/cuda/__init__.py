"""Stands in for `torch.cuda`: the device is used from `begin` on, and calls that were made before wait for it."""

from torch import _C
from torch.cuda import memory as memory

_waiting = []
_used = False


def _lazy_call(call):
    if _used:
        call()
    else:
        _waiting.append(call)


def begin():
    global _used
    _used = True
    for call in _waiting:
        call()


def run_out(device=0):
    for observer in _C.observers:
        observer(device, 20 << 20, 80 << 30, 1 << 20)
    raise MemoryError("CUDA out of memory. (a stand-in says so)")
