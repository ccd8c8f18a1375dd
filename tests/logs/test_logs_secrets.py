"""What a log shows of keys and passwords around a failure stays out of the story, and so out of every report."""

from __future__ import annotations

import io
import json

import pytest

from runbook.diagnosis import diagnose
from runbook.locations import data_folder
from runbook.logs.reader import LogReader
from runbook.logs.signatures import load_signatures
from runbook.masking import masked
from runbook.report.contract import to_contract
from runbook.report.text.diagnosis_text import render_diagnosis
from tests.kinds import MEANINGS

READER = LogReader(load_signatures(data_folder("playbooks") / "oom" / "signatures"))
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB "
    "of which 1.00 GiB is free. Of the allocated memory 74.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved "
    "by PyTorch but unallocated."
)
SECRET = "abcdefGHIJKLmnopqrSTUVWX0123456789"

LOGS = {
    "in the traceback's source line": (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "train.py", line 3, in <module>\n'
        f'[rank1]:     main(hub="x", hf_token="hf_{SECRET}")\n[rank1]: {OOM}\n'
    ),
    "behind the message": f"[rank1]: {OOM} HF_TOKEN=hf_{SECRET}\n",
    "in the line after": f"[rank1]: {OOM}\n[rank1]: then: curl -H 'Authorization: Bearer {SECRET}' http://head/\n",
    "where an excerpt is cut": f"[rank1]: {OOM}\n[rank1]: {'x' * 180} HF_TOKEN=hf_{SECRET}\n",
    "in the exception of a program": (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    connect()\n'
        f"db.OperationalError: cannot connect to postgresql://alice:{SECRET}@db.example/runs\n"
    ),
    "a private key": (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    -----BEGIN PRIVATE KEY-----\n'
        f"    {SECRET}\n    -----END PRIVATE KEY-----\n{OOM}\n"
    ),
}


@pytest.mark.parametrize("where", sorted(LOGS))
def test_a_secret_of_the_log_is_in_no_report(where: str) -> None:
    content = LOGS[where].encode()
    story = READER.read([("train.out", io.BytesIO(content), len(content))])
    diagnosis = diagnose(story, meanings=MEANINGS, job=None)
    assert story.root_cause is not None
    shown = json.dumps(to_contract(story, diagnosis)) + render_diagnosis(story, diagnosis, MEANINGS)
    assert SECRET[:12] not in shown
    assert SECRET[:12] not in repr(story)


@pytest.mark.parametrize("colour", ["\x1b[1m", "[1m", "\x1b[0;31m", "[0m"])
def test_a_colour_inside_a_secret_does_not_hide_it(colour: str) -> None:
    secret = "abcdefghij0123456789ABCDEFGHIJ"
    for line in (f"HF_TOKEN=hf_{colour}{secret}", f"HF_TOKEN=hf_abcdef{colour}{secret}", f"password={colour}{secret}"):
        assert secret not in masked(line)


def test_a_colour_without_a_secret_stays() -> None:
    assert masked("a key [1mbold[0m word") == "a key [1mbold[0m word"
