"""Earlier incidents as witnesses: who is like whom, what is said of a lever, and that no order changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runbook.model.remedy import Circumstances, Effect, LeverUse, Plan, Remembered, TriedLever
from runbook.model.units import GIB, IncidentId
from runbook.remedy import Similarity, reasons, similar_incidents, with_reasons
from tests.kinds import Kind

RAN_WITH = Circumstances(
    "megatron", model="llama-70b", micro_batch=8, global_batch=512, sequence_length=4096, degrees={"tensor": 4}
)
NOW = Remembered(
    IncidentId("oom-a-9"), 900.0, Kind.TRUE_OOM, script="s1", series="n1", circumstances=RAN_WITH,
    framework_version="2.6.0", gpu_bytes=round(79.1 * GIB), gpus=32,
)


def past(number: int, **changes: object) -> Remembered:
    """Somebody else's incident with the same figures, unless changed."""
    other = replace(NOW, incident=IncidentId(f"oom-a-{number}"), opened_s=float(number), script="s2", series="n2")
    return replace(other, **changes)  # type: ignore[arg-type]


def ran_with(**changes: object) -> Circumstances:
    return replace(RAN_WITH, **changes)  # type: ignore[arg-type]


def tried(worked: bool | None, new: int = 4, attempt: int = 1, lever: str = "smaller_micro_batch") -> TriedLever:
    return TriedLever(lever, f"{lever}:micro={new}", f"--micro-batch-size 8 → {new}", attempt, worked)


USE = LeverUse("smaller_micro_batch", "t", "w", "s", Effect.NUMERICS, "c", (), "smaller_micro_batch:micro=4")


@pytest.mark.parametrize(
    ("other", "similarity"),
    [
        (past(1), Similarity.ALIKE),
        (past(1, series="n1"), Similarity.SAME_SERIES),
        (past(1, script="s1"), Similarity.SAME_SCRIPT),
        (past(1, script="s1", circumstances=ran_with(model="x", micro_batch=1, sequence_length=64)),
         Similarity.SAME_SCRIPT),
        (past(1, script="", series=""), Similarity.ALIKE),
        (past(1, kind=Kind.FRAGMENTATION, script="s1"), None),
        (past(1, circumstances=ran_with(system="verl"), script="s1"), None),
        (past(1, gpu_bytes=round(79.65 * GIB)), Similarity.ALIKE),
        (past(1, gpu_bytes=round(39.4 * GIB)), None),
        (past(1, gpu_bytes=round(39.4 * GIB), script="s1"), None),
        (past(1, gpu_bytes=None), None),
        (past(1, gpu_bytes=None, script="s1"), Similarity.SAME_SCRIPT),
        (past(1, circumstances=ran_with(micro_batch=4)), Similarity.ALIKE),
        (past(1, circumstances=ran_with(micro_batch=3)), None),
        (past(1, circumstances=ran_with(micro_batch=None)), Similarity.ALIKE),
        (past(1, circumstances=ran_with(sequence_length=16384)), None),
        (past(1, circumstances=ran_with(model="llama-8b")), None),
        (past(1, circumstances=ran_with(model="")), Similarity.ALIKE),
        (past(1, simulated=True, script="s1"), None),
        (past(9, script="s1"), None),
    ],
)
def test_what_is_like_what(other: Remembered, similarity: Similarity | None) -> None:
    found = similar_incidents(NOW, (other,))
    assert [item.similarity for item in found] == ([] if similarity is None else [similarity])


def test_frameworks_that_nobody_knows_are_not_the_same() -> None:
    nameless = replace(NOW, circumstances=Circumstances())
    assert similar_incidents(nameless, (past(1, script="s1", circumstances=Circumstances()),)) == ()


def test_the_nearest_go_first_then_those_with_more_in_common_then_the_newest() -> None:
    far = past(1, circumstances=ran_with(micro_batch=4))
    found = similar_incidents(NOW, (far, past(2), past(3), past(4, series="n1"), past(0, script="s1")))
    assert [item.of.incident for item in found] == [f"oom-a-{number}" for number in (0, 4, 3, 2, 1)]


def test_a_lever_that_always_worked_is_told_with_its_numbers_and_ids() -> None:
    cases = [past(number, levers=(tried(True),)) for number in (1, 2, 3, 4)]
    (told,) = reasons(USE, similar_incidents(NOW, cases), "2.6.0")
    assert told == (
        "worked in 4 of 4 in similar failures (same framework, kind of failure and GPU memory): oom-a-4 (the same "
        "values), oom-a-3 (the same values), oom-a-2 (the same values) and 1 more"
    )


@pytest.mark.parametrize(
    ("levers", "words"),
    [
        ((tried(True),), "worked in 1 of 1 with the same script: oom-a-1 (the same values); one case proves little"),
        ((tried(False, 2),),
         "did not suffice in 1 of 1 with the same script: oom-a-1 (--micro-batch-size 8 → 2); one case proves little"),
        ((tried(None),), "tried with the same script before, and not proven either way: oom-a-1 (the same values)"),
        ((tried(True, attempt=2), tried(False, attempt=1, lever="expandable_segments")),
         "worked in 1 of 1 with the same script: oom-a-1 (the same values, on top of expandable segments); one case "
         "proves little"),
    ],
)
def test_few_cases_are_called_few(levers: tuple[TriedLever, ...], words: str) -> None:
    (told,) = reasons(USE, similar_incidents(NOW, (past(1, script="s1", levers=levers),)))
    assert told == words


def test_a_lever_that_was_not_enough_says_what_was_and_still_comes_first() -> None:
    last_week = past(1, script="s1", levers=(tried(False), tried(True, attempt=2, lever="selective_recompute")))
    plan = Plan(uses=(USE,), system="megatron", ladder="l")
    told = with_reasons(plan, similar_incidents(NOW, (last_week,)))
    assert [use.lever for use in told.uses] == ["smaller_micro_batch"]
    assert told.uses[0].seen_before == (
        "did not suffice in 1 of 1 with the same script: oom-a-1 (the same values); one case proves little",
        "what worked on top of it in oom-a-1: selective recompute --micro-batch-size 8 → 4",
    )
    assert replace(told.uses[0], seen_before=()) == USE


def test_what_worked_only_under_another_pytorch_is_said_to() -> None:
    cases = [past(number, framework_version="2.1.0", levers=(tried(True),)) for number in (1, 2, 3)]
    (told,) = reasons(USE, similar_incidents(NOW, cases), "2.6.0")
    assert told.endswith("worked only under another PyTorch (2.1.0)")
    (told,) = reasons(USE, similar_incidents(NOW, [*cases, past(4, levers=(tried(True),))]), "2.6.0")
    assert "another PyTorch" not in told


def test_a_lever_that_nobody_tried_has_no_reason() -> None:
    assert reasons(USE, similar_incidents(NOW, (past(1, levers=(tried(True, lever="other"),)),))) == ()
