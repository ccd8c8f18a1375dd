"""What another line settles: the kernel's on a card, a launcher's on a status, a bar's own clock, the next try."""

from __future__ import annotations

import io

import pytest

from runbook.diagnosis import diagnose
from runbook.model.diagnosis import Detail, Diagnosis
from runbook.model.log import LogStory
from runbook.report.vocabulary.sentences import in_words
from tests.kinds import MEANINGS, Kind
from tests.logs.corpus import reader

_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.11 GiB memory in use. Of the "
    "allocated memory 76.20 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
)
_LAUNCH = (
    "[rank5]: Traceback (most recent call last):\n"
    '[rank5]:   File "/proj/train.py", line 90, in main\n'
    "[rank5]:     value = loss.item()\n"
    "[rank5]: RuntimeError: CUDA error: unspecified launch failure"
)
_STAMP = "[Tue Apr 14 02:11:09 2026] "
_KERNEL = "NVRM: Xid (PCI:0000:8d:00): {code}, pid=1812, name=python3, text of the driver"


def _story(text: str) -> LogStory:
    content = text.encode()
    return reader().read([("train.log", io.BytesIO(content), len(content))])


def _judged(story: LogStory) -> Diagnosis:
    return diagnose(story, meanings=MEANINGS, job=None)


@pytest.mark.parametrize("code", [48, 79])
@pytest.mark.parametrize("behind", [False, True])
def test_an_xid_of_the_card_settles_a_launch_failure_wherever_it_stands(code: int, behind: bool) -> None:
    kernel = _STAMP + _KERNEL.format(code=code)
    story = _story("\n".join([_LAUNCH, kernel, ""] if behind else [kernel, _LAUNCH, ""]))
    assert _judged(story).best.kind == Kind.HARDWARE_FAULT
    assert story.root_cause is not None and story.root_cause.rank == 5


@pytest.mark.parametrize("code", [13, 31, 43, 45])
@pytest.mark.parametrize("behind", [False, True])
def test_an_xid_of_the_program_does_not(code: int, behind: bool) -> None:
    kernel = _STAMP + _KERNEL.format(code=code)
    best = _judged(_story("\n".join([_LAUNCH, kernel, ""] if behind else [kernel, _LAUNCH, ""]))).best
    assert best.kind == Kind.NOT_OOM


def test_an_xid_behind_a_shortage_with_figures_does_not_undo_it() -> None:
    best = _judged(_story(f"Traceback (most recent call last):\n  File \"t.py\", line 1, in main\n{_OOM}\n"
                           f"{_STAMP}{_KERNEL.format(code=79)}\n")).best
    assert best.kind == Kind.TRUE_OOM


def test_a_kernel_line_of_another_day_is_not_this_job_s() -> None:
    start = "2026-04-20 02:00:00 INFO step 1 loss 2.0\n"
    best = _judged(_story(f"{start}{_LAUNCH}\n{_STAMP}{_KERNEL.format(code=79)}\n")).best
    assert best.kind == Kind.NOT_OOM


def test_a_kernel_line_without_the_kernel_s_stamp_is_a_hint() -> None:
    best = _judged(_story(_KERNEL.format(code=79) + "\n")).best
    assert best.kind == Kind.HARDWARE_FAULT and best.confidence < 0.7
    assert any("anybody may print it" in in_words(reason) for reason in best.reasons)


_TABLE = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    "============================================================\ntrain.py FAILED\n"
    "------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n"
    "  time      : 2026-06-22_09:00:11\n  host      : ws-3\n  rank      : 0 (local_rank: 0)\n"
    "  exitcode  : {code} (pid: 521)\n  error_file: <N/A>\n"
    "============================================================\n"
)


@pytest.mark.parametrize(("said", "reported", "kind"), [
    (3, 3, Kind.NOT_OOM), (3, 1, Kind.UNDETERMINED), (137, 137, Kind.UNDETERMINED), (0, 0, Kind.UNDETERMINED),
])
def test_a_program_s_word_on_its_status_counts_where_the_launcher_reports_it(
    said: int, reported: int, kind: str
) -> None:
    story = _story(f"checksums differ, exiting with status {said}\n" + _TABLE.format(code=reported))
    assert _judged(story).best.kind == kind


def test_a_wrapper_that_repeats_the_launcher_s_status_says_nothing_new() -> None:
    assert _judged(_story(_TABLE.format(code=3) + "exiting with status 3\n")).best.kind == Kind.UNDETERMINED


@pytest.mark.parametrize(("bar", "detail"), [
    ("118/900 [03:11<21:08,  1.62s/it]", Detail.GROWN), ("118/900 [00:02<21:08,  1.62s/it]", Detail.STATIC),
    ("1/900 [00:02<21:08,  1.62s/it]", Detail.STATIC),
])
def test_a_bar_s_own_clock_says_how_many_steps_this_run_made(bar: str, detail: Detail) -> None:
    text = f' 13%|#3        | {bar}Traceback (most recent call last):\n  File "t.py", line 1, in main\n{_OOM}\n'
    assert _judged(_story(text)).best.detail is detail


_BAR = " 50%|#####     | {done}/{total} [01:00<01:00,  1.00s/it]\n"


def test_the_bar_of_the_next_try_counts() -> None:
    progress = _story(_BAR.format(done=60, total=100) + _OOM + "\nretrying with half the batch\n"
                      + _BAR.format(done=20, total=200) + _BAR.format(done=90, total=200)).progress
    assert (progress.last_step, progress.total_steps) == (90, 200)


def test_an_evaluation_s_bar_without_a_failure_before_it_does_not() -> None:
    progress = _story(_BAR.format(done=60, total=100) + _BAR.format(done=5, total=20)).progress
    assert (progress.last_step, progress.total_steps) == (60, 100)


def test_an_evaluation_behind_a_shortage_that_the_run_survived_does_not() -> None:
    progress = _story(_BAR.format(done=60, total=100) + _OOM + "\nskipping the batch\n"
                      + "".join(_BAR.format(done=done, total=100) for done in (61, 62, 63))
                      + _BAR.format(done=5, total=20)).progress
    assert (progress.last_step, progress.total_steps) == (63, 100)
