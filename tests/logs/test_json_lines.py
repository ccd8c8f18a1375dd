"""Lines that are one JSON object each: their message, traceback, step and speaker are read as if they stood bare."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace

import pytest

from runbook.diagnosis import diagnose
from runbook.logs.lines import parse_line, parse_lines
from runbook.model.log import LogStory, Phase
from tests.kinds import MEANINGS, Kind
from tests.logs.launcher_logs import OOM, PLAIN, job, reader

TRACEBACK = (
    'Traceback (most recent call last):\n  File "/code/train.py", line 60, in train_step\n    loss.backward()\n'
    f'  File "/opt/venv/torch/_tensor.py", line 581, in backward\n    torch.autograd.backward(\n{OOM}'
)
FRAMES = [{"filename": "/code/train.py", "lineno": 60, "name": "train_step"},
          {"filename": "/opt/venv/torch/_tensor.py", "lineno": 581, "name": "backward"}]
FORMS: dict[str, dict[str, object]] = {
    "python-json-logger": {"asctime": "2026-03-01 10:00:09,123", "levelname": "ERROR", "rank": 3, "message": "died",
                           "exc_info": TRACEBACK},
    "structlog": {"event": "died", "level": "error", "rank": 3, "timestamp": "2026-03-01T10:00:09Z",
                  "exception": TRACEBACK},
    "structlog's dicts": {"event": "died", "level": "error", "rank": 3, "exception": [
        {"exc_type": OOM.partition(": ")[0], "exc_value": OOM.partition(": ")[2], "frames": FRAMES}]},
    "loguru": {"text": f"[rank3]: died\n{TRACEBACK}\n", "record": {"level": {"name": "ERROR"}}},
    "Elastic's schema": {"@timestamp": "2026-03-01T10:00:09.123Z", "log.level": "error", "message": "died", "rank": 3,
                         "error": {"type": "OutOfMemoryError", "stack_trace": TRACEBACK}},
    "in the message": {"level": "ERROR", "rank": "3", "msg": TRACEBACK},
    "a collector's around a logger's": {
        "log": json.dumps({"level": "ERROR", "rank": 3, "message": "died", "exc_info": TRACEBACK}) + "\n",
        "stream": "stderr", "time": "2026-03-01T10:00:09.1Z"},
}


def story(*lines: str) -> LogStory:
    text = "".join(f"{line}\n" for line in lines).encode()
    return reader().read([("train.out", io.BytesIO(text), len(text))])


@pytest.mark.parametrize("form", FORMS)
def test_a_traceback_inside_a_record_is_read_as_one(form: str) -> None:
    told = story('{"step": 7, "loss": 2.0}', json.dumps(FORMS[form]), '{"level": "INFO", "message": "bye", "rank": 0}')
    root = told.root_cause
    assert root is not None
    assert (root.means, root.rank, root.phase) == (Kind.TRUE_OOM, 3, Phase.BACKWARD)
    assert root.fields.tried_bytes is not None
    assert "loss.backward()" in root.excerpt or form == "structlog's dicts"
    assert diagnose(told, meanings=MEANINGS, job=None).best.kind == Kind.TRUE_OOM
    assert told.progress.last_step == 7
    assert root.line == 2


def test_docker_writes_each_line_as_an_object() -> None:
    lines = ["step 7 loss 2.0", *(f"[rank3]: {line}" for line in TRACEBACK.split("\n"))]
    told = story(*(json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-03-01T10:00:00.5Z"})
                   for line in lines))
    assert told.root_cause is not None
    assert (told.root_cause.rank, told.root_cause.phase) == (3, Phase.BACKWARD)
    assert told.root_cause.time_s == 1772359200.5
    assert told.progress.last_step == 7


def test_the_fields_say_who_speaks() -> None:
    line = '{"ts": 1772359200.5, "level": "info", "rank": 3, "local_rank": 1, "hostname": "gpu-22.x", "pid": 9,'
    line += ' "msg": "a"}'
    one = parse_line(line, PLAIN)
    assert (one.rank, one.local_rank, one.node, one.pid, one.time_s) == (3, 1, "gpu-22", 9, 1772359200.5)
    assert parse_line(line, replace(PLAIN, nodes=frozenset({"gpu-21"}))).node is None
    assert parse_line('{"step": 3, "rank": 2, "reward": 0.5, "loss": 1.0}', PLAIN).rank == 2
    journal = '{"MESSAGE":"x","_HOSTNAME":"gpu-1","_PID":"55","__REALTIME_TIMESTAMP":"1772359200500000"}'
    one = parse_line(journal, PLAIN)
    assert (one.text, one.node, one.pid, one.time_s) == ("x", "gpu-1", 55, 1772359200.5)


@pytest.mark.parametrize("line", [
    '{"rank": 16, "lora_alpha": 32}', '{"text": "a\\nb"}', '{"message": "a\\nb"}', '{"prompt": "x", "level": "easy"}',
    '{"role": "user", "message": "x", "time": "noon"}', "{}", "{", '{"', '{"a"}', "{'loss': 1.0}", '["a"]',
])
def test_what_is_no_loggers_record_stays_as_it_is(line: str) -> None:
    (one,) = parse_lines(line, PLAIN)
    assert (one.text, one.rank, one.node, one.level) == (line, None, None, "")


@pytest.mark.parametrize("sample", [
    {"step": 7, "prompt": "why?", "response": TRACEBACK}, {"text": TRACEBACK}, {"role": "user", "content": TRACEBACK},
    {"message": TRACEBACK, "label": 1}, {"level": "info", "rank": 2, "message": f"the sandbox said:\n{TRACEBACK}"},
])
def test_a_sample_that_holds_a_traceback_is_no_cause_of_high_confidence(sample: dict[str, object]) -> None:
    told = story('{"step": 7, "loss": 2.0}', json.dumps(sample), '{"step": 8, "loss": 2.0}', '{"step": 9, "loss": 2.0}')
    assert told.root_cause is None or diagnose(told, meanings=MEANINGS, job=None).best.confidence < 0.7


def test_a_record_that_is_cut_counts_as_far_as_it_goes() -> None:
    whole = json.dumps({"level": "ERROR", "rank": 3, "message": "died", "exc_info": f"{TRACEBACK}\nmore"})
    told = story('{"step": 7, "loss": 2.0}', whole[:-7])
    assert told.root_cause is not None
    assert (told.root_cause.rank, told.root_cause.phase) == (3, Phase.BACKWARD)
    for stop in range(len(whole)):
        assert parse_lines(whole[:stop], PLAIN)


@pytest.mark.parametrize("line", [
    '{"a":' * 3000, '{"a":' + "[" * 16000, '{"message": "' + "\\n" * 8000 + '"}', '{"' + '\\"' * 8000,
    "{" + ",".join(f'"k{n}": {n}' for n in range(1500)) + "}", '{"step": ' + "9" * 16000 + "}",
    '{"level": "x", "message": "' + "a\\n" * 5000 + OOM, '{"time": ' * 2000,
    '{"time": 1e999, "rank": 1e300, "pid": -1, "message": "x"}',
])
def test_hostile_objects_cost_no_more_than_other_lines(line: str) -> None:
    text = "".join(f"{line} CUDA out of memory. {number}\n" for number in range(100))
    started = time.process_time()
    story(text)
    took = time.process_time() - started
    plain = "".join("x" * len(line) + f" CUDA out of memory. {number}\n" for number in range(100))
    started = time.process_time()
    story(plain)
    assert took < 12 * (time.process_time() - started) + 3.0


def test_the_stamps_inside_the_records_tell_which_rank_was_first() -> None:
    lines = [json.dumps({"level": "ERROR", "rank": rank, "host": "gpu-22", "message": "died",
                         "time": f"2026-03-01T10:00:{20 - rank:02}Z", "exc_info": TRACEBACK}) for rank in (1, 6)]
    text = "\n".join(lines).encode()
    told = reader().read([("train.out", io.BytesIO(text), len(text))], job=job(("gpu-22",), 8))
    assert told.root_cause is not None
    assert (told.root_cause.rank, told.root_cause.node) == (6, "gpu-22")
