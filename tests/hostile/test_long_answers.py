"""What Slurm keeps of a user's words, of any length that it takes: read in time that grows with the length alone.

Each case took minutes, or the memory of the machine, before; the limit is wide, so that a busy machine keeps it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

_LIMIT_S = 60
_MEMORY_BYTES = 1 << 30

ENVIRONMENT = """
from runbook.slurm.accounting import read_stored_text
body = "A=" + "Environment used for " * 100_000 + "\\nB=2\\n"
title = "Environment used for 41\\n--------\\n"
assert read_stored_text(title + body + "\\n") == body
assert read_stored_text(title + body + title + "other\\n") == body[:-1]
"""
SUBMIT_LINE = """
from runbook.slurm.sbatch_options import parse_submit_line
words = ["a"] * 500_000
told = parse_submit_line("sbatch --comment a a job.sh " + " ".join(words), known={"comment": "a a"}, script="job.sh")
assert told.script == "job.sh" and list(told.arguments) == words and told.value("comment") == "a a"
"""
OPTIONS = """
from runbook.slurm.sbatch_options import parse_submit_line
told = parse_submit_line("sbatch " + "-n 1 " * 250_000 + "-" + "v" * 500_000 + " job.sh x")
assert told.script == "job.sh" and told.value("ntasks") == "1" and told.arguments == ("x",)
"""
HEADER = """
from runbook.errors import BadInput
from runbook.slurm.sbatch_options import header_options
try:
    header_options("#!/bin/sh\\n#SBATCH --comment=" + "a" * 4_000_000 + "\\n")
except BadInput as error:
    assert "more than" in error.what
else:
    raise AssertionError("read")
"""
STEPS = """
from runbook.slurm.accounting import COLUMNS, read_jobs
known = {column.lower() for column in COLUMNS} - {"stdout", "stderr"}
columns = [column for column in COLUMNS if column.lower() in known]
def row(**values):
    return "".join(values.get(column, "") + "~separator~" for column in columns) + "\\n"
long = "/home/a/" + "x" * 3_600
text = row(JobID="7", User="a", UID="1", State="FAILED", ExitCode="1:0", JobName="t", WorkDir="/home/a",
           SubmitLine="sbatch job.sh", NodeList="n1", NNodes="1")
for number in range(500):
    text += row(JobID=f"7.{number}", State="FAILED", ExitCode="1:0", NTasks="512", NodeList="n1",
                SubmitLine=f"srun -n 512 --output={long}/{number}.%t app")
job, = read_jobs(text, known, "~separator~")
assert job.more_log_paths[-1] == long + "/499.511"
assert 500 < len(job.more_log_paths) <= 8192 and sum(map(len, job.more_log_paths)) <= 4 << 20
"""

SAME = STEPS[: STEPS.index("for number")] + """
for number in range(40):
    text += row(JobID=f"7.{number}", State="FAILED", ExitCode="1:0", NTasks="4096", NodeList="n1",
                SubmitLine="srun -n 4096 --output=/home/a/out.%s --error=/home/a/err.%s app")
job, = read_jobs(text, known, "~separator~")
assert list(job.more_log_paths) == [f"/home/a/{name}.{step}" for step in range(40) for name in ("out", "err")]
"""

COMPOSITION = """
import tempfile
from pathlib import Path
from runbook.steps.shared.companion_files import composed_options
folder = Path(tempfile.mkdtemp())
def defaults(level):
    return "defaults:\\n" + "".join(f"- l{level}_{number}\\n" for number in range(40)) + "batch: 4\\n"
(folder / "config.yaml").write_text(defaults(1))
for level in range(1, 5):
    for number in range(40):
        (folder / f"l{level}_{number}.yaml").write_text(defaults(level + 1))
class Sources:
    asked = 0
    def source_of(self, path):
        self.asked += 1
        return Path(path).read_bytes() if Path(path).is_file() else None
sources = Sources()
assert composed_options(sources, str(folder / "config.yaml"), {}) == [] and sources.asked < 2_000, sources.asked
"""


@pytest.mark.parametrize(
    "program", [ENVIRONMENT, SUBMIT_LINE, OPTIONS, HEADER, STEPS, SAME, COMPOSITION],
    ids=["the title in the environment", "a submit line of many words", "of many options", "a long header line",
         "the logs of many steps", "of many tasks that share them", "a configuration of many parts"],
)
def test_what_slurm_keeps_is_read_in_time(program: str) -> None:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY_BYTES}, {_MEMORY_BYTES}))\n"
    done = subprocess.run(
        (sys.executable, "-c", limit + program), capture_output=True, text=True, check=False, timeout=_LIMIT_S
    )
    assert done.returncode == 0, done.stderr
