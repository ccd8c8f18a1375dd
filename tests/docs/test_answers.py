"""What the commands print with `--json` is what docs/json.md publishes: the frozen answers, and real ones where none is
frozen. The answers of `setup`, `canary`, `follow` and `incidents --watch` are held to it where those are tested."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from runbook.cli.main import main
from tests.json_answers import DOCS, check_answer

FROZEN = Path(__file__).resolve().parents[1] / "frozen" / "answers"
SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=8
srun torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 8 --global-batch-size 128 --num-layers 24 \\
    --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096 --bf16
"""
INVENTORY = """\
version: 1
id: here
title: This machine, for a test
cluster: here
scheduler: {kind: local}
nodes: {kind: none}
paths: {state: ./state, spool: ./state/spool}
"""


def test_every_schema_is_listed() -> None:
    listed = set(re.findall(r"\]\((schemas/[^)]+)\)", (DOCS / "json.md").read_text(encoding="utf-8")))
    assert listed == {path.relative_to(DOCS).as_posix() for path in (DOCS / "schemas").iterdir()}


def _printed(file: Path, head: str) -> Iterator[object]:
    """The documents that stand below a head of a frozen file."""
    text = file.read_text(encoding="utf-8")
    for part in re.split(r"(?m)^(?:===|#####) ", text)[1:]:
        first, _, below = part.partition("\n")
        if first == head and below.startswith(("{", "[")):
            yield json.JSONDecoder().raw_decode(below)[0]


def test_a_diagnosis() -> None:
    found = [one for file in (FROZEN / "logs").glob("*.txt") for one in _printed(file, "runbook diagnose --json")]
    assert len(found) > 100
    for one in found:
        check_answer("schemas/diagnose.json", one)


@pytest.mark.parametrize(("command", "schema"), [
    ("incidents --json", "incidents"), ("history --json", "history"), ("history --nodes --json", "history-nodes"),
])
def test_lists_of_incidents(command: str, schema: str) -> None:
    text = (FROZEN / "incidents" / "lists-others.txt").read_text(encoding="utf-8")
    below = text.partition(f"##### runbook {command}\n=== printed\n")[2]
    found = json.JSONDecoder().raw_decode(below)[0]
    assert found
    check_answer(f"schemas/{schema}.json", found)


def test_incidents() -> None:
    texts = [file.read_text(encoding="utf-8") for file in (FROZEN / "incidents").glob("*.json")]
    found = [json.loads(text) for text in texts if text.startswith("{")]  # of the largest only its sum is frozen
    assert len(found) > 8
    for one in found:
        assert one["contract"] in (None, {"version": 1})  # a stand-in of the samples: diagnoses are held above
        check_answer("incident-schema.json", one | {"contract": None})


def _asked(capsys: pytest.CaptureFixture[str], *words: str) -> object:
    with pytest.raises(SystemExit):
        main([*words, "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("line", [
    "signatures nccl", "explain 79", "explain true_oom", "explain PT-CUDA-07", "explain smaller_micro_batch", "levers",
    "levers megatron --kind host_oom", "template show job.sh", "template show job.sh --all",
    "patch --template job.sh --lever smaller_micro_batch --yes", "patch --template job.sh --set seq_length=128",
    "predict --template job.sh", "predict --template job.sh --gpus h100-80g --search micro_batch",
    "diagnose --why job.log", "prune --inventory ./here.yaml",
])
def test_commands_on_files(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.sh").write_text(SCRIPT, encoding="utf-8")
    Path("job.log").write_text("3: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    Path("here.yaml").write_text(INVENTORY, encoding="utf-8")
    Path("state").mkdir(mode=0o700)
    words = line.split()
    command = "-".join(words[:2]) if words[0] == "template" else words[0]
    check_answer(f"schemas/{command}.json", _asked(capsys, *words))
