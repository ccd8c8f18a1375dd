"""Looking at templates, measured: a script of 2,000 lines, a YAML file of 5,000, and the lever documents.

"work" is everything that `runbook template show` does once Python, its modules and the lever documents are there:
reading the files, recognising the system, finding every parameter, judging checkpoints, laying out the text.

    RUNBOOK_BENCH_ONLY=templates make bench       nothing but this file's figures
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kinds import KINDS

if TYPE_CHECKING:
    from runbook.remedy import LeverDocument

_RUNS = 7
_SCRIPT_LINES = 2000
_YAML_LINES = 5000


def script(lines: int = _SCRIPT_LINES) -> str:
    """A Megatron launch script with the bulk of a real one: comments, exports, functions, settings that are copied
    from variable to variable, branches; the options at its end."""
    head = ["#!/bin/bash", "#SBATCH --nodes=64", "#SBATCH --gpus-per-node=8", "MBS=${MBS:-4}", "GBS=1024"]
    tail = [
        "ARGS=(", "    --micro-batch-size $MBS", "    --global-batch-size $GBS", "    --seq-length 4096",
        "    --tensor-model-parallel-size 4", "    --recompute-granularity selective", "    --save $OUT/ckpt",
        "    --load $OUT/ckpt", ")", 'srun torchrun --nproc_per_node 8 pretrain_gpt.py "${ARGS[@]}"', "",
    ]
    body = ["OUT=/ckpt/run"]
    at = 0
    while len(head) + len(body) + len(tail) < lines:
        at += 1
        body += [
            f"# data set {at}: tokenised again after the change of the vocabulary",
            f'DATA_{at}="0.{at % 97} /data/part-{at}/text_document"',
            f"export NOTE_{at}=${{NOTE_{at - 1}:-none}}",
            f'if [ "$SKIP_{at}" = 1 ]; then',
            f"    echo 'part {at} is left out'",
            "fi",
        ]
    return "\n".join([*head, *body[: lines - len(head) - len(tail)], *tail])


def yaml(lines: int = _YAML_LINES) -> str:
    """A configuration with long lists and many sections that are not about memory."""
    told = [
        "experiment_name: long", "trial_name: t0", "actor:", "  mb_spec:", "    max_tokens_per_mb: 32768",
        "  gradient_checkpointing: false", "sglang:", "  mem_fraction_static: 0.8", "train_dataset:",
        "  batch_size: 256", "recover:", "  mode: auto",
    ]
    at = 0
    while len(told) < lines:
        at += 1
        told += [
            f"environment_{at}:", f"  name: task-{at}", f"  weight: 0.{at % 97}", "  sources:",
            f"    - /data/{at}/a.parquet", f"    - /data/{at}/b.parquet", "  limits: {turns: 8, tokens: 4096}",
        ]
    return "\n".join(told[:lines]) + "\n"


def templates(row: Callable[..., None]) -> None:
    """Print the figures through `row(name, seconds, unit, note)`."""
    from runbook.locations import data_folder
    from runbook.remedy import load_levers, read_levers

    folder = data_folder("playbooks") / "oom" / "levers"
    row("lever documents, parsed and checked", _timed(lambda: read_levers(folder, KINDS), 5))
    row("lever documents, as they are remembered", _timed(lambda: load_levers(folder), _RUNS))
    documents = load_levers(folder)
    with tempfile.TemporaryDirectory() as place:
        job = Path(place) / "job.sbatch"
        job.write_text(script(), encoding="utf-8")
        config = Path(place) / "grpo.yaml"
        config.write_text(yaml(), encoding="utf-8")
        named = Path(place) / "run.sh"
        named.write_text(
            "#!/bin/bash\npython3 -m areal.launcher.slurm train.py --config grpo.yaml scheduler.type=slurm\n", "utf-8"
        )
        for name, path in (
            (f"template show: script of {_SCRIPT_LINES} lines, work", job),
            (f"template show: YAML of {_YAML_LINES} lines, work", config),
            ("template show: script that names that YAML, work", named),
        ):
            row(name, _timed(partial(_look, path, documents), _RUNS), note="   aim: under 100 ms")
        row(f"runbook template show, script of {_SCRIPT_LINES} lines", _process("template", "show", str(job)))
        row(f"runbook template show, YAML of {_YAML_LINES} lines", _process("template", "show", str(config)))
        row("runbook levers", _process("levers"))


def _look(path: Path, documents: Sequence[LeverDocument]) -> None:
    from runbook.cli.files.job_files import read_job_files
    from runbook.cli.files.template import view_of
    from runbook.model.log import LogStory
    from runbook.remedy.recognition import _first_in
    from runbook.template.bash.script import _walk_alone
    from runbook.template.config.edit import read_config

    _first_in.cache_clear()
    _walk_alone.cache_clear()  # what an earlier run remembers is none of a new process's
    read_config.cache_clear()
    job = read_job_files(path)
    reading = job.reading(documents, LogStory(root_cause=None))
    assert reading.system is not None, f"{path} was not recognised"
    view = view_of(job, reading, None, with_rest=False)
    assert any(item.setting is not None for item in view.rows)
    view.lines(120)


def _timed(work: Callable[[], object], runs: int) -> list[float]:
    work()
    figures = []
    for _ in range(runs):
        started = time.perf_counter()
        work()
        figures.append(time.perf_counter() - started)
    return figures


def _process(*words: str) -> list[float]:
    return _timed(
        lambda: subprocess.run((sys.executable, "-m", "runbook", *words), check=True, capture_output=True), 5
    )


def main() -> None:
    def row(name: str, figures: list[float], unit: str = "ms", note: str = "") -> None:
        low, middle, high = (1000 * value for value in (min(figures), statistics.median(figures), max(figures)))
        print(f"{name:<52} {middle:8.1f} {unit}   ({low:.1f} to {high:.1f}, {len(figures)} runs){note}", flush=True)

    print(f"load {os.getloadavg()[0]:.1f}")
    templates(row)


if __name__ == "__main__":
    main()
