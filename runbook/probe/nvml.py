"""What NVML says about the GPUs, figure by figure; each has a value or the reason why there is none.

`read` runs in a child (see `worker`): before each call it says which one comes, so that a call that hangs has a name.
`GpuReader` listens to it: a call that does not come back costs the figures of its own GPU only.
"""

import time

try:
    import ctypes
except ImportError:  # a Python that was built without libffi
    ctypes = None  # type: ignore[assignment]
from typing import Any, Callable, Dict, List, Optional, Tuple

from .worker import Record, Send, Worker, clean, unknown

ACTIONS = {
    0: "None", 1: "Reset", 2: "Reboot", 3: "Drain P2P", 4: "Drain and Reset", 5: "Recover IMEX Domain",
    6: "Bus Reset", 7: "System Reboot",
}
"""nvmlDeviceGetGpuRecoveryAction_t in the words of nvidia-smi (from driver 565 on)."""

REASONS = {
    3: "NVML: this GPU, mode or driver has no such figure",
    4: "NVML: this user may not read it",
    9: "the NVIDIA driver is not loaded",
    12: "no NVML library (libnvidia-ml.so.1) on this machine",
    13: "the driver of this node is too old to say",
    14: "NVML: the GPU's infoROM is corrupted",
    15: "NVML: the GPU is lost",
    16: "NVML: the GPU needs a reset",
    18: "driver and library versions differ (a driver update without a reboot): a software matter, "
        "not a hardware fault",
    999: "NVML: unknown error",
}
LIBRARY_NOT_FOUND = 12
LOST = (15, 16)
"""GPU is lost, reset required: no other figure of that GPU can be had."""
LOST_HANDLE = (14, 15, 16, 999)
"""Of the call for a GPU's handle, also: corrupted infoROM, and the unknown error of a GPU that fell off the bus."""
_RECOVERY_ACTION_FIELD = 230
_NO_INSTANCE = 0xFFFFFFFF
_NO_FIGURE = (1 << 64) - 1
_PROCESS_LIMIT = 512

Figure = Tuple[Tuple[str, ...], Callable[[Any, Any], Tuple[Any, ...]]]


class Refused(Exception):
    """A figure that a call gave no value for, with the reason."""


def read(send: Send, first: int = 0, only: str = "") -> None:
    """Say `library`, `driver`, `count`, then of each GPU from `first` on its figures; `failed`: there is no NVML."""
    send({"asking": "the library"})
    if ctypes is None:
        send({"failed": "this node's Python has no ctypes", "code": LIBRARY_NOT_FOUND})
        return
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        send({"failed": REASONS[LIBRARY_NOT_FOUND], "code": LIBRARY_NOT_FOUND})
        return
    send({"library": True})
    import pynvml

    send({"asking": "nvmlInit"})
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        send({"failed": reason(error), "code": error.value})
        return
    for name, call in (
        ("driver", pynvml.nvmlSystemGetDriverVersion),
        ("nvml", pynvml.nvmlSystemGetNVMLVersion),
        ("cuda_driver", pynvml.nvmlSystemGetCudaDriverVersion_v2),
    ):
        send({"asking": name})
        send({name: _one(pynvml, call)})
    send({"asking": "the number of GPUs"})
    count = _one(pynvml, pynvml.nvmlDeviceGetCount)
    send({"count": count})
    if isinstance(count, int):
        for index in range(first, min(count, 256)):
            _gpu(send, pynvml, index, only)


def reason(error: Any) -> str:
    """NVML's error in words, with its number."""
    known = REASONS.get(error.value)
    return known if known and error.value != 999 else "%s (NVML error %d)" % (known or str(error), error.value)


def figure_names() -> List[str]:
    """All figures of a GPU in the order in which they are asked for."""
    return [name for names, _ in FIGURES for name in names]


def _gpu(send: Send, nvml: Any, index: int, only: str) -> None:
    send({"gpu": index, "asking": "its handle"})
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        _lost_or_refused(send, index, error, error.value in LOST_HANDLE)
        return
    for names, call in FIGURES:
        if only and only not in names:
            continue
        send({"gpu": index, "asking": names[0]})
        try:
            values = call(nvml, handle)
        except nvml.NVMLError as error:
            if error.value in LOST:
                _lost_or_refused(send, index, error, True)
                return
            values = (unknown(reason(error)),) * len(names)
        except Refused as refused:
            values = (unknown(str(refused)),) * len(names)
        except Exception as error:
            values = (unknown("%s: %s" % (type(error).__name__, error)),) * len(names)
        send({"gpu": index, "figures": dict(zip(names, values))})
    send({"gpu": index, "done": True})


def _lost_or_refused(send: Send, index: int, error: Any, lost: bool) -> None:
    """The figures that were read before stay; all others are unknown for this reason."""
    record: Record = {"gpu": index, "rest": unknown(reason(error)), "done": True}
    if lost:
        record["lost"] = reason(error)
    send(record)


def _one(nvml: Any, call: Callable[[], Any]) -> Any:
    try:
        value = call()
    except nvml.NVMLError as error:
        return unknown(reason(error))
    return clean(value, 80) if isinstance(value, str) else value


def _text(name: str) -> Callable[[Any, Any], Tuple[Any, ...]]:
    return lambda nvml, handle: (clean(getattr(nvml, name)(handle), 96),)


def _bus(nvml: Any, handle: Any) -> Tuple[Any, ...]:
    found = nvml.nvmlDeviceGetPciInfo(handle)
    return ("%08X:%02X:%02X.0" % (found.domain, found.bus, found.device),)


def _memory(nvml: Any, handle: Any) -> Tuple[Any, ...]:
    """Reserved memory is neither used nor free; before driver 510 it is not told and stands in `used`."""
    try:
        found = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        return found.total, found.used, found.free, found.reserved
    except nvml.NVMLError as error:
        if error.value not in (3, 13, 25):
            raise
    found = nvml.nvmlDeviceGetMemoryInfo(handle)
    return found.total, found.used, found.free, unknown(REASONS[13])


def _ecc(kind: str, counter: str) -> Callable[[Any, Any], Tuple[Any, ...]]:
    return lambda nvml, handle: (
        nvml.nvmlDeviceGetTotalEccErrors(
            handle, getattr(nvml, "NVML_MEMORY_ERROR_TYPE_" + kind), getattr(nvml, "NVML_" + counter)
        ),
    )


def _ecc_mode(nvml: Any, handle: Any) -> Tuple[Any, ...]:
    current, pending = nvml.nvmlDeviceGetEccMode(handle)
    return bool(current), bool(pending)


def _sram(nvml: Any, handle: Any) -> Tuple[Any, ...]:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return (bool(status.bThresholdExceeded),)


def _remapped(nvml: Any, handle: Any) -> Tuple[Any, ...]:
    correctable, uncorrectable, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return correctable, uncorrectable, bool(pending), bool(failed)


def _histogram(nvml: Any, handle: Any) -> Tuple[Any, ...]:
    """Banks by how many spare rows they have left."""
    found = nvml.nvmlDeviceGetRowRemapperHistogram(handle)
    return ({name: getattr(found, name) for name in ("max", "high", "partial", "low", "none")},)


def _retired(nvml: Any, handle: Any) -> Tuple[Any, ...]:
    """Turing and older retire pages where later GPUs remap rows."""
    single = nvml.nvmlDeviceGetRetiredPages(handle, nvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS)
    double = nvml.nvmlDeviceGetRetiredPages(handle, nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
    return len(single), len(double)


def _retirement_pending(nvml: Any, handle: Any) -> Tuple[Any, ...]:
    return (bool(nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)),)


def _repair(nvml: Any, handle: Any) -> Tuple[Any, ...]:
    channel, block = nvml.nvmlDeviceGetRepairStatus(handle)
    return bool(channel), bool(block)


def _unrepairable(nvml: Any, handle: Any) -> Tuple[Any, ...]:
    return (bool(nvml.nvmlDeviceGetUnrepairableMemoryFlag_v1(handle)),)


def _action(nvml: Any, handle: Any) -> Tuple[Any, ...]:
    value = nvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION_FIELD])[0]
    if value.nvmlReturn in (3, 13, 2):
        raise Refused("this driver does not name a recovery action (it came with driver 565)")
    if value.nvmlReturn:
        raise nvml.NVMLError(value.nvmlReturn)
    number = value.value.uiVal
    return (ACTIONS.get(number, "action %d" % number),)


def _compute_mode(nvml: Any, handle: Any) -> Tuple[Any, ...]:
    modes = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
    number = nvml.nvmlDeviceGetComputeMode(handle)
    return (modes.get(number, "mode %d" % number),)


def _mig(nvml: Any, handle: Any) -> Tuple[Any, ...]:
    try:
        current, pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        if error.value != 3:
            raise
        return False, False, []
    return bool(current), bool(pending), [_instance(nvml, each) for each in _instances(nvml, handle)] if current else []


def _instances(nvml: Any, handle: Any) -> List[Any]:
    found = []
    for number in range(min(nvml.nvmlDeviceGetMaxMigDeviceCount(handle), 64)):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
        except nvml.NVMLError as error:
            if error.value not in (2, 6):  # a slot without an instance
                raise
    return found


def _instance(nvml: Any, handle: Any) -> Record:
    """A MIG device: its own memory, its numbers as the kernel log (`GPU-I:05`) and process lists have them."""
    def asked(call: Callable[[Any], Any]) -> Any:
        try:
            return call(handle)
        except nvml.NVMLError as error:
            return unknown(reason(error))

    try:
        total, used, free = _memory(nvml, handle)[:3]
    except nvml.NVMLError as error:
        total = used = free = unknown(reason(error))
    return {
        "uuid": asked(nvml.nvmlDeviceGetUUID), "name": asked(nvml.nvmlDeviceGetName),
        "gpu_instance": asked(nvml.nvmlDeviceGetGpuInstanceId),
        "compute_instance": asked(nvml.nvmlDeviceGetComputeInstanceId),
        "total_bytes": total, "used_bytes": used, "free_bytes": free,
    }


def _processes(nvml: Any, handle: Any) -> Tuple[Any, ...]:
    """By PID, of all lists. On a GPU in MIG mode, who may not ask the GPU asks its instances."""
    found: Dict[int, Record] = {}
    for kind, word in (("Compute", "compute"), ("MPSCompute", "mps"), ("Graphics", "graphics")):
        try:
            rows = _listed(nvml, handle, kind)
        except nvml.NVMLError as error:
            if kind != "Compute":
                continue
            rows = _listed_by_instances(nvml, handle) if error.value == 4 else []
            if not rows:
                raise
        for row in rows[:_PROCESS_LIMIT]:
            used = None if row.usedGpuMemory == _NO_FIGURE else row.usedGpuMemory
            process = found.setdefault(row.pid, {
                "pid": row.pid, "kinds": [], "name": "",
                "used_bytes": unknown("NVML has no figure for this process") if used is None else used,
                "gpu_instance": _number(row.gpuInstanceId), "compute_instance": _number(row.computeInstanceId),
            })
            process["kinds"].append(word)
    for pid, process in found.items():
        try:
            process["name"] = clean(nvml.nvmlSystemGetProcessName(pid), 200)
        except (nvml.NVMLError, UnicodeDecodeError):
            pass  # it has ended, or NVML may not look at it
    return ([found[pid] for pid in sorted(found)],)


def _listed_by_instances(nvml: Any, handle: Any) -> List[Any]:
    try:
        return [row for each in _instances(nvml, handle) for row in _listed(nvml, each, "Compute")]
    except nvml.NVMLError:
        return []


def _listed(nvml: Any, handle: Any, kind: str) -> List[Any]:
    """Version 3 came with driver 510, version 2 with 450; the first is not in nvidia-ml-py any more."""
    for version in ("_v3", "_v2"):
        try:
            return list(getattr(nvml, "nvmlDeviceGet%sRunningProcesses%s" % (kind, version))(handle))
        except nvml.NVMLError as error:
            if error.value != 13:
                raise
    if kind == "MPSCompute":
        return []  # those drivers list the server among the compute processes
    return _first_version(nvml, handle, "nvmlDeviceGet%sRunningProcesses" % kind)


def _first_version(nvml: Any, handle: Any, name: str) -> List[Any]:
    class Process(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]
        gpuInstanceId = computeInstanceId = None

    try:
        call = getattr(nvml.nvmlLib, name)
    except AttributeError:
        raise nvml.NVMLError(13) from None
    count = ctypes.c_uint(_PROCESS_LIMIT)
    rows = (Process * _PROCESS_LIMIT)()
    code = call(handle, ctypes.byref(count), rows)
    if code:
        raise nvml.NVMLError(code)
    return list(rows[: count.value])


def _number(instance: Any) -> Any:
    return None if instance in (None, _NO_INSTANCE) else instance


FIGURES: Tuple[Figure, ...] = (
    (("bus_id",), _bus),
    (("minor",), lambda nvml, handle: (nvml.nvmlDeviceGetMinorNumber(handle),)),
    (("uuid",), _text("nvmlDeviceGetUUID")),
    (("name",), _text("nvmlDeviceGetName")),
    (("total_bytes", "used_bytes", "free_bytes", "reserved_bytes"), _memory),
    (("row_remap_correctable", "row_remap_uncorrectable", "row_remap_pending", "row_remap_failed"), _remapped),
    (("row_remap_histogram",), _histogram),
    (("ecc_enabled", "ecc_enabled_pending"), _ecc_mode),
    (("ecc_uncorrectable_volatile",), _ecc("UNCORRECTED", "VOLATILE_ECC")),
    (("ecc_uncorrectable_aggregate",), _ecc("UNCORRECTED", "AGGREGATE_ECC")),
    (("ecc_correctable_volatile",), _ecc("CORRECTED", "VOLATILE_ECC")),
    (("ecc_correctable_aggregate",), _ecc("CORRECTED", "AGGREGATE_ECC")),
    (("sram_threshold_exceeded",), _sram),
    (("recovery_action",), _action),
    (("retired_pages_single_bit", "retired_pages_double_bit"), _retired),
    (("retired_pages_pending",), _retirement_pending),
    (("channel_repair_pending", "tpc_repair_pending"), _repair),
    (("unrepairable_memory",), _unrepairable),
    (("compute_mode",), _compute_mode),
    (("mig_enabled", "mig_pending", "mig_devices"), _mig),
    (("processes",), _processes),
)


class GpuReader:
    """Starts to ask NVML at once, for all figures or for one; `collect` waits for the answers."""

    def __init__(self, only: str = "") -> None:
        self._only = only
        self._worker = Worker(read, 0, only)

    def has_library(self, until: float) -> bool:
        """Whether there is an NVML library at all. The worker says so before any call into it."""
        for record in self._worker.records(until):
            if "library" in record:
                return True
            if record.get("code") == LIBRARY_NOT_FOUND:
                break
        self._worker.close()
        return False

    def collect(self, until: float, patience_s: float) -> Record:
        """Driver, versions and GPUs. Waits `patience_s` for each call, and for all of them `until` (monotonic)."""
        found: Record = {"driver": None, "nvml": None, "cuda_driver": None}
        gpus: Dict[int, Record] = {}
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
            self._worker = Worker(read, current + 1, self._only)
        answer: Record = {name: why if value is None else value for name, value in found.items()}
        if not isinstance(count, int):
            answer["gpus"] = why if count is None else count
            return answer
        for index in range(count):
            _fill(gpus.setdefault(index, {"index": index, "lost": False}), why)
        answer["gpus"] = [gpus[index] for index in sorted(gpus)]
        return answer


def _take(gpu: Record, record: Record) -> None:
    gpu.update(record.get("figures", {}))
    if "lost" in record:
        gpu["lost"], gpu["lost_why"] = True, record["lost"]
    if "rest" in record:
        _fill(gpu, record["rest"])


def _fill(gpu: Record, why: Record) -> None:
    for name in figure_names():
        gpu.setdefault(name, why)
