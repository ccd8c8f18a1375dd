"""Every case of the corpus: the rank, the node, the figures, the phase and the diagnosis that it names."""

from __future__ import annotations

import json

import pytest

from runbook.diagnosis.contract import to_contract
from runbook.model.diagnosis import Kind
from tests.logs import corpus
from tests.logs.corpus import Case


@pytest.mark.parametrize("case", corpus.cases(), ids=lambda case: case.id)
def test_case(case: Case) -> None:
    result = corpus.told(case)
    wrong = corpus.wrong(case, result)
    if case.known_wrong:
        pytest.xfail(case.known_wrong)
    else:
        assert not wrong, "\n".join([*wrong, f"root cause: {result.story.root_cause}", *result.diagnosis.best.reasons])
    diagnosis = result.diagnosis
    assert diagnosis.best.confidence + sum(one.confidence for one in diagnosis.runners_up) <= 1.0 + 1e-9
    json.dumps(to_contract(result.story, diagnosis))


def test_what_is_no_oom_is_never_called_one_with_high_confidence() -> None:
    for case in corpus.cases():
        if case.expect.kind in corpus.NOT_MEMORY and "kind:" not in case.known_wrong:  # `accuracy.py` counts those
            best = corpus.told(case).diagnosis.best
            assert best.kind in corpus.NOT_MEMORY or best.confidence < 0.7, case.id


def test_the_corpus_is_wide_enough() -> None:
    cases = corpus.cases()
    assert len(cases) >= 84
    assert sum(1 for case in cases if case.expect.kind in (Kind.NOT_OOM, Kind.HARDWARE_FAULT)) >= 12
