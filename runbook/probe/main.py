"""The probe's command line: one JSON document on standard output, within the deadline, and nothing changed."""

import argparse
import json
import os
import sys
import time
from typing import Any, Dict, List, Optional

from . import host, kernel_log, processes
from .nvml import GpuReader
from .worker import DOCUMENT, VERSION, Worker, is_unknown, unknown

NO_LIBRARY = 3
"""Exit status with `--need-nvml` on a machine without the library: nothing was printed."""

Part = Dict[str, Any]


def main(arguments: Optional[List[str]] = None) -> int:
    """Print the document; 0, or `NO_LIBRARY`, or 2 for options that are none."""
    parser = argparse.ArgumentParser(prog="runbook-probe", description=__doc__)
    parser.add_argument("--deadline", type=float, default=15.0, metavar="S", help="seconds for everything (15)")
    parser.add_argument("--since", type=float, metavar="EPOCH", help="the job's start: the journal is read from a day "
                        "before it; without it, from this boot")
    parser.add_argument("--need-nvml", action="store_true", help="without an NVML library, end with status 3 at once")
    parser.add_argument("--root", default="/", metavar="DIR", help="look at /proc, /sys and syslog below DIR")
    parser.add_argument("--kmsg", default=kernel_log.KMSG, metavar="FILE", help="where the node's own /dev/kmsg is, if "
                        "it is not there (a host's, in a container)")
    options = parser.parse_args(arguments)
    document = probe(options.deadline, options.since, options.root, options.need_nvml, options.kmsg)
    if document is None:
        return NO_LIBRARY
    sys.stdout.write(json.dumps(document, sort_keys=True) + "\n")
    sys.stdout.flush()
    return 0


def probe(
    deadline_s: float, since_s: Optional[float], root: str, need_nvml: bool, kmsg: str = kernel_log.KMSG
) -> Optional[Part]:
    """The document. None: an NVML library was needed, and there is none."""
    started = time.monotonic()
    os.environ["LC_ALL"] = "C"
    reader = GpuReader()
    if need_nvml and not reader.has_library(started + deadline_s * 0.3):
        return None
    log_worker = Worker(kernel_log.read, root, since_s, max(1.0, deadline_s / 5), kmsg)
    document: Part = {"document": DOCUMENT, "version": VERSION, "deadline_s": deadline_s}
    document["node"] = _node(Worker(host.read, root), started + deadline_s * 0.2)
    document["nvml"] = reader.collect(started + deadline_s * 0.7, max(0.5, deadline_s * 0.3))
    document["kernel_log"] = _kernel_log(log_worker, started + deadline_s * 0.8)
    _look_up(document, root, started + deadline_s * 0.9)
    if any(process.get("gone") for process in document["processes"]):
        # NVML lists a process for a moment after it has ended; what it still lists a second later stays.
        time.sleep(max(0.0, min(1.0, started + deadline_s * 0.5 - time.monotonic())))
        _list_again(document["nvml"]["gpus"], started + deadline_s * 0.8, deadline_s * 0.2)
        _look_up(document, root, started + deadline_s * 0.95)
    document["took_s"] = round(time.monotonic() - started, 3)
    return document


def _node(worker: Worker, until: float) -> Part:
    found: Part = unknown("the node's own /proc did not answer in time")
    for record in worker.records(until):
        if "node" in record:
            found = record["node"]
        elif "user" in record:
            found["user"] = record["user"]
    worker.close()
    return found


def _look_up(document: Part, root: str, until: float) -> None:
    pids = _pids(document["nvml"]["gpus"])
    document["processes"], document["slurm"], document["mps"], document["device_holders"] = _processes(
        Worker(processes.read, root, pids), pids, until
    )


def _list_again(gpus: List[Part], until: float, patience_s: float) -> None:
    """The processes of GPUs once more; a GPU that does not answer now keeps its first answer."""
    again = GpuReader("processes").collect(until, patience_s)["gpus"]
    if is_unknown(again) or len(again) != len(gpus):
        return
    for gpu, later in zip(gpus, again):
        if not is_unknown(later["processes"]):
            gpu["processes"] = later["processes"]


def _kernel_log(worker: Worker, until: float) -> Part:
    sources: List[Part] = []
    asking = ""
    for record in worker.records(until):
        asking = record.get("asking", asking)
        if "source" in record:
            sources.append(record)
    if not worker.ended or worker.failure:
        why = worker.failure or "it did not come in time"
        sources.append(dict(unknown("%s: %s" % (asking or "the kernel log", why)), source=asking or "none"))
    worker.close()
    return {"sources": sources, "covers": kernel_log.window(sources)}


def _pids(gpus: Any) -> List[int]:
    if is_unknown(gpus):
        return []
    lists = (gpu["processes"] for gpu in gpus if not is_unknown(gpu["processes"]))
    return sorted({process["pid"] for processes_of_gpu in lists for process in processes_of_gpu})[:512]


def _processes(worker: Worker, pids: List[int], until: float) -> Any:
    found: Dict[int, Part] = {}
    rest: Part = {}
    asking = "processes"
    for record in worker.records(until):
        asking = record.get("asking", asking)
        if "process" in record:
            found[record["process"]["pid"]] = record["process"]
        elif "account" in record:
            uid, name = record["account"]
            for process in found.values():
                if process.get("uid") == uid:
                    process["user"] = name
        elif "asking" not in record:
            rest.update(record)
    why = unknown(worker.failure or ("/proc did not answer in time (%s)" % asking))
    worker.close()
    holders = {"holders": rest["holders"], "hidden_processes": rest["holders_hidden"]} if "holders" in rest else why
    return (
        [found.get(pid, {"pid": pid, "unknown": why["unknown"]}) for pid in pids],
        {"jobs": rest.get("jobs", why)},
        {"daemons": rest.get("mps", why)},
        holders,
    )
