"""Put on PYTHONPATH by whoever wants it: a rank that runs out of GPU memory leaves a memory snapshot (runbook observe).

Python imports this module by its name when it starts. It does nothing without RUNBOOK_SNAPSHOTS, and nothing before the
job itself has imported torch and begun to use the GPU: then it has torch keep the last RUNBOOK_SNAPSHOT_ENTRIES
allocations, and at the moment of failure write them into the folder RUNBOOK_SNAPSHOTS. Whatever goes wrong here is said
in a line on standard error, and the job goes on as if this were not there. Another sitecustomize, which this one hides,
is run as it would have been.

Runs under the job's Python, 3.8 or newer; standard library only."""

import importlib.machinery
import importlib.util
import os
import sys
import time
from typing import Any, Callable

_MOST_ENTRIES = 1000000
_ENTRIES = 100000
_MOST_SNAPSHOTS = 5
_MOST_S = 120.0
"""A program that catches the failure and tries again, as searches for a batch size do, is not held up for ever. The
last of its failures that is within these bounds is kept."""


class _Waiting:
    """An import hook that waits for torch, and is gone once it was imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Finds nothing itself: what others find for torch is told us when it has been executed."""
        if name != "torch":
            return None
        _leave(self)
        spec: Any = None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                break
        try:
            loader = spec.loader
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _safely(_attach, module)

            loader.exec_module = exec_module
        except Exception as error:
            _say("torch is not watched: %r" % (error,))
        return spec


def _leave(hook: Any) -> None:
    if hook in sys.meta_path:
        sys.meta_path.remove(hook)


def _say(text: str) -> None:
    try:
        sys.stderr.write("runbook observe: %s\n" % (text,))
    except Exception:
        pass


def _safely(do: Callable[..., None], *arguments: Any) -> None:
    try:
        do(*arguments)
    except Exception as error:
        _say("no snapshot will be written: %r" % (error,))


def _attach(torch: Any) -> None:
    """Waits for the job to use the GPU: to record begins a context, which forked processes could not use any more."""
    torch.cuda._lazy_call(lambda: _safely(_begin, torch))


def _begin(torch: Any) -> None:
    entries = _entries()
    record = torch.cuda.memory._record_memory_history
    try:
        # C++ calls would make the writing take minutes.
        record(max_entries=entries, stacks="python")
    except TypeError:
        record(True, trace_alloc_max_entries=entries, trace_alloc_record_context=True)
    observer = _Observer(torch, os.environ["RUNBOOK_SNAPSHOTS"])
    torch._C._cuda_attach_out_of_memory_observer(observer)


def _entries() -> int:
    try:
        wanted = int(os.environ.get("RUNBOOK_SNAPSHOT_ENTRIES", _ENTRIES))
    except ValueError:
        wanted = _ENTRIES
    return max(1, min(wanted, _MOST_ENTRIES))


class _Observer:
    """Called by torch when a request has failed, before it raises: what is raised here would be raised instead."""

    def __init__(self, torch: Any, folder: str) -> None:
        self._torch, self._folder, self._written, self._took_s = torch, folder, 0, 0.0

    def __call__(self, device: int, wanted: int, total: int, free: int) -> None:
        """GPU, bytes of the request's segment, of the device or what is allowed, and free."""
        if self._written >= _MOST_SNAPSHOTS or self._took_s > _MOST_S:
            return
        self._written += 1
        began = time.monotonic()
        try:
            path = self._write(device)
            _say("out of memory on GPU %s: snapshot in %s" % (device, path))
        except Exception as error:
            _say("the snapshot could not be written: %r" % (error,))
        self._took_s += time.monotonic() - began

    def _write(self, device: int) -> str:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        environment = os.environ.get
        rank = environment("RANK") or environment("SLURM_PROCID") or "0"
        job = environment("SLURM_JOB_ID") or "nojob"
        name = "oom_job%s_rank%s_gpu%s_pid%d.pickle" % (_plain(job), _plain(rank), device, os.getpid())
        path = os.path.join(self._folder, name)
        # Whole or not at all: the job may be ended while it is being written.
        unfinished = os.path.join(self._folder, "." + name + ".part")
        try:
            self._torch.cuda.memory._dump_snapshot(unfinished)
            os.replace(unfinished, path)
        finally:
            if os.path.exists(unfinished):
                os.unlink(unfinished)
        return path


def _plain(text: str) -> str:
    return "".join(letter for letter in text if letter.isalnum() or letter in "-_")[:40]


def _run_the_hidden_one() -> None:
    """The sitecustomize that this one stands before, where there is one: of the system, the site, or another tool."""
    own = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or os.curdir) != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("RUNBOOK_SNAPSHOTS"):
    sys.meta_path.insert(0, _Waiting())
# What it raises is its own, as without us.
_run_the_hidden_one()
