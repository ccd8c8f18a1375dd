"""Every case of the corpus: the rank, the node, the figures, the phase and the diagnosis that it names."""

from __future__ import annotations

import json
from functools import cache

import pytest

from runbook.report.contract import to_contract
from runbook.report.vocabulary.sentences import in_words
from tests.kinds import Kind
from tests.logs import corpus
from tests.logs.corpus import NOT_MEMORY, UNSET, Case, Told

CASES = {case.id: case for case in corpus.cases()}
AT_LEAST_CASES = 500
AT_LEAST_CAPTURED = 150
AT_LEAST_NO_OOM = 100
DIAGNOSIS_RIGHT_AT_LEAST = 0.97
RANK_RIGHT_AT_LEAST = 0.98
"""Of the cases of jobs with several ranks; what is known to be wrong counts as wrong."""
HIGH_CONFIDENCE = 0.7


@cache
def told(identity: str) -> Told:
    return corpus.told(CASES[identity])


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.id)
def test_case(case: Case) -> None:
    result = told(case.id)
    wrong = corpus.wrong(case, result)
    diagnosis = result.diagnosis
    assert diagnosis.best.confidence + sum(one.confidence for one in diagnosis.runners_up) <= 1.0 + 1e-9
    json.dumps(to_contract(result.story, diagnosis))
    if case.known_wrong:
        assert wrong, f"{case.id} is right now: delete its known_wrong"
        pytest.xfail("; ".join([*wrong, f"known: {case.known_wrong}"]))
    assert not wrong, "\n".join([
        *wrong, f"root cause: {result.story.root_cause}", *map(in_words, diagnosis.best.reasons),
    ])


def test_what_is_no_oom_is_never_called_one_with_high_confidence() -> None:
    called = [
        f"{case.id}: {told(case.id).diagnosis.best.kind}" for case in CASES.values()
        if case.expect.kind in NOT_MEMORY and told(case.id).diagnosis.best.kind not in NOT_MEMORY
        and told(case.id).diagnosis.best.confidence >= HIGH_CONFIDENCE
    ]
    assert called == []


def test_the_diagnosis_is_right_in_most_cases() -> None:
    right = [told(case.id).diagnosis.best.kind == case.expect.kind for case in CASES.values()]
    assert sum(right) >= DIAGNOSIS_RIGHT_AT_LEAST * len(right)


def test_the_first_failing_rank_is_right_in_almost_all_cases() -> None:
    right = []
    for case in CASES.values():
        if case.multi_rank and case.expect.rank != UNSET:
            root = told(case.id).story.root_cause
            right.append((root.rank if root is not None else None) == case.expect.rank)
    assert sum(right) >= RANK_RIGHT_AT_LEAST * len(right)


def test_the_corpus_is_wide_enough() -> None:
    cases = list(CASES.values())
    assert len(cases) >= AT_LEAST_CASES
    assert sum(case.evidence == "captured" for case in cases) >= AT_LEAST_CAPTURED
    assert sum(case.expect.kind in (Kind.NOT_OOM, Kind.HARDWARE_FAULT) for case in cases) >= AT_LEAST_NO_OOM
