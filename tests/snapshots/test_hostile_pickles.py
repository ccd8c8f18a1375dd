"""What is no snapshot, or wants to be more than data, gets a sentence: nothing is run, nothing grows without end."""

from __future__ import annotations

import io
import json
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from runbook.errors import BadInput
from runbook.snapshots import read_snapshot
from tests.snapshots.hostile_pickles import Hostile, hostile_pickles

MADE = "/tmp/code-of-a-snapshot-was-run"
CORPUS = list(hostile_pickles(MADE))
_MOST_BYTES = 3 << 30
_LONGEST_S = 60.0
_READS_EACH = """
import json, sys, time
from pathlib import Path
from runbook.errors import BadInput
from runbook.snapshots import read_snapshot
for path in sorted(Path(sys.argv[1]).iterdir()):
    began = time.process_time()
    with path.open("rb") as stream:
        try:
            read_snapshot(stream)
            said = "read"
        except BadInput as error:
            said = error.what
    print(json.dumps([path.name, said, time.process_time() - began]), flush=True)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, float]]:
    """What each of the corpus gets, by one process whose memory is bounded: the sentence, and the seconds it took."""
    folder = tmp_path_factory.mktemp("corpus")
    for one in CORPUS:
        (folder / one.name).write_bytes(one.content)
    done = subprocess.run(
        [sys.executable, "-c", _READS_EACH, str(folder)], capture_output=True, text=True, timeout=170,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES)),
    )
    assert done.returncode == 0, (done.stdout[-300:], done.stderr)
    return {name: (said, took_s) for name, said, took_s in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("hostile", CORPUS, ids=[one.name for one in CORPUS])
def test_a_sentence_and_nothing_run(hostile: Hostile, answers: dict[str, tuple[str, float]]) -> None:
    said, took_s = answers[hostile.name]
    assert hostile.says in said
    assert took_s < _LONGEST_S
    assert not Path(MADE).exists()


@pytest.mark.parametrize("name", ["code-as-segments-4", "colours-in-a-name", "cut-at-30"])
def test_the_command_says_where_and_what_next(name: str, tmp_path: Path) -> None:
    hostile = next(one for one in CORPUS if one.name == name)
    path = tmp_path / "rank0.pickle"
    path.write_bytes(hostile.content)
    done = subprocess.run([sys.executable, "-m", "runbook", "snapshot", str(path)], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("runbook: rank0.pickle is not read: ")
    assert f"where: {path}, byte " in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert not Path(MADE).exists()


def test_the_corpus_would_run_code_elsewhere(tmp_path: Path) -> None:
    """Else the tests above could not fail."""
    target = tmp_path / "made"
    first = next(iter(hostile_pickles(str(target))))
    subprocess.run([sys.executable, "-c", "import pickle, sys; pickle.load(sys.stdin.buffer)"], input=first.content)
    assert target.is_dir()


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol_is_read(protocol: int) -> None:
    """PyTorch writes with Python's default, which has changed, and from C++ with protocol 2."""
    frames = [{"filename": "train.py", "line": 7, "name": "forward"}]
    entry = {"action": "alloc", "addr": 0x7F0000000000, "size": 1000, "stream": 0, "time_us": 5, "frames": frames}
    block = {"address": 0x7F0000000000, "size": 1024, "requested_size": 1000, "state": "active_allocated",
             "frames": frames}
    segment = {"device": 0, "address": 0x7F0000000000, "total_size": 2 << 20, "stream": 0, "segment_type": "small",
               "segment_pool_id": (0, 0), "is_expandable": False, "blocks": [block]}
    settings = {"expandable_segments": True}
    document = {"segments": [segment], "device_traces": [[entry], []], "allocator_settings": settings}
    found = read_snapshot(io.BytesIO(pickle.dumps(document, protocol)))
    assert found.segments[0].blocks[0].requested == 1000
    assert found.traces == {0: range(1)}
    assert found.stacks[found.events.stacks[0]][0].name == "forward"
    assert found.stacks[found.segments[0].blocks[0].stack][0].file == "train.py"
    assert found.settings.expandable_segments is True


def test_more_than_may_be_is_refused() -> None:
    with pytest.raises(BadInput, match="text"):
        read_snapshot(io.BytesIO(b"\x80\x04](" + (b"X\x00\x00\x10\x00" + b"x" * (1 << 20)) * 300 + b"e."))
