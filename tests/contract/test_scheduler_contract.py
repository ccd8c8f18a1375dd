"""What every Scheduler does: the fake, the local one, pyslurm over a stand-in, Slurm's commands on a real cluster."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from runbook.errors import BadInput, NotAllowed, NotFound
from runbook.model.job import Claim, JobClass, JobEnvironment, JobRecord, JobScript, NodeClass, Submission
from runbook.model.units import IncidentId, JobId, NodeName, Unknown, UserName
from runbook.slurm.ownership import doubts, new_claim
from tests.contract.conftest import Bench

QUICK = "#!/bin/bash\n# a job\necho done\nexit 3\n"
LONG = "#!/bin/bash\nsleep 300\n"


def resubmission(bench: Bench, body: str, claim: Claim, *options: str, **variables: str) -> Submission:
    path = bench.write("patched.sh", body)
    environment = JobEnvironment(variables) if variables else None
    return Submission(claim, str(bench.work_dir), path, options, (), environment)


def token() -> str:
    return f"contract:{uuid.uuid4().hex[:12]}"


def claim_of(original: JobRecord) -> Claim:
    return new_claim(IncidentId(f"oom-{original.cluster}-{original.id}"), 1, original, original.submit_time_s or 0.0)


def test_a_job_that_failed(bench: Bench) -> None:
    job = bench.start(QUICK, name="llm pre=train")
    record = bench.until_ended(job)
    assert (record.id, record.name, record.owner) == (job, "llm pre=train", bench.owner)
    assert (record.state.job_class, record.exit_code, record.signal or 0) == (JobClass.FAILED, 3, 0)
    assert record.work_dir == str(bench.work_dir)
    assert record.stdout_path == f"{bench.work_dir}/llm pre=train.out"
    assert record.stderr_path == ""
    assert record.nodes and record.num_nodes == 1
    assert record.start_time_s is not None and record.end_time_s is not None
    assert record.start_time_s <= record.end_time_s


def test_its_script_is_the_one_that_was_submitted(bench: Bench) -> None:
    job = bench.start(QUICK)
    bench.until_ended(job)
    bench.write("train.sh", "#!/bin/bash\necho changed since\n")
    script = bench.scheduler.script(job)
    assert isinstance(script, JobScript)
    assert script.text == QUICK


def test_its_environment_is_the_submitters(bench: Bench) -> None:
    job = bench.start(QUICK)
    bench.until_ended(job)
    kept = bench.scheduler.environment(job)
    assert isinstance(kept, JobEnvironment)
    assert kept.variables["MARK"] == "kept"


def test_a_job_that_nobody_knows(bench: Bench) -> None:
    known = bench.scheduler.job(bench.start(QUICK))
    with pytest.raises(NotFound):
        bench.scheduler.job(JobId("99999998"))
    assert isinstance(bench.scheduler.script(JobId("99999998")), Unknown)
    assert isinstance(bench.scheduler.environment(JobId("99999998")), Unknown)
    bench.scheduler.cancel(replace(known, id=JobId("99999998")))


def test_cancel_ends_a_job_and_may_be_repeated(bench: Bench) -> None:
    job = bench.start(LONG)
    running = bench.until(job, lambda record: record.state.job_class is JobClass.ACTIVE)
    bench.started.append(job)
    for stranger in (replace(running, owner=UserName("mallory"), uid=4242), replace(running, restarts=7)):
        with pytest.raises(NotAllowed, match="is not cancelled"):
            bench.scheduler.cancel(stranger)
    assert bench.scheduler.job(job).state.job_class is JobClass.ACTIVE
    bench.scheduler.cancel(running)
    record = bench.until_ended(job)
    assert record.state.job_class is JobClass.CANCELLED
    bench.scheduler.cancel(running)
    assert bench.scheduler.job(job).state.job_class is JobClass.CANCELLED


def test_submit_again_with_the_original_options(bench: Bench) -> None:
    job = bench.start(QUICK, "--comment=my run")
    original = bench.until_ended(job)
    ours = claim_of(original)
    again = bench.scheduler.submit(resubmission(bench, LONG, ours), original)
    bench.started.append(again)
    assert again != job
    assert bench.scheduler.find_submitted(ours) == (again,)
    record = bench.scheduler.job(again)
    assert (record.name, record.owner, record.work_dir) == (original.name, original.owner, original.work_dir)
    assert record.comment == f"{ours.token} my run"
    assert doubts(record, ours) == ()
    script = bench.scheduler.script(again)
    assert isinstance(script, JobScript) and script.text == LONG
    bench.scheduler.cancel(record)
    bench.until_ended(again)
    assert bench.scheduler.find_submitted(ours) == (again,)


def test_a_token_is_not_found_in_a_longer_one(bench: Bench) -> None:
    ours = token()
    job = bench.start(QUICK, f"--comment={ours}:1 x")
    bench.start(QUICK, f"--comment={ours}:12")
    claim = replace(claim_of(bench.scheduler.job(job)), token=f"{ours}:1")
    assert bench.scheduler.find_submitted(claim) == (job,)
    for other in (f"{ours}:2", ours):
        assert bench.scheduler.find_submitted(replace(claim, token=other)) == ()


def test_a_part_of_a_heterogeneous_job_is_refused(bench: Bench) -> None:
    original = replace(bench.scheduler.job(bench.start(QUICK)), id=JobId("7+1"))
    with pytest.raises(NotAllowed, match="heterogeneous"):
        bench.scheduler.submit(resubmission(bench, QUICK, claim_of(original)), original)


def test_drain_and_give_back(bench: Bench) -> None:
    mark = f"runbook:{token()}"
    ours = f"{mark} GPU 3: a=b | c"
    (before,) = bench.scheduler.nodes((bench.node,))
    assert before.node_class in (NodeClass.AVAILABLE, NodeClass.BUSY)
    bench.scheduler.drain(bench.node, ours)
    try:
        (drained,) = bench.scheduler.nodes((bench.node,))
        assert (drained.node_class, drained.reason, drained.token) == (NodeClass.DRAINED, ours, mark)
        bench.scheduler.drain(bench.node, ours)
        with pytest.raises(NotAllowed, match="already"):
            bench.scheduler.drain(bench.node, "runbook:another incident")
        with pytest.raises(NotAllowed, match="somebody else"):
            bench.scheduler.undrain(bench.node, "NHC:")
        assert bench.scheduler.nodes((bench.node,))[0].reason == ours
    finally:
        bench.scheduler.undrain(bench.node, mark)
    (after,) = bench.scheduler.nodes((bench.node,))
    assert after.node_class is not NodeClass.DRAINED
    bench.scheduler.undrain(bench.node, mark)


def test_nodes(bench: Bench) -> None:
    assert bench.node in [node.name for node in bench.scheduler.nodes()]
    assert bench.scheduler.nodes(()) == ()
    with pytest.raises(NotFound):
        bench.scheduler.nodes((NodeName("no-such-node"),))
    with pytest.raises((NotFound, BadInput)):
        bench.scheduler.drain(NodeName("no-such-node"), "runbook:x")


def test_it_says_who_it_is(bench: Bench) -> None:
    assert len(bench.scheduler.describe()) > 10
