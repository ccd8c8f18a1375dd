"""Launch templates that were written to hold up whoever reads them: read in bounded time and memory, and what was not
read is said and never taken for absent."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runbook.model.checkpoint import DirectoryEntry
from runbook.model.job import JobClass, JobRecord, JobState
from runbook.model.template import SubmitContext, TemplateFile
from runbook.model.units import JobId, UserName
from runbook.steps.shared.companion_files import read_companions
from runbook.template import all_settings, named_files, settings_in_force
from tests.contract.fakes import FakeFiles
from tests.hostile import template_files
from tests.hostile.read_template import NAMES

_SAID = ("so it was cut", "nested deeper", "grows past", "bytes, and no more", "aliases counted", "is indented by")


@dataclass(frozen=True)
class Read:
    """What a file of `template_files` came to."""

    path: str
    everything: list[str]
    names: list[str]
    wanted: dict[str, list[str | None]]
    """By parameter: its value, and why it is not known."""
    refused: str


def read(kind: str) -> list[Read]:
    """All files of a kind. One that is past the child's limits is the last that it names."""
    command = (sys.executable, "-m", "tests.hostile.read_template", kind)
    answer = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert answer.returncode == 0, f"rc {answer.returncode} at {answer.stderr[-1000:]}"
    return [Read(**json.loads(line)) for line in answer.stdout.splitlines()]


def is_said(text: str) -> bool:
    return any(words in text for words in _SAID)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "wanted"), [("cut_scripts", {"micro_batch", "key", "allocator"}), ("cut_configs", {"key"})]
)
def test_past_a_budget_nothing_is_known_and_nothing_is_changed(kind: str, wanted: set[str]) -> None:
    for found in read(kind):
        assert is_said(str(found.everything)) and is_said(found.refused), found.path
        assert set(found.wanted) == wanted, found.path
        assert all(value is None and is_said(str(why)) for value, why in found.wanted.values()), found.path


def test_where_only_the_list_of_everything_is_too_long_the_rest_is_known() -> None:
    for found in read("long_lists"):
        assert "so it was cut" in str(found.everything), found.path
        assert found.wanted == {"micro_batch": ["8", ""]} and not found.refused, found.path


@pytest.mark.timeout(600)
def test_strange_files_are_read_to_their_end() -> None:
    assert all(not is_said(str(found.everything)) for found in read("endured_files") if found.path != "itself.yaml")


_WORDS = (
    "$", '"', "'", "`", "(", ")", "{", "}", "[", "]", "<<E\n", "\n", " ", ";", "&", "|", "#", "\\", "${a:-", "$((", "a",
    "x=", "if ", "then ", "fi\n", "case a in ", "srun ", "-", ":", "*", "&a ", "*a", "- ", "? ", "1", ",", "=",
)


@settings(max_examples=150, deadline=None)
@example([("- ", 300)], "a.yaml")
@example([("? ", 389), ("}", 349)], "a.yaml")
@given(
    st.lists(st.tuples(st.sampled_from(_WORDS), st.integers(1, 400)), min_size=1, max_size=12),
    st.sampled_from(("a.sh", "a.yaml", "a.json", "a.toml", "a.py")),
)
def test_whatever_is_nested_is_read_or_refused(parts: list[tuple[str, int]], path: str) -> None:
    """Every construct in every other, hundreds of times. The parser of YAML ended the process for 300 times `- `."""
    opened = "".join(word * times for word, times in parts)
    file = TemplateFile(path, ("#!/bin/bash\n" if path == "a.sh" else "") + opened)
    all_settings((file,))
    named_files(file)
    settings_in_force((file,), NAMES)


OWNER = UserName("alice")
JOB = JobRecord(JobId("1"), "c", "job", OWNER, JobState("FAILED", JobClass.FAILED), work_dir="/work")


class CountedFiles(FakeFiles):
    """Files in memory that count how often they were asked."""

    asked = 0

    def entries(self, folder: str, owner: UserName, depth: int = 1) -> tuple[DirectoryEntry, ...]:
        self.asked += 1
        return super().entries(folder, owner, depth)


def test_thousands_of_files_are_not_all_looked_for() -> None:
    files = CountedFiles({"/data/there": b""})
    text = "".join(f"srun python t.py --config c{at}.yaml\n" for at in range(1_000))
    found, unread = read_companions(files, JOB, TemplateFile("job.sh", f"#!/bin/bash\n{text}"), SubmitContext())
    assert not found and files.asked <= 100
    assert len(unread) == 21 and unread[-1].endswith("further files that are named")


def test_files_that_name_each_other_without_end_are_read_once() -> None:
    other = b"#!/bin/bash\nsource /data/%s.sh\nbash /data/%s.sh\n"
    texts = {"/data/a.sh": other % (b"b", b"b"), "/data/b.sh": other % (b"a", b"a")}
    script = TemplateFile("/data/a.sh", texts["/data/a.sh"].decode())
    found, unread = read_companions(CountedFiles(texts), JOB, script, SubmitContext())
    assert [item.file.path for item in found] == ["/data/b.sh"] and not unread


def test_a_script_that_is_past_a_budget_leaves_every_key_open() -> None:
    script = next(template_files.cut_scripts())
    found, unread = read_companions(CountedFiles(), JOB, script, SubmitContext())
    assert not found and "a value grows past" in unread[0]


def test_what_a_script_names_is_kept_up_to_a_bound() -> None:
    """An incident is written again at each box, with the texts of all files that its script names."""
    large = {f"/data/{name}.yaml": f"size: {name}\n".encode() + b"# filled\n" * 100_000 for name in "abcd"}
    script = TemplateFile("job.sh", "#!/bin/bash\n" + "".join(f"python train.py --config {path}\n" for path in large))
    found, unread = read_companions(CountedFiles(large), JOB, script, SubmitContext())
    assert [item.file.path[-6:] for item in found] == ["a.yaml", "b.yaml"]
    assert len(unread) == 2 and all("more than 2 MiB together" in sentence for sentence in unread)
