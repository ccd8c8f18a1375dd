"""Who waits for a job that failed, as squeue tells it, and what lets them wait for the relaunched one."""

from __future__ import annotations

import pytest

from runbook.model.job import Dependent, JobRecord
from runbook.model.units import JobId, UserName
from runbook.slurm.controller import dependency_arguments, read_dependents
from runbook.slurm.states import job_state

SEPARATOR = "~recordedseparator~"


def failed(number: str, **changes: object) -> JobRecord:
    array = {"array_job_id": JobId(number.partition("_")[0])} if "_" in number else {}
    return JobRecord(
        JobId(number), "c", "train", UserName("alice"), job_state("FAILED"), uid=1000, **array, **changes  # type: ignore[arg-type]
    )


def told(*rows: tuple[str, ...]) -> str:
    return "".join("".join(f"{value}{SEPARATOR}" for value in row) + "\n" for row in rows)


def row(dependency: str, *, name: str = "export", uid: str = "1000", state: str = "PENDING", reason: str = "Dependency"
        ) -> str:
    return told(("10", name, uid, state, reason, dependency))


@pytest.mark.parametrize(
    ("job", "dependency", "condition", "instead"),
    [
        ("7", "afterok:7(failed)", "afterok", "afterok:8"),
        ("7", "afterany:5(unfulfilled),afterok:7(failed)", "afterok", "afterany:5,afterok:8"),
        ("7", "afterok:7:9", "afterok", ""),
        ("7", "afterok:7(failed)?afterok:9(unfulfilled)", "afterok", ""),
        ("7_3", "afterok:7_3(failed)", "afterok", "afterok:8"),
        ("7_3", "afterok:7_*(failed)", "afterok", ""),
        ("7_3", "aftercorr:7_*(unfulfilled)", "aftercorr", ""),
        ("7", "afternotok:7(unfulfilled)", "afternotok", "afternotok:8"),
    ],
)
def test_who_waits_and_for_what_else(job: str, dependency: str, condition: str, instead: str) -> None:
    ((waits, other),) = read_dependents(row(dependency), failed(job), SEPARATOR).items()
    assert waits == Dependent(JobId("10"), "export", condition)
    assert other.replace("NEW", "8") == instead
    if instead:
        assert dependency_arguments(waits.id, other, JobId("8")) == ("update", "JobId=10", f"Dependency={instead}")


@pytest.mark.parametrize(
    "text",
    [
        row("afterok:77(failed)"), row("afterok:7_3(failed)"), row("(null)"), row("singleton(unfulfilled)"),
        row("afterok:7(failed)", uid="1001"), row("afterok:7(failed)", state="CANCELLED", reason="None"),
    ],
)
def test_others_do_not(text: str) -> None:
    assert read_dependents(text, failed("7"), SEPARATOR) == {}


def test_one_that_waits_for_its_own_name_and_one_that_slurm_cancelled_are_named() -> None:
    ((single, instead),) = read_dependents(row("singleton(unfulfilled)", name="train"), failed("7"), SEPARATOR).items()
    assert (single.condition, single.in_vain, instead) == ("singleton", False, "")
    gone = row("afterok:7(failed)", state="CANCELLED", reason="DependencyNeverSatisfied")
    ((lost, instead),) = read_dependents(gone, failed("7"), SEPARATOR).items()
    assert (lost.cancelled, lost.in_vain, instead) == (True, True, "")
