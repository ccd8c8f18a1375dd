"""The GPUs of the node, whatever hangs: a call that does not come back costs the figures of its own GPU only."""

import time
from typing import Any, Dict, Optional

from . import nvml
from .words import unknown
from .worker import Worker

Part = Dict[str, Any]


class GpuReader:
    """Starts to ask NVML at once, for all figures or for one; `collect` waits for the answers."""

    def __init__(self, only: str = "") -> None:
        self._only = only
        self._worker = Worker(nvml.read, 0, only)

    def has_library(self, until: float) -> bool:
        """Whether there is an NVML library at all. The worker says so before any call into it."""
        for record in self._worker.records(until):
            if "library" in record:
                return True
            if record.get("code") == nvml.LIBRARY_NOT_FOUND:
                break
        self._worker.close()
        return False

    def collect(self, until: float, patience_s: float) -> Part:
        """Driver, versions and GPUs. Waits `patience_s` for each call, and for all of them `until` (monotonic)."""
        found: Part = {"driver": None, "nvml": None, "cuda_driver": None}
        gpus: Dict[int, Part] = {}
        count: Any = None
        while True:
            asking = "the library"
            current: Optional[int] = None
            self._worker.patience_s = None
            for record in self._worker.records(until):
                if "failed" in record:
                    why = unknown(record["failed"])
                    self._worker.close()
                    return dict(dict.fromkeys((*found, "gpus"), why), error=record["code"])
                if "asking" in record:
                    asking, current = record["asking"], record.get("gpu")
                    if current is not None:
                        # Without persistence mode the driver takes seconds to start; a GPU is given up earlier.
                        self._worker.patience_s = patience_s
                        gpus.setdefault(current, {"index": current, "lost": False})
                elif "gpu" in record:
                    _take(gpus[record["gpu"]], record)
                elif "count" in record:
                    count = record["count"]
                else:
                    found.update({name: record[name] for name in found if name in record})
            hung = not self._worker.ended
            self._worker.close()
            if not hung:
                why = unknown(self._worker.failure or "NVML was not asked for it")
                break
            why = unknown("NVML did not answer in time when it was asked for %s" % asking)
            if current is None or not isinstance(count, int):
                break
            _fill(gpus[current], why)
            if current + 1 >= count or until - time.monotonic() < patience_s / 2:
                break
            self._worker = Worker(nvml.read, current + 1, self._only)
        answer: Part = {name: why if value is None else value for name, value in found.items()}
        if not isinstance(count, int):
            answer["gpus"] = why if count is None else count
            return answer
        for index in range(count):
            _fill(gpus.setdefault(index, {"index": index, "lost": False}), why)
        answer["gpus"] = [gpus[index] for index in sorted(gpus)]
        return answer


def _take(gpu: Part, record: Part) -> None:
    gpu.update(record.get("figures", {}))
    if "lost" in record:
        gpu["lost"], gpu["lost_why"] = True, record["lost"]
    if "rest" in record:
        _fill(gpu, record["rest"])


def _fill(gpu: Part, why: Part) -> None:
    for name in nvml.figure_names():
        gpu.setdefault(name, why)
