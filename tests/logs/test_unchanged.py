"""Changes to a log that leave its meaning alone leave the answer alone; and every form of a prefix proves itself."""

from __future__ import annotations

import pytest

from runbook.locations import data_folder
from runbook.logs.lines import FileProfile, learn_prefixes, parse_line
from runbook.logs.signatures import load_signatures
from runbook.logs.signatures.signature_document import load_prefixes
from tests.logs import unchanged
from tests.logs.launcher_logs import FAILURE, chatter, prefixed, root

FOLDER = data_folder("playbooks") / "oom" / "signatures"
KNOWN = {
    "captured_torch_no_script": "all ranks fail alike, and torchrun's table counts or not by what stands beside it",
    "rootcause_warning_then_exit": "a single remark without a traceback, by a rank that is named nowhere else",
    "written_caught_then_hang": "that the job went on is known by who goes on and when, which the change takes away",
    "written_own_ranks": "its tenants are known as its own ranks by prefixes of one spelling alone",
}
"""Of the draw, what a change may alter, and why."""

@pytest.mark.parametrize("name", unchanged.CHANGES)
def test_the_answer_stays(name: str) -> None:
    every = list(unchanged.outcomes(name))
    assert len(every) >= 20, "the change applies to too few cases to say anything"
    assert [one for one in every if not (one.kind_stays and one.rank_stays) and one.case not in KNOWN] == []


def test_the_draw_is_what_the_lot_gave() -> None:
    assert len(unchanged.drawn()) == unchanged.DRAWN_CASES


@pytest.mark.parametrize(
    ("pattern", "prefix"), [(one.pattern, says) for one in load_prefixes(FOLDER) for says in one.says]
)
def test_every_form_of_a_prefix_reads_its_samples(pattern: str, prefix: str) -> None:
    forms = load_signatures(FOLDER).forms
    lines = [f"{prefix.replace('5', str(rank), 1)}{text}" for rank in (1, 4, 2, 0) for text in FAILURE]
    file = FileProfile(habits=learn_prefixes(lines, frozenset(), forms), forms=forms)
    said = parse_line(prefix + FAILURE[1], file)
    assert said.text == FAILURE[1]
    assert "rank:int" not in pattern or 5 in (said.rank, said.local_rank)


COUNTERS = {
    "epochs": "[{number}/16] ", "steps": "{number} | ", "a bar": "({number}/100) ", "tasks": "task {number}: ",
}


@pytest.mark.parametrize("counter", COUNTERS.values(), ids=COUNTERS)
def test_what_counts_in_front_of_lines_is_no_rank(counter: str) -> None:
    text = "".join(f"{counter.format(number=number)}loss 2.31\n" * 3 for number in range(1, 12))
    assert root(("train.out", text + "\n".join(FAILURE) + "\n")).rank is None


def test_a_number_that_only_the_frames_of_a_traceback_share_is_the_rank() -> None:
    text = chatter("") + prefixed("5 | ", FAILURE) + chatter("")
    assert root(("train.out", text)).rank == 5
