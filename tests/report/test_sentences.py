"""Codes and their parameters as words: the formats, what is hostile in a parameter, and the way through a document."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runbook.model.remedy import NoPlan, RefusedLever
from runbook.model.sentences import NOTHING, Wording, as_written, joined
from runbook.report.json_documents import dump_incident, load_incident
from runbook.report.vocabulary.sentences import in_words
from tests.report.sample_incidents import SAMPLES


class Say(Wording):
    ROOM = "{names:, } in {room:GiB}, {share:.0%} of {whole!r}"
    MAY_IT = "{question:?} ({shown})? {more}"


def test_a_sentence_is_made_of_its_parameters() -> None:
    told = Say.ROOM(names=("one", Say.ROOM), room=3 << 29, share=0.25, whole="it")
    assert in_words(told) == "one, Say.ROOM in 1.50 GiB, 25% of 'it'"


def test_what_stands_in_a_parameter_is_no_format() -> None:
    asked = as_written("{shown} {0} {question.code}?")
    assert in_words(Say.MAY_IT(question=asked, shown="{more}", more="%s")) == "{shown} {0} {question.code} ({more})? %s"


def test_what_says_nothing_is_false_and_is_left_out() -> None:
    assert not NOTHING and not as_written("") and not joined((NOTHING, NOTHING)) and as_written("a")
    assert in_words(joined((as_written("a"), NOTHING, as_written("b")))) == "a; b"


def test_a_sentence_is_not_put_into_words_by_accident() -> None:
    with pytest.raises(TypeError):
        f"{as_written('a')}"


def test_an_incident_keeps_the_sentence_and_an_older_one_is_read() -> None:
    told = Say.MAY_IT(question=as_written("May it be?"), shown="8 → 4", more=NOTHING)
    incident = replace(SAMPLES["escalated"](), no_plan=NoPlan(told, (RefusedLever("micro_batch", told),)))
    read = load_incident(dump_incident(incident)).no_plan
    assert read is not None and in_words(read.why) == in_words(told) == "May it be (8 → 4)? "
    assert in_words(read.refused[0].why) == in_words(told) and not read.question
