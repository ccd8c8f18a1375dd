"""Scripts that ended the service, or held it: the whole flow reads them, and the service stays as it was."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from runbook.cli.wiring import Application
from runbook.config import CageDocument, Inventory, NodesDocument, PathsDocument, PolicyDocument, SchedulerDocument
from runbook.model.incident import Policy
from runbook.model.job import JobClass
from tests.hostile.scene import Service, ended, opened

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
MERGES = "\n".join(
    ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 24)), "lr: {<<: *a23}"]
)
SCRIPTS = {
    "doubles": "x=ab\n" + 'x="$x$x"\n' * 40 + "python train.py --micro-batch-size $x\n",
    "exports": "srun --export=ALL," + ",".join(f"A{n}=$A{n}" for n in range(1500)) + " python train.py\n",
    "nests": "x=" + "${a:-" * 20_000 + "1" + "}" * 20_000 + "\npython train.py --micro-batch-size $x\n",
    "merges": "python train.py --config merges.yaml\n",
    "honest": "python train.py --micro-batch-size 8\n",
}


@pytest.mark.timeout(300)
def test_the_service_outlives_what_it_reads(tmp_path: Path) -> None:
    app = Application(Inventory(
        version=1, id="here", title="", cluster="alpha", scheduler=SchedulerDocument(kind="local"),
        nodes=NodesDocument(kind="none"), policy=PolicyDocument(mode=Policy.PLAN),
        paths=PathsDocument(state=str(tmp_path / "state"), spool=str(tmp_path / "spool")),
        cage=CageDocument(memory_mib=256, cpu_s=5, wall_s=30, whole_s=120),
    ))
    (tmp_path / "merges.yaml").write_text(MERGES, encoding="utf-8")
    jobs = {}
    for name, text in SCRIPTS.items():
        script = tmp_path / f"{name}.sh"
        script.write_text(f"#!/bin/bash\necho '{OOM}' >&2\nexit 1\n{text}", encoding="utf-8")
        jobs[name] = app.local_scheduler.submit_script(str(script), work_dir=str(tmp_path))
    while any(app.scheduler.job(job).state.job_class is not JobClass.FAILED for job in jobs.values()):
        time.sleep(0.05)
    before_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    with Service(app) as engine:
        incidents = {name: opened(app, job) for name, job in jobs.items()}
        for incident in incidents.values():
            engine.enqueue(incident)
        last = {name: ended(app, engine, incident) for name, incident in incidents.items()}
    for name, incident in last.items():
        assert incident.finished, (name, incident.conclusion)
        assert incident.conclusion and "a fault of this tool" not in incident.conclusion, (name, incident.conclusion)
    assert not [visit for visit in last["honest"].visits if visit.outcome == "stopped"]
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before_bytes
    assert grown_bytes < 300 << 20, f"the service grew by {grown_bytes >> 20} MiB"
