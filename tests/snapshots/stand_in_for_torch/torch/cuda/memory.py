"""Stands in for `torch.cuda.memory`."""

import os
import pickle

recorded = {}


def _record_memory_history(enabled="all", *, stacks="all", max_entries=None):
    if os.environ.get("STAND_IN_REFUSES"):
        raise RuntimeError("recordHistory is not supported by cudaMallocAsync")
    recorded.update(stacks=stacks, max_entries=max_entries)


def _dump_snapshot(path):
    if os.environ.get("STAND_IN_BREAKS"):
        with open(path, "wb") as file:
            file.write(b"\x80\x04")
        raise OSError(28, "No space left on device")
    entry = {"action": "oom", "device_free": 1 << 20, "size": 20 << 20, "stream": 0, "time_us": 1, "frames": []}
    with open(path, "wb") as file:
        pickle.dump({"segments": [], "device_traces": [[entry]], "recorded": dict(recorded)}, file)
